"""The rule by which messages become too old for their queue, and what is asked of `retention` before anything changes.

A message's age goes by its id, which is a time: of its push, of its death in a dead-letter queue, or, for a copy, of
the push of the original.
"""

from .engine import Options, UnsupportedError

_STORAGES = ("dirq", "dirq-simple", "files", "journal", "sqs")
"""The storages that remove old messages."""


def refuse_retention(options: Options) -> None:
    """Raises UnsupportedError if a queue should remove old messages, and its storage cannot."""
    if options.retention is not None and options.storage not in _STORAGES:
        raise UnsupportedError(
            f"the storage {options.storage!r} does not remove old messages: 'retention' is for queues of the storages "
            + ", ".join(map(repr, _STORAGES))
        )


def too_old_since(options: Options, now: int) -> int | None:
    """Returns a time, and messages of that time and before are too old; None if none is. now, result: microseconds
    since the Epoch."""
    return None if options.retention is None or now < options.retention else now - options.retention


def too_old_upto(options: Options, now: int, unit: int) -> int:
    """Returns the greatest id that is too old, -1 if none is. now: microseconds since the Epoch; unit: microseconds of
    1 in an id."""
    time = too_old_since(options, now)
    return -1 if time is None else time // unit


def end_of(options: Options, pushed_at: int) -> int | None:
    """Returns when a message of that age is too old, None for never. pushed_at, result: microseconds since the
    Epoch."""
    return None if options.retention is None else pushed_at + options.retention
