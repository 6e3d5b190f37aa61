"""Has the engine's upkeep done while requests go on: in slices, each part of a batch, and in a thread between them.

After a slice, requests have as much time as it took. With nothing to do, nobody wakes up.
"""

from functools import partial

import trio

from ..storage.engine import Background, Clock, Engine
from .committer import Committer
from .jobs import Job
from .turns import Turns


class UpkeepLoop:
    """Runs the upkeep of one engine."""

    def __init__(self, storage: Engine, committer: Committer, turns: Turns, clock: Clock) -> None:
        """clock: what the engine's times are by."""
        self._storage = storage
        self._committer = committer
        self._turns = turns
        self._clock = clock

    async def serve(self) -> None:
        """Runs until it is cancelled. What is begun then is finished."""
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

    async def _run(self, chore: Job) -> None:
        """Has the engine do something in a batch, whatever becomes of the batch."""
        while chore.runnable:  # a fault of what was before it in the batch leaves it undone
            await self._committer.run(chore)

    async def _run_slice(self) -> Background | None:
        """Has the engine do a slice in a batch. Returns what is left to be done in a thread, if anything is."""
        begun: list[Background | None] = []
        await self._run(Job(lambda: begun.append(self._storage.begin_upkeep())))
        return begun[0] if begun else None
