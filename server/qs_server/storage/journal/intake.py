"""Files of a queue's directory on their way into the log: the part that is done in a thread and touches only files.

A file is taken in so that each crash leaves it either a file or a message. It gets a private name with a token that is
used once; the directory is synced; then its message and a TAKEN record with the token are committed in one frame; then
the file is unlinked, the directory synced, and an UNLINKED record notes that. A start that finds a private name removes
the file if the log has its token, and takes it in otherwise. So nobody has to tell two files apart that had one name.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, Protocol

from ..disk import READ, Disk
from ..names import NEW, PRIVATE, WITHHELD, parse_message

MAX_SIZE = 64 << 20
"""Bytes of a file above which it is not taken in."""
_PRIVATE = re.compile(rb"\.taken-([0-9a-f]{16})-.+", re.DOTALL)
_FILES = 200
"""Files that are taken in together, at most."""
_BYTES = 256 << 10
"""Bytes of files that are taken in together, but for a first one that is larger: they are written with one commit."""
_OF_FILE = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.EIO, errno.ENXIO, errno.EISDIR})
"""Errors that a file has for itself: others can be taken in."""
_LOOKED_AT = 20_000
"""Names of a listing that are looked at without a pause."""


class File(NamedTuple):
    """A file that was read. name: its private one; state: receives, hidden until (0: visible), whether by a delay."""

    name: bytes
    mid: int
    state: tuple[int, int, bool]
    payload: bytes


def token_of(name: bytes) -> int | None:
    """The token in a private name, or None for any other."""
    private = _PRIVATE.fullmatch(name)
    return None if private is None else int(private[1], 16)


class FileStates(Protocol):
    """Reads what is known of the messages in one directory: see `storage.files.attributes`."""

    def read(self, path: str, mid: int, /) -> tuple[int, int]:
        """Returns how often a message was received, and until when it is delayed."""

    def forget(self, mid: int, /) -> None:
        """Forgets a message that is gone."""


OpenStates = Callable[[str, Disk], FileStates]
"""Opens the states of the messages in a directory. OSError."""


class Intake:
    """One piece of work on one directory. Everything but `run` is for the thread that uses the log."""

    def __init__(  # noqa: PLR0917
        self,
        path: str,
        disk: Disk,
        names: list[bytes],
        listing: Iterator[bytes] | None,
        count: int,
        open_states: OpenStates,
    ) -> None:
        """names, listing: files to look at, first the former; count: how many may be read at most."""
        self.path = path
        self.token = secrets.randbits(64)
        """The token in the private names of the files that are read."""
        self.files: list[File] = []
        """What was read: to be committed, with the token."""
        self.left = names
        """Names to be looked at later."""
        self.listing = listing
        """None once it has come to its end."""
        self.remove: list[bytes] = []
        """Files that are messages, durably once `before` has returned."""
        self.before: Callable[[], None] | None = None
        self.known: Collection[int] = ()
        """Tokens of which the log says that their files are messages."""
        self.strays: list[tuple[str, str]] = []
        """Names of files that cannot be taken in, and why."""
        self.error: OSError | None = None
        """Why the directory cannot be worked on."""
        self._disk = disk
        self._count = min(count, _FILES)
        self._open_states = open_states
        self._states: FileStates | None = None
        self._changed = False

    def run(self) -> None:
        """Does the work. Raises nothing."""
        try:
            if self.before is not None:
                self.before()
            for name in self.remove:
                self._unlink(name)
            self._read_files()
            if self._changed:
                self._disk.sync_directory(self.path)
        except OSError as error:
            self.error = error  # what was renamed is found by the next listing

    def _unlink(self, name: bytes) -> None:
        try:
            self._disk.unlink(f"{self.path}/{os.fsdecode(name)}")
        except FileNotFoundError:
            return
        self._changed = True
        found = parse_message(name[len(PRIVATE) + 17 :])
        if found is not None:
            self._store().forget(found[0])

    def _store(self) -> FileStates:
        if self._states is None:
            self._states = self._open_states(self.path, self._disk)
        return self._states

    def _read_files(self) -> None:
        size = 0
        names, self.left = self.left, []
        for at, name in enumerate(self._each(names)):
            if at >= _LOOKED_AT or len(self.files) >= self._count:
                self.left.append(name)
                break
            file = self._take(name, _BYTES - size if self.files else MAX_SIZE)
            if file is not None:
                self.files.append(file)
                size += len(file.payload)
            elif self.left:
                break
        self.left += reversed(names)

    def _each(self, names: list[bytes]) -> Iterator[bytes]:
        names.reverse()
        while names:
            yield names.pop()
        while self.listing is not None:
            try:
                yield next(self.listing)
            except StopIteration:
                self.listing = None
            except OSError:
                self.listing = None
                raise

    def _take(self, name: bytes, room: int) -> File | None:
        """Reads a file, under its private name. None: it is not for us, or (then it is in `left`) too large for now."""
        token = token_of(name)
        if token in self.known:
            self._unlink(name)
            return None
        public = name if token is None else name[len(PRIVATE) + 17 :]
        found = parse_message(public)
        if found is None or found[1] == NEW or token == self.token:
            if found is None and name[:1] != b"." and name[-4:] != b".new":
                self._leave(name, "it is not named as a message")
            return None
        path = f"{self.path}/{os.fsdecode(name)}"
        try:
            fd = self._disk.open(path, READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._leave_broken(name, error)
            return None
        try:
            status = self._disk.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self._leave(name, "it is no regular file")
            elif status.st_size > MAX_SIZE:
                self._leave(name, f"it has {status.st_size} bytes, and {MAX_SIZE} is the most")
            elif status.st_size > room:
                self.left.append(name)
            else:
                return self._rename_and_read(fd, status, path, public, found)
        finally:
            self._disk.close(fd)
        return None

    def _leave(self, name: bytes, why: str) -> None:
        self.strays.append((os.fsdecode(name), why))

    def _leave_broken(self, name: bytes, error: OSError) -> None:
        """OSError: it is not the file's fault."""
        if error.errno not in _OF_FILE:
            raise error
        self._leave(name, "it is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror))

    def _rename_and_read(
        self, fd: int, status: os.stat_result, path: str, name: bytes, found: tuple[int, int]
    ) -> File | None:
        private = b"%s%016x-%s" % (PRIVATE.encode(), self.token, name)
        target = f"{self.path}/{os.fsdecode(private)}"
        try:
            self._disk.rename(path, target)
        except FileNotFoundError:
            return None
        self._changed = True
        if self._disk.lstat(target).st_ino != status.st_ino:  # somebody has just put another one in its place
            self.left.append(private)
            return None
        mid, expiry = found
        receives, delayed = self._store().read(target, mid)
        expiry = 0 if expiry == WITHHELD else expiry
        try:
            payload = b"".join(iter(lambda: self._disk.read(fd, 1 << 20), b""))
        except OSError as error:
            self._leave_broken(private, error)
            return None
        return File(private, mid, (receives, expiry, expiry != 0 and expiry == delayed), payload)
