"""Examines a journal for `queue-journal.py`: lists each segment file, its readable records, and the missing parts.

Changes nothing, and may run beside a server. A segment is read again each time its records are needed. So memory holds
one segment, some bytes for each damaged frame, and the index of messages that a server would have.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from ...disk import Disk
from ...index.midmap import MidSet
from ..log import records
from ..log.frames import BLOCK, DamagedError, Header, OtherFormatError, read_header
from ..log.lock import read_last
from ..log.opening import JournalDamagedError, JournalFormatError, map_file, numbers_in, release
from ..log.places import Position, place_of, segment_name, segment_of, start_of
from ..log.records import Record
from ..upkeep.checkpoint import NAME, BadCheckpointError
from ..upkeep.index_reading import CheckpointReader
from .audit import verify
from .salvage import Hole, Piece, body_at, find_salt, read_pieces

_AT_ONCE = 16 << 20
"""Bytes of a segment that are in memory at a time: ordinary segments are not larger."""
_WITH_ID = (records.Push, records.Attributed, records.Moved, records.Letter, records.Shared, records.Transfer)


class SegmentFile(NamedTuple):
    """One segment file, with the facts that are kept of it. Its records are read again when they are needed.

    number: the segment's, from its header, or else its name; first: the number of its first frame, if known; last: the
    number of the last frame that can be read, if any; oldest: the oldest segment that is needed according to its valid
    frames, 0 without any; whole: the number of valid frames; life, salt: see `Header`; names: queues by their numbers,
    from its records; holes: the ranges that are not valid; faults: their descriptions; format: the description of a
    format that this version does not read; foreign: True if the file belongs to another journal; obsolete: True if
    nothing in the file is needed, or another file has the same; cut: (number, byte) from which on frames do not count,
    because an earlier start has cut them off."""

    path: str
    number: int
    data: memoryview
    first: int | None = None
    last: int | None = None
    oldest: int = 0
    whole: int = 0
    life: bytes | None = None
    salt: bytes | None = None
    names: Mapping[int, str] = MappingProxyType({})
    holes: tuple[Hole, ...] = ()
    faults: tuple[str, ...] = ()
    format: str | None = None
    foreign: bool = False
    obsolete: bool = False
    cut: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def next(self) -> int | None:
        """The number of the frame with which the next segment should begin, None if unknown."""
        return self.first if self.last is None else self.last + 1

    @property
    def counts(self) -> bool:
        """True if a start or a repair reads this file."""
        return not self.foreign and not self.obsolete

    def pieces(self) -> Iterator[Piece]:
        """Reads the frames in order, valid or in part."""
        return (found for found in self.scan() if isinstance(found, Piece))

    def scan(self) -> Iterator[Piece | Hole]:
        """Yields frames and holes, in order. After each hole, yields the frames in the hole that can be read in
        part."""
        if self.salt is None:
            return
        limit, end = self.cut or (0, self.size)
        released = 0
        for found in read_pieces(self.data, self.salt, self.first):
            listed: list[Piece | Hole] = [found, *found.pieces] if isinstance(found, Hole) else [found]
            for each in listed:
                # Frames that a start has cut off do not count: their numbers were given again.
                if each.start < end or (each.first if isinstance(each, Hole) else each.sequence) < limit:
                    yield each
            if found.start - released > _AT_ONCE:
                released = found.start
                release(self.data, released)
        release(self.data)


class PlacedRecord(NamedTuple):
    """A record and its queue. qid: None if the queue's name is lost; number: identifies the queue in the whole journal;
    start: the byte of the file at which the record begins."""

    part: SegmentFile
    record: Record
    qid: str | None
    number: int
    start: int

    @property
    def place(self) -> int:
        return place_of(self.part.number, self.start)


class FoundCheckpoint(NamedTuple):
    """A checkpoint file. position: the end of the log, according to the checkpoint; fault: why a start ignores the
    checkpoint, None if it is valid."""

    path: str
    size: int
    position: Position | None
    fault: str | None


class Contents(NamedTuple):
    """The contents of a segment that can be read: numbers of frames, of records, and of messages by queue, each id
    once."""

    frames: int
    records: int
    messages: dict[str, int]


class ExaminedJournal(NamedTuple):
    """An examined journal. parts: all segment files in order; missing: descriptions of missing segments and frames;
    torn: the file whose torn end a start cuts off, or None; refusal: why a start is refused, or would find wrong
    messages, or None; oldest, last: the oldest segment that is needed (0: unknown), and the greatest number in use;
    names: the name of each queue, by (life, number in that life); numbers: each queue's number in the whole journal, by
    its name, or else by its key in `names`, filled while records are read."""

    parts: list[SegmentFile]
    missing: list[str]
    torn: str | None
    refusal: JournalDamagedError | None
    oldest: int
    last: int
    checkpoint: FoundCheckpoint | None
    names: dict[tuple[bytes | None, int], str]
    numbers: dict[str | tuple[bytes | None, int], int]

    def placed(self) -> Iterator[PlacedRecord]:
        """Reads all records that can be read, in the order in which they were written."""
        before: dict[int, str] = {}
        for part in self.parts:
            if part.counts:
                yield from self._placed_in(part, before)
                before.update(part.names)

    def _placed_in(self, part: SegmentFile, before: Mapping[int, str]) -> Iterator[PlacedRecord]:
        """Reads the records of a part. before: the names of queues by number, from earlier parts."""
        for piece in part.pieces():
            for start, record in piece.placed():
                qid = self.names.get((part.life, record.number))
                if qid is None and isinstance(record, records.Remove):
                    # A start that finds the directory of a queue gone does not name the queue, and writes this.
                    qid = before.get(record.number)
                yield PlacedRecord(part, record, qid, self.number_of(part, record.number, qid), start)

    def number_of(self, part: SegmentFile, number: int, qid: str | None = None) -> int:
        """Returns the number that identifies a queue in the whole journal. number: the queue's number in the part; qid:
        the queue's name, None for the name that the number has in the life of the part."""
        meant = part.life, number
        return self.numbers.setdefault(qid or self.names.get(meant) or meant, len(self.numbers) + 1)

    def with_leftovers(self) -> "ExaminedJournal":
        """Returns the journal with obsolete segments whose files still exist: those before the oldest needed one, as
        far back as all are there and whole. A log that began with them was right too, and they may have a payload whose
        copy is damaged."""
        parts, first = list(self.parts), None
        wanted = next((part for part in parts if part.counts), None)
        while wanted is not None and wanted.first is not None and wanted.salt is not None:
            number, first = wanted.number - 1, wanted.first
            found = (part for part in parts if part.number == number and part.obsolete and not part.foreign)
            wanted = next((part for part in found if part.next == first and not (part.holes or part.faults)), None)
            if wanted is not None:
                parts[parts.index(wanted)] = wanted = wanted._replace(obsolete=False)
        return self._replace(parts=parts)

    def payload(self, place: int) -> bytes | None:
        """Reads the payload in the record at a place, None if no payload can be read there."""
        for part in self.parts:
            if part.counts and part.salt is not None and part.number == segment_of(place):
                body = body_at(part.data, start_of(place), part.salt)
                payload = None if body is None else records.payload_of(body)
                if payload is not None:
                    return bytes(payload)
        return None

    def contents(self, part: SegmentFile) -> Contents:
        """Reads the contents of a segment. Leaves out the messages of a segment that does not count. BadRecordError if
        a server uses the file again meanwhile."""
        frames = count = 0
        found: dict[str, MidSet] = {}
        for piece in part.pieces():
            frames, count = frames + 1, count + len(piece.starts)
            for record in piece.records() if part.counts else ():
                if mids := messages_in(record):
                    unnamed = f"(queue number {self.number_of(part, record.number)})"
                    add_all(found.setdefault(self.names.get((part.life, record.number), unnamed), MidSet()), mids)
        return Contents(frames, count, {qid: len(mids) for qid, mids in found.items()})


