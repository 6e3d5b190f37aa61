"""Files for segments: made of zeros when one is needed, or before that, so that nobody has to wait for it; or the file
of a segment that is not needed any more, once again: then the disk does not write its bytes twice.

While the disk is full, the one that was made before is kept for what makes room again, and so are the last blocks.
"""

import contextlib
import errno
import mmap
import os
from contextlib import suppress

from ..disk import Disk, has_no_room

FIRST_SEGMENT = 1 << 20
"""Bytes of the first segment after a start; each following one is four times as large, up to the limit."""
LARGEST_SEGMENT = 64 << 20
SMALLEST = 128 << 10
"""Bytes that a segment has beside what is needed at once, unless the disk is nearly full."""
_CHUNK = 1 << 20
_zeros = mmap.mmap(-1, _CHUNK)
"""Page-aligned, as O_DIRECT wants it. Never written to."""
SPARE = "spare"
NEXT = "next"
RESERVE_NEXT = "reserve-next"
RESERVE = "reserve"
"""Kept for compaction and for deletes on a full disk: pushes get no new segment unless it is there."""


def make_file(path: str, size: int, disk: Disk, *, sync: bool) -> None:
    """Makes a file of zeros that has all its blocks. Nothing stays of one that could not be made; where it cannot fit,
    nothing is written, so that a refusal costs no time and takes no room from others. OSError."""
    if size > disk.free_bytes(os.path.dirname(path)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    fd = disk.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for at in range(0, size, _CHUNK):
            disk.pwrite(fd, memoryview(_zeros)[: min(_CHUNK, size - at)], at)
        if sync:
            disk.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(path)
        raise
    finally:
        disk.close(fd)


def enough_of(size: int, *, shrinking: bool) -> int:
    """How many bytes of a segment of that size are left when the next one should be made: while it takes more, nobody
    has to wait for that one. shrinking: a segment can soon be recycled."""
    if size < LARGEST_SEGMENT:
        return size // 8 * 7  # it is full in some milliseconds, and the next one takes longer to make than it did
    return size // 8 if shrinking else size // 2


class Supply:
    """Of one journal. For the engine's thread, but for `make_spare`."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._sync = sync
        self._spare: int | None = None
        self._recycled = False  # the spare one was a segment
        self._tight = False  # the last spare could not be made: the disk is full
        self.shortage: OSError | None = None
        """Why not even a small spare can be made, if so."""
        self._next_size = FIRST_SEGMENT
        self._reserve = 0
        """Bytes of the reserve."""

    def clear(self) -> None:
        """Removes what a server that was killed has left, or what is not needed any more."""
        self._spare = None
        for name in (SPARE, NEXT, RESERVE_NEXT):
            with suppress(FileNotFoundError):
                self._disk.unlink(f"{self._directory}/{name}")
        with suppress(FileNotFoundError):
            self._reserve = self._disk.lstat(f"{self._directory}/{RESERVE}").st_size

    def wanted_reserve(self, largest: int) -> int | None:
        """The size of the reserve that there should be, if it is not. largest: bytes of the largest segment, all of
        whose messages may have to be copied."""
        return largest if self._reserve < largest else None

    def make_reserve(self, size: int) -> None:
        """Makes the file for the reserve, in whatever thread; `take_reserve` makes it the reserve where the engine
        runs. OSError."""
        make_file(f"{self._directory}/{RESERVE_NEXT}", size, self._disk, sync=self._sync)

    def take_reserve(self, size: int, name: str = RESERVE_NEXT) -> None:
        """Makes a file of that size the reserve, instead of the one that there is. OSError."""
        self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{RESERVE}")
        self._reserve = size

    def take(self, needed: int, *, push: bool, exact: bool, largest: int = 0) -> tuple[int, str, bool]:
        """A file with that many bytes at least: its size, its path, and whether it is recycled. push: for pushes, which
        leave the spare one and the reserve to what makes room when the disk is full; exact: it may have no room for
        anything else; largest: see `wanted_reserve`. OSError: none can be made."""
        if push and (reserve := self.wanted_reserve(largest)) is not None:
            make_file(f"{self._directory}/{NEXT}", reserve, self._disk, sync=self._sync)
            self.take_reserve(reserve, NEXT)
        spare, usual = self._spare, needed + SMALLEST
        if spare is not None and spare >= usual and not (push and self._tight):
            self._spare = None
            return spare, f"{self._directory}/{SPARE}", self._recycled
        path = f"{self._directory}/{NEXT}"
        for size in (max(self._next_size, usual), usual):
            if self._make(path, size):
                return size, path, False
        if not push and needed <= self._reserve:
            size, self._reserve = self._reserve, 0
            return size, f"{self._directory}/{RESERVE}", True
        if exact and self._make(path, needed):
            return needed, path, False
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _make(self, path: str, size: int) -> bool:
        """Makes a segment file. Returns False when there is no room for it. OSError."""
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
        """The size of the spare that there should be."""
        return self._next_size if self._spare is None else None

    def make_spare(self, size: int) -> None:
        """Makes one, in whatever thread; `has_made` and `could_not_make` say so where the engine runs. OSError."""
        make_file(f"{self._directory}/{SPARE}", size, self._disk, sync=self._sync)

    def recycle(self, path: str, size: int) -> bool:
        """Makes a segment that is not needed the spare one, in whatever thread. False, and it is removed, when it has
        another size, or another name too (a backup's). OSError."""
        status = self._disk.lstat(path)
        spare = f"{self._directory}/{SPARE}"
        if status.st_size == size and status.st_nlink == 1:
            self._disk.rename(path, spare)
            self._disk.sync_directory(self._directory)  # before anything else is written into it
            if self._disk.lstat(spare).st_nlink == 1:
                return True
            path = spare
        self._disk.unlink(path)
        return False

    def has_made(self, size: int, *, recycled: bool) -> None:
        """There is a spare now."""
        self._spare, self._recycled, self._tight, self.shortage = size, recycled, False, None
        self._grow(size)

    def could_not_make(self, size: int, error: OSError) -> None:
        """There is no spare of that size. When it was for lack of room, the next one is to be smaller."""
        self._tight = True
        if has_no_room(error) and size > FIRST_SEGMENT:
            self._next_size = max(size // 4, FIRST_SEGMENT)
        else:
            self.shortage = error
