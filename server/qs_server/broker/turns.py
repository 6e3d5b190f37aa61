"""Gives slices of all kinds of background work their turns, with rests between them in which requests are served."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """Lets one slice run at a time. Use it in the loop's thread."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._rested = 0.0  # by the loop's clock

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits until no other slice runs and the rest after it is over, in the order of the callers."""
        async with self._turn:
            await trio.sleep_until(self._rested)
            yield

    def rest(self, seconds: float) -> None:
        """Delays the next turn by at least so many seconds from now."""
        self._rested = max(self._rested, trio.current_time() + seconds)
