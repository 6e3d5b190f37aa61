"""Refuses to take messages out of a queue's directory while they are in a journal."""

import os

from .engine import StorageError
from .journal.lock import is_in_use
from .names import JOURNAL
from .settings import read_options


class QueueInUseError(StorageError):
    """The messages of the queue are in a journal, and not in its directory."""


def check_no_server(path: str) -> None:
    """Raises QueueInUseError for a directory that is a queue of a journal: its files are on their way into that. See
    docs/storage.md, "Moving messages in and out"."""
    root = os.path.dirname(os.path.realpath(path))
    running = is_in_use(os.path.join(root, JOURNAL))
    if read_options(path, "journal" if running else "files").storage != "journal":
        return
    if running:
        raise QueueInUseError(
            f"a server is running on {root}, and has the messages of this queue in its journal (storage 'journal'): "
            "`qs receive` and `qs export` take them out"
        )
    raise QueueInUseError(
        f"the messages of this queue are in the journal of {root} (storage 'journal'): start the server, or use "
        "`queue-journal.py export`, which writes them to files"
    )
