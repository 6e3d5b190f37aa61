"""The layout of dirq's QueueSimple: an element is a file, its lock a second link of it, `NAME.lck`."""

import contextlib
import os
import stat

from .. import inotify
from .element_names import LOCKED_SUFFIX, TEMPORARY_SUFFIX, is_element, mid_of, name_of
from .folders import lock_file, names_in
from .layout import IsOld, Layout, Listed, Staged

GRANULARITY = 60
"""Seconds an intermediate directory, as in dirq."""
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_MAX_TEMPORARY, _MAX_LOCK = 300, 600
"""Seconds until dirq's purge removes such a file."""


class SimpleLayout(Layout):
    """Elements are files."""

    def listed(self, folder: str) -> Listed:
        names = os.listdir(f"{self.path}/{folder}")
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
        self._note(place, inotify.CREATE, LOCKED_SUFFIX)
        return True

    def unlock(self, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.element(place) + LOCKED_SUFFIX)
            self._note(place, inotify.DELETE, LOCKED_SUFFIX)

    def _note(self, place: str, event: int, suffix: str = "") -> None:
        folder, _, name = place.partition("/")
        self._expect(folder, event, name + suffix)

    def size(self, place: str, status: os.stat_result) -> int | None:
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, place: str) -> bytes:
        return self._disk.read_file(self.element(place))

    def erase(self, place: str) -> None:
        path = self.element(place)
        self._disk.unlink(path)
        self._note(place, inotify.DELETE)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path + LOCKED_SUFFIX)
            self._note(place, inotify.DELETE, LOCKED_SUFFIX)

    def bury(self) -> None:
        """Does nothing: an erased element is gone."""

    def _prepare(self, mid: int, payload: bytes, until: int) -> Staged:
        seconds = mid >> 24
        folder = f"{seconds - seconds % GRANULARITY:08x}"
        return Staged(mid, until, len(payload), f"{self.path}/{folder}/{name_of(mid)}{TEMPORARY_SUFFIX}", folder)

    def _make_above(self, staged: Staged) -> None:
        self._make_folder(staged.folder)

    def _write(self, staged: Staged, payload: bytes) -> None:
        fd = self._disk.open(staged.temporary, _NEW_FILE, 0o666)
        self._changes.on_new_folder(staged.folder)  # by us, or by somebody of whom we have not heard yet
        self._expect(staged.folder, inotify.CREATE, name_of(staged.mid) + TEMPORARY_SUFFIX)
        try:
            self._fill(fd, payload)
        except BaseException:
            self.discard(staged)
            raise

    def lock_staged(self, staged: Staged) -> None:
        """Does nothing: `publish` links the lock."""

    def sync_staged(self, staged: Staged) -> None:
        self._disk.sync_file(staged.temporary)

    def publish(self, staged: Staged) -> str:
        name = name_of(staged.mid)
        path = f"{self.path}/{staged.folder}/{name}"
        if staged.until:
            self._disk.link(staged.temporary, path + LOCKED_SUFFIX)
            self._expect(staged.folder, inotify.CREATE, name + LOCKED_SUFFIX)
        try:
            self._disk.link(staged.temporary, path)
        except OSError:
            if staged.until:
                self._try_unlink(path + LOCKED_SUFFIX)
            raise
        self._expect(staged.folder, inotify.CREATE, name)
        with contextlib.suppress(OSError):  # what stays of it is removed like what a crash leaves
            self._disk.unlink(staged.temporary)
            self._expect(staged.folder, inotify.DELETE, name + TEMPORARY_SUFFIX)
        return staged.folder

    def discard(self, staged: Staged) -> None:
        self._try_unlink(staged.temporary)

    def dismantle(self) -> None:
        for folder in self.folders():
            path = f"{self.path}/{folder}"
            for name in names_in(path):
                if name.endswith((TEMPORARY_SUFFIX, LOCKED_SUFFIX)) and not os.path.lexists(f"{path}/{name[:14]}"):
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.unlink(f"{path}/{name}")
            self._remove_folder(folder)


def is_name(name: str) -> bool:
    """Tells whether it is the name of an element or its lock."""
    return bool(is_element(name.removesuffix(LOCKED_SUFFIX)))
