"""Calls in threads, and tasks that wait for them: whoever is not to wait any longer still gets what came of them."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from ..storage.remote.engine import RemoteError

T = TypeVar("T")

_LEAVE = 10
"""Seconds that a call is given to end once nobody wants to wait for it: a server that hangs must not keep this one from
stopping for minutes."""


class Call(Generic[T]):
    """Something that takes long, and so is done in a thread of its own while its handler waits."""

    def __init__(self, function: Callable[[threading.Event], T], *, waits: bool = False) -> None:
        """function: is given what is set when nobody wants to wait any longer; waits: whether it may well take very
        long."""
        self.stop = threading.Event()
        self.waits = waits
        self._function = function
        self._result: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        """Does it, in whatever thread."""
        try:
            self._result.append(self._function(self.stop))
        except Exception as error:
            self._error = error

    def found(self) -> list[Any]:
        """What came of it, if that is a list; empty when it failed."""
        return list(self._result[0]) if self._result and isinstance(self._result[0], list) else []

    def result(self) -> T:
        """What came of it, once it has been run: the result, or the exception. RemoteError when it was not waited for
        to its end."""
        if self._error is not None:
            raise self._error
        if not self._result:
            raise RemoteError(
                "its end was not waited for, as the server stops or the client has gone; it may be done yet"
            )
        return self._result[0]


async def run_call(call: Call[Any], limiter: trio.CapacityLimiter) -> None:
    """Until it is done. When the task is cancelled, the call is told to stop, and its end is waited for, but not for
    long: it goes on by itself then, and its result is an error."""
    done = trio.Event()
    running = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, call, limiter, running, done)
        try:
            await done.wait()
        except trio.Cancelled:
            call.stop.set()
            raise
        finally:
            with trio.move_on_after(_LEAVE, shield=True):
                await done.wait()
            running.cancel()


async def _run(call: Call[Any], limiter: trio.CapacityLimiter, running: trio.CancelScope, done: trio.Event) -> None:
    with running:
        await trio.to_thread.run_sync(call.run, limiter=limiter, abandon_on_cancel=True)
    done.set()
