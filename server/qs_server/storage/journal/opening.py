"""Opens a log: reads every segment once, checks it, and applies its whole frames.

A power loss may tear the frames that were being written: those at the end of the last segment that no later frame calls
durable. They are cut off, and the log says so. Anything else that is missing or wrong is damage: the start is refused
and nothing changes on disk.
"""

from typing import NamedTuple, Protocol

from ..disk import Disk
from .frames import BLOCK, FRAME_HEAD, DamagedError, Header
from .lock import read_last
from .places import Position
from .records import BadRecordError
from .recovery import check_last, check_tail, damage, numbers_in, segment_name, set_torn_aside
from .scanning import Scan, open_segment


class Applier(Protocol):
    """Applies records in their order."""

    oldest: int
    """The oldest segment that is needed, according to the records applied so far."""

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Applies the records of a frame. start: byte of the first record in the segment. BadRecordError."""


class Opened(NamedTuple):
    """A log that was read. headers: of the needed segments, oldest first; obsolete: paths of the others; number: the
    last segment's; sequence: the last frame's; torn: the last segment if its end is torn, else None."""

    headers: list[Header]
    obsolete: list[str]
    number: int
    sequence: int
    torn: Scan | None = None


def find_segments(directory: str, disk: Disk) -> list[Scan]:
    """Returns the segments that may be needed, oldest first. Reads only their headers. JournalDamagedError, OSError."""
    begun = read_last(directory)
    numbers = numbers_in(directory, disk)
    if begun is not None:
        check_last(directory, numbers[-1] if numbers else 0, begun)
    return _contiguous(directory, numbers)


def open_log(directory: str, disk: Disk, scans: list[Scan], applier: Applier, begin: Position | None = None) -> Opened:
    """Applies the segments' records from a position on, or all of them, and sets a torn tail aside.
    JournalDamagedError, OSError."""
    opened = read_log(directory, disk, scans, applier, begin)
    if opened.torn is not None:
        set_torn_aside(opened.torn.path, opened.torn.data, opened.torn.gap, disk)
    return opened


def read_log(directory: str, disk: Disk, scans: list[Scan], applier: Applier, begin: Position | None = None) -> Opened:
    """Does the same as `open_log`, but changes nothing on disk."""
    if not scans:
        return Opened([], [], 0, 0)
    first, last = scans[0].header.number, scans[-1]
    for at, scan in enumerate(scans):
        number = scan.header.number
        if begin is not None and number < begin.segment:
            continue
        limit = scans[at + 1].header.first if scan is not last else None
        if begin is not None and number == begin.segment:
            frames = scan.frames(begin.start, begin.sequence, limit)
        else:
            frames = scan.frames(BLOCK, scan.header.first, limit)
        for start, bodies in frames:
            try:
                applier.apply(number, start, bodies)
            except BadRecordError as error:
                raise damage(scan.path, f"frame {scan.next} at byte {start - FRAME_HEAD}: {error}") from None
        if limit is not None and scan.next < limit:
            lost = f"frames {scan.next} to {limit - 1} are not whole"
            raise damage(scan.path, f"byte {scan.gap.start}: {scan.gap.why or 'it ends there'}; {lost}")
    check_tail(last.path, last.header, last.gap, last.next)
    oldest = max(last.header.oldest, applier.oldest)
    if first > oldest:
        raise damage(f"{directory}/{segment_name(first - 1)}", "it is missing")
    headers = [scan.header for scan in scans if scan.header.number >= oldest]
    obsolete = [f"{directory}/{segment_name(number)}" for number in numbers_in(directory, disk) if number < oldest]
    return Opened(headers, obsolete, last.header.number, last.next - 1, None if last.gap.why is None else last)


def _contiguous(directory: str, numbers: list[int]) -> list[Scan]:
    """Opens the segments from the last one back to the oldest needed one, or to the first gap."""
    scans: list[Scan] = []
    oldest = 0
    for number in reversed(numbers):
        if number < oldest or (scans and scans[-1].header.number != number + 1):
            break
        try:
            scans.append(open_segment(directory, number))
        except DamagedError as error:
            raise damage(f"{directory}/{segment_name(number)}", str(error)) from None
        oldest = max(oldest, scans[-1].header.oldest)
    scans.reverse()
    return scans
