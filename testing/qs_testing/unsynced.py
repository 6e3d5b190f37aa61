"""A record of all that a server has written and not synced, and its undoing: what a power loss takes.

Runs in the server's process, in place of the calls of `qs_storage.disk.Disk` that change files. The changes go to the
real file system, so that everything else finds them there. Syncs are not passed on: this record alone says what is
durable, and a test machine keeps its power.

The rules are those of POSIX and a journalling file system together; tests compare them with the model of the project's
own tests of power losses. Durable are
1. data and size of a file after fsync or fdatasync of it, its attributes after fsync, all of them after syncfs;
2. the bytes of a write with O_DSYNC or O_SYNC when it returns;
3. names after fsync of their directory, and with a rename between two directories both of its names.
Of what is not durable nothing is left. That is one of the states that a power loss may leave, and the one that shows a
missing sync.
"""

import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

_DURABLE = os.O_DSYNC | os.O_SYNC
_PAST_THE_CACHE = os.O_DIRECT | _DURABLE
"""Flags that are not passed on: they would cost time, and make nothing durable that has to be."""
_COPIED = 1 << 20
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_remove_tree = shutil.rmtree

Key = tuple[int, int]
"""The device and the inode of a file or a directory."""


class _Write(NamedTuple):
    """A change of a file's content. length: the bytes that were written, -1 for a new size; old: what stood there, less
    where the file has grown; size: the file's before."""

    number: int
    offset: int
    length: int
    old: bytes
    size: int


class _Attribute(NamedTuple):
    """A change of an extended attribute. old: None if there was none of that name."""

    number: int
    name: str
    old: bytes | None


class _Node:
    """The changes of one file or directory that are not durable, beside those of names."""

    def __init__(self) -> None:
        self.writes: list[_Write] = []
        self.attributes: list[_Attribute] = []


class _Directory:
    """A directory with changed names, held open so that its inode belongs to no other one. fd: for calls relative to
    it; it works wherever the directory has been moved. changes: how many are not durable."""

    def __init__(self, key: Key, fd: int) -> None:
        self.key = key
        self.fd = fd
        self.changes = 0


class _Change(NamedTuple):
    """A change of names. kept: the name under which a removed file is kept."""

    directories: tuple[_Directory, ...]
    undo: Callable[[], None]
    kept: str | None


