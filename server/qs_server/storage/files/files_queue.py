"""A queue of the vsqs layout.

A file without an extension is ready; with a number it is hidden until then (in flight or delayed); with `.new` it is
being written. Any number of processes may work on the directory at once, also the original vsqs: a rename succeeds
for one of them, and ENOENT means that another one was faster.
"""

from ..directory_queue import DirectoryQueue
from ..engine import Options
from ..shared import Shared
from .directory import MessageDirectory
from .listing import FileListing
from .moving import FileMover
from .staging import Staging
from .writer import FileWriter


def open_files_queue(
    path: str, qid: str, options: Options, shared: Shared, *, clears_unfinished: bool = True
) -> DirectoryQueue:
    """Opens the queue in a directory. clears_unfinished: whether a file that is being written and has not changed for
    long is removed. OSError."""
    staging = Staging(path, shared.disk, sync=shared.always)
    is_ours = staging.holds if clears_unfinished else lambda name: True
    directory = MessageDirectory(path, qid, options, shared)
    listing = FileListing(qid, directory, shared, is_ours)
    writer = FileWriter(qid, directory, staging, shared, listing.clear_left_behind)
    mover = FileMover(qid, directory, writer, shared)
    return DirectoryQueue(path, qid, options, shared, directory, writer, listing, lambda: None, mover)
