"""The pool of files that are ready to be segments: filled with zeros, or segments that are not needed any more.

The pool is all that the journal reserves of the disk, and `is_whole` says whether that is enough. Pushes may take a
file only if the pool is whole without it. So on a full disk, what is left is for deletes, releases and compaction: as
much as two of the largest segments. Compaction copies a segment into a file of the pool, and then adds the copied
segment's own file to the pool.
"""

import errno
import mmap
import os
import re
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from ...disk import Disk
from .frames import BLOCK

FIRST_SEGMENT = 1 << 20
"""Bytes of the first segment after a start; each following one is four times as large, up to `LARGEST_SEGMENT`."""
LARGEST_SEGMENT = 16 << 20
"""Bytes. A log with next to nothing in it is one segment and a pool of three: 64 MiB, some 67 MB."""
SMALL_LOG = 8 << 20
"""Bytes of sealed segments that a log may have before it is compacted, however few of them are live: frames of a lone
client are padded to blocks, so that most of its log is dead from the beginning."""
SMALLEST = 64 << 10
"""Bytes of a segment, at least, however small the disk is."""
_SHARE = 4
"""A new segment has at most such a part of the disk's free space, because the pool needs three files of its size."""
_FREE = 64 << 10
"""Bytes of the disk that are left to others: options of queues, checkpoints of small journals."""
_CHUNK = 1 << 20
_UNSYNCED = 4 << 20
"""Bytes of a new file that are synced at once: the commits of requests wait behind them in the disk's queue."""
_zeros = mmap.mmap(-1, _CHUNK)
"""Page-aligned, as O_DIRECT wants it. Never written to."""
_FILE = re.compile(r"spare-([0-9]+)(\.tmp)?")


class PoolFile(NamedTuple):
    """A file that may become a segment. recycled: True if it may have frames of an older segment."""

    path: str
    size: int
    recycled: bool


