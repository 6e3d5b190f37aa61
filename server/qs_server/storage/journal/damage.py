"""Examines a journal for `queue-journal.py`: lists each segment file, its readable records, and the missing parts.

Changes nothing, and may run beside a server.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from ..disk import Disk
from .absent_record import Absent, Run, frame_at, is_absent
from .checkpoint import NAME, BadCheckpointError, CheckpointReader
from .claim_records import Published
from .frames import BLOCK, DamagedError, Header, read_header
from .lock import read_last
from .opening import LeftoverError, Parser, find_segments, read_log
from .places import Position, place_of, segment_name
from .records import Checkpoint, Moved, OfQueue, Push, Queue, Record, Shared
from .recovery import JournalDamagedError, map_file, numbers_in
from .salvage import Hole, Piece, find_salt, read_pieces
from .transfer_record import Transfer


class Part(NamedTuple):
    """One segment file. number: from its header, or else its name; first: number of its first frame, if known; life:
    see `Header`; pieces: its frames in order, valid or in part; faults: descriptions; foreign: True if it belongs to
    another journal; obsolete: True if nothing in it is needed."""

    path: str
    number: int
    size: int
    first: int | None
    oldest: int
    life: bytes | None
    pieces: list[Piece]
    holes: list[Hole]
    faults: list[str]
    foreign: bool = False
    obsolete: bool = False

    @property
    def next(self) -> int | None:
        """The number of the frame with which the next segment should begin, None if unknown."""
        return self.pieces[-1].sequence + 1 if self.pieces else self.first

    @property
    def counts(self) -> bool:
        """True if a start or a repair reads this file."""
        return not self.foreign and not self.obsolete


class Placed(NamedTuple):
    """A record and its queue. qid: None if the queue's name is lost; number: identifies the queue in the whole journal;
    place: of the record."""

    part: Part
    piece: Piece
    record: OfQueue
    qid: str | None
    number: int
    place: int


class FoundCheckpoint(NamedTuple):
    """A checkpoint file. position: the end of the log in it; fault: why a start ignores it, None if it is valid."""

    path: str
    size: int
    position: Position | None
    fault: str | None


class Examined(NamedTuple):
    """An examined journal. parts: all segment files in order; missing: descriptions of missing segments and frames;
    torn: the file whose end a start cuts off, or None; refusal: why a start is refused, or None; last: the greatest
    segment number in use; numbers: each queue's number in the whole journal, by (life, number in that life)."""

    parts: list[Part]
    missing: list[str]
    torn: str | None
    refusal: JournalDamagedError | None
    last: int
    checkpoint: FoundCheckpoint | None
    numbers: dict[tuple[bytes | None, int], int]

    def placed(self) -> Iterator[Placed]:
        """Yields all readable records in the order in which they were written."""
        names: dict[tuple[bytes | None, int], str] = {}
        for part, _, _, record in self._records():
            if isinstance(record, Queue):
                names[part.life, record.number] = record.qid
        for part, piece, place, record in self._records():
            if not isinstance(record, (Checkpoint, Absent)):
                meant = part.life, record.number
                yield Placed(part, piece, record, names.get(meant), self.number_of(part, record.number), place)

    def number_of(self, part: Part, number: int) -> int:
        """Returns the number that identifies a queue in the whole journal. number: its number in the part."""
        return self.numbers.setdefault((part.life, number), len(self.numbers) + 1)

    def _records(self) -> Iterator[tuple[Part, Piece, int, Record]]:
        for part in self.parts:
            if part.counts:
                for piece in part.pieces:
                    for start, record in piece.placed():
                        yield part, piece, place_of(part.number, start), record

    def messages(self) -> dict[str, Counter[str]]:
        """Counts the messages by the path of the segment file, and by queue. Counts each id once per file."""
        found: dict[str, Counter[str]] = {part.path: Counter() for part in self.parts}
        known: set[tuple[str, str, int]] = set()
        for placed in self.placed():
            path, qid = placed.part.path, placed.qid or f"(queue number {placed.number})"
            for mid in messages_in(placed.record):
                if (path, qid, mid) not in known:
                    known.add((path, qid, mid))
                    found[path][qid] += 1
        return found


def messages_in(record: Record) -> Iterable[int]:
    """Returns the ids of the messages that a record adds."""
    if isinstance(record, Published):
        return range(record.first, record.first + sum(count for _, _, count in record.parts))
    return (record.mid,) if isinstance(record, (Push, Moved, Shared, Transfer)) else ()


def examine(directory: str, disk: Disk) -> Examined:
    """Examines the journal in a directory. OSError; FileNotFoundError may mean that a server removed a segment."""
    begun = read_last(directory)
    numbers = numbers_in(directory, disk)
    parts = sorted((_read(directory, number) for number in numbers), key=lambda part: (part.number, part.path))
    parts = [part._replace(foreign=begun is not None and part.number > begun + 1) for part in parts]
    oldest = max((part.oldest for part in parts if not part.foreign), default=0)
    absent = _absent(parts)
    parts = [part._replace(obsolete=part.number < oldest or is_absent(absent, part.number)) for part in parts]
    counting = _without_copies([part for part in parts if part.counts], absent)
    missing = list(_missing(directory, counting, oldest, begun, absent))
    others = [part for part in parts if not part.counts]
    parts = sorted([*_with_lives(counting), *others], key=lambda part: (part.number, part.path))
    torn, refusal = _verdict(directory, disk)
    last = max([*(part.number for part in counting), begun or 0])
    return Examined(parts, missing, torn, refusal, last, _find_checkpoint(directory), {})


