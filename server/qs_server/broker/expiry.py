"""Ends windows and delays and removes what is too old, in slices of a few milliseconds, and sleeps until then."""

from collections.abc import Callable
from time import perf_counter

import trio

from ..storage.engine import Clock, Engine
from .committer import Committer
from .jobs import Job

_SECONDS = 0.002
"""How long a slice takes, about: requests of others come between two slices."""
_COUNT = 200
"""Messages that a slice handles between two looks at the time: 0.2 ms, or 10 ms if each becomes a dead letter."""
_TRY_AGAIN = 1
"""Seconds after which what could not be done is tried again."""


class ExpiryLoop:
    """Ends what is due in one engine."""

    def __init__(
        self, storage: Engine, committer: Committer, clock: Clock, timer: Callable[[], float] = perf_counter
    ) -> None:
        """clock: gives the engine's times; timer: gives seconds, to measure a slice."""
        self._storage = storage
        self._committer = committer
        self._clock = clock
        self._timer = timer

    async def serve(self) -> None:
        """Runs until it is cancelled."""
        await self._expire()
        while True:
            await self._committer.expiry.wait(self._clock)
            await self._expire()

    def _slice(self) -> None:
        until = self._timer() + _SECONDS
        while self._storage.expire(_COUNT) and self._timer() < until:
            pass

    async def _expire(self) -> None:
        job = Job(self._slice)
        await self._committer.run(job)
        if job.failed:
            await trio.sleep(_TRY_AGAIN)  # it is still due