def no_room(path: str) -> OSError:
    """Returns the error of a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class Pool:
    """The pool of one journal.

    Ensures:
    1. A file of the pool has its full size and its blocks: a segment that begins in it cannot run out of disk.
    2. `take` leaves a whole pool if the caller names the largest segment: so a push never takes a file that is kept for
       a full disk.
    3. A file that a backup has linked is never written to again.

    Assumes that nobody else makes or removes files with the pool's names. Call the methods in the engine's thread,
    except those that say otherwise. Never decides which requests may use the last files: `upkeep.room` does."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._sync = sync
        self._files: list[PoolFile] = []
        self._numbers = count(1)  # of the files that get a name; two threads may make files at a time
        self.bytes = 0
        """Bytes of all files."""
        self.next_size = FIRST_SEGMENT
        """Bytes of the next new file, if the disk has space for four."""
        self.is_tight = False
        """True if the disk had no space for the last file that was wanted."""

    def restore(self) -> None:
        """Takes over the files of an earlier server, and removes unfinished ones. OSError."""
        last = 0
        for name in sorted(self._disk.files_in(self._directory)):
            found = _FILE.fullmatch(name)
            if found is None:
                continue
            path = f"{self._directory}/{name}"
            last = max(last, int(found[1]))
            if found[2]:
                self._disk.unlink(path)
            else:
                self.add(PoolFile(path, self._disk.lstat(path).st_size, recycled=True))
        self._numbers = count(last + 1)

    def note_disk(self, *, is_full: bool) -> None:
        """Notes whether the disk had enough free space for a wanted file: see `is_tight`."""
        self.is_tight = is_full

    def add(self, file: PoolFile) -> None:
        """Takes a file into the pool."""
        self._files.append(file)
        self.bytes += file.size

    def is_whole(self, largest: int, without: int = 0) -> bool:
        """Tells whether the pool is enough for a log with a largest segment of so many bytes. without: the bytes of a
        file that is about to be taken from the pool."""
        if self.bytes - without < 2 * largest:
            return False
        sizes = [file.size for file in self._files]
        if without:
            sizes.remove(without)
        return max(sizes, default=0) >= largest

    def take(self, needed: int, largest: int | None) -> PoolFile | None:
        """Takes a file of at least `needed` bytes from the pool, None if the pool has none. largest: the bytes of the
        log's largest segment if the pool has to stay whole, else None."""
        # The smallest that is large enough: large files are kept for requests that need one.
        for file in sorted(self._files, key=lambda file: file.size):
            if file.size < needed:
                continue
            if largest is not None and not self.is_whole(max(largest, file.size), file.size):
                continue
            self._files.remove(file)
            self.bytes -= file.size
            return file
        return None

    def began(self, size: int) -> None:
        """Notes that a segment of this size was begun: the next one is larger."""
        # A small log stays small, and a busy one has large segments from the third on: each segment costs syncs, and a
        # record for each queue.
        self.next_size = min(max(size, self.next_size, FIRST_SEGMENT) * 4, LARGEST_SEGMENT)

    def size_for(self, needed: int, largest: int) -> int:
        """Returns the bytes of a new file with at least `needed` bytes. On a small disk the file is smaller, but not
        much smaller than the log's largest segment, because small segments would cost compaction too much."""
        try:
            free = self._disk.free_bytes(self._directory) - _FREE
        except OSError:
            free = 0  # `make` finds the reason, where there is somebody to tell
        # What the pool has counts as free: else the share would shrink with each file that is made.
        share = (free + self.bytes) // _SHARE // BLOCK * BLOCK
        return max(min(self.next_size, share), SMALLEST, largest // 2 // BLOCK * BLOCK, needed)

    def wanted(self, largest: int, room: int) -> int | None:
        """Returns the bytes of the file that should be made in the background, None if the pool has enough: one file
        for the next segment, beside two that are kept. room: the bytes that the last segment has left. While these are
        many, no file is wanted: an older segment may be given up first, and its file needs no zeros."""
        size = max(self.size_for(0, largest), largest)
        if self.is_whole(size) and (self.bytes >= 3 * size or room >= self.late(largest)):
            return None
        return size

    @staticmethod
    def late(largest: int) -> int:
        """Returns the least room of the last segment with which a file for the next segment need not be made yet."""
        # A small segment is full within milliseconds, and the next one takes longer to make.
        return largest // 2 if largest >= LARGEST_SEGMENT else largest // 8 * 7

    def make(self, size: int) -> PoolFile:
        """Makes a file for `add`. May run in any thread. OSError: the file is removed."""
        path = self._new_path()
        # A crash leaves a name that a start removes, and never a file that looks ready and is not.
        make_file(f"{path}.tmp", size, self._disk, sync=self._sync)
        self._disk.rename(f"{path}.tmp", path)
        return PoolFile(path, size, recycled=False)

    def _new_path(self) -> str:
        return f"{self._directory}/spare-{next(self._numbers)}"

    def recycle(self, path: str) -> PoolFile | None:
        """Returns the file of an obsolete segment for `add`. May run in any thread. Removes a file that a backup has
        linked, and returns None. OSError."""
        # A backup links segments instead of copying them: to write into such a file would change the backup.
        if self._disk.lstat(path).st_nlink == 1:
            spare = self._new_path()
            self._disk.rename(path, spare)
            self._disk.sync_directory(self._directory)  # before new records overwrite the old ones
            # Looked up again, as a backup may have made its link just before the rename.
            status = self._disk.lstat(spare)
            if status.st_nlink == 1:
                return PoolFile(spare, status.st_size, recycled=True)
            path = spare
        self._disk.unlink(path)
        return None

    def lacks(self, largest: int) -> int:
        """Returns how many files of the usual size the pool lacks."""
        size = max(self.size_for(0, largest), largest)
        return max(3 - self.bytes // size, 0 if self.is_whole(size) else 1)

    def give_up(self, largest: int) -> list[str]:
        """Takes the files out of the pool that it does not need, unless the disk is full. Returns their paths, for the
        caller to remove. largest: the bytes of the log's largest segment."""
        size = max(self.next_size, largest)
        given: list[str] = []
        for file in sorted(self._files, key=lambda file: -file.size):
            left = self.bytes - file.size
            if not self.is_tight and (file.size > size or (left >= 3 * size and self.is_whole(size, file.size))):
                self._files.remove(file)
                self.bytes = left
                given.append(file.path)
        return given


def make_file(path: str, size: int, disk: Disk, *, sync: bool) -> None:
    """Makes a file of zeros with all its blocks allocated. OSError: the file is removed; if the disk is too small for
    the file, nothing was written."""
    # Asked first, so that a file that cannot fit does not take the last room from others until that shows.
    if size + _FREE > disk.free_bytes(os.path.dirname(path)):
        raise no_room(path)
    fd = disk.open_file(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        for at in range(0, size, _CHUNK):
            end = min(at + _CHUNK, size)
            # Real zeros, and not only a size: blocks of a sparse file are allocated when they are written, which may
            # fail, and every sync would have to write metadata too.
            disk.pwrite(fd, memoryview(_zeros)[: end - at], at)
            if sync and (end == size or end % _UNSYNCED == 0):
                disk.fsync(fd)
    except OSError:
        with suppress(OSError):
            disk.unlink(path)
        raise
    finally:
        disk.close(fd)
