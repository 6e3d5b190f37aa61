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
from .writer import FileWriter


def open_files_queue(
    path: str, qid: str, options: Options, shared: Shared, *, clears_unfinished: bool = True
) -> DirectoryQueue:
    """Opens the queue in a directory. clears_unfinished: whether a file that is being written and has not changed for
    long is removed. OSError."""
    directory = MessageDirectory(path, qid, options, shared)
    writer = FileWriter(directory, clears=clears_unfinished)
    listing = FileListing(directory, writer)
    mover = FileMover(directory, writer)
    return DirectoryQueue(path, qid, options, shared, directory, writer, listing, lambda: None, mover)
