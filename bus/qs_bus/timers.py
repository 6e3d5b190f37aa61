"""Timers: one task calls functions at their time."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import trio

_number = count()


@dataclass(slots=True, order=True)
class Timer:
    """A pending call. time: on trio's clock; call: None once it is cancelled."""

    time: float
    call: Callable[[], None] | None = field(compare=False)
    number: int = field(default_factory=_number.__next__)


class Timers:
    """Calls functions when their time has come."""

    def __init__(self) -> None:
        self._due: list[Timer] = []
        self._cancelled = 0
        self._changed = trio.Event()

    def add(self, delay: float, call: Callable[[], None]) -> Timer:
        """Schedules a call after delay seconds. Returns the timer, for `cancel`."""
        due = Timer(trio.current_time() + delay, call)
        heapq.heappush(self._due, due)
        self._changed.set()
        return due

    def cancel(self, due: Timer) -> None:
        """Cancels a timer."""
        due.call = None
        self._cancelled += 1
        if self._cancelled > len(self._due) // 2:
            self._due = [due for due in self._due if due.call is not None]
            heapq.heapify(self._due)
            self._cancelled = 0

    async def run(self) -> None:
        """Makes the calls when they are due. Never returns."""
        while True:
            while self._due and self._due[0].time <= trio.current_time():
                call = heapq.heappop(self._due).call
                if call is not None:
                    call()
            self._changed = trio.Event()
            with trio.move_on_at(self._due[0].time if self._due else float("inf")):
                await self._changed.wait()
