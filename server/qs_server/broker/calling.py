"""Runs calls that may take long in threads. A task that is cancelled while it waits can still read the result."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from qs_storage.engine import RemoteError

T = TypeVar("T")

_STOP_TIMEOUT = 10
"""Seconds that a call has to end after it was told to stop. This server can stop even if another one hangs."""


class Call(Generic[T]):
    """A function to run in a thread, and its result."""

    def __init__(self, function: Callable[[threading.Event], T], *, waits: bool = False) -> None:
        """function: called with an event that is set when it should stop; waits: True if it waits for messages."""
        self.stop = threading.Event()
        self.waits = waits
        self._function = function
        self._result: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result.append(self._function(self.stop))
        except Exception as error:
            self._error = error

    def found(self) -> list[Any]:
        """Returns the result if it is a list, else an empty list."""
        return list(self._result[0]) if self._result and isinstance(self._result[0], list) else []

    def result(self) -> T:
        """Returns the function's result, or raises its error. RemoteError if it has not ended."""
        if self._error is not None:
            raise self._error
        if not self._result:
            raise RemoteError("the call was given up, as the server stops or the client has gone; it may still be done")
        return self._result[0]


async def run_call(call: Call[Any], limiter: trio.CapacityLimiter) -> None:
    """Runs a call in a thread. If the task is cancelled, tells the call to stop and waits `_STOP_TIMEOUT` for its end;
    after that the call continues alone, and its result is an error."""
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