class Unsynced:
    """The calls of Disk that change files, and the record of what they have changed.

    Ensures that `undo` brings back, in the directories that it is given, what is durable by the rules above.
    Assumes that files are changed by these calls alone; changes by other programs stay where they do not stand in the
    way. What was there before counts as durable. The calls may come from any thread, one at a time does its work."""

    def __init__(self, keep: str) -> None:
        """keep: an empty directory for removed files, in the same file system, that nobody else looks at."""
        self._keep = keep
        self.lock = threading.RLock()
        """Held during each change. Whoever holds it stops all changes."""
        self._number = 0
        self._flags: dict[int, int] = {}
        self._nodes: dict[Key, _Node] = {}
        self._directories: dict[Key, _Directory] = {}
        self._changes: dict[int, _Change] = {}

    def _next(self) -> int:
        self._number += 1
        return self._number

    # -- files ----------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        with self.lock:
            is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            if flags & os.O_TRUNC and not is_new:
                self._note_truncation(path)
            with self._directories_of(path) as [directory]:
                fd = os.open(path, flags & ~_PAST_THE_CACHE, mode)
                self._flags[fd] = flags
                if is_new:
                    self._nodes.pop(_key(os.fstat(fd)), None)  # of a file that had this inode before
                    self._note((directory,), partial(_unmake, directory, os.path.basename(path)))
                return fd

    def close(self, fd: int) -> None:
        with self.lock:
            self._flags.pop(fd, None)
            os.close(fd)

    def write(self, fd: int, data: bytes) -> int:
        with self.lock:
            return self._write(fd, self.position(fd), len(data), lambda: os.write(fd, data))

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        with self.lock:
            return self._write(fd, offset, len(data), lambda: os.pwrite(fd, data, offset))

    def copy_range(self, source: int, target: int, count: int) -> int:
        data = os.read(source, min(count, _COPIED))
        return self.write(target, data) if data else 0

    def ftruncate(self, fd: int, size: int) -> None:
        with self.lock:
            found = os.fstat(fd)
            self._note_write(fd, found, size, -1)
            os.ftruncate(fd, size)

    def _write(self, fd: int, offset: int, length: int, write: Callable[[], int]) -> int:
        found = os.fstat(fd)
        if not self.is_durable(fd):
            self._note_write(fd, found, offset, length)
            return write()
        written = write()
        node = self._nodes.get(_key(found))
        if node is not None:
            node.writes = _without(node.writes, offset, written)
        return written

    def position(self, fd: int) -> int:
        """Returns the offset of the next `write`."""
        return os.lseek(fd, 0, os.SEEK_CUR)

    def is_durable(self, fd: int) -> bool:
        """Tells whether writes to an open file are durable when they return."""
        return bool(self._flags.get(fd, 0) & _DURABLE)

    def _note_write(self, fd: int, found: os.stat_result, offset: int, length: int) -> None:
        changed = found.st_size - offset if length < 0 else min(length, found.st_size - offset)
        old = _bytes_of(fd, changed, offset) if changed > 0 else b""
        self._node(_key(found)).writes.append(_Write(self._next(), offset, length, old, found.st_size))

    def _note_truncation(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                found = os.fstat(fd)
                self._note_write(fd, found, 0, -1)
            finally:
                os.close(fd)

    def _node(self, key: Key) -> _Node:
        return self._nodes.setdefault(key, _Node())

    # -- attributes -----------------------------------------------------------------------------------------------

    def setxattr(
        self, path: str | int, attribute: str, value: bytes, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        with self.lock:
            changed = self._before_attribute(path, attribute, follow_symlinks)
            os.setxattr(path, attribute, value, flags, follow_symlinks=follow_symlinks)
            changed()

    def removexattr(self, path: str | int, attribute: str, *, follow_symlinks: bool = True) -> None:
        with self.lock:
            changed = self._before_attribute(path, attribute, follow_symlinks)
            os.removexattr(path, attribute, follow_symlinks=follow_symlinks)
            changed()

    def _before_attribute(self, path: str | int, name: str, follow: bool) -> Callable[[], None]:
        """Reads an attribute. Returns a function to call when it has been changed."""
        found = os.stat(path, follow_symlinks=follow) if isinstance(path, str) else os.fstat(path)
        old: bytes | None = None
        with contextlib.suppress(OSError):
            old = os.getxattr(path, name, follow_symlinks=follow)
        return lambda: self._node(_key(found)).attributes.append(_Attribute(self._next(), name, old))

    # -- names ----------------------------------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        with self.lock:
            moved, replaced = os.lstat(old), _lstat(new)
            if replaced is not None and _key(moved) == _key(replaced):
                os.rename(old, new)  # two names of one file: nothing changes
                return
            with self._directories_of(old, new) as [source, target]:
                kept = restore = None
                if replaced is not None and stat.S_ISDIR(replaced.st_mode):
                    restore = self._removed(target, new, replaced)
                elif replaced is not None and (kept := self._kept(new)) is not None:
                    restore = partial(_restore, kept, target, os.path.basename(new))
                with self._unless_failed(kept):
                    os.rename(old, new)
                back = partial(_rename_back, target, os.path.basename(new), source, os.path.basename(old))
                changed = (source,) if source is target else (source, target)
                self._note(changed, partial(_call, back, restore), kept)

    def link(self, old: str, new: str, *, follow_symlinks: bool = True) -> None:
        with self.lock, self._directories_of(new) as [directory]:
            os.link(old, new, follow_symlinks=follow_symlinks)
            self._note((directory,), partial(_unmake, directory, os.path.basename(new)))

    def unlink(self, path: str) -> None:
        with self.lock, self._directories_of(path) as [directory]:
            kept = self._kept(path)
            with self._unless_failed(kept):
                os.unlink(path)
            restore = None if kept is None else partial(_restore, kept, directory, os.path.basename(path))
            self._note((directory,), partial(_call, restore), kept)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        with self.lock, self._directories_of(path) as [directory]:
            os.mkdir(path, mode)
            self._nodes.pop(_key(os.lstat(path)), None)
            self._note((directory,), partial(_unmake, directory, os.path.basename(path)))

    def rmdir(self, path: str) -> None:
        with self.lock, self._directories_of(path) as [directory]:
            restore = self._removed(directory, path, os.lstat(path))
            os.rmdir(path)
            self._note((directory,), restore)

    def remove_tree(self, path: str, ignore_errors: bool = False, **_: Any) -> None:
        """Does the work of shutil.rmtree by the calls of this class."""
        ignored = (OSError,) if ignore_errors else ()
        found: list[tuple[str, bool]] = []
        with contextlib.suppress(*ignored), os.scandir(path) as entries:
            found += [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for below, is_directory in found:
            with contextlib.suppress(*ignored):
                if is_directory:
                    self.remove_tree(below, ignore_errors)
                else:
                    self.unlink(below)
        with contextlib.suppress(*ignored):
            self.rmdir(path)

    def _kept(self, path: str) -> str | None:
        """Gives a file another name, under which it stays. Returns that name, or None for what cannot be kept: a
        directory, a file in another file system, none at all."""
        kept = f"{self._keep}/{self._next()}"
        try:
            os.link(path, kept, follow_symlinks=False)
        except OSError:
            return None
        return kept

    @contextlib.contextmanager
    def _unless_failed(self, kept: str | None) -> Iterator[None]:
        try:
            yield
        except OSError:
            if kept is not None:
                os.unlink(kept)
            raise

    def _removed(self, above: _Directory, path: str, found: os.stat_result) -> Callable[[], None]:
        """Notes that an empty directory is about to be removed. Returns a function that makes it again."""
        attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        gone = self._directories.get(_key(found))
        node = self._nodes.get(_key(found))
        name, mode = os.path.basename(path), stat.S_IMODE(found.st_mode)

        def remake() -> None:
            os.mkdir(name, dir_fd=above.fd)
            os.chmod(name, mode, dir_fd=above.fd)
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above.fd)
            try:
                for attribute, value in attributes.items():
                    os.setxattr(made, attribute, value)
                # The changes before this one are undone in the new directory, whose inode may have been a file's.
                self._nodes[_key(os.fstat(made))] = node or _Node()
                if gone is not None:
                    os.dup2(made, gone.fd)
            finally:
                os.close(made)

        return remake

    @contextlib.contextmanager
    def _directories_of(self, *paths: str) -> Iterator[list[_Directory]]:
        """Yields the directories that hold the paths. Closes those in which nothing was changed. OSError."""
        found = [self._directory(os.path.dirname(path) or ".") for path in paths]
        try:
            yield found
        finally:
            for directory in found:
                self._close_unchanged(directory)

    def _directory(self, path: str) -> _Directory:
        key = _key(os.stat(path))
        directory = self._directories.get(key)
        if directory is None:
            directory = self._directories[key] = _Directory(key, os.open(path, _DIRECTORY))
        return directory

    def _close_unchanged(self, directory: _Directory) -> None:
        if not directory.changes and self._directories.pop(directory.key, None) is not None:
            os.close(directory.fd)

    def _note(self, directories: tuple[_Directory, ...], undo: Callable[[], None], kept: str | None = None) -> None:
        for directory in directories:
            directory.changes += 1
        self._changes[self._next()] = _Change(directories, undo, kept)

    # -- syncs ----------------------------------------------------------------------------------------------------

    def begin_sync(self) -> int:
        """Returns the number of the last change: a sync that begins now makes those up to it durable."""
        return self._number

    def end_sync(self, fd: int, last: int, *, data_only: bool = False) -> None:
        """Makes durable what fsync of an open file or directory promises, or fdatasync with data_only. last: what
        `begin_sync` returned."""
        with self.lock:
            key = _key(os.fstat(fd))
            node = self._nodes.get(key)
            if node is not None:
                self._sync_node(key, node, last, data_only=data_only)
            if (directory := self._directories.get(key)) is not None:
                self._sync_names({directory: last})

    def end_sync_of_all(self, last: int) -> None:
        """Makes durable what syncfs promises. last: what `begin_sync` returned."""
        with self.lock:
            for key, node in list(self._nodes.items()):
                self._sync_node(key, node, last)
            self._sync_names(dict.fromkeys(self._directories.values(), last))

    def _sync_node(self, key: Key, node: _Node, last: int, *, data_only: bool = False) -> None:
        node.writes = [write for write in node.writes if write.number > last]
        if not data_only:
            node.attributes = [change for change in node.attributes if change.number > last]
        if not node.writes and not node.attributes:
            del self._nodes[key]

    def _sync_names(self, upto: dict[_Directory, int]) -> None:
        """Makes durable the changes of names in directories up to a number each, and what they need in others."""
        # From the last to the first: a rename makes durable what was done before it in its other directory.
        for number in reversed(list(self._changes)):
            change = self._changes[number]
            if any(number <= upto.get(directory, 0) for directory in change.directories):
                for directory in change.directories:
                    upto[directory] = max(upto.get(directory, 0), number)
                self._forget(self._changes.pop(number))

    def _forget(self, change: _Change) -> None:
        if change.kept is not None:
            found = os.lstat(change.kept)
            os.unlink(change.kept)
            if found.st_nlink == 1:
                self._nodes.pop(_key(found), None)
        for directory in change.directories:
            directory.changes -= 1
            self._close_unchanged(directory)

    # -- the power loss -------------------------------------------------------------------------------------------

    def undo(self, folders: Sequence[str]) -> None:
        """Undoes all that is not durable. folders: the directories below which the files are. Call it with the lock,
        and end the process without giving the lock back."""
        for change in reversed(self._changes.values()):
            # Another program may have removed or taken a name since.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                change.undo()
        done: set[Key] = set()
        for path, key in _below(folders):
            if key in self._nodes and key not in done:
                done.add(key)
                _undo_node(path, self._nodes[key])


def _undo_node(path: str, node: _Node) -> None:
    if node.writes:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for write in reversed(node.writes):
                os.pwrite(fd, write.old, write.offset)
                os.ftruncate(fd, write.size)
        finally:
            os.close(fd)
    for change in reversed(node.attributes):
        if change.old is not None:
            os.setxattr(path, change.name, change.old)
        else:
            with contextlib.suppress(OSError):  # it was taken away again
                os.removexattr(path, change.name)


def _below(folders: Iterable[str]) -> Iterator[tuple[str, Key]]:
    for folder in folders:
        for above, directories, files in os.walk(folder):
            for path in (above, *(f"{above}/{name}" for name in (*directories, *files))):
                if (found := _lstat(path)) is not None:
                    yield path, _key(found)


def _key(found: os.stat_result) -> Key:
    return found.st_dev, found.st_ino


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _bytes_of(fd: int, length: int, offset: int) -> bytes:
    """Reads from a file that may be open for writing only."""
    reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(reading, length, offset)
    finally:
        os.close(reading)


def _without(writes: list[_Write], offset: int, length: int) -> list[_Write]:
    """Returns the changes of a file's content without those of a range that is durable now."""
    if any(write.length < 0 for write in writes):
        return []  # more than O_DSYNC promises: nobody truncates a file that is written so
    end, left = offset + length, []
    for write in writes:
        begin, stop, old = write.offset, write.offset + write.length, write.old.ljust(write.length, b"\0")
        kept = write._replace(size=max(write.size, end), old=old)
        if stop <= offset or begin >= end:
            left.append(kept)
            continue
        if begin < offset:
            left.append(kept._replace(length=offset - begin, old=old[: offset - begin]))
        if end < stop:
            left.append(kept._replace(offset=end, length=stop - end, old=old[end - begin :]))
    return left


def _call(*functions: Callable[[], None] | None) -> None:
    for function in functions:
        if function is not None:
            function()


def _unmake(directory: _Directory, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory.fd)
    except IsADirectoryError:
        _remove_tree(name, dir_fd=directory.fd)


def _restore(kept: str, directory: _Directory, name: str) -> None:
    os.rename(kept, name, dst_dir_fd=directory.fd)


def _rename_back(new: _Directory, new_name: str, old: _Directory, old_name: str) -> None:
    os.rename(new_name, old_name, src_dir_fd=new.fd, dst_dir_fd=old.fd)
