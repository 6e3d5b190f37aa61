"""Slices of background work take turns, with rests between them: otherwise, each kind would leave requests its share
of the time, and together they would take most of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """For the loop's thread."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._rested = 0.0  # by the loop's clock

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits until nobody else has a slice and the rest after the last one is over. Who waits longest is next."""
        async with self._turn:
            await trio.sleep_until(self._rested)
            yield

    def rest(self, seconds: float) -> None:
        """Keeps the next turn from coming for at least so long. Nobody wakes up at the end, if nobody waits for it."""
        self._rested = max(self._rested, trio.current_time() + seconds)
