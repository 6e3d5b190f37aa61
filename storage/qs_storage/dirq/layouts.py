"""The file operations that the server needs of the layouts of dirq.

In QueueSimple, an element is a file, and its lock is a second link to the file, `NAME.lck`. In Queue, an element is a
directory of files, and its lock is the directory `locked` in it.
"""

import contextlib
import errno
import logging
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from ..disk import Disk
from ..engine import Headers, UnsupportedError
from ..message_store import Content, PendingMessage
from ..metadata import StoredHeaders
from ..watch import CREATE, DELETE, IS_DIRECTORY, MOVED_FROM, MOVED_TO
from .elements import (
    ATTEMPTS,
    DELAYED_SUFFIX,
    LOCKED_DIRECTORY,
    LOCKED_SUFFIX,
    OBSOLETE_DIRECTORY,
    TEMPORARY_DIRECTORY,
    TEMPORARY_SUFFIX,
    Places,
    count_elements,
    is_being_added,
    is_directory,
    is_element,
    is_taken,
    lock_directory,
    lock_file,
    make_obsolete,
    mid_of,
    name_of,
    names_in,
    remove_element,
    remove_if_empty,
)
from .schema import HEADER, Body, decode_headers, encode_headers

_logger = logging.getLogger(__name__)
GRANULARITY = 60
"""Seconds an intermediate directory of QueueSimple, as in dirq."""
MAX_ELEMENTS = 16_000
"""Elements of an intermediate directory of Queue, as in dirq."""
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_MAX_TEMPORARY, _MAX_LOCK = 300, 600
"""Seconds until dirq's purge removes an unfinished element, or a lock without its element."""


IsOld = Callable[[str, int], bool]
"""Takes a path and seconds: whether the file has not changed for so long."""


class Listed(NamedTuple):
    """The names in an intermediate directory: the ids of free and of locked elements, and all other names."""

    free: list[int]
    locked: list[int]
    others: list[str]


