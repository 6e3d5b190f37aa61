"""A time at which something is due, and the task that sleeps until then.

Batches set the time again and again. Only an earlier time wakes the task: waking it for a later one, or for none, would
cost each request more than the task's finding out that it has slept too short.
"""

import trio

from ..storage.engine import SECOND, Clock


class Alarm:
    """One such time, in microseconds by the engine's clock. For the loop's thread."""

    def __init__(self) -> None:
        self.due: int | None = None
        """When it is due; None: nothing is."""
        self._slept_for: int | None = None
        self._earlier = trio.Event()

    def set(self, due: int | None) -> None:
        """Changes the time."""
        self.due = due
        if due is not None and (self._slept_for is None or due < self._slept_for):
            self._slept_for = due
            self._earlier.set()

    async def wait(self, clock: Clock) -> None:
        """Sleeps until the time has come. clock: the engine's."""
        while True:
            self._slept_for, self._earlier = self.due, trio.Event()
            wait = float("inf") if self.due is None else max(self.due - clock(), 0) / SECOND
            with trio.move_on_after(wait) as sleep:
                await self._earlier.wait()
            if sleep.cancelled_caught and self.due is not None and self.due <= clock():
                return
