"""The write-ahead log: collects records, writes one frame per commit, and begins a new segment when one is full.

A record's place is known when it is appended. Callers reserve room first, so that a full disk is noticed before
anything changes. Pushes leave the end of a segment and the spare segment to deletes and compaction, which free room.
After a failed sync the log accepts nothing until a restart has read the disk: the kernel may have dropped data.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, repeat
from zlib import crc32

from ...disk import Disk, has_no_room
from ...engine import Durability
from . import records, supply
from .absent_record import Run
from .frames import BLOCK, FRAME_HEAD, Header, new_salt, padded
from .lock import forget_last, read_last, take_lock, write_last
from .places import SHIFT, Position
from .segment import SegmentWriter
from .segment_list import SegmentList
from .supply import Supply, enough_of

_logger = logging.getLogger(__name__)
_RESERVE = 1 << 20
"""Bytes at the end of a segment that pushes do not use. In a small segment: a quarter of it."""
_DROP = 2 * BLOCK
"""Bytes at the end of a segment that are kept, on a full disk, for the record that gives up the oldest segment."""
FRAME = 32 << 20
"""Bytes of records in a frame; a batch with more gets several frames."""
QUICK = 0.003
"""Seconds. A commit that is faster is not worth a thread."""
_HEAD = records.HEAD.size
_NOTES = 64 << 10
"""Bytes of notes after which a commit writes them even if there is nothing else to write."""


class LogFailedError(OSError):
    """The log failed before, and accepts no more records."""


class Log:
    """Appends records to segments, in one thread at a time; a background sync may run in another."""

    def __init__(self, directory: str, disk: Disk, durability: Durability, clock: Callable[[], float]) -> None:
        """directory: made if missing; clock: monotonic seconds, to time commits. InUseError, OSError."""
        self.directory = directory
        self._disk = disk
        self._sync = durability is Durability.ALWAYS
        self._keep = durability is not Durability.NONE
        self._clock = clock
        disk.make_directories(directory, sync=False)
        # With any durability: files that became messages are removed. The directory may exist and not be durable, if a
        # server was killed.
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
        """Appended records that are not written yet: (body, payload after it)."""
        self.unwritten: dict[int, bytes] = {}
        """Payloads of `append` that are in no segment yet, by their places."""
        self._length, self._wanted, self._kept, self._halfway = 0, False, 0, 0
        self._start = 0  # the place of the next frame's first record
        self.on_sync: Callable[[float], object] = lambda seconds: None
        """Called after each sync, in any thread, with the seconds that it took; a commit's include the write."""
        self._required: list[bytes] = []
        self.supply = Supply(directory, disk, sync=self._keep)
        self.failed: OSError | None = None
        """The error after which the log accepts nothing, else None."""
        self.cost = 0.0
        """Average seconds of a write and its sync."""
        self.first_records: Callable[[], Iterable[bytes]] = tuple
        """Returns the records that a new segment has to begin with: a QUEUE for each queue."""
        self.tight = False
        """True if the disk was full at the last request for a segment."""
        self.is_shrinking: Callable[[], bool] = lambda: False
        """Tells whether compaction is at work."""
        self.settle_upkeep: Callable[[], bool] = lambda: False
        """Waits for upkeep in another thread. Returns True if any was running."""
        self.make_room: Callable[[], bool] = lambda: False
        """Frees room on a full disk. Returns True if it freed any. OSError."""
        self.commit_batch: Callable[[], None] = self.commit
        """Commits the batch so far; called before a new segment begins in the middle of a batch."""

    def resume(
        self, headers: Iterable[Header], obsolete: Iterable[str], number: int, sequence: int, absent: tuple[Run, ...]
    ) -> None:
        """Continues an existing log after replay, with a new segment. number: of the last segment; sequence: of the
        last frame; others: see `SegmentList.restore`."""
        self.number, self.sequence = number, sequence
        self.segments.restore(headers, obsolete, absent)
        self.supply.clear()
        if self.number:
            # A killed server may have left frames that are not durable. New segments need them: a start refuses a
            # segment if frames before it are missing.
            self._disk.sync_file(self.segments.path_of(self.number))
        if self.number and read_last(self.directory) != self.number:
            write_last(self._lock, self.number, self._disk)

    # -- writing --------------------------------------------------------------------------------------------------

    def reserve(
        self, size: int, *, push: bool = False, back: bool = False, copy: bool = False, drop: bool = False
    ) -> None:
        """Makes sure that records of `size` bytes (heads included) fit into the next frame.

        push: leaves room at the segment's end for deletes and compaction; back (giving back, extending): leaves half of
        the reserve for them, as consumers that fail repeat that for ever; copy (compaction): leaves half of that room,
        and less without a reserve; drop (giving up a segment): leaves none. OSError: there is no room, and nothing has
        changed, except if an earlier part of the batch could not be committed."""
        push = push or (back and self._spares_reserve(size))
        if size <= (self.left_to_pushes if push or copy else self.left):
            return
        if self.failed is not None:
            raise LogFailedError(self.failed.errno, f"the journal failed ({self.failed.strerror})")
        if self.pending:
            self.commit_batch()
        if self.is_short and not copy and not drop:
            self._restore_reserve(push=push)
        needed = padded(FRAME_HEAD + size)
        if self._writer is None or needed > self.room - self._left_free(push=push, copy=copy, drop=drop):
            self._begin_next(needed, push=push, copy=copy)
        self._count_left()
        self.left, self.left_to_pushes = max(self.left, size), max(self.left_to_pushes, size)

    @property
    def is_short(self) -> bool:
        """True if the disk is full and the reserve used up: then only compaction and deletes may use the last
        segment."""
        return self.tight and self.wants_reserve is not None

    def _spares_reserve(self, size: int) -> bool:
        """Tells whether records of `size` bytes would leave less than half of a reserve that is in use."""
        return self.is_short and self._writer is not None and self.room - size < self._writer.header.size // 2

    def _restore_reserve(self, *, push: bool) -> None:
        """Tries to make a new reserve. For deletes also compacts, each time they have used half of the room left, while
        copies may still fit. OSError."""
        if push:
            self.renew_reserve()
        else:
            self.make_room()
            self._halfway = self.room // 2

    def renew_reserve(self) -> None:
        """Makes a new reserve if it fits. OSError, except for lack of room."""
        try:
            self.supply.require_reserve(self.segments.largest)
        except OSError as error:
            if not has_no_room(error):
                raise

    def _begin_next(self, needed: int, *, push: bool, copy: bool) -> None:
        """Begins a new segment. On a full disk, deletes first compact, then take the reserve. OSError."""
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
            if self._writer is None or needed > self.room - self._left_free(push=push, copy=copy, drop=False):
                self._begin_segment(needed, push=False, exact=True, lend=True)
        else:
            self.tight = self.tight and not push

    def _begin_or_wait(self, needed: int, *, push: bool, copy: bool) -> None:
        """Begins a new segment. If there is no room, tries again after upkeep that may be making a spare. OSError."""
        try:
            self._begin_segment(needed, push=push, exact=copy, lend=copy)
        except OSError as error:
            if not has_no_room(error) or not self.settle_upkeep():
                raise
            self._begin_segment(needed, push=push, exact=copy, lend=copy)

    def _left_free(self, *, push: bool, copy: bool, drop: bool) -> int:
        """Returns the bytes at the end of the last segment that `reserve` leaves free."""
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
            kept = max(self._halfway if self.is_short else 0, self._left_free(push=False, copy=False, drop=False))
            kept_from_pushes = self._left_free(push=True, copy=False, drop=False)
        self.left = min(room - kept, most)
        self.left_to_pushes = min(room - kept_from_pushes, most)
        self._start = self.number << SHIFT | end + FRAME_HEAD  # a place: `_begin_segment` has checked the size

    def append(self, body: bytes, payload: bytes | None = None, *, durable: bool = True) -> int:
        """Adds a record to the next frame, in reserved room. Returns its place. durable: False for a note."""
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

    def append_required(self, body: bytes) -> None:
        """Appends a record that later ones need: it is written even after `discard`."""
        self._required.append(body)
        self.append(body)

    def note(self, body: bytes) -> None:
        """Adds a record that need not be durable: it is written with the next durable one. Does nothing if there is no
        room."""
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
        """Adds records to the next frame, in reserved room. Returns their places. sizes: bytes of the payloads; beside:
        bytes of each record without its payload."""
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
        """Writes the appended records as one frame; durable if the log is synced at each commit. notes: True to write
        notes even without other records. OSError: no record counts, and the caller takes its changes back."""
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
        self._required.clear()
        self._count_left()

    def discard(self) -> None:
        """Drops the records appended since the last commit."""
        self.pending, self._length, self._wanted = [], 0, False
        self.unwritten.clear()
        self._count_left()
        for body in self._required:  # they had room in this segment
            self.append(body, durable=False)

    def _fail(self, error: OSError) -> None:
        self.failed = error
        self.segments.changes += 1
        self._count_left()
        _logger.critical(
            "the journal in %s could not be written and synced (%s): nothing is accepted any more. What was answered "
            "before is as durable as the disk is; check the disk, and start the server again",
            self.directory,
            error,
        )

    def background_sync(self) -> Callable[[], None] | None:
        """Returns a function that makes all commits so far durable, to call in any thread; None if they are."""
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
        """Begins a new segment with room for `needed` bytes. OSError: the log continues in the old one."""
        number = self.number + 1
        first = [*self.segments.first_records(), *self.first_records()]
        begin = 2 * BLOCK + padded(FRAME_HEAD + sum(records.HEAD.size + len(body) for body in first))
        if (begin + padded(needed) + supply.SMALLEST) >> SHIFT:
            # Checked here, once a segment, so that no append needs to check the place of its record.
            text = f"records of {needed} bytes do not fit into one segment, which has less than {1 << SHIFT}"
            raise OSError(errno.EOVERFLOW, text)
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
        """Makes the last segment durable, with any durability. OSError."""
        if self._writer is not None and not self._sync:
            try:
                self._writer.sync()
            except OSError as error:
                self._fail(error)
                raise

    def _place(self, path: str, number: int) -> None:
        """Gives a new segment its name. OSError: if for lack of room, the old segment can still be used; else the log
        has failed."""
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
        """Removes the new segment, as the old one will get more frames. Returns False if that failed."""
        try:
            if read_last(self.directory) == number:
                forget_last(self._lock, number, self._disk)
            self._disk.unlink(name)
        except OSError:
            return False
        return True

    @property
    def position(self) -> Position:
        """The position of the next frame. RuntimeError before the first write since the start."""
        if self._writer is None:
            raise RuntimeError("nothing was written")
        return Position(self.number, self._writer.end, self.sequence + 1)

    @property
    def used(self) -> bool:
        """True if anything was written since the start."""
        return self._writer is not None

    @property
    def wants_spare(self) -> int | None:
        """Bytes of the spare segment to make now, None if there is one or it is too early."""
        return self.supply.wanted if self.room < self.spare_below else None

    @property
    def spare_below(self) -> int:
        """Bytes of room in the last segment below which a spare should be made; 0 while there is one."""
        if self._writer is None or self.supply.wanted is None:
            return 0
        size = self._writer.header.size
        return size if self.segments.can_recycle else enough_of(size, shrinking=self.is_shrinking())

    @property
    def wants_reserve(self) -> int | None:
        """Bytes of the reserve to make now, None if there is one or it is too early."""
        return None if self._writer is None else self.supply.wanted_reserve(self.segments.largest)

    def drop(self, number: int) -> None:
        """Gives up a segment that is not the last and has nothing needed: commits a record of that. OSError."""
        body = self.segments.record_without(number)
        self.reserve(records.HEAD.size + len(body), drop=True)
        self.append(body)
        self.commit_batch()
        self.segments.remove(number)

    def close(self) -> None:
        """Closes the files, which releases the lock."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._disk.close(self._lock)


def join(pending: list[tuple[bytes, bytes | None]], begin: int, start: int) -> list[bytes]:
    """Returns the bytes of a frame's records, each with its head. begin: the segment's seed; start: byte of the frame
    in the segment."""
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
