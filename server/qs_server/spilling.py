"""Has the engine's work at leisure done: planned and settled in batches, done in a thread between them.

While there are many requests it takes no more than a tenth of the time, unless the engine says that it is urgent:
messages that are deleted meanwhile need not be written at all. With nothing to do, it sleeps.
"""

from collections.abc import Callable

import trio

from .committer import Committer
from .group import Chore
from .storage.engine import SECOND, Background, Clock, Engine

_REST = 9
"""Times as long as the work took that it pauses, at most."""
_BUSY = 10
"""Batches in the time that the work took, from which on the server has better things to do."""


class Spiller:
    """Of one engine."""

    def __init__(self, storage: Engine, committer: Committer, clock: Clock) -> None:
        self._storage = storage
        self._committer = committer
        self._clock = clock

    async def serve(self) -> None:
        """For ever."""
        committer = self._committer
        while True:
            committer.spill_changed = trio.Event()
            due = committer.next_spill
            wait = float("inf") if due is None else max(due - self._clock(), 0) / SECOND
            with trio.move_on_after(wait) as timer:
                await committer.spill_changed.wait()
            if timer.cancelled_caught:
                await self._spill()

    async def _spill(self) -> None:
        found: list[Background] = []
        await self._committer.run(Chore(lambda: _plan(self._storage.begin_spill, found)))
        if not found:
            return
        [spill] = found
        started = trio.current_time()
        await trio.to_thread.run_sync(spill.run)
        await self._committer.run(Chore(lambda: self._storage.finish_spill(spill)))
        if self._committer.next_spill:  # 0 is urgent, and None: nothing is left
            await self._rest(trio.current_time() - started)

    async def _rest(self, took: float) -> None:
        """Leaves the time to requests, as long as there are many."""
        for _ in range(_REST):
            before = self._committer.batches
            await trio.sleep(took)
            if self._committer.batches - before < _BUSY or not self._committer.next_spill:
                return


def _plan(begin: Callable[[], Background | None], found: list[Background]) -> None:
    spill = begin()
    if spill is not None:
        found.append(spill)
