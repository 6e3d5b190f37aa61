"""Makes messages visible when their windows and delays end, in batches, and sleeps until then."""

import trio

from ..storage.engine import Clock, Engine
from .committer import Committer
from .jobs import Job

_SLICE = 500
"""Leases that one batch ends at most, so that requests do not wait for many."""
_TRY_AGAIN = 1
"""Seconds after which leases that could not be ended are tried again."""


class ExpiryLoop:
    """Ends what is due in one engine."""

    def __init__(self, storage: Engine, committer: Committer, clock: Clock) -> None:
        """clock: gives the engine's times."""
        self._storage = storage
        self._committer = committer
        self._clock = clock

    async def serve(self) -> None:
        """Runs until it is cancelled."""
        await self._expire()
        while True:
            await self._committer.expiry.wait(self._clock)
            await self._expire()

    async def _expire(self) -> None:
        job = Job(lambda: self._storage.expire(_SLICE))
        await self._committer.run(job)
        if job.failed:
            await trio.sleep(_TRY_AGAIN)  # it is still due
