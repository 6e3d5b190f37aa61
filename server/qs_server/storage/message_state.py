"""The state of a message in a directory that other programs share."""

from typing import NamedTuple

FOREIGN = 1 << 62
"""The end of a lock that another program has made: nobody knows it."""


class MessageState(NamedTuple):
    """A message as it was a moment ago. hidden: 0 when it is ready, FOREIGN, or the end of its window or delay, as a
    number of the layout; receives: how often it was received; delayed: whether it is hidden by a delay."""

    hidden: int
    receives: int
    delayed: bool = False
