"""What a journal's directory holds when a server starts, and whether that is what was written.

A power loss may tear what was being written: frames at the end of the last segment that no later one calls durable.
That is cut off, and said. Anything else that is missing or wrong is damage: then nothing is taken up and nothing
changed. What can be read all the same, `damage.py` finds, and `repair.py` keeps.
"""

import logging
import mmap
import os
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ..disk import Disk
from ..engine import StorageError
from .frames import BLOCK, DamagedError, Frame, Gap, Header, read_header, records_of, scan
from .lock import read_last
from .records import BadRecordError, Checkpoint, Record

_logger = logging.getLogger(__name__)
_SEGMENT = re.compile(r"([0-9]{16})\.segment")


class JournalDamagedError(StorageError):
    """The journal is not as it was written. The text says what is damaged, and what to do.

    what: the first part of that alone."""

    def __init__(self, directory: str, what: str) -> None:
        root = shlex.quote(os.path.dirname(directory))
        self.what = what
        super().__init__(
            f"the journal is damaged: {what}. Nothing was changed. 'queue-journal.py check --root {root}' says what "
            f"can be read still, 'queue-journal.py repair --root {root}' keeps that and sets the damaged files aside"
        )


class Segment(NamedTuple):
    """One file of the journal, as it was found."""

    path: str
    header: Header
    data: memoryview
    frames: list[Frame]
    gap: Gap

    @property
    def next(self) -> int:
        """The number of the frame after its last whole one."""
        return self.frames[-1].sequence + 1 if self.frames else self.header.first


class Recovered(NamedTuple):
    """segments: those that are needed, in order; obsolete: paths of those that are not; number, sequence: greater than
    any in use."""

    segments: list[Segment]
    obsolete: list[str]
    number: int
    sequence: int

    def records(self) -> Iterator[tuple[int, Record]]:
        """Every record in the order in which it was written, with the number of its segment."""
        for segment in self.segments:
            for frame in segment.frames:
                for record in records_of(segment.data, frame, segment.header.salt):
                    yield segment.header.number, record

    @property
    def torn(self) -> Segment | None:
        """The last segment, when what was being written at its end was torn."""
        return self.segments[-1] if self.segments and self.segments[-1].gap.why is not None else None


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{number:016d}.segment"


def numbers_in(directory: str, disk: Disk) -> list[int]:
    """The numbers of the segments in a directory, sorted."""
    return sorted(int(match[1]) for name in disk.files_in(directory) if (match := _SEGMENT.fullmatch(name)))


def read_segment(directory: str, number: int) -> Segment:
    """One segment with its whole frames. DamagedError when it has no header that counts."""
    path = f"{directory}/{segment_name(number)}"
    data = map_file(path)
    header = read_header(data, len(data))
    if header.number != number:
        raise DamagedError(f"its header says that it is segment {header.number}")
    frames, gap = scan(data, header)
    return Segment(path, header, data, frames, gap)


def map_file(path: str) -> memoryview:
    """The bytes of a file, as it is from now on. OSError."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def recover(directory: str, disk: Disk) -> Recovered:
    """What a start has to take up. JournalDamagedError."""
    begun = read_last(directory)
    numbers = numbers_in(directory, disk)
    if begun is not None:
        check_last(directory, numbers[-1] if numbers else 0, begun)
    if not numbers:
        return Recovered([], [], 0, 0)
    last = _read(directory, numbers[-1])
    found = [_read(directory, number) for number in numbers[:-1] if number >= last.header.oldest] + [last]
    oldest = max([last.header.oldest, *(_checkpoints(found))])
    needed = [segment for segment in found if segment.header.number >= oldest]
    missing = sorted(set(range(oldest, numbers[-1] + 1)) - set(numbers))
    if missing:
        raise damage(f"{directory}/{segment_name(missing[0])}", "it is missing")
    for at, (segment, following) in enumerate(list(pairwise(needed))):
        needed[at] = _check_end(segment, following.header.first)
    check_tail(last.path, last.header, last.gap, last.next)
    obsolete = [f"{directory}/{segment_name(number)}" for number in numbers if number < oldest]
    return Recovered(needed, obsolete, last.header.number, last.next - 1)


def check_last(directory: str, last: int, begun: int) -> None:
    """Whether the last segment that is there is the one that was begun last. begun: see `read_last`."""
    if last < begun:
        raise damage(f"{directory}/{segment_name(begun)}", "it is missing")
    if last > begun + 1:
        what = f"it does not belong to this journal, whose last segment is {begun} or {begun + 1}"
        raise damage(f"{directory}/{segment_name(last)}", what)


def _read(directory: str, number: int) -> Segment:
    try:
        return read_segment(directory, number)
    except DamagedError as error:
        raise damage(f"{directory}/{segment_name(number)}", str(error)) from None


def _checkpoints(found: list[Segment]) -> Iterator[int]:
    for segment in found:
        for frame in segment.frames:
            try:
                for record in records_of(segment.data, frame, segment.header.salt):
                    if isinstance(record, Checkpoint):
                        yield record.oldest
            except BadRecordError as error:
                raise damage(segment.path, f"frame {frame.sequence} at byte {frame.start}: {error}") from None


def _check_end(segment: Segment, first: int) -> Segment:
    """The segment, up to where the next one goes on."""
    if segment.next == first:
        return segment  # what may stand behind was torn, and cut off by an earlier start
    if segment.next > first:
        # Their writer was told that they could not be written, and refused what they held.
        _logger.warning("%s: frames from %d on do not count: another one was begun instead", segment.path, first)
        return segment._replace(frames=[frame for frame in segment.frames if frame.sequence < first])
    lost = f"frames {segment.next} to {first - 1} are not whole"
    raise damage(segment.path, f"byte {segment.gap.start}: {segment.gap.why or 'it ends there'}; {lost}")


def check_tail(path: str, header: Header, gap: Gap, following: int) -> None:
    """Whether the last segment may end like that. following: the number of the frame after its last whole one."""
    if following == header.first:  # it was durable before the file had its name
        raise damage(path, f"byte {gap.start}: {gap.why or 'there are zeros'}; its first frame is not whole")
    if gap.later is not None and gap.later.synced >= following:
        behind = f"frame {gap.later.sequence} behind it, at byte {gap.later.start}, says that it was durable"
        raise damage(path, f"byte {gap.start}: {gap.why}; {behind}")


def damage(path: str, what: str) -> JournalDamagedError:
    """What says that a file of the journal is not as it was written."""
    return JournalDamagedError(os.path.dirname(path), f"{path}: {what}")


def set_torn_aside(segment: Segment, disk: Disk) -> None:
    """Keeps what a torn tail holds, up to its last byte that is not zero, and says so. For a look by hand: what counts
    as durable is not in there."""
    start, directory = segment.gap.start, os.path.dirname(segment.path)
    rest = bytes(segment.data[start:]).rstrip(b"\0")
    path = f"{directory}/cut-{segment.header.number}-{start // BLOCK}"
    disk.write_file(path, rest, sync=True)
    disk.sync_directory(directory)  # before the segment can go
    _logger.warning(
        "%s ends in %d bytes that were being written when the machine or the server stopped (%s); nothing says that "
        "they were durable (with durability 'always' they were never answered for): they are cut off, and kept in %s",
        segment.path,
        len(rest),
        segment.gap.why,
        path,
    )
