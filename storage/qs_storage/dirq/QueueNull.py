# ruff: noqa: N999 - programs import the module under this name
"""A queue without a directory that drops what is added: for tests, and for data that nobody wants."""

import os
from typing import NoReturn

from .QueueBase import QueueBase


class QueueNull(QueueBase):
    """Is always empty. Methods that need an element raise NotImplementedError."""

    def __init__(self) -> None:
        self._forget()
        self.id = f"null:{id(self)}"

    def _intermediate(self) -> list[str]:
        return []

    def add(self, data: object) -> str:
        """Drops the data. Returns "", which is no name."""
        return ""

    add_ref = add

    def add_path(self, path: str | os.PathLike[str]) -> str:
        """Removes the file. Returns "", which is no name. OSError."""
        os.unlink(path)
        return ""

    def count(self) -> int:
        return 0

    def get(self, name: str) -> NoReturn:
        raise _no_elements("get")

    get_ref = get

    def get_path(self, name: str) -> NoReturn:
        raise _no_elements("get_path")

    def lock(self, name: str, permissive: bool = True) -> NoReturn:
        raise _no_elements("lock")

    def unlock(self, name: str, permissive: bool = False) -> NoReturn:
        raise _no_elements("unlock")

    def remove(self, name: str) -> NoReturn:
        raise _no_elements("remove")

    def touch(self, ename: str) -> NoReturn:
        raise _no_elements("touch")

    def purge(self, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Does nothing."""


def _no_elements(method: str) -> NotImplementedError:
    return NotImplementedError(f"unsupported method: {method}() (a null queue has no elements)")
