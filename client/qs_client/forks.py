"""What becomes of clients in a child that `os.fork` has made.

Both processes have every socket. If both used one, each would read answers to the other, so in the child every client
lets go of the parent's connections, without a word to the server, and opens its own when it is asked for something. It
happens at the fork, before the child runs anything else: then no lock that a thread of the parent held is waited for.
"""

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """What has to know that it is in another process."""

    def after_fork(self) -> None:
        """Called in the child. Lets go of what the parent uses; must not wait, and must not shut a socket down."""


_objects: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def call_after_fork(inherited: Inherited) -> None:
    """Calls its `after_fork` in every child, for as long as somebody refers to it."""
    _objects.add(inherited)


def _in_child() -> None:
    for inherited in list(_objects):
        inherited.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