def messages_in(record: Record) -> Sequence[int]:
    """Returns the ids of the messages that a record adds."""
    if isinstance(record, records.Published):
        return range(record.first, record.first + sum(count for _, _, count in record.parts))
    return (record.mid,) if isinstance(record, _WITH_ID) else ()


def add_all(known: MidSet, mids: Iterable[int]) -> None:
    """Adds ids to a set that may have some of them."""
    for mid in mids:
        if mid not in known:
            known.add(mid)


def examine(directory: str, disk: Disk) -> ExaminedJournal:
    """Examines the journal in a directory. JournalFormatError if a segment that counts has another format; OSError;
    FileNotFoundError may mean that a server removed a segment."""
    begun = read_last(directory)
    # Each file is read for itself first: which of them belong together shows only when all are known.
    found = sorted((_read(directory, number) for number in numbers_in(directory, disk)), key=_in_order)
    foreign = [part._replace(foreign=True) for part in found if begun is not None and part.number > begun + 1]
    own: dict[int, SegmentFile] = {}
    others = list(foreign)
    for part in found[: len(found) - len(foreign)]:
        known = own.setdefault(part.number, part)
        if known is not part:
            # Two files say that they are the same segment: the one with more whole frames counts.
            own[part.number], copy = (part, known) if part.whole > known.whole else (known, part)
            others.append(copy._replace(obsolete=True))
    parts = _with_lives(_without_cut_frames(list(own.values())))
    # The newest segment that can be read knows best.
    oldest = next((part.oldest for part in reversed(parts) if part.oldest), 0)
    parts = [part._replace(obsolete=part.number < oldest) for part in parts]
    counting = [part for part in parts if part.counts]
    for part in counting:
        if part.format is not None:
            raise JournalFormatError(part.path, part.format)
    missing = list(_missing(directory, counting, oldest, begun))
    names = {(part.life, number): qid for part in parts for number, qid in part.names.items()}
    try:
        torn, refusal = verify(directory, disk), None
    except JournalDamagedError as error:
        torn, refusal = None, error
    last = max([*(part.number for part in counting), begun or 0])
    parts = sorted([*parts, *others], key=_in_order)
    return ExaminedJournal(parts, missing, torn, refusal, oldest, last, _find_checkpoint(directory), names, {})


