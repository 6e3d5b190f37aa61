"""When messages are too old for their queue, by their id: the time of the push, of the death in a dead-letter queue,
or for a copy of the push of the original."""

from .engine import Options, UnsupportedError

_STORAGES = ("dirq", "dirq-simple", "files", "journal", "sqs")
"""Storages that remove old messages."""


def refuse_retention(options: Options) -> None:
    """Raises UnsupportedError for a retention in another storage."""
    if options.retention is not None and options.storage not in _STORAGES:
        raise UnsupportedError(
            f"the storage {options.storage!r} does not remove old messages: 'retention' is for queues of the storages "
            + ", ".join(map(repr, _STORAGES))
        )


def too_old_since(options: Options, now: int) -> int | None:
    """Returns the time up to which messages are too old, None: none is. Microseconds since the Epoch."""
    return None if options.retention is None or now < options.retention else now - options.retention


def too_old_upto(options: Options, now: int, unit: int) -> int:
    """Returns the greatest id that is too old, -1: none. now: microseconds; unit: microseconds of 1 in an id."""
    time = too_old_since(options, now)
    return -1 if time is None else time // unit


def end_of(options: Options, pushed_at: int) -> int | None:
    """Returns when a message is too old, None: never. Microseconds since the Epoch."""
    return None if options.retention is None else pushed_at + options.retention
