"""The place of a record: its segment's number and its byte in the segment, packed into one number.

Places increase in the order in which records are written.
"""

from typing import NamedTuple

_SHIFT = 32
_MASK = (1 << _SHIFT) - 1


def place_of(segment: int, start: int) -> int:
    return segment << _SHIFT | start


def segment_of(place: int) -> int:
    return place >> _SHIFT


def start_of(place: int) -> int:
    return place & _MASK


def segment_name(number: int) -> str:
    return f"{number:016d}.segment"


class Position(NamedTuple):
    """A position in the log. start: byte of the segment where the next frame begins; sequence: that frame's number."""

    segment: int
    start: int
    sequence: int