class Layout(ABC):
    """The file operations on one queue's elements, in one of the two layouts of dirq. place: DIRECTORY/NAME.

    Ensures that a lock is taken by one program, and that an element is visible only when it is complete. Assumes that
    other programs add, lock, remove and purge at any time, also the intermediate directories. Never removes what
    another program is still using, by dirq's own rules. All methods raise OSError."""

    def __init__(self, path: str, disk: Disk, places: Places, *, sync: bool) -> None:
        """path: the queue's directory; places: notes which reports to expect; sync: whether the next commit has to sync
        what is written before."""
        self.path = path
        self._disk = disk
        self._sync = sync
        self._places = places

    def folders(self) -> list[str]:
        """Returns the intermediate directories, oldest first."""
        return sorted(filter(is_directory, self._disk.directories_in(self.path)))

    def element(self, place: str) -> str:
        return f"{self.path}/{place}"

    @abstractmethod
    def listed(self, folder: str) -> Listed:
        """Lists an intermediate directory. FileNotFoundError if the directory is gone."""

    @abstractmethod
    def clear_left_behind(self, folder: str, names: list[str], is_old: IsOld) -> None:
        """Removes what crashes have left in an intermediate directory, or elsewhere (""). names: the names in it that
        are not elements, from `listed`."""

    @abstractmethod
    def being_written(self) -> set[int]:
        """Returns the ids of the elements that are being added and have an id already."""

    @abstractmethod
    def is_locked(self, place: str) -> bool:
        """Tells whether any program has locked an element."""

    @abstractmethod
    def lock(self, place: str) -> bool:
        """Locks an element. Returns False if the element is locked or gone."""

    @abstractmethod
    def unlock(self, place: str) -> None:
        """Unlocks an element that this server has locked."""

    @abstractmethod
    def unlock_renamed(self, place: str, renamed: str) -> None:
        """Removes the lock of an element that this server has locked and then renamed."""

    @abstractmethod
    def payload_file(self, place: str) -> str:
        """Returns the path of the file with an element's payload."""

    @abstractmethod
    def size(self, place: str, status: os.stat_result) -> int | None:
        """Returns the bytes of an element's payload; None if the element is not a message. status: the element's.
        FileNotFoundError."""

    @abstractmethod
    def size_of_headers(self, place: str) -> int:
        """Returns the bytes of an element's headers, 0 without any."""

    @abstractmethod
    def read(self, place: str, *, headed: bool) -> Content:
        """Reads the payload and the headers. headed: False for an element without headers."""

    @abstractmethod
    def erase(self, place: str) -> None:
        """Removes an element that this server has locked. FileNotFoundError."""

    @abstractmethod
    def remove_obsolete(self) -> None:
        """Removes what is left of erased elements after a commit. Never raises."""

    def write(self, mid: int, content: Content, until: int) -> PendingMessage:
        """Writes a message under a temporary name. Tries again if another program's purge has removed the empty
        intermediate directory. until: when the message becomes visible, 0 for at once. FileExistsError;
        FileNotFoundError if the queue is gone; UnsupportedError for the payload or the headers."""
        pending = self._prepare(mid, content, until)
        for _ in range(ATTEMPTS):
            try:
                self._write(pending, content)
            except FileNotFoundError:
                self._make(os.path.basename(os.path.dirname(pending.temporary)))
            else:
                return pending
        raise FileNotFoundError(errno.ENOENT, f"removed by another program {ATTEMPTS} times", pending.temporary)

    @abstractmethod
    def _prepare(self, mid: int, content: Content, until: int) -> PendingMessage:
        """Checks a payload and headers, and returns what `_write` writes. UnsupportedError."""

    @abstractmethod
    def _write(self, pending: PendingMessage, content: Content) -> None:
        """Writes a message; if it raises OSError, nothing is left. Locks a message that becomes visible later, unless
        `publish` does."""

    @abstractmethod
    def sync_content(self, pending: PendingMessage) -> None:
        """Makes the content durable."""

    @abstractmethod
    def publish(self, pending: PendingMessage) -> str:
        """Makes a written message an element. Returns its intermediate directory. FileExistsError."""

    @abstractmethod
    def discard(self, pending: PendingMessage) -> None:
        """Removes a written message that is not an element yet. Never raises."""

    @abstractmethod
    def dismantle(self) -> None:
        """Removes everything from the queue's directory but elements and hidden files. OSError ENOTEMPTY if there is an
        element."""

    def _make(self, folder: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(f"{self.path}/{folder}")

    def _remove_folder(self, folder: str) -> None:
        """Removes an intermediate directory. OSError ENOTEMPTY if there is an element."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.rmdir(f"{self.path}/{folder}")

    def _fill(self, fd: int, payload: bytes) -> None:
        """Writes a payload into a new file, and closes it."""
        try:
            self._disk.write(fd, payload)
            if self._sync:
                self._disk.begin_writing(fd)
        finally:
            self._disk.close(fd)

    def _try_unlink(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                _logger.warning("%s stays behind: %s", path, error)


class SimpleLayout(Layout):
    """The layout of QueueSimple: an element is a file, its lock a second link to the file."""

    def listed(self, folder: str) -> Listed:
        names = os.listdir(f"{self.path}/{folder}")
        # One look at the names tells which are locked: a lock is a name beside the element's.
        elements = set(filter(is_element, names))
        rest = [name for name in names if name not in elements]
        locked = {name[:14] for name in rest if name.endswith(LOCKED_SUFFIX)} & elements
        others = [name for name in rest if not name.endswith(LOCKED_SUFFIX) or name[:14] not in elements]
        return Listed(list(map(mid_of, elements - locked)), list(map(mid_of, locked)), others)

    def clear_left_behind(self, folder: str, names: list[str], is_old: IsOld) -> None:
        for name in names:
            path = f"{self.path}/{folder}/{name}"
            limit = _MAX_TEMPORARY if name.endswith(TEMPORARY_SUFFIX) else _MAX_LOCK
            if name.endswith((TEMPORARY_SUFFIX, LOCKED_SUFFIX)) and is_old(path, limit):
                self._try_unlink(path)

    def being_written(self) -> set[int]:
        names = [name for folder in self.folders() for name in names_in(f"{self.path}/{folder}")]
        return {mid_of(name[:14]) for name in names if is_element(name.removesuffix(TEMPORARY_SUFFIX))}

    def is_locked(self, place: str) -> bool:
        return os.path.lexists(self.element(place) + LOCKED_SUFFIX)

    def lock(self, place: str) -> bool:
        try:
            lock_file(self.element(place), self._disk)
        except (FileExistsError, FileNotFoundError):
            return False
        self._note(place, CREATE, LOCKED_SUFFIX)
        return True

    def unlock(self, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.element(place) + LOCKED_SUFFIX)
            self._note(place, DELETE, LOCKED_SUFFIX)

    def unlock_renamed(self, place: str, renamed: str) -> None:
        self.unlock(place)  # the lock is beside the element, and has kept its name

    def payload_file(self, place: str) -> str:
        return self.element(place)

    def _note(self, place: str, event: int, suffix: str = "") -> None:
        folder, _, name = place.partition("/")
        self._places.expect(folder, event, name + suffix)

    def size(self, place: str, status: os.stat_result) -> int | None:
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def size_of_headers(self, place: str) -> int:
        return 0

    def read(self, place: str, *, headed: bool) -> Content:
        return self._disk.read_file(self.element(place)), ()

    def erase(self, place: str) -> None:
        path = self.element(place)
        self._disk.unlink(path)
        self._note(place, DELETE)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path + LOCKED_SUFFIX)
            self._note(place, DELETE, LOCKED_SUFFIX)

    def remove_obsolete(self) -> None:
        """Does nothing: erasing an element leaves nothing behind in this layout."""

    def _prepare(self, mid: int, content: Content, until: int) -> PendingMessage:
        seconds = mid >> 24
        folder = f"{seconds - seconds % GRANULARITY:08x}"
        temporary = f"{self.path}/{folder}/{name_of(mid)}{TEMPORARY_SUFFIX}"
        payload, headers = content
        if headers:
            # A copy: a push with headers is refused before.
            raise UnsupportedError("an element of 'dirq-simple' is one file, the payload: headers have no place in it")
        return PendingMessage(mid, until, len(payload), temporary, folder=folder)

    def _write(self, pending: PendingMessage, content: Content) -> None:
        fd = self._disk.open(pending.temporary, _NEW_FILE, 0o666)
        self._places.expect(pending.folder, CREATE, name_of(pending.mid) + TEMPORARY_SUFFIX)
        try:
            self._fill(fd, content[0])
        except BaseException:
            self.discard(pending)
            raise

    def sync_content(self, pending: PendingMessage) -> None:
        self._disk.sync_file(pending.temporary)

    def publish(self, pending: PendingMessage) -> str:
        name = name_of(pending.mid)
        path = f"{self.path}/{pending.folder}/{name}"
        if pending.until:
            # The lock first: an element that is delayed must not be free for a moment.
            self._disk.link(pending.temporary, path + LOCKED_SUFFIX)
            self._places.expect(pending.folder, CREATE, name + LOCKED_SUFFIX)
        try:
            self._disk.link(pending.temporary, path)
        except OSError:
            if pending.until:
                self._try_unlink(path + LOCKED_SUFFIX)
            raise
        self._places.expect(pending.folder, CREATE, name)
        with contextlib.suppress(OSError):  # what stays of it is removed like what a crash leaves
            self._disk.unlink(pending.temporary)
            self._places.expect(pending.folder, DELETE, name + TEMPORARY_SUFFIX)
        return pending.folder

    def discard(self, pending: PendingMessage) -> None:
        self._try_unlink(pending.temporary)

    def dismantle(self) -> None:
        for folder in self.folders():
            path = f"{self.path}/{folder}"
            for name in names_in(path):
                if name.endswith((TEMPORARY_SUFFIX, LOCKED_SUFFIX)) and not os.path.lexists(f"{path}/{name[:14]}"):
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.unlink(f"{path}/{name}")
            self._remove_folder(folder)


class QueueLayout(Layout):
    """The layout of Queue: an element is a directory of files, its lock a directory `locked` in it."""

    def __init__(self, path: str, disk: Disk, body: Body, places: Places, *, sync: bool) -> None:
        """body: the piece of an element that holds the payload."""
        super().__init__(path, disk, places, sync=sync)
        self.body = body
        self._insertion = ""
        self._obsolete: list[str] = []
        for name in (TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
            disk.make_directories(f"{path}/{name}", sync=False)

    def listed(self, folder: str) -> Listed:
        free: list[int] = []
        locked: list[int] = []
        others: list[str] = []
        for name in os.listdir(f"{self.path}/{folder}"):
            if not is_element(name):
                others.append(name)
            # Here the lock is within the element: each has to be asked.
            elif self.is_locked(f"{folder}/{name}"):
                locked.append(mid_of(name))
            else:
                free.append(mid_of(name))
        return Listed(free, locked, others)

    def clear_left_behind(self, folder: str, names: list[str], is_old: IsOld) -> None:
        if folder:
            return
        for above in (TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
            for name in filter(is_being_added, names_in(f"{self.path}/{above}")):
                path = f"{self.path}/{above}/{name}"
                if is_old(path, _MAX_TEMPORARY):
                    self._try_remove(path)

    def being_written(self) -> set[int]:
        names = filter(is_being_added, names_in(f"{self.path}/{TEMPORARY_DIRECTORY}"))
        return {mid_of(name.removesuffix(DELAYED_SUFFIX)) for name in names}

    def _lock(self, place: str) -> str:
        return f"{self.path}/{place}/{LOCKED_DIRECTORY}"

    def is_locked(self, place: str) -> bool:
        return os.path.lexists(self._lock(place))

    def lock(self, place: str) -> bool:
        try:
            lock_directory(self.element(place), self._disk)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def unlock(self, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.rmdir(self._lock(place))

    def unlock_renamed(self, place: str, renamed: str) -> None:
        self.unlock(renamed)  # the lock is in the element

    def payload_file(self, place: str) -> str:
        return f"{self.path}/{place}/{self.body.piece}"

    def size(self, place: str, status: os.stat_result) -> int | None:
        if not stat.S_ISDIR(status.st_mode):
            return None
        try:
            found = self._disk.lstat(self.payload_file(place))
        except FileNotFoundError:
            self._disk.lstat(self.element(place))  # or it is the element that is gone
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def size_of_headers(self, place: str) -> int:
        if not self.body.header:
            return 0
        try:
            return self._disk.lstat(f"{self.path}/{place}/{HEADER}").st_size
        except FileNotFoundError:
            return 0

    def read(self, place: str, *, headed: bool) -> Content:
        # In this order: an element that goes in between has no payload either, and so is not taken for one without
        # headers.
        headers = self._read_headers(place) if headed else ()
        return self._disk.read_file(self.payload_file(place)), headers

    def _read_headers(self, place: str) -> Headers:
        try:
            return decode_headers(self._disk.read_file(f"{self.path}/{place}/{HEADER}"))
        except FileNotFoundError:
            return ()

    def erase(self, place: str) -> None:
        folder, _, name = place.partition("/")
        obsolete = make_obsolete(self.path, place, secrets.randbelow(16), self._disk, self._make)
        self._places.expect(folder, MOVED_FROM | IS_DIRECTORY, name)
        # Removed after the commit has synced: see `remove_obsolete`.
        self._obsolete.append(obsolete)
        if not self._sync:
            self.remove_obsolete()

    def remove_obsolete(self) -> None:
        """Removes renamed elements. Waits until their directories are synced, or a power loss could bring back a part
        of an element."""
        obsolete, self._obsolete = self._obsolete, []
        for path in obsolete:
            self._try_remove(path)

    def _try_remove(self, path: str) -> None:
        try:
            remove_element(path, self._disk)
        except OSError as error:
            _logger.warning("%s stays behind: %s", path, error)

    def _prepare(self, mid: int, content: Content, until: int) -> PendingMessage:
        payload, headers = content
        self.body.check(payload, headers)
        name = name_of(mid) + (DELAYED_SUFFIX if until else "")
        pending = PendingMessage(mid, until, len(payload), f"{self.path}/{TEMPORARY_DIRECTORY}/{name}")
        if headers or self.body.mandatory:
            pending.headers = StoredHeaders(len(encode_headers(headers)), is_file=True)
            pending.size += pending.headers.size
        return pending

    def _write(self, pending: PendingMessage, content: Content) -> None:
        self._disk.mkdir(pending.temporary)
        try:
            if pending.until:
                # It is locked when it gets its name: nobody can take it before its delay is over.
                self._disk.mkdir(f"{pending.temporary}/{LOCKED_DIRECTORY}")
            payload, headers = content
            self._fill(self._disk.open(f"{pending.temporary}/{self.body.piece}", _NEW_FILE, 0o666), payload)
            if pending.headers is not None:
                fd = self._disk.open(f"{pending.temporary}/{HEADER}", _NEW_FILE, 0o666)
                self._fill(fd, encode_headers(headers))
        except BaseException:
            self.discard(pending)
            raise

    def sync_content(self, pending: PendingMessage) -> None:
        self._disk.sync_file(f"{pending.temporary}/{self.body.piece}")
        if pending.headers is not None:
            self._disk.sync_file(f"{pending.temporary}/{HEADER}")
        # The names of the pieces, which the rename takes along.
        self._disk.sync_directory(pending.temporary)

    def publish(self, pending: PendingMessage) -> str:
        name = name_of(pending.mid)
        for _ in range(ATTEMPTS):
            folder = self._folder_to_insert()
            try:
                self._disk.rename(pending.temporary, f"{self.path}/{folder}/{name}")
            except FileNotFoundError:
                if not os.path.lexists(pending.temporary):
                    raise
                self._insertion = ""  # it has just been purged
            except OSError as error:
                if is_taken(error):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{folder}/{name}") from None
                raise
            else:
                self._places.expect(folder, MOVED_TO | IS_DIRECTORY, name)
                return folder
        raise FileNotFoundError(errno.ENOENT, f"removed by another program {ATTEMPTS} times", f"{self.path}/{folder}")

    def _folder_to_insert(self) -> str:
        """Returns the last intermediate directory, or a new one if it is full."""
        if not self._insertion:
            folders = self.folders()
            self._insertion = folders[-1] if folders else f"{0:08x}"
            self._make(self._insertion)
        # Counted each time, as other programs add to the same directory.
        while count_elements(f"{self.path}/{self._insertion}", self._disk) >= MAX_ELEMENTS:
            self._insertion = f"{int(self._insertion, 16) + 1:08x}"
            self._make(self._insertion)
        return self._insertion

    def discard(self, pending: PendingMessage) -> None:
        self._try_remove(pending.temporary)

    def dismantle(self) -> None:
        for folder in self.folders():
            self._remove_folder(folder)
        for above in (TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
            for name in names_in(f"{self.path}/{above}"):
                remove_element(f"{self.path}/{above}/{name}", self._disk)
            remove_if_empty(f"{self.path}/{above}", self._disk)
