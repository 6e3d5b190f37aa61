# ruff: noqa: N999 - programs import the module under this name
"""A queue without a directory, for tests and for what is not wanted: what is added is gone."""

import os
from typing import NoReturn

from .QueueBase import QueueBase


class QueueNull(QueueBase):
    """Always empty. What needs an element raises NotImplementedError."""

    def __init__(self) -> None:
        self._forget()
        self.id = f"null:{id(self)}"

    def _intermediate(self) -> list[str]:
        return []

    def add(self, data: object) -> str:
        """Does nothing. "", which is no name."""
        return ""

    add_ref = add

    def add_path(self, path: str | os.PathLike[str]) -> str:
        """Removes the file. "", which is no name. OSError when it cannot be removed."""
        os.unlink(path)
        return ""

    def count(self) -> int:
        """0"""
        return 0

    def get(self, name: str) -> NoReturn:
        """NotImplementedError"""
        raise NotImplementedError("unsupported method: get() (a null queue has no elements)")

    get_ref = get

    def get_path(self, name: str) -> NoReturn:
        """NotImplementedError"""
        raise NotImplementedError("unsupported method: get_path() (a null queue has no elements)")

    def lock(self, name: str, permissive: bool = True) -> NoReturn:
        """NotImplementedError"""
        raise NotImplementedError("unsupported method: lock() (a null queue has no elements)")

    def unlock(self, name: str, permissive: bool = False) -> NoReturn:
        """NotImplementedError"""
        raise NotImplementedError("unsupported method: unlock() (a null queue has no elements)")

    def remove(self, name: str) -> NoReturn:
        """NotImplementedError"""
        raise NotImplementedError("unsupported method: remove() (a null queue has no elements)")

    def touch(self, ename: str) -> NoReturn:
        """NotImplementedError"""
        raise NotImplementedError("unsupported method: touch() (a null queue has no elements)")

    def purge(self, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Does nothing."""
