"""The place of a record: its segment's number and its byte in the segment, packed into one number.

Places increase in the order in which records are written. A byte beyond `SHIFT` bits would change the number of the
segment, and the place would be another record's: `place_of` refuses it, and `Log` begins no segment with such bytes.
"""

from typing import NamedTuple

from ...engine import StorageError

SHIFT = 32
"""Bits of the byte, and of the segment's number: half each of the 64 bits that a place has in SHARED records,
checkpoints and the index."""


class PlaceError(StorageError):
    """A byte, or a segment's number, has more bits than a place has for it."""


def place_of(segment: int, start: int) -> int:
    """Packs a segment's number and a byte into a place. PlaceError."""
    if (start | segment) >> SHIFT:  # one test for both numbers
        raise PlaceError(f"byte {start} of segment {segment} has no place: a place has {SHIFT} bits for each")
    return segment << SHIFT | start


def segment_of(place: int) -> int:
    """Returns the number of the segment of a place."""
    return place >> SHIFT


def start_of(place: int) -> int:
    """Returns the byte of a place in its segment."""
    return place & (1 << SHIFT) - 1


def segment_name(number: int) -> str:
    """Returns the name of a segment's file."""
    # So many digits that names in a listing are in the order of the numbers.
    return f"{number:016d}.segment"


class Position(NamedTuple):
    """A position in the log: where the next frame begins. start: the byte in the segment; sequence: the frame's number.

    Unlike a place, a position has the number of the frame, so that a reader who begins here knows which frame to
    expect."""

    segment: int
    start: int
    sequence: int
