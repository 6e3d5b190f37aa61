"""Examines a journal for `queue-journal.py`: lists each segment file, its readable records, and the missing parts.

Changes nothing, and may run beside a server. A segment is read again each time its records are needed, so memory holds
one segment, and some bytes for each damaged frame and each message: the index that a server would have.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from ...disk import Disk
from ...index.midset import MidSet
from ..log.absent_record import Absent, Run, frame_at, is_absent
from ..log.claim_records import Published
from ..log.frames import BLOCK, DamagedError, Header, read_header
from ..log.lock import read_last
from ..log.places import SHIFT, Position, place_of, segment_name
from ..log.records import (
    Checkpoint,
    Kind,
    Moved,
    OfQueue,
    Push,
    Queue,
    Record,
    Remove,
    Shared,
    parse_one,
)
from ..log.recovery import JournalDamagedError, map_file, numbers_in, release
from ..log.transfer_record import Transfer
from ..upkeep.checkpoint import NAME, BadCheckpointError, CheckpointReader
from .audit import audit
from .salvage import Hole, Piece, find_salt, read_pieces

_AT_ONCE = 64 << 20
"""Bytes of a segment that are in memory at a time: ordinary segments are not larger."""
_ABOUT_SEGMENTS = frozenset((Kind.QUEUE, Kind.CHECKPOINT, Kind.ABSENT))
"""The kinds that an examination has to understand before it reads the others."""


class Part(NamedTuple):
    """One segment file. number: from its header, or else its name; first: number of its first frame, if known; last: of
    its last frame that can be read, if any; oldest: the oldest segment that is needed according to it; life, salt: see
    `Header`; names: queues by their numbers, from its records; absent: the removed segments according to its last
    record of them; whole: the numbers of its valid frames; holes: the ranges that are not valid; faults: descriptions;
    foreign: True if it belongs to another journal; obsolete: True if nothing in it is needed; twice: the numbers of
    frames that are taken from another file; cut: the frames from this number on do not count behind this byte, as an
    earlier start has cut them off."""

    path: str
    number: int
    data: memoryview
    first: int | None = None
    last: int | None = None
    oldest: int = 0
    life: bytes | None = None
    salt: bytes | None = None
    names: Mapping[int, str] = MappingProxyType({})
    absent: tuple[Run, ...] | None = None
    whole: tuple[range, ...] = ()
    holes: tuple[Hole, ...] = ()
    faults: tuple[str, ...] = ()
    foreign: bool = False
    obsolete: bool = False
    twice: tuple[range, ...] = ()
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
        return (found for found in self.scan() if isinstance(found, Piece) and self._has(found))

    def _has(self, piece: Piece) -> bool:
        if any(piece.sequence in numbers for numbers in self.twice):
            return False
        return self.cut is None or piece.sequence < self.cut[0] or piece.start < self.cut[1]

    def scan(self) -> Iterator[Piece | Hole]:
        """Reads frames and holes; the frames of a hole that can be read in part follow it."""
        if self.salt is None:
            return
        released = 0
        for found in read_pieces(self.data, self.salt, self.first):
            yield found
            if isinstance(found, Hole):
                yield from found.pieces
            if found.start - released > _AT_ONCE:
                released = found.start
                release(self.data, released)
        release(self.data)


class Placed(NamedTuple):
    """A record and its queue. qid: None if the queue's name is lost; number: identifies the queue in the whole journal;
    start: byte of the file at which the record begins."""

    part: Part
    record: OfQueue
    qid: str | None
    number: int
    start: int

    @property
    def place(self) -> int | None:
        """The place of the record, None if it has none: see `places`."""
        return None if self.start >> SHIFT else place_of(self.part.number, self.start)


class FoundCheckpoint(NamedTuple):
    """A checkpoint file. position: the end of the log in it; fault: why a start ignores it, None if it is valid."""

    path: str
    size: int
    position: Position | None
    fault: str | None


class Contents(NamedTuple):
    """What can be read of a segment: numbers of frames and records, and of messages by queue, each id once."""

    frames: int
    records: int
    messages: dict[str, int]


class Examined(NamedTuple):
    """An examined journal. parts: all segment files in order; missing: descriptions of missing segments and frames;
    torn: the file whose end a start cuts off, or None; refusal: why a start is refused or its messages would not be
    right, or None; last: the greatest segment number in use; names: of each queue, by (life, number in that life);
    numbers: filled with each queue's number in the whole journal, by its name, or else its key in `names`."""

    parts: list[Part]
    missing: list[str]
    torn: str | None
    refusal: JournalDamagedError | None
    last: int
    checkpoint: FoundCheckpoint | None
    names: dict[tuple[bytes | None, int], str]
    numbers: dict[str | tuple[bytes | None, int], int]

    def placed(self) -> Iterator[Placed]:
        """Reads all records that can be read, in the order in which they were written."""
        before: dict[int, str] = {}
        for part in self.parts:
            if part.counts:
                yield from self._placed_in(part, before)
                before.update(part.names)

    def _placed_in(self, part: Part, before: Mapping[int, str]) -> Iterator[Placed]:
        """Reads the records of a part. before: the names of queues in earlier parts, by number."""
        for piece in part.pieces():
            for start, record in piece.placed():
                if isinstance(record, (Checkpoint, Absent)):
                    continue
                qid = self.names.get((part.life, record.number))
                if qid is None and isinstance(record, Remove):
                    # A start that finds the directory of a queue gone does not name the queue, and writes this.
                    qid = before.get(record.number)
                yield Placed(part, record, qid, self.number_of(part, record.number, qid), start)

    def number_of(self, part: Part, number: int, qid: str | None = None) -> int:
        """Returns the number that identifies a queue in the whole journal. number: its number in the part; qid: its
        name, None for the one that the part's life gives the number."""
        meant = part.life, number
        return self.numbers.setdefault(qid or self.names.get(meant) or meant, len(self.numbers) + 1)

    def contents(self, part: Part) -> Contents:
        """Reads what a segment contains. The messages of one that does not count are left out. BadRecordError if a
        server uses the file again meanwhile."""
        frames = records = 0
        found: dict[str, MidSet] = {}
        for piece in part.pieces():
            frames, records = frames + 1, records + len(piece.starts)
            for record in piece.records() if part.counts else ():
                mids = messages_in(record)
                if mids and not isinstance(record, (Checkpoint, Absent)):
                    unnamed = f"(queue number {self.number_of(part, record.number)})"
                    known = found.setdefault(self.names.get((part.life, record.number), unnamed), MidSet())
                    for mid in mids:
                        if mid not in known:
                            known.add(mid)
        return Contents(frames, records, {qid: len(mids) for qid, mids in found.items()})


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
    absent = next((part.absent for part in reversed(parts) if not part.foreign and part.absent is not None), ())
    parts = [part._replace(obsolete=part.number < oldest or is_absent(absent, part.number)) for part in parts]
    counting = _without_copies([part for part in parts if part.counts], absent)
    missing = list(_missing(directory, counting, oldest, begun, absent))
    others = [part for part in parts if not part.counts]
    counting = _with_lives(counting)
    names = {(part.life, number): qid for part in counting for number, qid in part.names.items()}
    parts = sorted([*counting, *others], key=lambda part: (part.number, part.path))
    torn, refusal = _verdict(directory, disk)
    last = max([*(part.number for part in counting), begun or 0])
    return Examined(parts, missing, torn, refusal, last, _find_checkpoint(directory), names, {})


