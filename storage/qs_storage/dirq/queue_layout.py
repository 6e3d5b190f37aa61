"""The layout of dirq's Queue: an element is a directory of files, its lock the directory `locked` in it."""

import contextlib
import errno
import logging
import os
import secrets
import stat

from .. import inotify
from ..disk import Disk
from .element_names import (
    ATTEMPTS,
    DELAYED_SUFFIX,
    LOCKED_DIRECTORY,
    OBSOLETE_DIRECTORY,
    TEMPORARY_DIRECTORY,
    is_being_added,
    is_element,
    mid_of,
    name_of,
)
from .folders import count_elements, is_taken, lock_directory, make_obsolete, names_in, remove_element, remove_if_empty
from .layout import Changes, IsOld, Layout, Listed, Staged
from .schema import Body

_logger = logging.getLogger(__name__)
MAX_ELEMENTS = 16_000
"""Elements of an intermediate directory, as in dirq."""
_MAX_TEMPORARY = 300
"""Seconds until dirq's purge removes unfinished elements."""
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC


class QueueLayout(Layout):
    """Elements are directories."""

    def __init__(self, path: str, disk: Disk, body: Body, changes: Changes, *, sync: bool) -> None:
        """body: the payload's piece."""
        super().__init__(path, disk, changes, sync=sync)
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

    def _file(self, place: str) -> str:
        return f"{self.path}/{place}/{self.body.piece}"

    def size(self, place: str, status: os.stat_result) -> int | None:
        if not stat.S_ISDIR(status.st_mode):
            return None
        try:
            found = self._disk.lstat(self._file(place))
        except FileNotFoundError:
            self._disk.lstat(self.element(place))  # or it is the element that is gone
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def read(self, place: str) -> bytes:
        return self._disk.read_file(self._file(place))

    def erase(self, place: str) -> None:
        folder, _, name = place.partition("/")
        obsolete = make_obsolete(self.path, place, secrets.randbelow(16), self._disk, self._make)
        self._expect(folder, inotify.MOVED_FROM | inotify.IS_DIRECTORY, name)
        self._obsolete.append(obsolete)
        if not self._sync:
            self.bury()

    def bury(self) -> None:
        """Removes renamed elements, once their directories are synced: a power loss could bring back a part of one."""
        obsolete, self._obsolete = self._obsolete, []
        for path in obsolete:
            self._try_remove(path)

    def _try_remove(self, path: str) -> None:
        try:
            remove_element(path, self._disk)
        except OSError as error:
            _logger.warning("%s stays behind: %s", path, error)

    def _prepare(self, mid: int, payload: bytes, until: int) -> Staged:
        self.body.check(payload)
        name = name_of(mid) + (DELAYED_SUFFIX if until else "")
        return Staged(mid, until, len(payload), f"{self.path}/{TEMPORARY_DIRECTORY}/{name}")

    def _make_above(self, staged: Staged) -> None:
        self._make(TEMPORARY_DIRECTORY)

    def _write(self, staged: Staged, payload: bytes) -> None:
        self._disk.mkdir(staged.temporary)
        try:
            self._fill(self._disk.open(f"{staged.temporary}/{self.body.piece}", _NEW_FILE, 0o666), payload)
        except BaseException:
            self.discard(staged)
            raise

    def _make(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(f"{self.path}/{name}")

    def lock_staged(self, staged: Staged) -> None:
        self._disk.mkdir(f"{staged.temporary}/{LOCKED_DIRECTORY}")

    def sync_staged(self, staged: Staged) -> None:
        self._disk.sync_file(f"{staged.temporary}/{self.body.piece}")
        self._disk.sync_directory(staged.temporary)

    def publish(self, staged: Staged) -> str:
        name = name_of(staged.mid)
        for _ in range(ATTEMPTS):
            folder = self._folder_to_insert()
            try:
                self._disk.rename(staged.temporary, f"{self.path}/{folder}/{name}")
            except FileNotFoundError:
                if not os.path.lexists(staged.temporary):
                    raise
                self._insertion = ""  # it has just been purged
            except OSError as error:
                if is_taken(error):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{folder}/{name}") from None
                raise
            else:
                self._expect(folder, inotify.MOVED_TO | inotify.IS_DIRECTORY, name)
                return folder
        raise FileNotFoundError(errno.ENOENT, f"removed by another program {ATTEMPTS} times", f"{self.path}/{folder}")

    def _folder_to_insert(self) -> str:
        """Returns the last intermediate directory, or a new one if it is full."""
        if not self._insertion:
            folders = self.folders()
            self._insertion = folders[-1] if folders else f"{0:08x}"
            self._make_folder(self._insertion)
        while count_elements(f"{self.path}/{self._insertion}", self._disk) >= MAX_ELEMENTS:
            self._insertion = f"{int(self._insertion, 16) + 1:08x}"
            self._make_folder(self._insertion)
        return self._insertion

    def discard(self, staged: Staged) -> None:
        self._try_remove(staged.temporary)

    def dismantle(self) -> None:
        for folder in self.folders():
            self._remove_folder(folder)
        for above in (TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
            for name in names_in(f"{self.path}/{above}"):
                remove_element(f"{self.path}/{above}/{name}", self._disk)
            remove_if_empty(f"{self.path}/{above}", self._disk)
