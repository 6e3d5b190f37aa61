"""Has the engine's work at leisure done: planned and settled in batches, done in a thread between them.

While there are many requests it takes no more than a tenth of the time, unless the engine says that it is urgent:
messages that are deleted meanwhile need not be written at all. With nothing to do, it sleeps.
"""

from collections.abc import Callable
from functools import partial

import trio

from .committer import Committer
from .group import Chore
from .storage.engine import SECOND, Background, Clock, Engine

_REST = 9
"""Times as long as the work took that it pauses, at most."""
_BUSY = 10
"""Batches in the time that the work took, from which on the server has better things to do."""
_AGAIN = 0.05
"""Seconds after which, in a pause, what cannot wait is looked for again."""


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
        started = trio.current_time()
        if await self._do(self._storage.begin_spill) and self._committer.next_spill:  # 0 is urgent, None: all is done
            await self._rest(trio.current_time() - started)

    async def _do(self, begin: Callable[[], Background | None]) -> bool:
        """Whether there was anything."""
        found: list[Background] = []
        with trio.CancelScope(shield=True):  # what is begun is finished
            await self._committer.run(Chore(lambda: _plan(begin, found)))
            for spill in found:
                await trio.to_thread.run_sync(spill.run)
                await self._committer.run(Chore(partial(self._storage.finish_spill, spill)))
        return bool(found)

    async def _rest(self, took: float) -> None:
        """Leaves the time to requests, as long as there are many."""
        for _ in range(_REST):
            before = self._committer.batches
            with trio.move_on_after(took):
                await self._do_what_cannot_wait()
            quiet = self._committer.batches - before < _BUSY
            if quiet or self._committer.next_spill is None or self._is_urgent():
                return

    def _is_urgent(self) -> bool:
        return self._committer.next_spill == 0 and self._storage.spill_is_urgent

    async def _do_what_cannot_wait(self) -> None:
        """For ever, or until everything is urgent."""
        committer = self._committer
        while not self._is_urgent():
            committer.spill_changed = trio.Event()
            if committer.next_spill == 0:
                await self._do(partial(self._storage.begin_spill, brief=True))
                await trio.sleep(_AGAIN)
            else:
                await committer.spill_changed.wait()


def _plan(begin: Callable[[], Background | None], found: list[Background]) -> None:
    spill = begin()
    if spill is not None:
        found.append(spill)
