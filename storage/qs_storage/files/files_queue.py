"""A queue of the vsqs layout.

A file without extension is ready, with a number hidden until then (in flight or delayed), with `.new` being written.
Any number of processes may share the directory, also the original vsqs: a rename succeeds for one of them.
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
    """Opens the queue in a directory. clears_unfinished: whether to remove files of crashed writers. OSError."""
    directory = MessageDirectory(path, qid, options, shared)
    writer = FileWriter(directory, clears=clears_unfinished)
    listing = FileListing(directory, writer)
    mover = FileMover(directory, writer)
    return DirectoryQueue(path, qid, options, shared, directory, writer, listing, lambda: None, mover)
