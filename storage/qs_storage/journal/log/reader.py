"""Returns payloads that were written: keeps the most recent ones in memory, and reads others from the segments.

Payloads in memory are grouped by slices of the log; over the limit, the oldest slice is dropped as a whole, at no cost
per message. Full segments are read in windows of 1 MiB, a few of which are cached: taking a deep queue in order costs
few reads.
"""

import errno
import os
from collections.abc import Sequence
from itertools import repeat
from zlib import crc32

from ...disk import Disk
from ...engine import StorageError
from .frames import seed
from .places import segment_of, start_of
from .records import HEAD
from .segments import SegmentList

CACHE = 64 << 20
"""The default limit in bytes. Most messages are received soon after they were pushed, and then no file is read."""
_SLICE = 23
"""Bits of a place within its slice: a slice is 8 MiB of log."""
_OVERHEAD = 200
"""Estimated bytes of memory that a payload takes beyond its own."""


class _Slice:
    """The kept payloads of one slice of the log, by their places."""

    __slots__ = ("payloads", "size")

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}
        self.size = 0


class PayloadCache:
    """Keeps payloads in memory by their places.

    Ensures that the payload returned for a place is the one that was put there: a place is never used again, and
    `forget` drops the places of a removed segment. The size may be over the limit until `trim`, as a batch needs its
    own payloads until they are in the log.

    Never reads a file: `Reader` reads the payloads that are not kept."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of memory, 0 to keep nothing."""
        self.limit = limit
        self.size = 0
        """Estimated bytes of memory in use."""
        self._slices: dict[int, _Slice] = {}

    def get(self, place: int) -> bytes | None:
        """Returns the payload at a place, None if it is not kept."""
        slice_ = self._slices.get(place >> _SLICE)
        return None if slice_ is None else slice_.payloads.get(place)

    def put(self, places: Sequence[int], payloads: Sequence[bytes], size: int) -> None:
        """Keeps payloads that were appended one after the other. size: the bytes of all of them."""
        # The caller passes the size, as it has it: to sum it again would cost a loop over all payloads.
        key = places[0] >> _SLICE
        slice_ = self._slices.get(key)
        if slice_ is None:
            slice_ = self._slices[key] = _Slice()
        # Nearly always one push is in one slice: then all of its payloads are one update.
        if places[-1] >> _SLICE == key:
            slice_.payloads.update(zip(places, payloads, strict=True))
            size += _OVERHEAD * len(places)
            slice_.size += size
            self.size += size
        else:
            for place, payload in zip(places, payloads, strict=True):
                self.keep(place, payload)

    def trim(self) -> None:
        """Drops the oldest slices until the size is within the limit. Call it once all payloads are in the log."""
        # Slices are filled in the order of the log, and a dict keeps the order of its keys: the first one is the
        # oldest.
        while self.size > self.limit:
            self.size -= self._slices.pop(next(iter(self._slices))).size

    def keep(self, place: int, payload: bytes) -> None:
        """Keeps one payload, which may be kept already."""
        slice_ = self._slices.setdefault(place >> _SLICE, _Slice())
        if place in slice_.payloads:
            return
        slice_.payloads[place] = payload
        slice_.size += len(payload) + _OVERHEAD
        self.size += len(payload) + _OVERHEAD

    def drop_all(self, places: Sequence[int]) -> None:
        """Drops many payloads of one segment, in a third of the time that single drops take. places: not empty; some of
        the payloads may not be kept."""
        for key in range(min(places) >> _SLICE, (max(places) >> _SLICE) + 1):
            slice_ = self._slices.get(key)
            if slice_ is None:
                continue
            gone = [each for each in map(slice_.payloads.pop, places, repeat(None)) if each is not None]
            size = sum(map(len, gone)) + _OVERHEAD * len(gone)
            slice_.size -= size
            self.size -= size
            if not slice_.payloads:
                del self._slices[key]

    def drop(self, place: int) -> None:
        """Drops one payload, if it is kept."""
        slice_ = self._slices.get(place >> _SLICE)
        if slice_ is not None and (payload := slice_.payloads.pop(place, None)) is not None:
            size = len(payload) + _OVERHEAD
            slice_.size -= size
            self.size -= size
            if not slice_.payloads:  # an emptied dict keeps its memory, some 300 KB for a slice of small payloads
                del self._slices[place >> _SLICE]

    def forget(self, segment: int) -> None:
        """Drops the payloads of a removed segment. Payloads that compaction has copied have new places."""
        for key in [key for key in self._slices if segment_of(key << _SLICE) == segment]:
            self.size -= self._slices.pop(key).size


