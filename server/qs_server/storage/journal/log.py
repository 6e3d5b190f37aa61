"""The log: records are gathered, a commit writes them as one frame, full segments follow one another.

A record has its place as soon as it is appended, as one frame follows the other and nobody else writes. Room is
reserved before anything is appended, so that a full disk is noticed before anything is changed, and by pushes first:
the last part of a segment, and the spare one, are for what makes room again. After a sync that has failed nothing more
is taken until a start has read what is there: the kernel may have dropped what it could not write.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, repeat
from zlib import crc32

from ..disk import Disk, has_no_room
from ..engine import Durability
from . import records
from .absent_record import Run
from .frames import BLOCK, FRAME_HEAD, Header, new_salt, padded
from .lock import forget_last, read_last, take_lock, write_last
from .places import Position
from .segment import SegmentWriter
from .segment_list import SegmentList
from .supply import Supply, enough_of

_logger = logging.getLogger(__name__)
_RESERVE = 1 << 20
"""Bytes at a segment's end that pushes leave to everything else, or a quarter of a small one."""
_DROP = 2 * BLOCK
"""Bytes at a segment's end that a full disk leaves to the record with which the oldest segment goes."""
FRAME = 32 << 20
"""Bytes of records after which a frame is written though its batch goes on."""
QUICK = 0.003
"""Seconds of a write and its sync below which handing a batch to a thread would cost more than it saves."""
_HEAD = records.HEAD.size
_NOTES = 64 << 10
"""Bytes of notes after which a commit writes them though nothing else is to be written."""


class LogFailedError(OSError):
    """The log could not be synced, and takes nothing any more."""


