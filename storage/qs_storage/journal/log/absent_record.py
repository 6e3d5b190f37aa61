"""The record of segments that were removed although older ones are needed. A start tells lost segments from them."""

import struct
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple, Self

_RUN = struct.Struct("<QQQ")
_KIND = 20
LIMIT = 100
"""The most runs in one record, which has to fit into the room that is kept for it on a full disk."""


class Run(NamedTuple):
    """Adjacent segments that were removed. first, last: their numbers; frame: the number of their first frame."""

    first: int
    last: int
    frame: int


class Absent(NamedTuple):
    """All such segments, in increasing order. Only the last record counts, without runs before the oldest needed
    segment."""

    runs: tuple[Run, ...]

    def body(self) -> bytes:
        return bytes((_KIND,)) + b"".join(_RUN.pack(*run) for run in self.runs)

    @classmethod
    def read(cls, body: memoryview) -> Self:
        """Parses the body. struct.error."""
        return cls(tuple(map(Run._make, _RUN.iter_unpack(body[1:]))))


def with_segment(runs: Iterable[Run], number: int, frame: int) -> tuple[Run, ...]:
    """Adds a segment to runs. frame: the number of its first frame."""
    joined: list[Run] = []
    for run in sorted((*runs, Run(number, number, frame))):
        if joined and joined[-1].last + 1 == run.first:
            joined[-1] = joined[-1]._replace(last=run.last)
        else:
            joined.append(run)
    return tuple(joined)


def needed_from(runs: Iterable[Run], oldest: int) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.first > oldest)


def missing_from(present: Container[int], last: int, oldest: int, runs: Sequence[Run]) -> int | None:
    """Returns the number of a needed segment that is missing, else None. oldest, last: the range of needed numbers."""
    numbers = (number for number in range(last, oldest - 1, -1) if number not in present)
    return next((number for number in numbers if not is_absent(runs, number)), None)


def frame_at(runs: Iterable[Run], number: int) -> int | None:
    """Returns the number of the first frame of the run that begins with a segment, if there is one."""
    return next((run.frame for run in runs if run.first == number), None)


def is_absent(runs: Sequence[Run], number: int) -> bool:
    return any(run.first <= number <= run.last for run in runs)
