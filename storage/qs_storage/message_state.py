"""The state of a message in a directory that other programs share."""

from typing import NamedTuple

FOREIGN = 1 << 62
"""The end of another program's lock, which nobody knows."""


class MessageState(NamedTuple):
    """hidden: 0 when it is ready, FOREIGN, or the end of a window or delay, in the layout's unit."""

    hidden: int
    receives: int
    delayed: bool = False