WINDOW = 1 << 20
"""Bytes that are read of a sealed segment at a time."""
_WINDOWS = 16
"""The most cached windows: usually more than the queues that are read at a time."""
_FILES = 64
"""The most open segments."""


class DamagedRecordError(StorageError):
    """A record is not as it was written, or belongs to another message than the one whose place was read. `what` says
    only where, and what is wrong."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what}. Stop the server; 'queue-journal.py check' lists all damage, 'queue-journal.py repair' keeps what "
            "can be read"
        )


class Reader:
    """Reads records of one log.

    Ensures that each returned body is as it was written, at that place: the checksum covers both. Does not know which
    message the record belongs to: `PayloadStore` compares.

    Assumes that sealed segments do not change. Call `forget` when a segment is given up, as its file is used again."""

    def __init__(self, segments: SegmentList, disk: Disk) -> None:
        self._segments = segments
        self._disk = disk
        self._files: dict[int, int] = {}
        self._windows: dict[tuple[int, int], bytes] = {}

    def body(self, place: int) -> memoryview:
        """Returns the body of the record at a place, checked. DamagedRecordError, OSError."""
        try:
            return self._body(place)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # A fault of the medium is damage of this record: other messages can still be delivered.
            raise self.damaged(place, "the disk cannot read it") from error

    def _body(self, place: int) -> memoryview:
        segment, start = segment_of(place), start_of(place)
        # A place comes from memory, or from a record that may be damaged: nothing about it is taken for granted.
        size = self._segments.sizes.get(segment)
        if size is None:
            raise self.damaged(place, "there is no such segment")
        head = self._read(segment, start, HEAD.size)
        if len(head) < HEAD.size:
            raise self.damaged(place, "the file ends there")
        length, checksum = HEAD.unpack(head)
        if start + HEAD.size + length > size:  # a damaged length must not cause a huge read
            raise self.damaged(place, "its length is wrong")
        body = self._read(segment, start + HEAD.size, length)
        if not length or len(body) < length or crc32(body, seed(self._segments.salt_of(segment)) ^ start) != checksum:
            raise self.damaged(place, "its checksum is wrong")
        return body

    def damaged(self, place: int, why: str) -> DamagedRecordError:
        """Returns the error for a damaged record, or for one that belongs to another message."""
        path = self._segments.path_of(segment_of(place))
        return DamagedRecordError(f"{path}: the record at byte {start_of(place)} is damaged: {why}")

    def _read(self, segment: int, start: int, length: int) -> memoryview:
        # The last segment grows: a cached window would miss new records.
        if segment == self._segments.newest or length > WINDOW:
            return memoryview(self._disk.pread(self._file(segment), length, start))
        try:
            return self._read_from_windows(segment, start, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The bytes that the disk cannot read may be elsewhere in the window.
            return memoryview(self._disk.pread(self._file(segment), length, start))

    def _read_from_windows(self, segment: int, start: int, length: int) -> memoryview:
        # Windows begin at multiples of their size, so that two records side by side share one.
        at = start & -WINDOW
        if start + length <= at + WINDOW:
            return memoryview(self._window(segment, at))[start - at : start - at + length]
        head = self._window(segment, at)[start - at :]
        return memoryview(head + self._window(segment, at + WINDOW)[: length - len(head)])

    def _window(self, segment: int, at: int) -> bytes:
        key = segment, at
        window = self._windows.pop(key, None)
        if window is None:
            window = self._disk.pread(self._file(segment), WINDOW, at)
            if len(self._windows) >= _WINDOWS:
                del self._windows[next(iter(self._windows))]
        self._windows[key] = window  # at the end: the first one was used least recently
        return window

    def _file(self, segment: int) -> int:
        fd = self._files.get(segment)
        if fd is None:
            if len(self._files) >= _FILES:
                self._disk.close(self._files.pop(next(iter(self._files))))
            fd = self._files[segment] = self._disk.open_file(self._segments.path_of(segment), os.O_RDONLY)
        return fd

    def forget(self, segment: int) -> None:
        """Closes the file of a segment that is given up, and drops the windows read from the file."""
        if (fd := self._files.pop(segment, None)) is not None:
            self._disk.close(fd)
        for key in [key for key in self._windows if key[0] == segment]:
            del self._windows[key]

    def close(self) -> None:
        """Closes the files of all segments."""
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()
        self._windows.clear()
