"""Reads segments frame by frame, and opens a log: checks every segment, and applies its valid frames.

A power loss may leave torn frames at the end of the last segment, which no later frame calls durable: a start cuts them
off, and logs that. Any other fault is damage: the start is refused and nothing changes on disk.
"""

import logging
import mmap
import os
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ...disk import Disk, has_no_room
from ...engine import StorageError
from .frames import (
    BLOCK,
    FRAME_HEAD,
    DamagedError,
    Frame,
    Gap,
    Header,
    OtherFormatError,
    frame_at,
    gap_at,
    read_header,
    read_records,
)
from .lock import read_last
from .places import Position, segment_name
from .records import BadRecordError, parse


def map_file(path: str) -> memoryview:
    """Maps a file into memory for reading. Later writes to the file show in the memory. OSError."""
    with open(Disk().open_file(path, os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def release(data: memoryview, end: int | None = None) -> None:
    """Lets the kernel take back the memory of a mapped file up to a byte, None for all of it. Released bytes are read
    from the disk when they are needed again. Without a release, all of a journal would count as the memory of its
    reader."""
    if isinstance(data.obj, mmap.mmap) and (length := len(data) if end is None else end & -mmap.PAGESIZE):
        data.obj.madvise(mmap.MADV_DONTNEED, 0, length)


class Scan:
    """Reads the valid frames of one segment, and then tells why the next one is not valid.

    Ensures that frames are yielded without a gap, each with the number after that of the frame before: the first frame
    that does not follow ends the scan. Never judges whether such a frame is torn or damaged: that depends on the later
    segments, which the caller knows."""

    def __init__(self, path: str, data: memoryview) -> None:
        """Reads the header. path: the file with the data. DamagedError if the header is damaged."""
        self.path = path
        self.data = data
        self.header: Header = read_header(data, len(data))
        self.next = self.header.first
        """The number of the frame after the last one read."""
        self.gap = Gap(BLOCK, None, None)
        """Tells where and why the frames end, once `frames` is exhausted."""

    def frames(self, start: int, first: int, limit: int | None) -> Iterator[tuple[int, list[memoryview]]]:
        """Yields (byte of the first record, bodies of the records) for each frame. start, first: byte and number of the
        first frame; limit: the number before which to stop, None to read all frames."""
        for frame in self.heads(start, first, limit):
            bodies = self._read(frame)
            if isinstance(bodies, str):
                self.gap = gap_at(self.data, self.header, frame.start, bodies, self.next)
                return
            yield frame.start + FRAME_HEAD, bodies

    def heads(self, start: int, first: int, limit: int | None) -> Iterator[Frame]:
        """Yields each frame without checking its records. start, first, limit: see `frames`."""
        data, header, at = self.data, self.header, start
        self.next = first
        while at + BLOCK <= len(data) and self.next != limit:
            frame = frame_at(data, at, header.salt)
            # A valid frame with another number is as bad as none: it is of an older segment, or of another journal.
            why = "no frame begins there" if frame is None else self._misplaced(frame)
            if frame is None or why is not None:
                self.gap = gap_at(data, header, at, str(why), self.next)
                return
            yield frame
            self.next += 1
            at = frame.end
        # It ends at the limit, or at the end of the file: nothing is wrong there.
        self.gap = Gap(at, None, None)

    def read_oldest(self) -> int:
        """Returns the oldest segment that is needed according to the last whole frame; the segment's own number if no
        frame is whole."""
        # Mostly all frames of a segment name the same: then no records have to be read and checked.
        said = {frame.oldest for frame in self.heads(BLOCK, self.header.first, None)}
        if len(said) > 1:  # a frame whose records are torn does not count
            oldest = 0
            for frame in self.heads(BLOCK, self.header.first, None):
                if isinstance(self._read(frame), str):
                    break
                oldest = frame.oldest
            said = {oldest} if oldest else set()
        return said.pop() if said else self.header.number

    def _misplaced(self, frame: Frame) -> str | None:
        """Returns why a frame is not valid at its place, None if it is valid."""
        if frame.sequence != self.next:
            return f"frame {frame.sequence} stands where {self.next} should"
        if frame.start + FRAME_HEAD + frame.length > len(self.data):
            return f"frame {frame.sequence} claims to reach beyond the end"
        return None

    def _read(self, frame: Frame) -> list[memoryview] | str:
        """Returns the bodies of a frame's records, or the frame's fault as a text."""
        try:
            return read_records(self.data, frame, self.header.salt)
        except BadRecordError as error:
            return f"frame {frame.sequence}: {error}"


def open_segment(directory: str, number: int) -> Scan:
    """Opens the segment with this number. DamagedError if its header is damaged; OSError."""
    path = f"{directory}/{segment_name(number)}"
    scan = Scan(path, map_file(path))
    if scan.header.number != number:
        raise DamagedError(f"its header says that it is segment {scan.header.number}")
    return scan


_logger = logging.getLogger(__name__)
_SEGMENT = re.compile(r"([0-9]{16})\.segment")


class JournalDamagedError(StorageError):
    """The journal is damaged. The text says where and what to do; `what` says only where."""

    def __init__(self, directory: str, what: str) -> None:
        root = shlex.quote(os.path.dirname(directory))
        self.what = what
        super().__init__(
            f"the journal is damaged: {what}. Nothing was changed. 'queue-journal.py check --root {root}' says what "
            f"can be read still, 'queue-journal.py repair --root {root}' keeps that and sets the damaged files aside"
        )


class JournalFormatError(StorageError):
    """The journal has a format that this version does not read. The text says where, and which."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}. Nothing was changed: use that version of qs for this directory")


def damage(path: str, what: str) -> JournalDamagedError:
    """Makes the error for a damaged file of the journal."""
    return JournalDamagedError(os.path.dirname(path), f"{path}: {what}")


class Applier(Protocol):
    """Applies records in the order of the log. `Replay` applies them to queues, at a start; `Parser` to nothing."""

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Applies the records of a frame. start: the byte of the first record in the segment. BadRecordError."""


class Parser:
    """Parses every record, and applies none."""

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Parses the records of a frame. BadRecordError."""
        for body in bodies:
            parse(body)


class FoundSegments(NamedTuple):
    """The segments that a start has found. needed: the segments to read, oldest first; obsolete: the paths of the
    others."""

    needed: list[Scan]
    obsolete: list[str]


class OpenedLog(NamedTuple):
    """A log that was read. headers: the headers of the needed segments, oldest first; obsolete: the paths of the other
    segments; number: the last segment; sequence: the last frame; end: the byte of the last segment after that frame;
    torn: the path of the last segment if its end is torn, else None."""

    headers: list[Header]
    obsolete: list[str]
    number: int
    sequence: int
    end: int = 0
    torn: Scan | None = None


def numbers_in(directory: str, disk: Disk) -> list[int]:
    """Returns the numbers of the segments in a directory, in increasing order."""
    return sorted(int(match[1]) for name in disk.files_in(directory) if (match := _SEGMENT.fullmatch(name)))


def find_segments(directory: str, disk: Disk) -> FoundSegments:
    """Opens the segments that are needed according to the last whole frame. JournalDamagedError, JournalFormatError,
    OSError."""
    begun = read_last(directory)
    numbers = numbers_in(directory, disk)
    if begun is not None:
        # Without the number in `lock`, a log whose newest segments are gone would look like a shorter one.
        check_last(directory, numbers[-1] if numbers else 0, begun)
    if not numbers:
        return FoundSegments([], [])
    last = _open(directory, numbers[-1])
    oldest = last.read_oldest()
    present = set(numbers)
    # The last segment says which one is the oldest: all from there on have to be there.
    for number in range(numbers[-1], oldest - 1, -1):
        if number not in present:
            for _ in last.frames(BLOCK, last.header.first, None):
                continue
            _check_tail(last.path, last.header, last.gap, last.next)  # damage may hide that it was given up
            raise damage(f"{directory}/{segment_name(number)}", "it is missing")
    needed = [_open(directory, number) for number in range(oldest, numbers[-1])]
    obsolete = [f"{directory}/{segment_name(number)}" for number in numbers if number < oldest]
    return FoundSegments([*needed, last], obsolete)


def _open(directory: str, number: int) -> Scan:
    try:
        return open_segment(directory, number)
    # No damage: the version that has written it reads it, so nothing must be repaired.
    except OtherFormatError as error:
        raise JournalFormatError(f"{directory}/{segment_name(number)}", str(error)) from None
    except DamagedError as error:
        raise damage(f"{directory}/{segment_name(number)}", str(error)) from None


def open_log(
    directory: str, disk: Disk, found: FoundSegments, applier: Applier, begin: Position | None = None
) -> OpenedLog:
    """Applies the records from a position on (None: all records), and cuts off a torn end. JournalDamagedError,
    OSError."""
    opened = read_log(directory, disk, found, applier, begin)
    if opened.torn is not None:
        _set_torn_aside(opened.torn.path, opened.torn.data, opened.torn.gap, disk)
    return opened


def read_log(
    directory: str, disk: Disk, found: FoundSegments, applier: Applier, begin: Position | None = None
) -> OpenedLog:
    """Applies the records as `open_log` does, without changing anything on disk."""
    scans = found.needed
    if not scans:
        return OpenedLog([], found.obsolete, 0, 0)
    last = scans[-1]
    for scan, following in zip(scans, [*scans[1:], None], strict=True):
        # What is in earlier segments, the checkpoint has. They are not read, however many there are.
        if begin is None or scan.header.number >= begin.segment:
            _apply(scan, None if following is None else following.header.first, applier, begin)
            # Else all of the journal would count as memory of the server, once it has been read.
            release(scan.data)
    _check_tail(last.path, last.header, last.gap, last.next)
    headers = [scan.header for scan in scans]
    torn = None if last.gap.why is None else last
    return OpenedLog(headers, found.obsolete, last.header.number, last.next - 1, last.gap.start, torn)


def _apply(scan: Scan, limit: int | None, applier: Applier, begin: Position | None) -> None:
    """Applies the records of a segment. limit: the first frame of the next segment, None for the last segment.
    JournalDamagedError."""
    number = scan.header.number
    if begin is not None and number == begin.segment:
        frames = scan.frames(begin.start, begin.sequence, limit)
    else:
        frames = scan.frames(BLOCK, scan.header.first, limit)
    for start, bodies in frames:
        try:
            applier.apply(number, start, bodies)
        except BadRecordError as error:
            raise damage(scan.path, f"frame {scan.next} at byte {start - FRAME_HEAD}: {error}") from None
    # Only the last segment may end early: those before it were synced before the next one was begun.
    if limit is not None and scan.next < limit:
        lost = f"frames {scan.next} to {limit - 1} are not whole"
        raise damage(scan.path, f"byte {scan.gap.start}: {scan.gap.why or 'it ends there'}; {lost}")


def check_last(directory: str, last: int, begun: int) -> None:
    """Checks that the last segment is there, and belongs to this journal. last: the greatest number present; begun: the
    recorded number, see `read_last`. JournalDamagedError."""
    if last < begun:
        raise damage(f"{directory}/{segment_name(begun)}", "it is missing")
    if last > begun + 1:
        what = f"it does not belong to this journal, whose last segment is {begun} or {begun + 1}"
        raise damage(f"{directory}/{segment_name(last)}", what)


def _check_tail(path: str, header: Header, gap: Gap, following: int) -> None:
    """Checks that a power loss may have torn the last segment at the gap. following: the number of the frame after the
    last valid one. JournalDamagedError."""
    if following == header.first:  # the first frame was durable before the file got its name
        raise damage(path, f"byte {gap.start}: {gap.why or 'there are zeros'}; its first frame is not whole")
    # A whole frame behind the gap says that what is missing was durable: no power loss can have torn it.
    if gap.later is not None and gap.later.synced >= following:
        behind = f"frame {gap.later.sequence} behind it, at byte {gap.later.start}, says that it was durable"
        raise damage(path, f"byte {gap.start}: {gap.why}; {behind}")


def _set_torn_aside(path: str, data: memoryview, gap: Gap, disk: Disk) -> None:
    """Copies the torn end of a segment to a file for the operator, and logs that. On a full disk, logs only where the
    bytes are. OSError."""
    directory, name = os.path.split(path)
    # Without the zeros behind it, which say nothing and may be 16 MiB.
    rest = bytes(data[gap.start :]).rstrip(b"\0")
    kept = f"{directory}/cut-{int(name[:16])}-{gap.start // BLOCK}"
    try:
        disk.write_file(kept, rest, sync=True)
        disk.sync_directory(directory)  # the copy has to be durable before the segment may be removed
        where = f"kept in {kept}"
    except OSError as error:
        if not has_no_room(error):
            raise
        where = f"not kept in {kept}, for which there is no room: copy the segment now if you want to examine them"
    _logger.warning(
        "%s ends in %d bytes that were being written when the machine or the server stopped (%s); nothing shows that "
        "they were durable (with durability 'always' no answer was sent for them): they are cut off and %s",
        path,
        len(rest),
        gap.why,
        where,
    )