def verify(directory: str, disk: Disk) -> str | None:
    """Checks that a server would start with the journal. Returns the file whose end it would cut off, or None.
    JournalDamagedError."""
    try:
        opened = read_log(directory, disk, find_segments(directory, disk), Parser())
    except LeftoverError as error:
        opened = read_log(directory, disk, error.needed, Parser())
    return None if opened.torn is None else opened.torn.path


def _verdict(directory: str, disk: Disk) -> tuple[str | None, JournalDamagedError | None]:
    try:
        return verify(directory, disk), None
    except JournalDamagedError as error:
        return None, error


def _find_checkpoint(directory: str) -> FoundCheckpoint | None:
    path = f"{directory}/{NAME}"
    try:
        size = os.stat(path).st_size
        return FoundCheckpoint(path, size, CheckpointReader(directory).position, None)
    except FileNotFoundError:
        return None
    except BadCheckpointError as error:
        return FoundCheckpoint(path, size, None, str(error))


def _read(directory: str, number: int) -> Part:
    path = f"{directory}/{segment_name(number)}"
    data = map_file(path)
    part = Part(path, number, len(data), None, 0, None, [], [], [])
    try:
        header = read_header(data, len(data))
    except DamagedError as error:
        part.faults.append(str(error))
        return _read_without_header(part, data)
    if header.number != number:
        part.faults.append(f"its header says that it is segment {header.number}")
    return _fill(part, data, header)


def _read_without_header(part: Part, data: memoryview) -> Part:
    try:
        header = read_header(data, None)
    except DamagedError:
        try:
            salt = find_salt(data)
        except DamagedError as error:
            part.faults.append(str(error))
            return part
        header = Header(part.number, len(data), -1, 0, salt)
    return _fill(part, data, header)


def _fill(part: Part, data: memoryview, header: Header) -> Part:
    first = header.first if header.first >= 0 else None
    oldest = header.oldest
    for found in read_pieces(data, header.salt, first):
        if isinstance(found, Hole):
            part.holes.append(found)
            part.pieces.extend(found.pieces)
        else:
            part.pieces.append(found)
    for piece in part.pieces:
        oldest = max([oldest, *(record.oldest for record in piece.records() if isinstance(record, Checkpoint))])
    if first is None and part.pieces and part.pieces[0].start == BLOCK:
        first = part.pieces[0].sequence
    life = None if header.first < 0 else header.life
    return part._replace(number=header.number, first=first, oldest=oldest, life=life)


def _with_lives(parts: list[Part]) -> list[Part]:
    """Fills in unknown lives: the one of both neighbours if they agree, else a unique one."""
    done = []
    for at, part in enumerate(parts):
        if part.life is None:
            before = next((p.life for p in reversed(parts[:at]) if p.life is not None), None)
            after = next((p.life for p in parts[at + 1 :] if p.life is not None), None)
            between = before is not None and before == after
            part = part._replace(life=before if between else b"segment %d" % at)  # noqa: PLW2901
        done.append(part)
    return done


def _without_copies(parts: list[Part], absent: tuple[Run, ...]) -> list[Part]:
    """Keeps each frame once, and drops frames that an earlier start has cut off from the end of a segment."""
    done: list[Part] = []
    for part in parts:
        if done and done[-1].number == part.number:
            known = {piece.sequence for piece in done[-1].pieces if piece.whole}
            part = part._replace(pieces=[piece for piece in part.pieces if piece.sequence not in known])  # noqa: PLW2901
        done.append(part)
    for at, part in enumerate(done):
        firsts = [later.first for later in done[at + 1 :] if later.number > part.number and later.first is not None]
        if (gone := frame_at(absent, part.number + 1)) is not None:
            firsts.append(gone)
        if firsts:
            limit = min(firsts)
            whole = part.holes[0].start if part.holes else part.size
            pieces = [piece for piece in part.pieces if piece.sequence < limit or piece.start < whole]
            holes = [hole for hole in part.holes if hole.first < limit]
            done[at] = part._replace(pieces=pieces, holes=holes)
    return done


def _absent(parts: list[Part]) -> tuple[Run, ...]:
    """Returns the removed segments according to the last ABSENT record; a segment begins with one if there are any."""
    for part in reversed(parts):
        if not part.foreign:
            pieces = reversed(part.pieces)
            found = (
                record.runs
                for piece in pieces
                for record in reversed(list(piece.records()))
                if isinstance(record, Absent)
            )
            if (runs := next(found, None)) is not None:
                return runs
    return ()


def _missing(
    directory: str, parts: list[Part], oldest: int, begun: int | None, absent: tuple[Run, ...]
) -> Iterator[str]:
    """Yields a line for each missing segment and range of frames."""
    present = {part.number for part in parts}
    last = max([*present, begun or 0])
    for number in range(max(oldest, 1) if oldest or not present else min(present), last + 1):
        if number not in present and not is_absent(absent, number):
            before = max((p.next for p in parts if p.number < number and p.next is not None), default=None)
            after = min((p.first for p in parts if p.number > number and p.first is not None), default=None)
            frames = "" if before is None or after is None else f", with frames {before} to {after - 1}"
            yield f"{directory}/{segment_name(number)} is missing{frames}"
    for one, two in pairwise(parts):
        if one.next is None or two.first is None or two.number != one.number + 1 or one.holes:
            continue
        if one.next < two.first:
            yield f"{one.path}: frames {one.next} to {two.first - 1} are not there"
