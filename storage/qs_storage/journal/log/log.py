"""The write-ahead log: collects the records of a batch, and writes them as one frame.

Everything here is passive: nothing calls the log's owners, begins a segment by itself, or waits for anything but its
own write. Before a batch, its owner secures room (see `upkeep.room`); within a batch, an append is arithmetic.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, repeat
from zlib import crc32

from ...disk import Disk, has_no_room
from ...engine import Durability, NoRoomError
from . import records
from .frames import BLOCK, FRAME_HEAD, Header, new_salt, padded
from .lock import forget_last, read_last, take_lock, write_last
from .opening import OpenedLog
from .places import SHIFT, Position
from .pool import PoolFile
from .segments import SegmentList, SegmentWriter, joined

_logger = logging.getLogger(__name__)
BATCH = 8 << 20
"""Bytes of records with which a batch ends, unless one request has more: a write of some 20 to 50 ms, for which all who
have joined the batch wait."""
QUICK = 0.003
"""Seconds. A commit that is faster is not worth a thread: handing it over and back takes longer than it saves."""
_HEAD = records.HEAD.size
_NOTES = 64 << 10
"""Bytes of notes after which a commit writes them even if there is nothing else to write: they take memory, and the
room of the batches that follow."""


class LogFailedError(OSError):
    """The log has failed, and accepts no more records."""


class Log:
    """The segments of one journal, and the one that is being written.

    Ensures:
    1. Each record of a committed frame can be read at its place until its segment is given up.
    2. A segment's file is obsolete only once a frame is written that does not need it any more.
    3. Segments are numbered without a gap, and so are frames through all segments: a start notices if one is missing.
    4. After a failed sync nothing more is accepted until a restart has read the disk: the kernel may have dropped data,
       and would report success the next time.

    Assumes one thread at a time; `background_sync` may run in another. Assumes that the file system renames atomically,
    and that a block of a disk is written as a whole.

    Never begins a segment by itself, never waits for anything but its own write, and knows nothing of queues."""

    def __init__(
        self,
        directory: str,
        disk: Disk,
        durability: Durability,
        clock: Callable[[], float],
        on_sync: Callable[[float], object] | None = None,
    ) -> None:
        """directory: the log's, made if missing; clock: monotonic seconds, to time commits; on_sync: called after each
        sync, in any thread, with the seconds that it took (a commit's include the write). InUseError, OSError."""
        self.directory = directory
        self.disk = disk
        self.syncs = durability is Durability.ALWAYS
        self.keeps = durability is not Durability.NONE
        self.clock = clock
        self.on_sync = on_sync
        disk.make_directories(directory, sync=False)
        # With any durability: files that became messages are removed. The directory may exist and not be durable, if a
        # server was killed.
        disk.sync_directory(os.path.dirname(directory))
        self._lock = take_lock(directory, disk)
        # All segments of this process share four bytes of salt: queue numbers mean the same in them.
        self._life = new_salt(b"")
        self.writer: SegmentWriter | None = None
        """Writes the last segment; None before the first write since the start."""
        self.sequence = self.number = 0
        """The number of the last frame, and that of the last segment."""
        self.segments = SegmentList(directory)
        self._end = 0  # of the frames in the last segment, as a start has found it
        self.failed: OSError | None = None
        """The error after which the log accepts nothing, else None."""

    def resume(self, opened: OpenedLog) -> None:
        """Continues an existing log after replay. The first write begins a new segment, unless `reopen_segment` is
        called."""
        self.number, self.sequence = opened.number, opened.sequence
        self._end = opened.end
        self.segments.restore(opened.headers, opened.obsolete)
        if self.number:
            # A killed server may have left frames that are not durable. New segments need them: a start refuses a
            # segment if frames before it are missing.
            self.disk.sync_file(self.segments.path_of(self.number))
            # A server that was killed right after it began the segment may not have made its name durable, and answers
            # after this start may be in that segment: see `reopen_segment`.
            self.disk.sync_directory(self.directory)
            # It may also have written the number without making it durable: so the number is written again.
            write_last(self._lock, self.number, self.disk)

    @property
    def room(self) -> int:
        """The free bytes of the last segment. After a start, the last segment is the one that the server before has
        left."""
        end = self._end if self.writer is None else self.writer.end
        return self.segments.sizes.get(self.number, end) - end

    @property
    def position(self) -> Position:
        """The position of the next frame. RuntimeError before the first write after a start."""
        if self.writer is None:
            raise RuntimeError("nothing was written")
        return Position(self.number, self.writer.end, self.sequence + 1)

    # -- segments -------------------------------------------------------------------------------------------------

    @staticmethod
    def segment_size(first: int, size: int) -> int:
        """Returns the least bytes of a segment that begins with `first` bytes of records, heads included, and has room
        for a frame of `size` bytes of records and another block. OSError if no segment may be so large."""
        # The header, the frame with the names of queues, the frame that is asked for, and blocks to spare: one is kept
        # for a frame that only gives a segment up.
        least = 3 * BLOCK + padded(FRAME_HEAD + first) + padded(FRAME_HEAD + size)
        if least >> SHIFT:
            # Checked here, once a segment, so that no append needs to check the place of its record.
            text = f"records of {size} bytes do not fit into one segment, which has less than {1 << SHIFT}"
            raise OSError(errno.EOVERFLOW, text)
        return least

    def begin_segment(self, file: PoolFile, first: Sequence[bytes]) -> None:
        """Makes a file the next segment. first: the records with which the segment begins: a QUEUE for each queue.
        OSError: the log continues in the old segment, and the file is left as it is."""
        self._sync_last()
        number = self.number + 1
        header = Header(number, file.size, self.sequence + 1, new_salt(self._life), int(file.recycled))
        writer = SegmentWriter(file.path, header, self.disk, sync=self.syncs)
        try:
            parts = joined(first, writer.seed, BLOCK + FRAME_HEAD)
            # The file has its header and a whole first frame before it has the name of a segment: a start never meets
            # a segment without either.
            writer.begin(self.sequence + 1, self.segments.oldest or number, parts, len(first))
            self._place(file.path, number)
        except OSError:
            writer.close()
            raise
        if self.writer is not None:
            self.writer.close()
        self.writer, self.number, self.sequence = writer, number, self.sequence + 1
        self.segments.add(header)

    def can_reopen(self, first: int, size: int) -> bool:
        """Tells whether the segment that was the last one before the start has enough room: for a frame with `first`
        bytes of records, if any, for one with `size` bytes, and for another block. Call it before the first write."""
        if not self.number:
            return False
        needed = (padded(FRAME_HEAD + first) if first else 0) + padded(FRAME_HEAD + size) + BLOCK
        return self._end + needed <= self.segments.sizes[self.number]

    def reopen_segment(self, first: Sequence[bytes]) -> None:
        """Goes on in the last segment, after the frames that a start has found. first: the records to write first: a
        QUEUE for each queue that the log does not name. OSError: nothing was reopened."""
        header = self.segments.headers[self.number]
        writer = SegmentWriter(self.segments.path_of(self.number), header, self.disk, sync=self.syncs)
        try:
            writer.resume(self._end, self.sequence)
            if first:
                parts = joined(first, writer.seed, writer.end + FRAME_HEAD)
                oldest = self.segments.oldest or self.number
                writer.write(self.sequence + 1, oldest, parts, sum(map(len, parts)), len(first))
                self.sequence += 1
        except OSError:
            writer.close()
            raise
        self.writer = writer

    def _sync_last(self) -> None:
        """Makes the last segment durable, whatever the durability. OSError."""
        # With durability `always`, each of its frames was durable when it was written.
        if self.writer is not None and not self.syncs:
            try:
                self.writer.sync()
            except OSError as error:
                self.fail(error)
                raise

    def _place(self, path: str, number: int) -> None:
        """Gives a new segment its name. OSError: after a lack of room, the old segment can still be used; otherwise the
        log has failed."""
        name = self.segments.path_of(number)
        self.disk.rename(path, name)
        try:
            # The name is durable before it is recorded: the other order would let a start miss the recorded segment.
            self.disk.sync_directory(self.directory)
            write_last(self._lock, number, self.disk)
        except OSError as error:
            if has_no_room(error) and self._take_back(name, path, number):
                raise
            self.fail(error)
            raise

    def _take_back(self, name: str, path: str, number: int) -> bool:
        """Takes the name from the new segment, durably: frames that are appended to the old one would otherwise be lost
        to a start. Returns False if that failed."""
        try:
            # First: a start refuses a log whose recorded last segment is missing.
            if read_last(self.directory) == number:
                forget_last(self._lock, number, self.disk)
            self.disk.rename(name, path)
            self.disk.sync_directory(self.directory)
        except OSError:
            return False
        return True

    # -- durability -----------------------------------------------------------------------------------------------

    def background_sync(self) -> Callable[[], None] | None:
        """Returns a function, for any thread, that makes all commits so far durable; None if all of them are."""
        writer = self.writer
        # With durability `always` each write is durable when it returns: there is nothing left to sync.
        if self.syncs or writer is None or writer.synced >= self.sequence or self.failed is not None:
            return None
        # The writer and the frame as they are now: the log may go on to another segment meanwhile.
        return partial(self._sync_behind, writer, self.sequence)

    def _sync_behind(self, writer: SegmentWriter, sequence: int) -> None:
        started = self.clock()
        try:
            writer.sync()
        except OSError as error:
            self.fail(error)
            raise
        # A commit of this thread may have gone further by now.
        writer.synced = max(writer.synced, sequence)
        if self.on_sync is not None:
            self.on_sync(self.clock() - started)

    def fail(self, error: OSError) -> None:
        """Makes the log refuse all records from now on."""
        self.failed = error
        # Upkeep looks at the log again when this number changes, and then finds that it has failed.
        self.segments.changes += 1
        _logger.critical(
            "the journal in %s could not be written and synced (%s): nothing is accepted any more. What was answered "
            "before is as durable as the disk is; check the disk, and start the server again",
            self.directory,
            error,
        )

    def failure(self) -> LogFailedError:
        """Returns the error for a request that needs the log after the log has failed."""
        failed = self.failed or OSError()
        return LogFailedError(failed.errno, f"the journal failed ({failed.strerror})")

    def close(self) -> None:
        """Closes the files, which releases the lock."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        self.disk.close(self._lock)


class Transaction:
    """A batch of changes: their records, and how each is taken back. All are committed or taken back together.

    Ensures:
    1. `append` cannot fail: it is arithmetic, in room that the log has. Callers look at `left` first and raise
       `refusal` before they change anything.
    2. `commit` makes all changes durable (as the durability asks), or takes all of them back and raises.
    3. A change is taken back after all later changes, so each undo finds the memory as its change has left it.
    4. The place that `append` returns is the one at which `commit` writes the record.

    Assumes that each change in memory is noted with `undo` before or after it, in order, and that nobody else writes to
    the segment between an append and the commit.

    Never commits by itself, never begins a segment, and never reads what it has written."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.left = self.left_to_pushes = -1
        """Bytes of records, heads included, that can be appended; -1: room has to be secured first."""
        self.pushes_wait = False
        """True while a full disk has no room but for what deletes, releases and compaction need."""
        self.asked = self.asked_by_push = 0
        """Bytes of the greatest request, and push, that was refused since room was secured: see `ask`."""
        self.pending: list[tuple[bytes, bytes | None]] = []
        """Appended records that are not written yet: (body, payload after it)."""
        self.unwritten: dict[int, bytes] = {}
        """Payloads that are in no segment yet and that nobody caches, by their places."""
        self.changed: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        """How the changes are taken back: functions with their arguments, in the order of the changes."""
        self.cost = 0.0
        """Average seconds of a write and its sync."""
        self._oldest = 0  # the oldest segment that is needed, as the next frame says; 0: as before
        self._lasting: list[bytes] = []
        self._length, self._wanted, self._limit = 0, False, BATCH
        self._start = 0  # the place of the next frame's first record

    # -- changes --------------------------------------------------------------------------------------------------

    def refusal(self, size: int, *, push: bool = False) -> OSError:
        """Returns the error for records of `size` bytes that do not fit into this batch: a NoRoomError, unless the log
        has failed."""
        if self._log.failed is not None:
            return self._log.failure()
        self.ask(size, push=push)
        return NoRoomError(size, push=push)

    def ask(self, size: int, *, push: bool = False) -> None:
        """Asks for room for records of `size` bytes, to be secured before the next batch."""
        if push:
            self.asked_by_push = max(self.asked_by_push, size)
        else:
            self.asked = max(self.asked, size)

    def forget_asked(self) -> None:
        """Forgets how much room was asked for, because the caller is securing it."""
        self.asked = self.asked_by_push = 0

    def undo(self, function: Callable[..., object], *arguments: object) -> None:
        """Notes how a change is taken back."""
        self.changed.append((function, arguments))

    def append(self, body: bytes, payload: bytes | None = None) -> int:
        """Adds a record. Returns its place."""
        self._wanted = True
        place = self._start + self._length
        self.pending.append((body, payload))
        length = _HEAD + len(body)
        if payload is not None:
            self.unwritten[place] = payload
            length += len(payload)
        self._length += length
        self.left -= length
        self.left_to_pushes -= length
        return place

    # `append` for a whole push: one list operation and one addition for all of its messages, not a call for each.
    def append_all(
        self, bodies: Iterable[bytes], payloads: Sequence[bytes], sizes: Sequence[int], beside: int
    ) -> list[int]:
        """Adds records of payloads, which the caller keeps readable. Returns their places. sizes: the bytes of the
        payloads; beside: the bytes of each record without its payload."""
        self._wanted = True
        first = self._start + self._length
        places = list(accumulate(map(beside.__add__, sizes), initial=first))
        length = places.pop() - first
        self.pending += zip(bodies, payloads, strict=True)
        self._length += length
        self.left -= length
        self.left_to_pushes -= length
        return places

    @property
    def has_lasting(self) -> bool:
        """True while records of `append_lasting` are not in the log."""
        return bool(self._lasting)

    def append_lasting(self, body: bytes) -> None:
        """Adds a record that stays when the batch is taken back, because later records need it."""
        self._lasting.append(body)
        self.append(body)

    def note(self, bodies: Sequence[bytes]) -> None:
        """Adds records that need not be durable: they are written with the next durable one, or after a while. Does
        nothing if they do not fit."""
        length = len(bodies) * _HEAD + sum(map(len, bodies))
        # What pushes may have, and no more: on a full disk no note takes what a delete needs. At worst a message is
        # visible again after a restart.
        if length <= self.left_to_pushes:
            self.pending += zip(bodies, repeat(None))
            self._length += length
            self.left -= length
            self.left_to_pushes -= length

    def give_up_before(self, oldest: int) -> None:
        """Makes the next frame say that the segments before this one are not needed any more."""
        self._oldest, self._wanted = oldest, True

    # -- the end --------------------------------------------------------------------------------------------------

    def commit(self, *, notes: bool = False) -> list[int]:  # noqa: C901
        """Writes the records as one frame. notes: True to write notes even if there are no other records. Returns the
        segments that have become obsolete. OSError: all changes are taken back."""
        # A batch of receives alone writes nothing: their records wait for the next batch that has to be durable.
        if not (self._wanted or (self.pending and (notes or self._length > _NOTES))):
            if self.changed:
                self.changed.clear()
            return []
        log = self._log
        writer, segments = log.writer, log.segments
        try:
            if log.failed is not None:
                raise log.failure()
            if writer is None:
                raise RuntimeError("appended without having secured room")
            parts: list[bytes] = []
            pack, seed, place = records.HEAD.pack, writer.seed, writer.end + FRAME_HEAD
            # Checksums are computed here, which with slow syncs is in a worker thread, and not in `append`, which is in
            # the middle of a request. They start from the place, so that a record counts only where it is.
            for body, payload in self.pending:
                length = len(body)
                checksum = crc32(body, seed ^ place)
                if payload is None:
                    parts += (pack(length, checksum), body)
                else:
                    length += len(payload)
                    parts += (pack(length, crc32(payload, checksum)), body, payload)
                place += _HEAD + length
            started = log.clock()
            oldest = self._oldest or segments.oldest or log.number
            writer.write(log.sequence + 1, oldest, parts, self._length, len(self.pending))
        except OSError as error:
            # A full disk fails one commit, and the log goes on. Any other failed write or sync leaves unknown what is
            # on the disk: then the log accepts nothing more.
            if writer is not None and writer.failed is not None and log.failed is None:
                log.fail(error)
            self.take_back()
            raise
        seconds = log.clock() - started
        # A running average over some eight commits: one slow write does not move commits to a thread.
        self.cost += (seconds - self.cost) / 8
        if log.syncs and log.on_sync is not None:
            log.on_sync(seconds)
        log.sequence += 1
        gone = segments.remove_before(self._oldest) if self._oldest else []
        if self._lasting:
            self._lasting.clear()
        self.changed.clear()
        self._clear()
        return gone

    def take_back(self) -> None:
        """Takes back all changes since the last commit."""
        changed, self.changed = self.changed, []
        # From the last to the first: an undo may rely on what was there before the changes after its own.
        for function, arguments in reversed(changed):
            function(*arguments)
        self.changed.clear()
        self._clear()
        # Names and removals of queues: later requests rely on them, whatever becomes of this batch.
        for body in self._lasting:  # they had room in this segment
            self.append(body)
        self._wanted = False

    def _clear(self) -> None:
        """Begins the next batch, in the room that is left."""
        self.pending, self._length, self._wanted, self._oldest, self._limit = [], 0, False, 0, BATCH
        if self.unwritten:
            self.unwritten.clear()
        self._count_left()

    def allow(self, size: int) -> None:
        """Lets this batch, in which nothing has been done yet, have `size` bytes of records, if that is more than
        `BATCH`."""
        # One request may be larger than a batch should be: it is alone in it then.
        self._limit = max(BATCH, size)
        self._count_left()

    def hold_back_pushes(self, wait: bool) -> None:
        """Makes pushes wait, or lets them use the bytes that are left: see `pushes_wait`. Call it when the segment has
        changed."""
        self.pushes_wait = wait
        self._count_left()

    def _count_left(self) -> None:
        """Computes the bytes that are left, after the segment, the limit or `pushes_wait` has changed."""
        writer = self._log.writer
        if writer is None or self._log.failed is not None:
            self.left = self.left_to_pushes = -1
            return
        # A block is kept for a frame that only gives up a segment.
        self.left = min(writer.header.size - writer.end - BLOCK - FRAME_HEAD, self._limit) - self._length
        # On a full disk pushes see no room at all, while deletes and releases still see what is left.
        self.left_to_pushes = -1 if self.pushes_wait else self.left
        self._start = self._log.number << SHIFT | writer.end + FRAME_HEAD
