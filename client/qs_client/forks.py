"""Clients in a child of `os.fork`.

Parent and child share every socket and would read each other's answers. So in the child every client drops the parent's
connections without a word to the server, and opens its own when needed. This happens at the fork, before other code
runs: no lock that a thread of the parent held is waited for.
"""

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """An object that has to be told about a fork."""

    def after_fork(self) -> None:
        """Drops what the parent uses. Called in the child. Must not wait, and must not shut a socket down."""


_objects: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def call_after_fork(inherited: Inherited) -> None:
    """Calls the object's `after_fork` in every child, for as long as the object is referenced."""
    _objects.add(inherited)


def _in_child() -> None:
    for inherited in list(_objects):
        inherited.after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
