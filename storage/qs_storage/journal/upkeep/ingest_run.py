"""Reads files in a queue's directory, which become messages of the log. This part of the work runs in a thread.

A crash at any step leaves each file either a file or a message:

1. The file gets a private name with a token that is used once, and the directory is synced.
2. Its message and a TAKEN record with the token are committed in one frame.
3. The file is unlinked, the directory synced, and an UNLINKED record appended.

A start removes a file with a private name if the log has its token; otherwise the file becomes a message again. The
token tells even two files apart that had the same name.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from ...disk import READ, Disk
from ...door import MAX_SIZE, SLICE, give_back, is_refused, set_aside
from ...engine import Headers
from ...metadata import AttributeStore, store_for
from ...names import NEW, PRIVATE, WITHHELD, parse_message, token_of

_FILES = 200
"""The most files that are ingested together."""
_BYTES = 256 << 10
"""The most bytes of files that are ingested with one commit; a single file may be larger."""
_OF_FILE = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.EIO, errno.ENXIO, errno.EISDIR})
"""Errors that concern one file: others can still be ingested."""
_LOOKED_AT = 20_000
"""The most names that one run looks at."""


class File(NamedTuple):
    """A file that was read. name: its private name; state: (receives, hidden until or 0, True if by a delay); reason:
    why the message was given back last, empty for none; headers: see engine.Headers."""

    name: bytes
    mid: int
    state: tuple[int, int, bool]
    payload: bytes
    reason: str = ""
    headers: Headers = ()


class IngestRun:
    """Works on some files of a directory: removes those that are messages by now, and reads others.

    Ensures that each file it has read has a private name, durably, so that no other program finds or replaces the file;
    and that a run reads a limited number of files, so that no commit is large. What the queue's schema refuses has a
    name that no message has, before the run ends. Assumes that `committed_tokens` has all tokens of the log. Never
    appends to the log. Only `run` may be called in another thread than the log's."""

    def __init__(
        self,
        path: str,
        disk: Disk,
        *,
        names: list[bytes],
        listing: Iterator[bytes] | None,
        count: int,
        committed_tokens: Collection[int],
        to_remove: Sequence[bytes],
        before: Callable[[], None] | None,
        fault: Callable[[bytes], str | None] | None = None,
        gives_back: bool = False,
    ) -> None:
        """names, listing: files to look at, the names first; count: the most files to read; committed_tokens: the
        tokens in the log, whose files are messages; to_remove: names of files that are messages; before: makes the log
        durable before anything is removed, None if the log is durable; fault: says why a payload is refused, see
        `Door`, None for a queue without a schema; gives_back: True to look again at listed files that were refused."""
        self.path = path
        self.token = secrets.randbits(64)
        """The token in the private names of the files that are read."""
        self.files: list[File] = []
        """The files that were read, to be committed with the token."""
        self.postponed = names
        """Names to look at in a later run."""
        self.listing = listing
        """Yields the names in the directory; None once all were yielded."""
        self.refused: list[tuple[str, str]] = []
        """(name, reason) of files that cannot be ingested."""
        self.error: OSError | None = None
        """The error that ended the run."""
        self.checking = 0.0
        """The seconds that checks have taken."""
        self._fault = fault
        self._gives_back = gives_back
        self._to_remove = to_remove
        self._before = before
        self._committed_tokens = committed_tokens
        self._disk = disk
        self._count = min(count, _FILES)
        self._attributes: AttributeStore | None = None
        self._changed = False

    def run(self) -> None:
        """Removes and reads the files. Never raises."""
        try:
            if self._before is not None:
                self._before()
            for name in self._to_remove:
                self._unlink(name)
            self._read_files()
            if self._changed:
                self._disk.sync_directory(self.path)
        except OSError as error:
            self.error = error  # the next listing finds the files that were renamed

    def _unlink(self, name: bytes) -> None:
        path = f"{self.path}/{os.fsdecode(name)}"
        found = parse_message(name[len(PRIVATE) + 17 :])
        headers = None if found is None else self._store().headers.find(path, found[0])
        if found is not None and headers is not None and headers.is_file:
            # First: with the file gone, nobody would know that there is another one. The message has them by now.
            self._store().headers.forget(found[0])
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return
        self._changed = True
        if found is not None:
            self._store().forget(found[0])

    def _store(self) -> AttributeStore:
        if self._attributes is None:  # only for a file: to open it tries what the file system can do
            self._attributes = store_for(self.path, self._disk, sync=False)
        return self._attributes

    def _read_files(self) -> None:
        size = 0
        names, self.postponed = self.postponed, []
        for at, listed in enumerate(self._each(names)):
            if at >= _LOOKED_AT or len(self.files) >= self._count or self.checking >= SLICE:
                self.postponed.append(listed)
                break
            name = self._public(listed)
            file = None if name is None else self._take(name, _BYTES - size if self.files else MAX_SIZE)
            if file is not None:
                self.files.append(file)
                size += len(file.payload)
            elif self.postponed:
                break
        self.postponed += reversed(names)

    def _public(self, name: bytes) -> bytes | None:
        """Returns the name under which to take a file. Gives what was refused its name back first, or returns None if
        that is not asked for."""
        if not is_refused(name):
            return name
        found = give_back(self.path, os.fsdecode(name), self._disk) if self._gives_back else None
        self._changed |= found is not None
        return None if found is None else os.fsencode(found)

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
        """Gives a file its private name and reads the file. Returns None if the file cannot become a message now."""
        token = token_of(name)
        if token in self._committed_tokens:
            self._unlink(name)
            return None
        public = name if token is None else name[len(PRIVATE) + 17 :]
        found = parse_message(public)
        if found is None or found[1] == NEW or token == self.token:
            if found is None and name[:1] != b"." and name[-4:] != b".new":
                self._refuse(name, "it is not named as a message")
            return None
        path = f"{self.path}/{os.fsdecode(name)}"
        try:
            # Opened before it is renamed: the file that is read is the one that was looked at, whatever is renamed
            # over it.
            fd = self._disk.open(path, READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report_unreadable(name, error)
            return None
        try:
            status = self._disk.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self._refuse(name, "it is no regular file")
            elif status.st_size > MAX_SIZE:
                self._refuse(name, f"it has {status.st_size} bytes; the limit is {MAX_SIZE}")
            elif status.st_size > room:
                self.postponed.append(name)
            else:
                return self._rename_and_read(fd, status, path, public, found)
        finally:
            self._disk.close(fd)
        return None

    def _check(self, payload: bytes) -> str | None:
        begun = perf_counter()
        try:
            return self._fault(payload) if self._fault is not None else None
        finally:
            self.checking += perf_counter() - begun

    def _refuse(self, name: bytes, why: str) -> None:
        self.refused.append((os.fsdecode(name), why))

    def _report_unreadable(self, name: bytes, error: OSError) -> None:
        """Reports a file that cannot be read. Raises the error if other files would fail with it too."""
        if error.errno not in _OF_FILE:
            raise error
        self._refuse(name, "it is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror))

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
        if self._disk.lstat(target).st_ino != status.st_ino:  # another program has just replaced the file
            self.postponed.append(private)
            return None
        mid, expiry = found
        # Attributes go with the file, so they are read under its private name.
        receives, delayed = self._store().read(target, mid)
        reason = self._store().reasons.read(target, mid)
        stored = self._store().headers.find(target, mid)
        headers = () if stored is None else self._store().headers.read(target, mid, is_file=stored.is_file)
        expiry = 0 if expiry == WITHHELD else expiry
        try:
            # To its end, whatever size it had: another program may have written more since.
            payload = b"".join(iter(lambda: self._disk.read(fd, 1 << 20), b""))
        except OSError as error:
            self._report_unreadable(private, error)
            return None
        if self._fault is not None and (why := self._check(payload)) is not None:
            name_there = set_aside(self.path, os.fsdecode(private), os.fsdecode(name), self._disk)
            self.refused.append((name_there, why))
            return None
        return File(private, mid, (receives, expiry, expiry != 0 and expiry == delayed), payload, reason, headers)
