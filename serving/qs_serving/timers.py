"""Makes calls at a later time, and time-outs that hardly count the time in which this process did not run.

A process that was stopped, or got no processor, could find a time-out over while the awaited bytes are in the socket.
So a time-out for what others do is split into steps, each of which counts the same however long it took, and the
waiting code looks at the socket after each step.
"""

import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

import trio

STEPS = 5
"""Steps of a time-out: a pause of this process uses up one of them at most."""
_NEVER = float("inf")
_number = count()


@dataclass(slots=True, order=True)
class Timer:
    """Holds a pending call. time: when to call, on trio's clock; call: the function, None once it has been called or
    cancelled."""

    time: float
    call: Callable[[], None] | None = field(compare=False)
    number: int = field(default_factory=_number.__next__)


class Timers:
    """Calls functions when their time has come. One task serves all timers, because a task for each would cost some KB
    for each connection.

    Ensures that a call is made once, never early, and never after `cancel`. Assumes that the calls raise nothing, and
    that everything happens in the loop's thread. Must not wake its task for a timer that is not the next one, or is
    cancelled: most timers are cancelled, and some connections set one for each request."""

    def __init__(self) -> None:
        self._due: list[Timer] = []
        self._cancelled = 0
        self._sleeps_until = _NEVER
        self._earlier = trio.Event()

    def add(self, delay: float, call: Callable[[], None]) -> Timer:
        """Schedules a call after delay seconds. Returns the timer, for `cancel`."""
        due = Timer(trio.current_time() + delay, call)
        heapq.heappush(self._due, due)
        if due.time < self._sleeps_until:
            self._earlier.set()
        return due

    def cancel(self, due: Timer) -> None:
        """Cancels a timer. Does nothing if the call has been made."""
        if due.call is None:
            return
        due.call = None
        self._cancelled += 1
        if self._cancelled > len(self._due) // 2:  # so that cancelled ones take no more memory than the others
            self._due = [due for due in self._due if due.call is not None]
            heapq.heapify(self._due)
            self._cancelled = 0

    async def serve(self) -> None:
        """Makes the calls when they are due. Never returns."""
        while True:
            while self._due and self._due[0].time <= trio.current_time():
                due = heapq.heappop(self._due)
                call, due.call = due.call, None
                if call is None:
                    self._cancelled -= 1
                else:
                    call()
            self._earlier = trio.Event()
            self._sleeps_until = self._due[0].time if self._due else _NEVER
            with trio.move_on_at(self._sleeps_until):
                await self._earlier.wait()


class Countdown:
    """Counts down the time that one client has, in steps.

    Ensures that `step` is called at the end of each step, once, and never after `reset`. A countdown does not end by
    itself: the function `step` decides whether a step counts, and begins the next."""

    __slots__ = ("_left", "_step", "_timer", "_timers", "begun")

    def __init__(self, timers: Timers, step: Callable[[], None]) -> None:
        self._timers = timers
        self._timer: Timer | None = None
        self._left = STEPS
        self._step = step
        self.begun = False
        """True from the first step on, until `reset`. An attribute, as it is asked for with every request."""

    def run(self, seconds: float) -> None:
        """Begins the next step, unless one is running. seconds: the time of all steps together."""
        self.begun = True
        if self._timer is None:
            self._timer = self._timers.add(seconds / STEPS, self._end_step)

    def _end_step(self) -> None:
        self._timer = None
        self._step()

    def reset(self) -> None:
        """Stops the present step, and makes all steps available again."""
        self.begun, self._left = False, STEPS
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None

    def count_step(self) -> bool:
        """Counts the step that has ended. Returns True if that was the last step."""
        self._left -= 1
        return self._left <= 0


async def within(seconds: float, wait: Callable[[], Awaitable[object]]) -> bool:
    """Waits until `wait` returns, for at most so many seconds. wait: cancelled and called again after each step, so it
    has to continue where it was. Returns False if the time is over."""
    for _ in range(STEPS):
        with trio.move_on_after(seconds / STEPS):
            await wait()
            return True
    return False