def _in_order(part: SegmentFile) -> tuple[int, str]:
    return part.number, part.path


def _find_checkpoint(directory: str) -> FoundCheckpoint | None:
    path = f"{directory}/{NAME}"
    try:
        size = os.stat(path).st_size
        return FoundCheckpoint(path, size, CheckpointReader(directory).position, None)
    except FileNotFoundError:
        return None
    except BadCheckpointError as error:
        return FoundCheckpoint(path, size, None, str(error))


# -- one segment ----------------------------------------------------------------------------------------------------


def _read(directory: str, number: int) -> SegmentFile:
    path = f"{directory}/{segment_name(number)}"
    data = map_file(path)
    part = SegmentFile(path, number, data)
    try:
        header = read_header(data, len(data))
    except DamagedError as error:
        return _read_without_header(part._replace(faults=(str(error),)))
    if header.number != number:
        part = part._replace(faults=(f"its header says that it is segment {header.number}",))
    return _with_header(part, header)


def _read_without_header(part: SegmentFile) -> SegmentFile:
    try:
        return _with_header(part, read_header(part.data, None))
    except DamagedError as wrong:
        try:
            return _filled(part._replace(salt=find_salt(part.data)))
        except DamagedError as error:
            other = str(wrong) if isinstance(wrong, OtherFormatError) else None
            return part._replace(faults=(*part.faults, str(error)), format=other)


def _with_header(part: SegmentFile, header: Header) -> SegmentFile:
    return _filled(part._replace(number=header.number, first=header.first, salt=header.salt, life=header.life))


def _filled(part: SegmentFile) -> SegmentFile:
    """Reads a whole segment, and keeps the facts that are needed without its records."""
    first, last, oldest, whole = part.first, None, 0, 0
    holes: list[Hole] = []
    names: dict[int, str] = {}
    for found in part.scan():
        if isinstance(found, Hole):
            holes.append(found)
            continue
        if first is None and last is None and found.start == BLOCK:
            first = found.sequence
        last = found.sequence
        if found.whole:
            oldest, whole = max(oldest, found.oldest or 0), whole + 1
        for body in found.bodies:
            if body[0] == records.Queue.KIND:
                record = records.Queue.read(body)
                names[record.number] = record.qid
    return part._replace(first=first, last=last, oldest=oldest, whole=whole, names=names, holes=tuple(holes))


# -- all segments ---------------------------------------------------------------------------------------------------


def _with_lives(parts: list[SegmentFile]) -> list[SegmentFile]:
    """Fills in unknown lives: the life of both neighbours if they agree, else a unique one."""
    done = []
    for at, part in enumerate(parts):
        if part.life is None:
            before = next((p.life for p in reversed(parts[:at]) if p.life is not None), None)
            after = next((p.life for p in parts[at + 1 :] if p.life is not None), None)
            between = before is not None and before == after
            # A queue's number means the same only within a life: without knowing it, the names of other segments do
            # not count.
            part = part._replace(life=before if between else b"segment %d" % at)  # noqa: PLW2901
        done.append(part)
    return done


def _without_cut_frames(parts: list[SegmentFile]) -> list[SegmentFile]:
    """Drops frames that an earlier start has cut off from the end of a segment. A later segment has frames with their
    numbers."""
    done: list[SegmentFile] = []
    limit: int | None = None
    for part in reversed(parts):
        if limit is not None and part.last is not None and part.last >= limit:
            part = _filled(part._replace(cut=(limit, part.holes[0].start if part.holes else part.size)))  # noqa: PLW2901
        done.append(part)
        if part.first is not None:
            limit = part.first if limit is None else min(limit, part.first)
    return done[::-1]


def _missing(directory: str, parts: list[SegmentFile], oldest: int, begun: int | None) -> Iterator[str]:
    """Yields a line for each missing segment and each missing range of frames."""
    present = {part.number for part in parts}
    last = max([*present, begun or 0])
    for number in range(oldest or min(present, default=1), last + 1):
        if number not in present:
            before = max((p.next for p in parts if p.number < number and p.next is not None), default=None)
            after = min((p.first for p in parts if p.number > number and p.first is not None), default=None)
            frames = "" if before is None or after is None else f", with frames {before} to {after - 1}"
            yield f"{directory}/{segment_name(number)} is missing{frames}"
    for one, two in pairwise(parts):
        if one.next is None or two.first is None or two.number != one.number + 1 or one.holes:
            continue
        if one.next < two.first:
            yield f"{one.path}: frames {one.next} to {two.first - 1} are not there"
