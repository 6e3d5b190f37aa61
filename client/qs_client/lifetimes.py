"""The ends of clients, connections and iterators: at the end of a with block, and in a child of `os.fork`.

Parent and child of a fork share every socket and would read each other's answers. So in the child every client drops
the parent's connections without a word to the server, and opens its own when needed. This happens at the fork, before
other code runs: no lock that a thread of the parent held is waited for.
"""

import os
import weakref
from types import TracebackType
from typing import Protocol, Self


class Closing:
    """A with block over an object whose `close` ends it."""

    def close(self) -> None:
        """Ends the object's work. May be called more than once."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing:
    """An async with block over an object whose `aclose` ends it."""

    async def aclose(self) -> None:
        """Ends the object's work. May be called more than once."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class Inherited(Protocol):
    """An object that has to be told about a fork: clients, connections, attempts to connect, iterators, extenders."""

    def after_fork(self) -> None:
        """Drops what the parent uses. Called in the child. Must not wait, and must not shut a socket down."""


# Weak, as nothing says when an object is done with: its end is that of its last reference.
_objects: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def call_after_fork(inherited: Inherited) -> None:
    """Calls the object's `after_fork` in every child, for as long as the object is referenced."""
    _objects.add(inherited)


def _in_child() -> None:
    for inherited in list(_objects):
        inherited.after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
