"""A queue of the server in a dirq directory.

An element is ready unless it is locked, as dirq's consumers lock it: in flight or delayed. Any number of processes
may share the directory, as a lock succeeds for one of them.
"""

from ..directory_queue import DirectoryQueue
from ..engine import Options
from ..shared import Shared
from .element_state import Elements
from .layout import Layout
from .listing import ElementListing
from .places import Places
from .queue_layout import QueueLayout
from .schema import body_of
from .simple_layout import SimpleLayout
from .writer import ElementWriter


def open_dirq_queue(path: str, qid: str, options: Options, shared: Shared) -> DirectoryQueue:
    """Opens the queue in a directory. OSError; StorageError if elements of its schema cannot be messages."""
    places = Places(shared.watch)
    layout: Layout
    if options.storage == "dirq":
        layout = QueueLayout(path, shared.disk, body_of(options), places, sync=shared.always)
    else:
        layout = SimpleLayout(path, shared.disk, places, sync=shared.always)
    elements = Elements(path, qid, options, shared, layout, places)
    listing = ElementListing(elements)
    places.on_new_folder = listing.folder_made
    writer = ElementWriter(elements)
    return DirectoryQueue(path, qid, options, shared, elements, writer, listing, layout.dismantle)
