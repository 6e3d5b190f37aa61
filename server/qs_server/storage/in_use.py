"""Whether a queue's directory shows all of the queue: not while a server has it in its journal."""

import os

from .engine import StorageError
from .journal.lock import is_in_use
from .settings import read_options

JOURNAL = ".journal"
"""In a root, as `journal.keeper` has it: to import that would take as long as all the rest."""


class QueueInUseError(StorageError):
    """A server has the queue, and would not know of what is done to it."""


def check_no_server(path: str) -> None:
    """QueueInUseError when a server's journal has this queue of the layout vsqs: what is in the directory is not all of
    it, and the server is the only one that may take messages out. docs/storage.md, "Who may touch it"."""
    root = os.path.dirname(os.path.realpath(path))
    if is_in_use(os.path.join(root, JOURNAL)) and read_options(path, "journal").storage == "journal":
        raise QueueInUseError(
            f"a server is running on {root}, and has this queue in its journal (storage 'journal'): use `qs` and the "
            "server, or stop it"
        )
