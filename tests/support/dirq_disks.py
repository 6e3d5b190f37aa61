"""Disks that let something happen in the middle of an operation of a directory queue: what another process does."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from qs_storage.disk import Disk


class SteppingDisk(Disk):
    """Before and after an operation it calls what a test has put there, once, with the operation's arguments."""

    def __init__(self) -> None:
        self.before: dict[str, Callable[..., object]] = {}
        self.after: dict[str, Callable[..., object]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def _run(self, name: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        self.calls.append((name, arguments))
        if (before := self.before.pop(name, None)) is not None:
            before(*arguments)
        result = operation(*arguments)
        if (after := self.after.pop(name, None)) is not None:
            after(*arguments)
        return result

    def link(self, old: str, new: str) -> None:  # type: ignore[override]
        self._run("link", os.link, old, new)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._run("unlink", os.unlink, path)

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        self._run("rename", os.rename, old, new)

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        self._run("mkdir", os.mkdir, path, mode)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        self._run("rmdir", os.rmdir, path)

    def lstat(self, path: str) -> os.stat_result:  # type: ignore[override]
        result: os.stat_result = self._run("lstat", os.lstat, path)
        return result

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        fd: int = self._run("open", os.open, path, flags, mode)
        return fd

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._run("fsync", os.fsync, fd)


STEPS = ("open", "lstat", "directories_in", "rename", "link", "unlink", "mkdir", "rmdir", "setxattr")
"""Operations that find something by its path: what happens elsewhere between two others makes no difference."""


class PurgingDisk(Disk):
    """Lets something happen after the n-th of those operations. Syncs nothing."""

    def __init__(self) -> None:
        self.steps = 0
        self.at = -1
        self.happen: Callable[[], object] = lambda: None

    def _run(self, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            return operation(*args, **named)
        finally:
            self.steps += 1
            if self.steps == self.at:
                self.happen()

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        pass

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(self._run, found) if name in STEPS else found