class Log:
    """Appends records to segments. Used by one process, in one thread at a time; a background sync may run in
    another."""

    def __init__(self, directory: str, disk: Disk, durability: Durability, clock: Callable[[], float]) -> None:
        """directory: made if missing. clock: seconds that only go forward, to time commits by. InUseError, OSError."""
        self.directory = directory
        self._disk = disk
        self._sync = durability is Durability.ALWAYS
        self._keep = durability is not Durability.NONE
        self._clock = clock
        disk.make_directories(directory, sync=False)
        # Whatever the durability: files that are taken in are removed once they are in here. It may be there already
        # and not be durable, if a server was killed.
        disk.sync_directory(os.path.dirname(directory))
        self._lock = take_lock(directory, disk)
        self._life = new_salt(b"")
        self._writer: SegmentWriter | None = None
        self.sequence = self.number = 0
        """The numbers of the last frame, and of the last segment."""
        self.segments = SegmentList(directory)
        self.left = self.left_to_pushes = -1
        """Bytes of records, heads included, that can be appended without `reserve`."""
        self.room = 0
        """Bytes of the last segment that are free."""
        self.pending: list[tuple[bytes, bytes | None]] = []
        """The records that were appended and are not written: bodies, and payloads that follow them."""
        self.unwritten: dict[int, bytes] = {}
        """Payloads that were appended one by one and are in no segment yet, by their places."""
        self._length, self._wanted, self._kept, self._halfway = 0, False, 0, 0
        self._start = 0  # the place at which the records of the frame that is being made begin
        self.on_sync: Callable[[float], object] = lambda seconds: None
        """Is told, in any thread, how long each sync has taken, with the write before it if that is what was synced."""
        self._names: list[bytes] = []
        self.supply = Supply(directory, disk, sync=self._keep)
        self.failed: OSError | None = None
        """Why it takes nothing any more; None: it does."""
        self.cost = 0.0
        """Seconds that a write and its sync take, on average."""
        self.first_records: Callable[[], Iterable[bytes]] = tuple
        """Returns the records that a new segment has to begin with: a QUEUE for each queue."""
        self.tight = False
        """True if the disk was full when it was last asked for another segment."""
        self.is_shrinking: Callable[[], bool] = lambda: False
        """Tells whether compaction is at work."""
        self.settle_upkeep: Callable[[], bool] = lambda: False
        """Waits for what is made or removed in another thread. Returns whether there was anything."""
        self.make_room: Callable[[], bool] = lambda: False
        """Frees room on a full disk; whether it has. OSError."""
        self.commit_batch: Callable[[], None] = self.commit
        """Commits what is being made; is called before a new segment is begun in the middle of a batch."""

    def resume(
        self, headers: Iterable[Header], obsolete: Iterable[str], number: int, sequence: int, absent: tuple[Run, ...]
    ) -> None:
        """Goes on in a new segment behind what a start has found. number, sequence: of the last segment and the last
        frame; others: see `SegmentList.restore`."""
        self.number, self.sequence = number, sequence
        self.segments.restore(headers, obsolete, absent)
        self.supply.clear()
        if self.number:
            # A server that was killed may have left frames that nothing has made durable. What follows relies on them:
            # a start refuses a segment with frames missing before it, and files go that are messages.
            self._disk.sync_file(self.segments.path_of(self.number))
        if self.number and read_last(self.directory) != self.number:
            write_last(self._lock, self.number, self._disk)

    # -- writing --------------------------------------------------------------------------------------------------

    def reserve(self, size: int, *, push: bool = False, copy: bool = False, drop: bool = False) -> None:
        """Makes sure that records of that many bytes (heads included) can be appended to one frame. push: and leaves
        room for what frees room again; copy: leaves half of that, as compaction frees room but must not be in the way
        of deletes, and less when the reserve is used up; drop: leaves nothing, as a segment goes with it. OSError:
        there is no room, and nothing has changed, unless what was appended before could not be committed."""
        if size <= (self.left_to_pushes if push or copy else self.left):
            return
        if self.failed is not None:
            raise LogFailedError(self.failed.errno, f"the journal failed ({self.failed.strerror})")
        if self.pending:
            self.commit_batch()
        if self.is_short and not copy and not drop:
            self._relieve(push=push)
        needed = padded(FRAME_HEAD + size)
        if self._writer is None or needed > self.room - self._leave(push=push, copy=copy, drop=drop):
            self._go_over(needed, push=push, copy=copy)
        self._count_left()
        self.left, self.left_to_pushes = max(self.left, size), max(self.left_to_pushes, size)

    @property
    def is_short(self) -> bool:
        """True if the disk is full and the reserve is used up. Pushes then leave all of the last segment to compaction
        and deletes, which make room for another reserve with it."""
        return self.tight and self.wants_reserve is not None

    def _relieve(self, *, push: bool) -> None:
        """Tries to make another reserve. Deletes also compact, each time they have used half of what is left, while the
        copies may still have room there. OSError."""
        if push:
            self.renew_reserve()
        else:
            self.make_room()
            self._halfway = self.room // 2

    def renew_reserve(self) -> None:
        """Makes another reserve if there is room for one by now. OSError, except for lack of room."""
        try:
            self.supply.require_reserve(self.segments.largest)
        except OSError as error:
            if not has_no_room(error):
                raise

    def _go_over(self, needed: int, *, push: bool, copy: bool) -> None:
        """Begins a new segment. On a full disk, deletes have room made, and take the reserve only if compaction did not
        need it. OSError."""
        self.segments.changes += 1
        try:
            self._begin_or_wait(needed, push=push, copy=copy)
        except OSError as error:
            if not has_no_room(error):
                raise
            self.tight = True
            if push or copy:
                raise
            self.make_room()
            if self._writer is None or needed > self.room - self._leave(push=push, copy=copy, drop=False):
                self._begin_segment(needed, push=False, exact=True, lend=True)
        else:
            self.tight = self.tight and not push

    def _begin_or_wait(self, needed: int, *, push: bool, copy: bool) -> None:
        """Begins a new segment. When there is no room, a spare one that is being made may have taken it: tries again
        after that. OSError."""
        try:
            self._begin_segment(needed, push=push, exact=copy, lend=copy)
        except OSError as error:
            if not has_no_room(error) or not self.settle_upkeep():
                raise
            self._begin_segment(needed, push=push, exact=copy, lend=copy)

    def _leave(self, *, push: bool, copy: bool, drop: bool) -> int:
        """Returns how many bytes at the end of the last segment are left to what frees room again."""
        if push:
            return self.room if self.is_short else self._kept
        if copy and not self.is_short:
            return self._kept // 2
        return _DROP if self.tight and not drop else 0

    def _count_left(self) -> None:
        writer = self._writer
        if writer is None or self.failed is not None:
            self.left = self.left_to_pushes = -1
            return
        size, end, length = writer.header.size, writer.end, self._length
        self.room = size - end
        room, most = self.room - BLOCK - FRAME_HEAD - length, FRAME - length
        kept, kept_from_pushes = 0, self._kept
        if self.tight:
            kept = max(self._halfway if self.is_short else 0, self._leave(push=False, copy=False, drop=False))
            kept_from_pushes = self._leave(push=True, copy=False, drop=False)
        self.left = min(room - kept, most)
        self.left_to_pushes = min(room - kept_from_pushes, most)
        self._start = self.number << 32 | end + FRAME_HEAD  # a place: see `places`

    def append(self, body: bytes, payload: bytes | None = None, *, durable: bool = True) -> int:
        """Adds a record to the next frame. Returns its place. The room is reserved. durable: False for a note, which is
        written with the next frame that has to be."""
        if durable:
            self._wanted = True
        place = self._start + self._length
        self.pending.append((body, payload))
        if body[0] in records.BROAD:
            self.segments.links.widen()
        length = _HEAD + len(body)
        if payload is not None:
            self.unwritten[place] = payload
            length += len(payload)
        self._length += length
        self.left -= length
        self.left_to_pushes -= length
        return place

    def name(self, body: bytes) -> None:
        """Appends a record that later ones need: if it is discarded, the next frame begins with it."""
        self._names.append(body)
        self.append(body)

    def note(self, body: bytes) -> None:
        """Adds a record that need not be durable: it is written with the next frame that has to be. Does nothing when
        there is no room for it."""
        if len(body) + _HEAD <= self.left_to_pushes:
            self.append(body, durable=False)

    def note_all(self, bodies: Sequence[bytes]) -> None:
        """Adds records as `note` does, all or none."""
        length = len(bodies) * _HEAD + sum(map(len, bodies))
        if length <= self.left_to_pushes:
            self.pending += zip(bodies, repeat(None))
            self._length += length
            self.left -= length
            self.left_to_pushes -= length

    def append_all(
        self, bodies: Sequence[bytes], payloads: Sequence[bytes], sizes: Sequence[int], beside: int
    ) -> list[int]:
        """Adds records with payloads of these sizes. beside: bytes that each record takes beside its payload. Returns
        their places. The room is reserved."""
        self._wanted = True
        first = self._start + self._length
        places = list(accumulate(map(beside.__add__, sizes), initial=first))
        length = places.pop() - first
        self.pending += zip(bodies, payloads, strict=True)
        self._length += length
        self.left -= length
        self.left_to_pushes -= length
        return places

    def commit(self, *, notes: bool = False) -> None:
        """Writes what was appended as one frame; durable if the log is synced at each commit. notes: True to write
        notes although nothing else is pending. OSError: none of it counts, and the caller takes its changes back."""
        if not self.pending or not (self._wanted or notes or self._length > _NOTES):
            return
        if self.failed is not None:
            self.discard()
            raise LogFailedError(self.failed.errno, f"the journal failed ({self.failed.strerror})")
        writer = self._writer
        if writer is None:
            raise RuntimeError("appended without having reserved")
        parts = join(self.pending, writer.seed, writer.end)
        count, length = len(self.pending), self._length
        self.pending, self._length, self._wanted = [], 0, False
        self.unwritten.clear()
        started = self._clock()
        try:
            writer.write(self.sequence + 1, parts, length, count)
        except OSError as error:
            if writer.failed is not None:
                self._fail(error)
            self._count_left()
            raise
        seconds = self._clock() - started
        self.cost += (seconds - self.cost) / 8
        if self._sync:
            self.on_sync(seconds)
        self.sequence += 1
        self._names.clear()
        self._count_left()

    def discard(self) -> None:
        """Forgets what was appended since the last commit."""
        self.pending, self._length, self._wanted = [], 0, False
        self.unwritten.clear()
        self._count_left()
        for body in self._names:  # they had room in this segment
            self.append(body, durable=False)

    def _fail(self, error: OSError) -> None:
        self.failed = error
        self.segments.changes += 1
        self._count_left()
        _logger.critical(
            "the journal in %s could not be written and synced (%s): nothing is accepted any more. What was answered "
            "before is as durable as the disk is; see to it, and start the server again",
            self.directory,
            error,
        )

    def background_sync(self) -> Callable[[], None] | None:
        """Returns what makes all commits so far durable, in any thread; None when they are."""
        writer = self._writer
        if self._sync or writer is None or writer.synced >= self.sequence or self.failed is not None:
            return None
        return partial(self._sync_behind, writer, self.sequence)

    def _sync_behind(self, writer: SegmentWriter, sequence: int) -> None:
        started = self._clock()
        try:
            writer.sync()
        except OSError as error:
            self._fail(error)
            raise
        writer.synced = max(writer.synced, sequence)
        self.on_sync(self._clock() - started)

    # -- segments -------------------------------------------------------------------------------------------------

    def _begin_segment(self, needed: int, *, push: bool, exact: bool, lend: bool = False) -> None:
        """Goes over to a new segment, in which that many bytes have room. OSError: it goes on with the old one."""
        number = self.number + 1
        first = [*self.segments.first_records(), *self.first_records()]
        begin = 2 * BLOCK + padded(FRAME_HEAD + sum(records.HEAD.size + len(body) for body in first))
        size, path, recycled = self.supply.take(
            begin + padded(needed), push=push, exact=exact, lend=lend, largest=self.segments.largest
        )
        self._sync_last()
        oldest = self.segments.oldest or number
        header = Header(number, size, self.sequence + 1, oldest, new_salt(self._life), int(recycled))
        writer = SegmentWriter(path, header, self._disk, sync=self._sync)
        try:
            parts = join([(body, None) for body in first], writer.seed, BLOCK)
            writer.begin(self.sequence + 1, parts, len(first))
            self._place(path, number)
        except OSError:
            writer.close()
            raise
        if self._writer is not None:
            self._writer.close()
        self._writer, self.number, self.sequence = writer, number, self.sequence + 1
        self.segments.add(header)
        self.segments.links.segment = number
        self.room, self._kept = size - writer.end, min(_RESERVE, size // 4)

    def _sync_last(self) -> None:
        """Makes all before the last segment durable, whatever the durability. OSError."""
        if self._writer is not None and not self._sync:
            try:
                self._writer.sync()
            except OSError as error:
                self._fail(error)
                raise

    def _place(self, path: str, number: int) -> None:
        """Gives a new segment its name. OSError: for want of room, and the one before it may go on; or for good."""
        name = self.segments.path_of(number)
        self._disk.rename(path, name)
        try:
            self._disk.sync_directory(self.directory)
            write_last(self._lock, number, self._disk)
        except OSError as error:
            if has_no_room(error) and self._take_back(name, number):
                raise
            self._fail(error)
            raise

    def _take_back(self, name: str, number: int) -> bool:
        """Removes a segment again: it must go before the one before it gets more frames, which would be missing."""
        try:
            if read_last(self.directory) == number:
                forget_last(self._lock, number, self._disk)
            self._disk.unlink(name)
        except OSError:
            return False
        return True

    @property
    def position(self) -> Position:
        """Where the next frame goes. Valid once something was written since the start."""
        if self._writer is None:
            raise RuntimeError("nothing was written")
        return Position(self.number, self._writer.end, self.sequence + 1)

    @property
    def used(self) -> bool:
        """True if anything was written since the start."""
        return self._writer is not None

    @property
    def wants_spare(self) -> int | None:
        """Bytes of the spare segment to make now, None if there is one or it is too early. It is made earlier if a
        segment can be recycled."""
        return self.supply.wanted if self.room < self.spare_below else None

    @property
    def spare_below(self) -> int:
        """Bytes of room in the last segment below which a spare one should be made; 0 while there is one."""
        if self._writer is None or self.supply.wanted is None:
            return 0
        size = self._writer.header.size
        return size if self.segments.can_recycle else enough_of(size, shrinking=self.is_shrinking())

    @property
    def wants_reserve(self) -> int | None:
        """Bytes of the reserve to make now, None if there is one or it is too early."""
        return None if self._writer is None else self.supply.wanted_reserve(self.segments.largest)

    def drop(self, number: int) -> None:
        """Gives up a segment but the last: nothing in it is needed, and a record says so, durably. OSError."""
        body = self.segments.record_without(number)
        self.reserve(records.HEAD.size + len(body), drop=True)
        self.append(body)
        self.commit_batch()
        self.segments.remove(number)

    def close(self) -> None:
        """Lets go of the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._disk.close(self._lock)


def join(pending: list[tuple[bytes, bytes | None]], begin: int, start: int) -> list[bytes]:
    """Returns the bytes of the records of a frame, each with its length and checksum before it. begin: what checksums
    in the segment begin with; start: where the frame begins in its segment."""
    parts: list[bytes] = []
    pack, head = records.HEAD.pack, _HEAD
    place = start + FRAME_HEAD
    for body, payload in pending:
        length = len(body)
        checksum = crc32(body, begin ^ place)
        if payload is None:
            parts += (pack(length, checksum), body)
        else:
            length += len(payload)
            parts += (pack(length, crc32(payload, checksum)), body, payload)
        place += head + length
    return parts
