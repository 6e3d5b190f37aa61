"""The journal of a server: records gather, a commit writes them as one frame, full segments follow one another.

Whoever appends has reserved the room before, so that a full disk is noticed before anything is changed, and by pushes
first: the last part of a segment, and the spare one, are for what makes room again. A sync that has failed ends it all:
what the kernel could not write it may have dropped, so nothing more is taken until a start has read what is there.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from zlib import crc32

from ..disk import Disk, has_no_room
from ..engine import Durability
from . import records
from .frames import BLOCK, FRAME_HEAD, Header, new_salt, padded, seed
from .lock import forget_last, read_last, take_lock, write_last
from .recovery import Recovered, segment_name
from .segment import SegmentWriter, make_file
from .supply import NEXT, Supply

_logger = logging.getLogger(__name__)
_RESERVE = 1 << 20
"""Bytes at a segment's end that pushes leave to everything else, or a quarter of a small one."""
_FRAME = 32 << 20
"""Bytes of records after which a frame is written though its batch goes on."""
_QUICK = 0.003
"""Seconds of a write and its sync below which handing a batch to a thread would cost more than it saves."""


class JournalFailedError(OSError):
    """The journal could not be synced, and takes nothing any more."""


class Journal:
    """Written by one process, in one thread at a time; a background sync may run in another."""

    def __init__(self, directory: str, disk: Disk, durability: Durability, clock: Callable[[], float]) -> None:
        """directory: made if missing. clock: seconds that only go forward, to time commits by. InUseError, OSError."""
        self._directory = directory
        self._disk = disk
        self._sync = durability is Durability.ALWAYS
        self._keep = durability is not Durability.NONE
        self._clock = clock
        disk.make_directories(directory, sync=self._keep)
        self._lock = take_lock(directory, disk)
        self._life = new_salt(b"")
        self._writer: SegmentWriter | None = None
        self._number = 0
        self._sequence = 0
        self.number = 1
        """Of the segment that what is appended now is in, or a later one."""
        self.left = self.left_to_pushes = -1
        """Bytes of records, heads included, that can be appended without `reserve`."""
        self._sizes: dict[int, int] = {}
        """Bytes of each segment that is there, oldest first."""
        self._pending: list[tuple[bytes, bytes | None]] = []
        self._length = 0
        self._last: bytes | None = None
        self.supply = Supply(directory, disk, sync=self._keep)
        self._obsolete: list[str] = []
        self._dropping: list[int] = []
        self._failed: OSError | None = None
        self._cost = 0.0
        self.first_records: Callable[[], Iterable[bytes]] = tuple
        """What a new segment has to begin with: a QUEUE for each queue."""
        self.has_begun: Callable[[int], None] = lambda number: None
        """Is called when a segment of that number has begun with them."""

    def resume(self, recovered: Recovered) -> None:
        """Goes on after what was found."""
        self._number, self._sequence = recovered.number, recovered.sequence
        self.number = self._number + 1
        self._sizes = {segment.header.number: segment.header.size for segment in recovered.segments}
        self._obsolete = list(recovered.obsolete)
        self.supply.clear()
        if self._number and read_last(self._directory) != self._number:
            write_last(self._lock, self._number, self._disk, sync=self._keep)

    # -- writing --------------------------------------------------------------------------------------------------

    @property
    def quick(self) -> bool:
        """Whether a commit is over soon enough to wait for it."""
        return self._cost < _QUICK

    def reserve(self, size: int, *, push: bool = False) -> None:
        """Makes sure that records of that many bytes (heads included) can be appended. OSError: they cannot, and
        nothing has changed."""
        if self._failed is not None:
            raise JournalFailedError(self._failed.errno, f"the journal failed ({self._failed.strerror})")
        needed = padded(FRAME_HEAD + self._length + size)
        if self._writer is None or needed > self._writer.room - (self._kept(self._writer) if push else 0):
            self._begin_segment(needed, push=push)
            self._count_left()

    def _kept(self, writer: SegmentWriter) -> int:
        return min(_RESERVE, writer.header.size // 4)

    def _count_left(self) -> None:
        writer = self._writer
        if writer is None or self._failed is not None:
            self.left = self.left_to_pushes = -1
            return
        room = writer.room - BLOCK - FRAME_HEAD - self._length
        self.left = min(room, _FRAME - self._length)
        self.left_to_pushes = min(room - self._kept(writer), _FRAME - self._length)

    def append(self, body: bytes, payload: bytes | None = None) -> None:
        """Adds a record to the next frame. The room is reserved."""
        self._pending.append((body, payload))
        if payload is not None:
            self._last = payload
        length = records.HEAD.size + len(body) + (0 if payload is None else len(payload))
        self._length += length
        self.left -= length
        self.left_to_pushes -= length

    def append_pushes(self, bodies: Sequence[bytes], payloads: Sequence[bytes], length: int) -> None:
        """As `append`, of many. length: of all payloads."""
        self._pending += zip(bodies, payloads, strict=True)
        self._last = payloads[-1]
        length += records.PUSH_SIZE * len(bodies)
        self._length += length
        self.left -= length
        self.left_to_pushes -= length

    def repeats(self, payload: bytes) -> bool:
        """Whether the payload that was appended last to the same frame is the same."""
        return self._last == payload

    @property
    def overflows(self) -> bool:
        """Whether the frame is as long as one should be."""
        return self._length > _FRAME

    def commit(self) -> None:
        """Writes what was appended as one frame; durable when the journal is synced at each commit. OSError: none of it
        counts; whoever appended it takes back what he did."""
        if not self._pending:
            return
        if self._failed is not None:
            self.discard()
            raise JournalFailedError(self._failed.errno, f"the journal failed ({self._failed.strerror})")
        writer = self._writer
        if writer is None:
            raise RuntimeError("appended without having reserved")
        sequence = self._sequence + 1
        parts = _join(self._pending, seed(writer.header.salt, sequence))
        count, length = len(self._pending), self._length
        self._pending, self._length, self._last = [], 0, None
        started = self._clock()
        try:
            writer.write(sequence, parts, length, count)
        except OSError as error:
            self._dropping = []
            if writer.failed is not None:
                self._fail(error)
            self._count_left()
            raise
        self._cost += (self._clock() - started - self._cost) / 8
        self._sequence = sequence
        self._count_left()
        if self._dropping:
            self._drop()

    def discard(self) -> None:
        """Forgets what was appended since the last commit."""
        self._pending, self._length, self._last, self._dropping = [], 0, None, []
        self._count_left()

    def _fail(self, error: OSError) -> None:
        self._failed = error
        self._count_left()
        _logger.critical(
            "the journal in %s could not be written and synced (%s): nothing is accepted any more. What was answered "
            "before is as durable as the disk is; see to it, and start the server again",
            self._directory,
            error,
        )

    def background_sync(self) -> Callable[[], None] | None:
        """What makes durable all that was committed so far, in any thread; None when that is so already."""
        writer = self._writer
        if self._sync or writer is None or writer.synced >= self._sequence or self._failed is not None:
            return None
        return partial(self._sync_behind, writer, self._sequence)

    def _sync_behind(self, writer: SegmentWriter, sequence: int) -> None:
        try:
            writer.sync()
        except OSError as error:
            self._fail(error)
            raise
        writer.synced = max(writer.synced, sequence)

    # -- segments -------------------------------------------------------------------------------------------------

    def _begin_segment(self, needed: int, *, push: bool) -> None:
        """Goes over to a new segment, in which that many bytes have room. OSError: it goes on with the old one."""
        number = self._number + 1
        first = list(self.first_records())
        begin = BLOCK + padded(FRAME_HEAD + sum(records.HEAD.size + len(body) for body in first))
        size, path = self.supply.take(begin + padded(needed), push=push)
        self._sync_last()
        oldest = next(iter(self._sizes), number)
        header = Header(number, size, self._sequence + 1, oldest, new_salt(self._life))
        writer = SegmentWriter(path, header, self._disk, sync=self._sync)
        try:
            sequence = self._sequence + 1
            writer.begin(sequence, _join([(body, None) for body in first], seed(header.salt, sequence)), len(first))
            self._place(path, number)
        except OSError:
            writer.close()
            raise
        if self._writer is not None:
            self._writer.close()
        self._writer, self._number, self._sequence = writer, number, sequence
        self.number = number
        self._sizes[number] = size
        self.has_begun(number)

    def _sync_last(self) -> None:
        """All before the last segment is durable, whatever the durability. OSError."""
        if self._writer is not None and not self._sync:
            try:
                self._writer.sync()
            except OSError as error:
                self._fail(error)
                raise

    def _place(self, path: str, number: int) -> None:
        """Gives a new segment its name. OSError: for want of room, and the one before it may go on; or for good."""
        name = f"{self._directory}/{segment_name(number)}"
        self._disk.rename(path, name)
        try:
            self._disk.sync_directory(self._directory)
            write_last(self._lock, number, self._disk, sync=self._keep)
        except OSError as error:
            if has_no_room(error) and self._take_back(name, number):
                raise
            self._fail(error)
            raise

    def _take_back(self, name: str, number: int) -> bool:
        """A segment that has its name must go before the one before it gets more frames: they would be missing."""
        try:
            if read_last(self._directory) == number:
                forget_last(self._lock, number, self._disk)
            self._disk.unlink(name)
        except OSError:
            return False
        return True

    @property
    def wants_spare(self) -> int | None:
        """The size of the segment that should be made ready; None: there is one, or no need of it yet."""
        writer = self._writer
        return self.supply.wanted if writer is not None and writer.room * 2 < writer.header.size else None

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self._sizes)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(self._sizes.values())

    def oldest(self) -> int:
        """The oldest segment that is there."""
        return next(iter(self._sizes), self.number)

    def checkpoint(self, oldest: int) -> None:
        """Everything in segments before that one is in the directories, durably. They go with the next commit."""
        self._dropping = [number for number in self._sizes if number < oldest]
        if self._dropping:
            self.append(records.checkpoint(oldest))

    def _drop(self) -> None:
        for number in self._dropping:
            del self._sizes[number]
            self._obsolete.append(f"{self._directory}/{segment_name(number)}")
        self._dropping = []

    @property
    def has_garbage(self) -> bool:
        """Whether `remove_garbage` has something to do."""
        return bool(self._obsolete)

    def give_back_garbage(self, paths: Iterable[str]) -> None:
        """They could not be removed, and are there still."""
        self._obsolete.extend(paths)

    def take_garbage(self) -> list[str]:
        """Files that are not needed any more, for the caller to remove in whatever thread."""
        obsolete, self._obsolete = self._obsolete, []
        return obsolete

    def rest(self, bodies: list[bytes]) -> None:
        """At a clean stop: everything is in the directories. A small segment with these records takes the place of all
        others, which go. OSError: something of that failed, and the journal is as good as before."""
        self.supply.clear()  # which may be the room that it needs
        number, sequence = self._number + 1, self._sequence + 1
        length = FRAME_HEAD + sum(records.HEAD.size + len(body) for body in bodies)
        path = f"{self._directory}/{NEXT}"
        size = BLOCK + padded(length)
        make_file(path, size, self._disk, sync=False)
        writer = SegmentWriter(
            path, Header(number, size, sequence, number, new_salt(self._life)), self._disk, sync=False
        )
        try:
            seeded = seed(writer.header.salt, sequence)
            writer.begin(sequence, _join([(body, None) for body in bodies], seeded), len(bodies))
        finally:
            writer.close()
        self._place(path, number)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for old in [*self._sizes]:
            self._disk.unlink(f"{self._directory}/{segment_name(old)}")
        for path in self.take_garbage():
            self._disk.unlink(path)
        self._sizes, self._number, self._sequence = {number: size}, number, sequence
        self.number = number + 1
        self._count_left()

    @property
    def used(self) -> bool:
        """Whether anything was written since the start."""
        return self._writer is not None

    @property
    def failed(self) -> bool:
        """Whether it takes nothing any more."""
        return self._failed is not None

    def close(self) -> None:
        """Lets go of the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._disk.close(self._lock)


def _join(pending: list[tuple[bytes, bytes | None]], begin: int) -> list[bytes]:
    """The bytes of records, each with its length and checksum before it."""
    parts: list[bytes] = []
    pack = records.HEAD.pack
    for body, payload in pending:
        checksum = crc32(body, begin)
        if payload is None:
            parts += (pack(len(body), checksum), body)
        else:
            parts += (pack(len(body) + len(payload), crc32(payload, checksum)), body, payload)
    return parts
