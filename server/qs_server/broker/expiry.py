"""Ends windows and delays, and removes messages that are too old, when they are due.

The work is done in slices of a few milliseconds. While there are requests, they get most of the time.
"""

from collections.abc import Callable
from time import perf_counter

import trio

from qs_storage.engine import Clock, Engine

from .committer import Committer
from .jobs import Job
from .turns import Turns

_SECONDS = 0.002
"""Approximate seconds of a slice."""
_COUNT = 200
"""Messages handled between two looks at the time: less than a millisecond, if they are in memory."""
_REST = 12
"""The rest after a slice, for requests, is so many times as long as the slice."""
_LONGEST_REST = 0.25
"""Seconds of a rest at most. A slice that a disk or a busy machine has held up for seconds does not tell how much time
requests need, and no window is to end half a minute late for it."""
_SHARED = 0.1
"""Seconds for which there are rests after a request was served between two slices: the next one is often on its way."""
_TRY_AGAIN = 1
"""Seconds between tries after a failure."""


class ExpiryLoop:
    """Runs the expiry of one engine."""

    def __init__(
        self,
        storage: Engine,
        committer: Committer,
        turns: Turns,
        clock: Clock,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        """clock: the engine's; timer: returns seconds, to measure slices."""
        self._storage = storage
        self._committer = committer
        self._turns = turns
        self._clock = clock
        self._timer = timer
        self._served = 0  # `served` of the committer at the end of the last slice
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
            await trio.sleep(_TRY_AGAIN)

    def _rest(self, now: float, started: float) -> None:
        if self._committer.served - self._served > 1:
            self._shared_until = now + _SHARED
        self._served = self._committer.served
        if now - started >= _SECONDS and now < self._shared_until:
            self._turns.rest(min((now - started) * _REST, _LONGEST_REST))

    def _slice(self) -> None:
        until = self._timer() + _SECONDS
        while self._storage.expire(_COUNT) and self._timer() < until:
            pass
