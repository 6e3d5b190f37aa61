"""The file operations of the storage, in one object that tests can replace, for instance by a full disk."""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from itertools import chain, islice

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that mean the disk is exhausted."""
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags to read another program's file, which may be a link, a pipe or a device."""
_OWN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags to open a file of the server's own: what was planted under its name is not followed, and is not waited for."""
_NO_RANGES = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
"""Errors of files between which the kernel does not copy."""
_PART = 1 << 20
"""Bytes of a copy at a time, where the kernel does not copy."""

_BLOCK = 4096
"""Names of a listing at a time: some 3 ms."""


class Disk:
    """The file operations of the storage. Every method may raise OSError.

    Ensures that all file operations of the storage go through one object, so that tests can replace it: by a full disk,
    by a disk that fails at the n-th call, by one that loses data that was not synced. Operations that need no code of
    their own are the system's functions themselves, which saves each request some calls.

    Never follows a link in the place of a file of the server's own: see `open_file`."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    lstat = staticmethod(os.lstat)
    read = staticmethod(os.read)
    pread = staticmethod(os.pread)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    getxattr = staticmethod(os.getxattr)
    listxattr = staticmethod(os.listxattr)
    setxattr = staticmethod(os.setxattr)
    removexattr = staticmethod(os.removexattr)
    fdatasync = staticmethod(os.fdatasync)
    ftruncate = staticmethod(os.ftruncate)
    _write = staticmethod(os.write)
    _pwrite = staticmethod(os.pwrite)
    _advise = staticmethod(os.posix_fadvise)
    _copy_range = staticmethod(os.copy_file_range)

    def open_file(self, path: str, flags: int, mode: int = 0o666) -> int:
        """Opens a file of the server's own, or makes it. Refuses links and other plants: a user who may write to the
        directory could have put one under the name, so that a program with more rights reads or overwrites a file
        elsewhere. O_TRUNC: always makes a new file, in place of the old one. OSError with the path; PlantedError unless
        it is a regular file.
        """
        if flags & os.O_TRUNC:
            # A new file instead of an emptied one: the old one may be another program's, under a second name.
            flags = flags & ~os.O_TRUNC | os.O_EXCL
        try:
            fd = self.open(path, flags | _OWN, mode)
        except FileExistsError:
            self.unlink(path)
            fd = self.open(path, flags | _OWN, mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nobody reads, or a socket
                raise PlantedError(path) from None
            raise
        try:
            found = self.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or (found.st_nlink > 1 and _is_foreign(path, found)):
                raise PlantedError(path)
        except BaseException:
            self.close(fd)
            raise
        return fd

    def free_bytes(self, path: str) -> int:
        """Counts free bytes, those for root included."""
        found = os.statvfs(path)
        return found.f_bfree * found.f_frsize

    def files_in(self, path: str) -> list[str]:
        """Returns the names of the regular files in a directory, unsorted."""
        return list(map(os.fsdecode, chain.from_iterable(self.file_blocks_in(path))))

    def file_blocks_in(self, path: str) -> Iterator[list[bytes]]:
        """Yields the names of the regular files in a directory, unsorted and in blocks, as there may be a million. A
        file that is made again meanwhile may come twice."""
        try:
            with os.scandir(os.fsencode(path)) as entries:  # in bytes, as to decode each takes as long as to read it
                while block := list(islice(entries, _BLOCK)):
                    yield [entry.name for entry in block if entry.is_file(follow_symlinks=False)]
        except OSError as error:
            error.filename = path
            raise

    def directories_in(self, path: str) -> list[str]:
        """Returns the names of the directories in a directory, unsorted, without links to directories."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def read_all(self, fd: int, size: int) -> bytes:
        """Reads an open file to its end. size: the expected bytes."""
        # One byte more than expected: if the file has grown, that shows without another call.
        data = self.read(fd, size + 1)
        if len(data) == size:
            return data
        parts = [data]
        while part := self.read(fd, _PART):
            parts.append(part)
        return b"".join(parts)

    def read_file(self, path: str) -> bytes:
        """Reads a file that another program may have written."""
        fd = self.open(path, READ)
        try:
            return self.read_all(fd, self.fstat(fd).st_size)
        finally:
            self.close(fd)

    def write(self, fd: int, data: bytes) -> None:
        """Writes all bytes, in as many calls as the system needs."""
        written = self._write(fd, data)
        while written < len(data):
            written += self._write(fd, data[written:])

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Writes all bytes at an offset, in as many calls as the system needs."""
        written = self._pwrite(fd, data, offset)
        while written < len(data):
            written += self._pwrite(fd, data[written:], offset + written)

    def copy(self, source: int, target: int) -> None:
        """Copies an open file to its end, in the kernel if possible, so that the file system can share the blocks."""
        try:
            while self._copy_range(source, target, 1 << 30):
                pass
        except OSError as error:
            if error.errno not in _NO_RANGES:
                raise
        while data := self.read(source, _PART):  # nothing, if the kernel has copied it all
            self.write(target, data)

    def begin_writing(self, fd: int) -> None:
        """Starts writing a file out, without waiting. Later syncs of several files then share commits of ext4's
        journal, which is twice as fast for 32 files."""
        # The kernel starts writing dirty pages before it drops clean ones; the page cache keeps the dirty ones.
        self._advise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        self.sync_file(path, os.O_DIRECTORY)

    def sync_file(self, path: str, flags: int = 0) -> None:
        """Makes the content of a file durable, also what other processes have written to it."""
        fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def make_directories(self, path: str, *, sync: bool) -> None:
        """Makes a directory and its missing parents. sync: whether to make their names durable. NotADirectoryError."""
        above = os.path.dirname(path)
        if os.path.isdir(path):
            return
        if above != path:
            self.make_directories(above, sync=sync)
        # Another process may make it at the same time.
        with contextlib.suppress(FileExistsError):
            self.mkdir(path)
        with contextlib.suppress(FileNotFoundError):  # another program may have removed it
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if sync:
            self.sync_directory(above)

    def sync_file_system(self, path: str) -> None:
        """Calls syncfs(2) for the file system of a directory."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._syncfs(fd)
        finally:
            self.close(fd)

    def _syncfs(self, fd: int) -> None:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Writes a new file atomically. sync: whether to sync the content before the file gets its name."""
        temporary = f"{path}.tmp"
        fd = self.open_file(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            try:
                self.write(fd, data)
                if sync:
                    self.fsync(fd)
            finally:
                self.close(fd)
            # A rename replaces the file in one step: there is always the old content or the new one.
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise


class PlantedError(OSError):
    """Something else has the name of a file or directory of the server's own."""

    def __init__(self, path: str) -> None:
        text = "it is a link, or no regular file, and was not made by the server: find out who put it there; remove it"
        super().__init__(errno.ELOOP, text, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def check_directory(path: str) -> None:
    """Refuses a link in place of a directory: changes would go to its target. Accepts a name that is free.
    PlantedError, OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # its first use raises the error
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise PlantedError(path)


def _is_foreign(path: str, found: os.stat_result) -> bool:
    """Tells whether a file may be a second name of another user's file, made by the owner of its directory. found: the
    file's status. The server's own files have second names too, in backups."""
    owner = os.stat(os.path.dirname(path) or ".").st_uid
    return owner not in (0, os.geteuid(), found.st_uid)


def reason_of(error: OSError) -> str:
    """Says why a directory cannot be used."""
    if isinstance(error, NotADirectoryError):
        return "it is a file, not a directory"
    return error.strerror or str(error)


def has_no_room(error: OSError) -> bool:
    """Tells whether an error means that the disk is full, or the user's quota."""
    return error.errno in NO_ROOM
