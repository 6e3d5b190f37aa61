"""The place of a record: the number of its segment and the byte at which it stands there, in one number.

Places increase in the order in which records are written.
"""

from typing import NamedTuple

_SHIFT = 32
_MASK = (1 << _SHIFT) - 1


def place_of(segment: int, start: int) -> int:
    """The place of the record that stands at that byte of that segment."""
    return segment << _SHIFT | start


def segment_of(place: int) -> int:
    """The number of the segment."""
    return place >> _SHIFT


def start_of(place: int) -> int:
    """The byte in the segment."""
    return place & _MASK


class Position(NamedTuple):
    """Where a checkpoint ends: the segment, the byte at which its next frame would begin, and the frame's number."""

    segment: int
    start: int
    sequence: int
