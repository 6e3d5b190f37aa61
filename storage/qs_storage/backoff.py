"""The back-off of a queue: how long a message that was received in vain stays hidden before it is visible again.

In vain is a receive that counts and ends without a delete, a reject, or a delay of its own: the message is released,
its window ends, or its subscriber goes. The message is `delayed` until the back-off is over. How long follows from the
queue's options, the message's id and its receives alone. So a window that ends while no server runs leads to the same
moment, and every start computes it again.
"""

from .engine import SECOND, Options, UnsupportedError

DEFAULT_MAX = 3600 * SECOND
"""The longest back-off of a queue that names none."""
_STORAGES = ("dirq", "dirq-simple", "files", "journal")
"""Storages with back-off."""
_SPREAD = 10
"""A back-off is up to one tenth shorter or longer, so that jobs that failed together do not all come back together."""
_BITS = 20
"""Bits of the number that chooses within the spread."""
_FACTOR = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: the products of adjacent ids, modulo 2**64, are far apart (Knuth, TAOCP 3, 6.4).
The ids of a list of messages are adjacent."""


def backoff_of(options: Options, mid: int, receives: int) -> int:
    """Returns for how long a message is hidden that was received in vain: microseconds, 0 without back-off. receives:
    how often it was received, this time included."""
    if options.backoff is None or receives < 1:
        return 0
    longest = DEFAULT_MAX if options.backoff_max is None else options.backoff_max
    # No more doublings than reach the longest of all: 2**1000 is no number to multiply with.
    wanted = min(options.backoff << min(receives - 1, 60), longest)
    chosen = ((mid + receives) * _FACTOR & (1 << 64) - 1) >> 64 - _BITS
    return max(wanted + wanted * (2 * chosen - (1 << _BITS)) // (_SPREAD << _BITS), 1)


def contradiction_in(options: Options) -> str | None:
    """Returns what is wrong about the back-off of these options, None if nothing is."""
    if options.backoff is None:
        return None if options.backoff_max is None else "'backoff-max' needs a 'backoff', which is what it bounds"
    longest = DEFAULT_MAX if options.backoff_max is None else options.backoff_max
    if options.backoff <= longest:
        return None
    return f"'backoff' is longer than 'backoff-max', which is {longest / SECOND:g} seconds"


def refuse_backoff(options: Options) -> None:
    """Raises UnsupportedError for a back-off in another storage."""
    if options.backoff is not None and options.storage not in _STORAGES:
        raise UnsupportedError(
            f"the storage {options.storage!r} has no back-off: 'backoff' is for queues of the storages "
            + ", ".join(map(repr, _STORAGES))
        )
