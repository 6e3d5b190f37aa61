"""Ids of messages that are elements of a dirq queue: the 14 hexadecimal digits of the name, as a number.

A name is `SSSSSSSSMMMMMR`: seconds since the Epoch, microseconds, and a digit that tells apart what two programs add
in the same microsecond. So the order of ids is that of time.
"""

from ..engine import SECOND

MAX_MID = 16**14 - 1
FAR = 0xF0000000 << 24
"""Ids from here on (the year 2097) are a slip of whoever made the element."""


def name_of(mid: int) -> str:
    """Returns the name of an element inside of its intermediate directory."""
    return f"{mid:014x}"


def mid_of(name: str) -> int:
    """Returns the id that 14 hexadecimal digits stand for."""
    return int(name, 16)


def time_of(mid: int) -> int:
    """Returns when the element was added, in microseconds since the Epoch."""
    return (mid >> 24) * SECOND + (mid >> 4 & 0xFFFFF)


def mid_at(time: int, digit: int) -> int:
    """Returns the id of an element that is added then. digit: 0 to 15."""
    seconds, micros = divmod(time, SECOND)
    return seconds << 24 | micros << 4 | digit


def following(mid: int) -> int:
    """Returns the next id: after the last digit comes the next microsecond, after the last microsecond the next
    second."""
    mid += 1
    return mid if (mid >> 4 & 0xFFFFF) < SECOND else (mid >> 24) + 1 << 24
