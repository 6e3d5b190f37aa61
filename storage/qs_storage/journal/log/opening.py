"""Opens a log: reads and checks every segment, and applies its valid frames.

A power loss may leave torn frames at the end of the last segment, which no later frame calls durable: they are cut off,
and that is logged. Any other fault is damage: the start is refused and nothing changes on disk.
"""

from typing import NamedTuple, Protocol

from ...disk import Disk
from .absent_record import Absent, Run, frame_at, is_absent, missing_from, needed_from
from .frames import BLOCK, FRAME_HEAD, DamagedError, Header
from .lock import read_last
from .places import Position, segment_name
from .records import BadRecordError, Checkpoint, Kind, parse_one
from .recovery import check_last, check_tail, damage, numbers_in, release, set_torn_aside
from .scanning import Scan, open_segment


class Applier(Protocol):
    """Applies records, in the order of the log."""

    oldest: int
    """The oldest segment that is needed, according to the records applied so far."""
    absent: tuple[Run, ...]
    """The segments removed although older ones are needed, according to the same records."""

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Applies the records of a frame. start: byte of the first record in the segment. BadRecordError."""


class Parser:
    """Parses every record, and applies none."""

    oldest = 0
    absent: tuple[Run, ...] = ()

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Parses the records of a frame. BadRecordError."""
        for body in bodies:
            record = parse_one(body)
            if isinstance(record, Checkpoint):
                self.oldest = max(self.oldest, record.oldest)
            elif isinstance(record, Absent):
                self.absent = record.runs


class Opened(NamedTuple):
    """A log that was read. headers: of the needed segments, oldest first; obsolete: paths of the others; number: of the
    last segment; sequence: of the last frame; absent: segments removed although older ones are needed; torn: the last
    segment if its end is torn, else None."""

    headers: list[Header]
    obsolete: list[str]
    number: int
    sequence: int
    absent: tuple[Run, ...] = ()
    torn: Scan | None = None


class LeftoverError(Exception):
    """Obsolete segments were applied, of which some are gone, so the result is wrong. needed: the segments to apply
    instead, oldest first."""

    def __init__(self, needed: list[Scan]) -> None:
        super().__init__()
        self.needed = needed


def find_segments(directory: str, disk: Disk) -> list[Scan]:
    """Opens the segments that may be needed, oldest first. JournalDamagedError, OSError."""
    begun = read_last(directory)
    numbers = numbers_in(directory, disk)
    if begun is not None:
        check_last(directory, numbers[-1] if numbers else 0, begun)
    return _needed_at_begin(directory, numbers)


def open_log(directory: str, disk: Disk, scans: list[Scan], applier: Applier, begin: Position | None = None) -> Opened:
    """Applies the records from a position on (None: all), and cuts off a torn end. JournalDamagedError, LeftoverError,
    OSError."""
    opened = read_log(directory, disk, scans, applier, begin)
    if opened.torn is not None:
        set_torn_aside(opened.torn.path, opened.torn.data, opened.torn.gap, disk)
    return opened


def read_log(directory: str, disk: Disk, scans: list[Scan], applier: Applier, begin: Position | None = None) -> Opened:
    """Applies the records like `open_log`, but changes nothing on disk."""
    scans = [scan for scan in scans if not is_absent(applier.absent, scan.header.number)]
    if not scans:
        return Opened([], [], 0, 0)
    last = scans[-1]
    before_holes: list[Scan] = []
    for scan, following in zip(scans, [*scans[1:], None], strict=True):
        number = scan.header.number
        if begin is not None and number < begin.segment:
            continue
        _apply(scan, following, applier, begin)
        release(scan.data)
        if following is not None and following.header.number != number + 1:
            before_holes.append(scan)
    check_tail(last.path, last.header, last.gap, last.next)
    oldest = max(last.header.oldest, applier.oldest)
    absent = needed_from(applier.absent, oldest)
    numbers = numbers_in(directory, disk)
    needed = [scan for scan in scans if scan.header.number >= oldest and not is_absent(absent, scan.header.number)]
    missing = missing_from(set(numbers), last.header.number, oldest, absent)
    if missing is not None:
        raise damage(f"{directory}/{segment_name(missing)}", "it is missing")
    kept = {scan.header.number for scan in needed}
    first_applied = 0 if begin is None else begin.segment
    if before_holes and any(first_applied <= scan.header.number not in kept for scan in scans):
        raise LeftoverError(needed)
    for scan in before_holes:
        _check_end(scan, frame_at(absent, scan.header.number + 1) or scan.next)
    headers = [scan.header for scan in needed]
    obsolete = [f"{directory}/{segment_name(number)}" for number in numbers if number not in kept]
    torn = None if last.gap.why is None else last
    return Opened(headers, obsolete, last.header.number, last.next - 1, absent, torn)


def _apply(scan: Scan, following: Scan | None, applier: Applier, begin: Position | None) -> None:
    """Applies the records of a segment. following: the next present one. JournalDamagedError."""
    number = scan.header.number
    adjacent = following is not None and following.header.number == number + 1
    limit = following.header.first if following is not None and adjacent else None
    if begin is not None and number == begin.segment:
        frames = scan.frames(begin.start, begin.sequence, limit)
    else:
        frames = scan.frames(BLOCK, scan.header.first, limit)
    for start, bodies in frames:
        try:
            applier.apply(number, start, bodies)
        except BadRecordError as error:
            raise damage(scan.path, f"frame {scan.next} at byte {start - FRAME_HEAD}: {error}") from None
    if limit is not None:
        _check_end(scan, limit)


def _check_end(scan: Scan, limit: int) -> None:
    """Raises JournalDamagedError unless a segment was read up to the frame before `limit`."""
    if scan.next < limit:
        lost = f"frames {scan.next} to {limit - 1} are not whole"
        raise damage(scan.path, f"byte {scan.gap.start}: {scan.gap.why or 'it ends there'}; {lost}")


def _needed_at_begin(directory: str, numbers: list[int]) -> list[Scan]:
    """Opens the segments that were needed when the last one was begun."""
    scans: list[Scan] = []
    oldest = 0
    absent: tuple[Run, ...] = ()
    for number in reversed(numbers):
        if number < oldest or is_absent(absent, number):
            continue
        try:
            scans.append(open_segment(directory, number))
        except DamagedError as error:
            raise damage(f"{directory}/{segment_name(number)}", str(error)) from None
        if len(scans) == 1:
            absent = _absent_at_begin(scans[0])
        oldest = max(oldest, scans[-1].header.oldest)
    scans.reverse()
    return scans


def _absent_at_begin(scan: Scan) -> tuple[Run, ...]:
    """Reads the removed segments from the ABSENT record in the first frame of a segment."""
    for _, bodies in scan.frames(BLOCK, scan.header.first, scan.header.first + 1):
        for body in bodies:
            if body[0] == Kind.ABSENT:
                return Absent.read(body).runs
    return ()
