"""Runs the engine's upkeep while requests are served: in slices, each part of a batch, and in a thread between them.

After a slice, requests have as much time as it took.
"""

from functools import partial

import trio

from qs_storage.engine import Background, Clock, Engine

from .committer import Committer
from .jobs import Job
from .turns import Turns


class UpkeepLoop:
    """Runs the upkeep of one engine."""

    def __init__(self, storage: Engine, committer: Committer, turns: Turns, clock: Clock) -> None:
        self._storage = storage
        self._committer = committer
        self._turns = turns
        self._clock = clock

    async def serve(self) -> None:
        """Runs until it is cancelled, and then finishes the work in the thread."""
        while True:
            await self._committer.upkeep.wait(self._clock)
            async with self._turns.take():
                started = trio.current_time()
                begun = await self._run_slice()
                rest = trio.current_time() - started
                self._turns.rest(rest)
            if begun is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(begun.run)
                    await self._run(Job(partial(self._storage.finish_upkeep, begun)))
                self._turns.rest(rest)

    async def _run(self, job: Job) -> None:
        while job.runnable:  # a batch that fails early does not run it
            await self._committer.run(job)

    async def _run_slice(self) -> Background | None:
        """Runs a slice in a batch. Returns the work for a thread, None if there is none."""
        begun: list[Background | None] = []
        await self._run(Job(lambda: begun.append(self._storage.begin_upkeep())))
        return begun[0] if begun else None
