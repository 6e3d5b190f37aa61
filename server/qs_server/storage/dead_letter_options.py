"""Checks options of dead letters before anything changes."""

import os
from collections.abc import Mapping

from .engine import DeadLetterCycleError, Options, UnsupportedError
from .names import directory_of
from .settings import read_options

_STORAGES = ("files", "journal", "sqs")
"""Storages with dead letters."""
REDRIVING = "'files' and 'journal'"
"""Storages that can take a receive back and move dead letters back."""


def refuse_uncounted(storage: str, *, count: bool) -> None:
    """Raises UnsupportedError for a storage that cannot take a receive back (count=False)."""
    if not count:
        raise UnsupportedError(f"the storage {storage!r} cannot take a receive back (count='no'): {REDRIVING} can")


def refuse_dead_letters(options: Options) -> None:
    """Raises UnsupportedError for a dead-letter queue of a storage without dead letters."""
    if options.dead_letter and options.storage not in _STORAGES:
        raise UnsupportedError(
            f"the storage {options.storage!r} has no dead letters: 'dead-letter' is for queues of the storages "
            + " and ".join(map(repr, _STORAGES))
        )


def storage_in(root: str, qid: str, default: str) -> str | None:
    """Returns a queue's storage, None without a queue. default: of a queue without options. StorageError, OSError."""
    path = f"{root}/{directory_of(qid)}"
    return read_options(path, default).storage if os.path.isdir(path) else None


def check_dead_letter(qid: str, options: Options, queues: Mapping[str, Options], storage: str | None) -> None:
    """queues: the options of all; storage: of the dead-letter queue, None if there is none yet. UnsupportedError for
    one of another storage, DeadLetterCycleError."""
    refuse_dead_letters(options)
    name = options.dead_letter
    if name and name != qid and storage not in (None, options.storage):
        raise UnsupportedError(
            f"the dead-letter queue {name!r} has the storage {storage!r}: it has to be that of the queue, "
            f"{options.storage!r}"
        )
    chain = [qid]
    while name and name not in chain[1:]:
        chain.append(name)
        if name == qid:
            raise DeadLetterCycleError(f"dead-letter queues must not form a cycle: {' -> '.join(map(repr, chain))}")
        name = queues[name].dead_letter if name in queues else ""
