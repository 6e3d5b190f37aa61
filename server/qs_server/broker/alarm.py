"""An alarm: a time that batches set, and a task that sleeps until then.

Only an earlier time wakes the task. For a later time, or none, the task wakes at the old time and sleeps again: this
costs less than waking it for each request.
"""

import trio

from qs_storage.engine import SECOND, Clock


class Alarm:
    """The next time at which something is due. Use it in the loop's thread."""

    def __init__(self) -> None:
        self.due: int | None = None
        """Microseconds by the engine's clock, None if nothing is due."""
        self._slept_for: int | None = None
        self._earlier = trio.Event()

    def set(self, due: int | None) -> None:
        self.due = due
        if due is not None and (self._slept_for is None or due < self._slept_for):
            self._slept_for = due
            self._earlier.set()

    async def wait(self, clock: Clock) -> None:
        """Sleeps until the time has come, even if it changes meanwhile. clock: the engine's."""
        while True:
            self._slept_for, self._earlier = self.due, trio.Event()
            wait = float("inf") if self.due is None else max(self.due - clock(), 0) / SECOND
            with trio.move_on_after(wait) as sleep:
                await self._earlier.wait()
            if sleep.cancelled_caught and self.due is not None and self.due <= clock():
                return
