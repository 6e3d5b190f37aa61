"""Calls in threads, and tasks that wait for them. A task that stops waiting still learns what its call has returned."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from ..storage.engine import RemoteError

T = TypeVar("T")

_STOP_TIMEOUT = 10
"""Seconds that a call may take to end after it was told to stop, so that another server which hangs does not keep this
one from stopping."""


class Call(Generic[T]):
    """A function that may take long, to be run in a thread."""

    def __init__(self, function: Callable[[threading.Event], T], *, waits: bool = False) -> None:
        """function: is given an event that is set when it should stop; waits: it waits for messages, and so may well
        take very long."""
        self.stop = threading.Event()
        self.waits = waits
        self._function = function
        self._result: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        """Runs the function in the calling thread."""
        try:
            self._result.append(self._function(self.stop))
        except Exception as error:
            self._error = error

    def found(self) -> list[Any]:
        """Returns the result if the function has returned a list; an empty one if not."""
        return list(self._result[0]) if self._result and isinstance(self._result[0], list) else []

    def result(self) -> T:
        """Returns what the function returned, or raises what it raised. RemoteError when nobody waited for its end."""
        if self._error is not None:
            raise self._error
        if not self._result:
            raise RemoteError(
                "its end was not waited for, as the server stops or the client has gone; it may be done yet"
            )
        return self._result[0]


async def run_call(call: Call[Any], limiter: trio.CapacityLimiter) -> None:
    """Runs a call in a thread. When the task is cancelled, the call is told to stop, and its end is waited for, but not
    for long: after that it goes on by itself, and its result is an error."""
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
            with trio.move_on_after(_STOP_TIMEOUT, shield=True):
                await done.wait()
            running.cancel()


async def _run(call: Call[Any], limiter: trio.CapacityLimiter, running: trio.CancelScope, done: trio.Event) -> None:
    with running:
        await trio.to_thread.run_sync(call.run, limiter=limiter, abandon_on_cancel=True)
    done.set()
