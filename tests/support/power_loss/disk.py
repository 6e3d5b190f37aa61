"""Disks for tests of power losses: one records the operations of an engine, one syncs nothing."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, ClassVar, NamedTuple
from unittest import mock

from qs_storage.disk import Disk

RECORDED = frozenset(
    {
        "open",
        "close",
        "_write",
        "_pwrite",
        "_copy_range",
        "fsync",
        "fdatasync",
        "_syncfs",
        "rename",
        "link",
        "unlink",
        "mkdir",
        "rmdir",
        "setxattr",
        "removexattr",
        "ftruncate",
        "posix_fallocate",
    }
)
"""The calls of Disk that change a file system or make it durable, and are written down. RECORDED, HARMLESS and DERIVED
are all calls of Disk: a test fails when a new call is in none of them, because it would be missing from every power
loss."""

HARMLESS = frozenset(
    {
        "fstat",
        "lstat",
        "read",
        "pread",
        "getxattr",
        "listxattr",
        "_advise",
        "free_bytes",
        "files_in",
        "file_blocks_in",
        "directories_in",
    }
)
"""The calls that change nothing that a power loss could take."""

DERIVED = frozenset(
    {
        "read_all",
        "open_file",
        "read_file",
        "write",
        "pwrite",
        "copy",
        "begin_writing",
        "sync_directory",
        "sync_file",
        "make_directories",
        "sync_file_system",
        "write_file",
        "remove_tree",
    }
)
"""The calls that Disk makes of other calls, which are written down."""

SYNCS = frozenset({"fsync", "fdatasync", "syncfs"})
MARKERS = frozenset({"begin", "answered", "left_out"})


class Entry(NamedTuple):
    """One operation. Paths are relative to the root; no descriptor's number is given twice. places: see
    RecordingDisk."""

    kind: str
    args: tuple[Any, ...]
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = (f"{len(arg)} bytes" if isinstance(arg, bytes) and len(arg) > 40 else repr(arg) for arg in self.args)
        return f"{self.kind}({', '.join(shown)})"

    @property
    def changes(self) -> bool:
        """Tells whether a power loss here can leave something else than one just before."""
        if self.kind == "open":
            return bool(self.args[2] & (os.O_CREAT | os.O_TRUNC))
        return self.kind not in ("close", "begin")


class RecordingDisk(Disk):
    """Works on a real directory, and logs each operation.

    Ensures:
    1. Each operation of RECORDED is in `log` once it has succeeded, with all that is needed to play it again.
    2. The log is in the order in which the operations were made. One that failed has changed nothing, and is not there.
    3. Operations outside of `root` raise AssertionError: they would be missing from the playing.
    4. Nothing is synced. The engine only reads from the directory; playing the log finds out what is durable.
    Assumes one thread. Must never change what an engine sees, except that it may refuse O_DIRECT.
    """

    places: ClassVar[Callable[[], tuple[str, ...]]] = tuple
    """Where in the source an operation comes from, to be noted with it: see sync_sites."""

    def __init__(self, root: str | os.PathLike[str], *, direct: bool = True, first: int = 1) -> None:
        """direct: whether files can be opened for writes past the page cache (O_DIRECT); first: the number of the first
        descriptor."""
        self.root = os.path.abspath(root)
        self.log: list[Entry] = []
        self._direct = direct
        self._handles: dict[int, int] = {}
        self._numbers = count(first)

    def mark(self, kind: str, number: int) -> None:
        """Logs a marker: `begin` or `answered`, and the number of the engine's operations by then."""
        self._note(kind, number)

    def _note(self, kind: str, *args: Any) -> None:
        self.log.append(Entry(kind, args, RecordingDisk.places()))

    def _relative(self, path: str) -> str:
        found = os.path.relpath(os.path.abspath(path), self.root)
        if found.startswith(".."):
            raise AssertionError(f"{path} is outside of {self.root}")
        return found

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        if flags & os.O_DIRECT and not self._direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        # The log has these flags. The real file is opened without them: nothing in it has to be durable, and runs are
        # recorded on tmpfs, which may refuse O_DIRECT.
        fd = os.open(path, flags & ~(os.O_DIRECT | os.O_DSYNC), mode)
        handle = self._handles[fd] = next(self._numbers)
        self._note("open", handle, self._relative(path), flags)
        return fd

    def close(self, fd: int) -> None:  # type: ignore[override]
        os.close(fd)
        self._note("close", self._handles.pop(fd))

    def end(self) -> None:
        """Closes the files, as the end of a process does."""
        for fd in list(self._handles):
            self.close(fd)

    def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        written = os.write(fd, data)
        offset = os.lseek(fd, 0, os.SEEK_CUR) - written  # the end of the file, where it was opened to append
        self._note("write", self._handles[fd], offset, bytes(data[:written]))
        return written

    def _pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        written = os.pwrite(fd, data, offset)
        self._note("write", self._handles[fd], offset, bytes(data[:written]))
        return written

    def _copy_range(self, source: int, target: int, count: int) -> int:  # type: ignore[override]
        data = os.read(source, min(count, 1 << 20))
        return self._write(target, data) if data else 0

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._note("fsync", self._handles[fd])

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._note("fdatasync", self._handles[fd])

    def _syncfs(self, fd: int) -> None:
        self._note("syncfs")

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        self._note("size", self._handles[fd], size)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        os.posix_fallocate(fd, offset, length)
        self._note("size", self._handles[fd], os.fstat(fd).st_size)

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        os.rename(old, new)
        self._note("rename", self._relative(old), self._relative(new))

    def link(self, old: str, new: str, *, follow_symlinks: bool = True) -> None:  # type: ignore[override]
        os.link(old, new, follow_symlinks=follow_symlinks)
        self._note("link", self._relative(old), self._relative(new))

    def unlink(self, path: str) -> None:  # type: ignore[override]
        os.unlink(path)
        self._note("unlink", self._relative(path))

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        os.mkdir(path, mode)
        self._note("mkdir", self._relative(path))

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        os.rmdir(path)
        self._note("rmdir", self._relative(path))

    def setxattr(  # type: ignore[override]
        self, path: str, attribute: str, value: bytes, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        os.setxattr(path, attribute, value, flags, follow_symlinks=follow_symlinks)
        self._note("setxattr", self._relative(path), attribute, value)

    def removexattr(self, path: str, attribute: str, *, follow_symlinks: bool = True) -> None:  # type: ignore[override]
        os.removexattr(path, attribute, follow_symlinks=follow_symlinks)
        self._note("setxattr", self._relative(path), attribute, None)

    def remove_tree(self, path: str) -> None:
        """Removes a tree bottom up, in the order of names: os.listdir would give each run an order of its own."""
        for name in sorted(self.directories_in(path)):
            self.remove_tree(f"{path}/{name}")
        for name in sorted(os.listdir(path)):
            self.unlink(f"{path}/{name}")
        self.rmdir(path)


class QuietDisk(Disk):
    """Syncs nothing: for images that are looked at once and thrown away, thousands in a test of seconds."""

    def __init__(self) -> None:
        self._descriptors: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        fd = os.open(path, flags, mode)
        self._descriptors.add(fd)
        return fd

    def close(self, fd: int) -> None:  # type: ignore[override]
        self._descriptors.discard(fd)
        os.close(fd)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        pass

    fdatasync = _syncfs = fsync  # type: ignore[assignment]

    def end(self) -> None:
        """Closes the files, as the end of a process does."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()


@contextlib.contextmanager
def everything_recorded(disk: RecordingDisk) -> Iterator[None]:
    """Within the block, also records what the storage does without its Disk (the removal of trees). Names that it draws
    at random are the same each time, so that a printed point can be played again."""
    remove, names = shutil.rmtree, count()

    def rmtree(path: str, ignore_errors: bool = False, **named: Any) -> None:
        if not os.path.abspath(path).startswith(disk.root + os.sep):
            remove(path, ignore_errors, **named)
            return
        with contextlib.suppress(FileNotFoundError if ignore_errors else ()):
            disk.remove_tree(path)

    with (
        mock.patch("shutil.rmtree", rmtree),
        mock.patch("secrets.token_hex", lambda size=16: f"{next(names):0{2 * size}x}"),
        mock.patch("secrets.token_bytes", lambda size=32: next(names).to_bytes(size, "big")),
    ):
        yield
