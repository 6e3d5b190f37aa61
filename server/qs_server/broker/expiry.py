"""Ends windows and delays and removes what is too old, in slices of a few milliseconds, and sleeps until then.

When very much is due at once, requests have most of the time meanwhile; with no requests, slices take all of it.
"""

from collections.abc import Callable
from time import perf_counter

import trio

from ..storage.engine import Clock, Engine
from .committer import Committer
from .jobs import Job
from .turns import Turns

_SECONDS = 0.002
"""Seconds that a slice takes, about."""
_COUNT = 200
"""Messages that are handled between two looks at the time: less than a millisecond, if they are in memory."""
_REST = 12
"""The rest after a slice, in which requests of others are served, is this many times as long as the slice."""
_SHARED = 0.1
"""Seconds for which slices are followed by rests once others were served between two of them: the request that comes
next is often still on its way."""
_TRY_AGAIN = 1
"""Seconds after which what could not be done is tried again."""


class ExpiryLoop:
    """Ends what is due in one engine."""

    def __init__(
        self,
        storage: Engine,
        committer: Committer,
        turns: Turns,
        clock: Clock,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        """clock: gives the engine's times; timer: gives seconds, to measure a slice."""
        self._storage = storage
        self._committer = committer
        self._turns = turns
        self._clock = clock
        self._timer = timer
        self._served = 0  # by the committer, at the end of the last slice
        self._shared_until = 0.0

    async def serve(self) -> None:
        """Runs until it is cancelled."""
        await self._expire()
        while True:
            await self._committer.expiry.wait(self._clock)
            await self._expire()

    async def _expire(self) -> None:
        job = Job(self._slice)
        async with self._turns.take():
            started = self._timer()
            await self._committer.run(job)
            self._rest(self._timer(), started)
        if job.failed:
            await trio.sleep(_TRY_AGAIN)  # it is still due

    def _rest(self, now: float, started: float) -> None:
        if self._committer.served - self._served > 1:
            self._shared_until = now + _SHARED
        self._served = self._committer.served
        if now - started >= _SECONDS and now < self._shared_until:
            self._turns.rest((now - started) * _REST)

    def _slice(self) -> None:
        until = self._timer() + _SECONDS
        while self._storage.expire(_COUNT) and self._timer() < until:
            pass
