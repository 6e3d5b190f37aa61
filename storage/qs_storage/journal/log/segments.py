"""The segments of a log: writes one frame by frame, lists all of them, and counts the bytes of each that are needed.

The log is a circle: only the oldest segment is ever given up. Each frame names the oldest segment that is needed, so
the next frame gives a segment up, and the segment's file may be removed when that frame is durable.
"""

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Iterable, Sequence
from zlib import crc32

from ...disk import Disk, has_no_room
from .frames import BLOCK, Header, pack_frame_head, pack_header, padded, seed
from .places import SHIFT, segment_name
from .records import HEAD

_DIRECT = os.O_WRONLY | os.O_DIRECT | os.O_DSYNC
_PLAIN = os.O_WRONLY
_NO_DIRECT = frozenset({errno.EINVAL, errno.ENOTSUP})
_CHUNK = 1 << 20


def joined(bodies: Iterable[bytes], begin: int, place: int) -> list[bytes]:
    """Returns the bytes of records, each with its head. begin: the segment's seed; place: the byte of the first
    record."""
    parts: list[bytes] = []
    for body in bodies:
        parts += (HEAD.pack(len(body), crc32(body, begin ^ place)), body)
        place += HEAD.size + len(body)
    return parts


class SegmentWriter:
    """Writes one segment, frame by frame, into a file of its full size.

    Ensures:
    1. A frame counts after a crash if and only if all of it was written: its checksums and its number say so.
    2. With `sync`, a frame is durable when `write` returns.
    3. An error for lack of room leaves the frames before it as they are, and the next write goes to the same byte. Any
       other error sets `failed`, and then nothing more may be written.

    Assumes that the file has its size and its blocks: see `Pool`. Where possible, writes bypass the page cache and are
    durable when they return (O_DIRECT, O_DSYNC); elsewhere they are pwrite and fdatasync. docs/decisions/o-dsync.md has
    the reasons."""

    def __init__(self, path: str, header: Header, disk: Disk, *, sync: bool) -> None:
        """sync: True to make each frame durable in `write`; False to make frames durable only in `sync`."""
        self.path = path
        self.header = header
        self.end = BLOCK
        self.synced = header.first - 1
        """The number of the last frame that is durable."""
        self.failed: OSError | None = None
        self._in_use = threading.Lock()
        self._disk = disk
        self._sync = sync
        self.seed = seed(header.salt)
        """The initial value of the segment's checksums."""
        self._buffer = mmap.mmap(-1, _CHUNK)
        self._dsync = False
        self._fd = self._open()

    def _open(self) -> int:
        if self._sync:
            try:
                fd = self._disk.open_file(self.path, _DIRECT)
            except OSError as error:
                if error.errno not in _NO_DIRECT:
                    raise
            else:
                self._dsync = True
                return fd
        return self._disk.open_file(self.path, _PLAIN)

    def begin(self, sequence: int, oldest: int, parts: list[bytes], count: int) -> None:
        """Writes the header and the first frame in one write, durably. oldest: see `Frame`; parts: the bytes of the
        records."""
        length = sum(map(len, parts))
        head = pack_frame_head(self.seed, sequence, self.synced, oldest, length, count)
        self._put([pack_header(self.header), head, *parts], 0)
        self.end = padded(BLOCK + len(head) + length)
        self.synced = sequence
        if not self._dsync:
            self._disk.fdatasync(self._fd)

    def resume(self, end: int, sequence: int) -> None:
        """Goes on after the frames that a start has found, all of which are durable. end: the byte after the last
        frame; sequence: its number. OSError."""
        # After a power loss, whole frames of this segment may stand behind one that was lost, and behind zeros. They
        # would count again once a new frame ends where they begin. The frames next to the end are cleared last: a crash
        # half way leaves what the next start finds as it was.
        zeros = memoryview(self._buffer)  # nothing has been written with it; O_DIRECT wants aligned memory
        for at in reversed(range(end, self.header.size, _CHUNK)):
            self._disk.pwrite(self._fd, zeros[: self.header.size - at], at)
            self._disk.fdatasync(self._fd)
        self.end, self.synced = end, sequence

    def write(self, sequence: int, oldest: int, parts: list[bytes], length: int, count: int) -> None:
        """Appends a frame. oldest: see `Frame`; parts, length, count: its records. OSError: the frame does not count;
        if `failed` is set, earlier frames may be lost too, and nothing more may be written."""
        # Somebody may have removed the directory: the file could still be written, and would be lost.
        if not self._disk.fstat(self._fd).st_nlink:
            self.failed = FileNotFoundError(errno.ENOENT, "somebody has removed it", self.path)
            raise self.failed
        head = pack_frame_head(self.seed, sequence, self.synced, oldest, length, count)
        try:
            end = self._put((head, *parts), self.end)
        except OSError as error:
            if not has_no_room(error):
                self.failed = error
            with contextlib.suppress(OSError):
                self._put([bytes(BLOCK)], self.end)  # a partly written frame must not count after a crash
            raise
        if self._sync and not self._dsync:
            self.sync()
        if self._sync:
            self.synced = sequence
        self.end = end

    def _put(self, parts: Sequence[bytes], at: int) -> int:
        """Writes whole blocks; in a recycled segment also a block of zeros after them, if there is one more block.
        Returns the end without the zeros."""
        data = b"".join(parts)
        length = -(-len(data) // BLOCK) * BLOCK
        end = at + length
        # Behind the last frame of a recycled file are frames of an older segment: zeros after each frame mark the
        # end.
        if self.header.recycled and end < self.header.size:
            length += BLOCK
        # One buffer for all frames, as O_DIRECT wants memory that is aligned to pages, which bytes of Python are not.
        if length > len(self._buffer):
            self._buffer = mmap.mmap(-1, length)
        view = memoryview(self._buffer)[:length]
        view[: len(data)] = data
        if length > len(data):
            view[len(data) :] = bytes(length - len(data))
        self._disk.pwrite(self._fd, view, at)
        if length > _CHUNK:
            self._buffer = mmap.mmap(-1, _CHUNK)  # keep no large buffer
        return end

    def sync(self) -> None:
        """Makes all frames durable. OSError: sets `failed`, see `write`."""
        try:
            with self._in_use:
                if self._fd >= 0:  # else it was synced before it was closed
                    self._disk.fdatasync(self._fd)
        except OSError as error:
            # The kernel may have dropped the data, and would report no error the next time.
            self.failed = error
            raise

    def close(self) -> None:
        """Closes the file, after any sync in another thread."""
        with self._in_use:
            fd, self._fd = self._fd, -1
            self._disk.close(fd)


class SegmentList:
    """The segments of one log, oldest first, and the files of segments that are obsolete.

    Ensures that numbers follow each other without a gap, and that only the oldest segments are given up. A file is
    listed as obsolete as soon as a frame gives its segment up. The caller has to make that frame durable before
    touching the file. Changes no files."""

    def __init__(self, directory: str) -> None:
        """directory: the log's."""
        self._directory = directory
        self.sizes: dict[int, int] = {}
        """Bytes of each segment, oldest first."""
        self.headers: dict[int, Header] = {}
        """Headers of the same segments."""
        # Kept, and not summed up each time: every commit asks.
        self.size = self.largest = 0
        """The bytes of all segments, and those of the largest one."""
        self.oldest: int | None = None
        """The number of the oldest segment, None without any."""
        self.changes = 0
        """Grows whenever a segment is begun or removed, or could not be begun."""
        self._obsolete: list[str] = []

    def restore(self, headers: Iterable[Header], obsolete: Iterable[str]) -> None:
        """Takes over the segments that a start has found. headers: the headers of the needed segments, oldest first;
        obsolete: the paths of the other segments."""
        for header in headers:
            self.add(header)
        self._obsolete = list(obsolete)

    def add(self, header: Header) -> None:
        """Adds a segment, whose number is the next one."""
        self.sizes[header.number], self.headers[header.number] = header.size, header
        self.size += header.size
        self.oldest = header.number if self.oldest is None else self.oldest
        self.largest = max(self.largest, header.size)
        self.changes += 1

    def salt_of(self, number: int) -> bytes:
        """Returns the salt of a segment's checksums."""
        return self.headers[number].salt

    def path_of(self, number: int) -> str:
        """Returns the path of a segment's file."""
        return f"{self._directory}/{segment_name(number)}"

    def frame_after(self, number: int) -> int | None:
        """Returns the number of the first frame after a segment, None for the last segment. Frames in the segment with
        this number or a greater one are not part of the log: a start has cut them off."""
        following = self.headers.get(number + 1)
        return None if following is None else following.first

    @property
    def newest(self) -> int | None:
        """The number of the last segment, None without any."""
        return next(reversed(self.sizes), None)

    def remove_before(self, oldest: int) -> list[int]:
        """Makes the files of the segments before one obsolete. Returns their numbers. Call it after writing a frame
        that gives these segments up."""
        gone = [number for number in self.sizes if number < oldest]
        for number in gone:
            size = self.sizes.pop(number)
            self.size -= size
            if size == self.largest:
                self.largest = max(self.sizes.values(), default=0)
            del self.headers[number]
            self._obsolete.append(self.path_of(number))
            self.changes += 1
        self.oldest = next(iter(self.sizes), None)
        return gone

    # -- obsolete files -----------------------------------------------------------------------------------------------

    @property
    def has_garbage(self) -> bool:
        """True if there is an obsolete file."""
        return bool(self._obsolete)

    def take_garbage(self) -> list[str]:
        """Takes the paths of obsolete files, oldest first, for the caller to remove in any thread."""
        garbage, self._obsolete = self._obsolete, []
        return garbage

    def give_back_garbage(self, paths: Iterable[str]) -> None:
        """Takes back the paths of files that could not be removed."""
        self._obsolete[:0] = paths
        self.changes += 1


class Usage:
    """Counts the live bytes of each segment: those of records whose payloads are needed, and of keys.

    Ensures that a segment without live bytes has no payload that any message needs, so it can be given up without being
    read. Assumes that each `drop` follows an `add` of the same bytes. Records without a payload do not count: their
    content is in memory, or is not needed once the segment is the oldest."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.total = 0
        """Live bytes of all segments."""

    def add(self, place: int, size: int) -> None:
        """Counts a record as live. place: any byte of the record's segment; size: the record's bytes."""
        segment = place >> SHIFT
        self.live[segment] = self.live.get(segment, 0) + size
        self.total += size

    def drop(self, place: int, size: int) -> None:
        """Counts a record as not live any more. place, size: see `add`."""
        self.live[place >> SHIFT] -= size
        self.total -= size

    def forget(self, segment: int) -> None:
        """Drops the count of a segment that is given up."""
        self.total -= self.live.pop(segment, 0)

    def empty(self, segment: int) -> None:
        """Sets the live bytes of a segment to 0."""
        self.total -= self.live[segment]
        self.live[segment] = 0

    def clear(self) -> None:
        """Sets the live bytes of all segments to 0."""
        self.live.clear()
        self.total = 0

    def segments(self) -> set[int]:
        """Returns the segments with live bytes."""
        return {segment for segment, size in self.live.items() if size}
