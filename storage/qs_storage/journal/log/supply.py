"""Supplies the files for new segments: a spare made in advance, a recycled obsolete segment, or a new file.

Files are filled with zeros before use. A spare saves requests the wait, and recycling saves the disk the zeros. On a
full disk, the spare and a reserve are kept for deletes and compaction.
"""

import contextlib
import errno
import mmap
import os
from contextlib import suppress

from ...disk import Disk, has_no_room

FIRST_SEGMENT = 1 << 20
"""Bytes of the first segment after a start; each following one is four times as large, up to `LARGEST_SEGMENT`."""
LARGEST_SEGMENT = 64 << 20
SMALLEST = 128 << 10
"""Bytes that a segment has beyond those needed at once, unless the disk is nearly full."""
_CHUNK = 1 << 20
_UNSYNCED = 4 << 20
"""Bytes of a new file that are synced at once: the commits of requests wait behind them in the disk's queue."""
_zeros = mmap.mmap(-1, _CHUNK)
"""Page-aligned, as O_DIRECT wants it. Never written to."""
SPARE = "spare"
NEXT = "next"
RESERVE_NEXT = "reserve-next"
RESERVE = "reserve"
"""A file for compaction and for deletes on a full disk. Pushes get no new segment unless it exists."""


def make_file(path: str, size: int, disk: Disk, *, sync: bool) -> None:
    """Makes a file of zeros with all its blocks allocated. OSError: the file is removed; if it cannot fit, nothing was
    written."""
    if size > disk.free_bytes(os.path.dirname(path)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    fd = disk.open_file(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        for at in range(0, size, _CHUNK):
            end = min(at + _CHUNK, size)
            disk.pwrite(fd, memoryview(_zeros)[: end - at], at)
            if sync and (end == size or end % _UNSYNCED == 0):
                disk.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(path)
        raise
    finally:
        disk.close(fd)


def enough_of(size: int, *, shrinking: bool) -> int:
    """Returns the free bytes of a segment of this size at which the next one should be made, so that no request waits.
    shrinking: True if a segment can soon be recycled."""
    if size < LARGEST_SEGMENT:
        return size // 8 * 7  # it is full within milliseconds, and the next one takes longer to make
    return size // 8 if shrinking else size // 2


class Supply:
    """Supplies one journal. Call its methods in the engine's thread, except those that say otherwise."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._sync = sync
        self._spare: int | None = None
        self._recycled = False  # the spare was a segment
        self._tight = False  # the last spare could not be made, as the disk is full
        self.shortage: OSError | None = None
        """The error if not even a small spare can be made."""
        self._next_size = FIRST_SEGMENT
        self._reserve = 0  # bytes of the reserve

    def clear(self) -> None:
        """Removes the spare and unfinished files of a killed server, and finds the reserve."""
        self._spare = None
        for name in (SPARE, NEXT, RESERVE_NEXT):
            with suppress(FileNotFoundError):
                self._disk.unlink(f"{self._directory}/{name}")
        with suppress(FileNotFoundError):
            self._reserve = self._disk.lstat(f"{self._directory}/{RESERVE}").st_size

    def wanted_reserve(self, largest: int) -> int | None:
        """Returns the size of the reserve to make, None if it is large enough. largest: bytes of the largest segment,
        which compaction may have to copy."""
        return largest if self._reserve < largest else None

    def make_reserve(self, size: int) -> None:
        """Makes a file that `take_reserve` can make the reserve; may run in any thread. OSError."""
        make_file(f"{self._directory}/{RESERVE_NEXT}", size, self._disk, sync=self._sync)

    def take_reserve(self, size: int, name: str = RESERVE_NEXT) -> None:
        """Makes a file of this size the reserve, in place of the old one. OSError."""
        self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{RESERVE}")
        self._reserve = size

    def require_reserve(self, largest: int) -> None:
        """Makes the reserve unless it is large enough; on a full disk, from the spare. largest: see `wanted_reserve`.
        OSError."""
        size = self.wanted_reserve(largest)
        if size is None:
            return
        try:
            make_file(f"{self._directory}/{NEXT}", size, self._disk, sync=self._sync)
        except OSError as error:
            if not has_no_room(error) or self._spare is None or self._spare < size:
                raise
            spare, self._spare = self._spare, None
            self.take_reserve(spare, SPARE)
        else:
            self.take_reserve(size, NEXT)

    def take(self, needed: int, *, push: bool, exact: bool, lend: bool, largest: int = 0) -> tuple[int, str, bool]:
        """Takes a file of at least `needed` bytes. Returns (size, path, True if recycled). push: leaves the reserve,
        and on a full disk the spare, to others; exact: accepts a file of just `needed` bytes; lend: accepts the
        reserve; largest: see `wanted_reserve`. OSError: no file can be made."""
        if push:
            self.require_reserve(largest)
        spare, usual = self._spare, needed + SMALLEST
        if spare is not None and spare >= usual and not (push and self._tight):
            self._spare = None
            return spare, f"{self._directory}/{SPARE}", self._recycled
        path = f"{self._directory}/{NEXT}"
        if needed + SMALLEST // 2 <= self._reserve < usual:
            usual = self._reserve  # a larger segment would want a larger reserve
        size = max(self._next_size, usual)
        if self._leaves_room(size) and self._make(path, size):
            return size, path, False
        if (not push or self._leaves_room(usual)) and self._make(path, usual):
            return usual, path, False
        if lend and needed <= self._reserve:
            size, self._reserve = self._reserve, 0
            return size, f"{self._directory}/{RESERVE}", True
        if exact and self._make(path, needed):
            return needed, path, False
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _leaves_room(self, size: int) -> bool:
        """Tells whether the disk has room for such a segment and a reserve as large. OSError."""
        return size <= self._reserve or 2 * size <= self._disk.free_bytes(self._directory)

    def _make(self, path: str, size: int) -> bool:
        """Makes a segment file. Returns False if there is no room for it. OSError."""
        try:
            make_file(path, size, self._disk, sync=self._sync)
        except OSError as error:
            if not has_no_room(error):
                raise
            return False
        self._grow(size)
        return True

    def _grow(self, size: int) -> None:
        self._next_size = min(max(size, FIRST_SEGMENT) * 4, LARGEST_SEGMENT)

    @property
    def wanted(self) -> int | None:
        """The size of the spare to make, None if there is a spare."""
        return self._next_size if self._spare is None else None

    def make_spare(self, size: int) -> None:
        """Makes a spare; may run in any thread. Report the result with `has_made` or `could_not_make`. OSError."""
        if not self._leaves_room(size):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._directory)
        make_file(f"{self._directory}/{SPARE}", size, self._disk, sync=self._sync)

    def recycle(self, path: str, size: int) -> bool:
        """Makes an obsolete segment the spare; may run in any thread. If its size differs or a backup has linked it,
        removes it and returns False. OSError."""
        status = self._disk.lstat(path)
        spare = f"{self._directory}/{SPARE}"
        if status.st_size == size and status.st_nlink == 1:
            self._disk.rename(path, spare)
            self._disk.sync_directory(self._directory)  # before new records overwrite the old ones
            if self._disk.lstat(spare).st_nlink == 1:
                return True
            path = spare
        self._disk.unlink(path)
        return False

    def has_made(self, size: int, *, recycled: bool) -> None:
        """Notes that there is a spare now."""
        self._spare, self._recycled, self._tight, self.shortage = size, recycled, False, None
        self._grow(size)

    def could_not_make(self, size: int, error: OSError) -> None:
        """Notes that no spare of this size could be made. If there was no room, the next one will be smaller."""
        self._tight = True
        if has_no_room(error) and size > FIRST_SEGMENT:
            self._next_size = max(size // 4, FIRST_SEGMENT)
        else:
            self.shortage = error