def verify(directory: str, disk: Disk) -> str | None:
    """Checks that a server would start with the journal and find every message: with the checkpoint, and without it.
    Returns the file whose end it would cut off, or None. JournalDamagedError, OSError."""
    torn = audit(directory, disk, with_checkpoint=False)
    if os.path.lexists(f"{directory}/{NAME}"):
        audit(directory, disk, with_checkpoint=True)
    return torn


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
    part = Part(path, number, data)
    try:
        header = read_header(data, len(data))
    except DamagedError as error:
        return _read_without_header(part._replace(faults=(str(error),)))
    if header.number != number:
        part = part._replace(faults=(f"its header says that it is segment {header.number}",))
    return _fill(part, header)


def _read_without_header(part: Part) -> Part:
    try:
        header = read_header(part.data, None)
    except DamagedError:
        try:
            salt = find_salt(part.data)
        except DamagedError as error:
            return part._replace(faults=(*part.faults, str(error)))
        header = Header(part.number, part.size, -1, 0, salt)
    return _fill(part, header)


def _fill(part: Part, header: Header) -> Part:
    """Reads all of a segment, and keeps what is needed of it without the records."""
    first, last = header.first if header.first >= 0 else None, None
    part = part._replace(number=header.number, first=first, salt=header.salt)
    whole: list[range] = []
    holes: list[Hole] = []
    about: list[Record] = []
    for found in part.scan():
        if isinstance(found, Hole):
            holes.append(found)
            continue
        if first is None and last is None and found.start == BLOCK:
            first = found.sequence
        last = found.sequence
        if found.whole:
            begin = whole.pop().start if whole and whole[-1].stop == last else last
            whole.append(range(begin, last + 1))
        about += [parse_one(body) for body in found.bodies if body[0] in _ABOUT_SEGMENTS]
    runs = [record.runs for record in about if isinstance(record, Absent)]
    return part._replace(
        first=first,
        last=last,
        oldest=max([header.oldest, *(record.oldest for record in about if isinstance(record, Checkpoint))]),
        life=None if header.first < 0 else header.life,
        names={record.number: record.qid for record in about if isinstance(record, Queue)},
        absent=runs[-1] if runs else None,
        whole=tuple(whole),
        holes=tuple(holes),
    )


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
            part = part._replace(twice=done[-1].twice + done[-1].whole)  # noqa: PLW2901
        done.append(part)
    for at, part in enumerate(done):
        firsts = [later.first for later in done[at + 1 :] if later.number > part.number and later.first is not None]
        if (gone := frame_at(absent, part.number + 1)) is not None:
            firsts.append(gone)
        if firsts and part.last is not None and part.last >= (limit := min(firsts)):
            cut = part._replace(cut=(limit, part.holes[0].start if part.holes else part.size), last=None, names={})
            for piece in cut.pieces():
                named = (record for record in piece.records() if isinstance(record, Queue))
                cut = cut._replace(
                    last=piece.sequence, names={**cut.names, **{each.number: each.qid for each in named}}
                )
            done[at] = cut._replace(holes=tuple(hole for hole in part.holes if hole.first < limit))
    return done


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
