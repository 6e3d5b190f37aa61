"""Which processes hold messages for their subscribers, and which of them are still alive.

What a process holds ends with it: a start finds the messages of processes that were killed and makes them visible. Each
process that holds anything keeps a locked file in the root; the kernel drops the lock when the process ends, however.
"""

import contextlib
import fcntl
import logging
import os
import secrets

from .disk import Disk

_logger = logging.getLogger(__name__)
_PREFIX = ".holder-"
_TEMPORARY = ".tmp"


class Holders:
    """Of one root directory."""

    def __init__(self, root: str, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self._own: str | None = None
        self._fd = -1
        self._dead: set[str] = set()
        self._unregistered = False

    def own(self) -> str:
        """The name of this process as a holder; empty while it cannot be registered, on a full disk say. What is held
        then comes back when its window ends."""
        if self._own is None:
            try:
                self._register(secrets.token_hex(8))
            except OSError as error:
                if not self._unregistered:
                    _logger.warning("held messages are not given back at once if this process is killed: %s", error)
                self._unregistered = True
        return self._own or ""

    def _register(self, name: str) -> None:
        temporary = self._path(name) + _TEMPORARY
        fd = self._disk.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):  # no locks on this file system: then nobody is found dead
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._disk.rename(temporary, self._path(name))
        except OSError:
            self._disk.close(fd)
            with contextlib.suppress(OSError):
                self._disk.unlink(temporary)
            raise
        self._own, self._fd = name, fd

    def alive(self, name: str) -> bool:
        """Whether the process of that name may still be running."""
        if name == self._own:
            return True
        if name not in self._dead:
            if not name.isalnum() or self._locked(self._path(name)):
                return True
            self._dead.add(name)
        return False

    def _locked(self, path: str) -> bool:
        try:
            fd = self._disk.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            self._disk.close(fd)
        return False

    def clear(self) -> None:
        """Removes what dead processes have left, once nothing refers to them any more."""
        for name in self._disk.files_in(self._root):
            if _is_holder(name) and not self._locked(f"{self._root}/{name}"):
                with contextlib.suppress(OSError):
                    self._disk.unlink(f"{self._root}/{name}")

    def close(self) -> None:
        """Nothing is held any more."""
        if self._own is not None:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path(self._own))
            self._disk.close(self._fd)
            self._own = None

    def _path(self, name: str) -> str:
        return f"{self._root}/{_PREFIX}{name}"


def _is_holder(name: str) -> bool:
    return name.startswith(_PREFIX) and not name.endswith(_TEMPORARY)  # the latter may just be on its way to its lock
