"""Runs the background loops of the server: they end windows and delays, do the engine's upkeep, and read the changes of
other programs.

The work is done in slices of some milliseconds, each a job in a batch, with rests for requests between them. A slice is
bounded, because requests wait for the batch that runs the slice. The rests leave requests most of the time, also when
very much is due at once.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter

import trio

from qs_serving.hub import Hub
from qs_storage.engine import LEFT, Background, Clock, Engine, NoRoomError

from .committer import Committer
from .jobs import Job

_SECONDS = 0.002
"""Approximate seconds of a slice of expiry: requests that come meanwhile wait so much longer."""
_COUNT = 200
"""Messages handled between two looks at the time: less than a millisecond, if they are in memory."""
_REST = 12
"""The rest after a slice of expiry, for requests, is so many times as long as the slice."""
_LONGEST_REST = 0.25
"""Seconds of a rest at most. A slice that a disk or a busy machine has held up for seconds does not tell how much time
requests need, and no window is to end half a minute late for it."""
_SHARED = 0.1
"""Seconds for which there are rests after a request was served between two slices: the next one is often on its way."""
_TRY_AGAIN = 1
"""Seconds between tries after a failure: a disk that fails is not asked, and the log not filled, without an end."""


class Turns:
    """Gives out time slices for background work.

    Ensures that one slice runs at a time, whatever its kind, and that none begins before the rest after the last slice
    is over; waiting callers get slices in the order in which they asked. So two kinds of work together take no more
    time from requests than one. Assumes the loop's thread. A slice that fails must never keep later slices from
    running: the lock is released."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._rested = 0.0  # by the loop's clock

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits until no other slice runs and the rest after the last slice is over. Serves callers in their order."""
        async with self._turn:
            await trio.sleep_until(self._rested)
            yield

    def rest(self, seconds: float) -> None:
        """Delays the next slice by at least so many seconds from now."""
        self._rested = max(self._rested, trio.current_time() + seconds)


class ExpiryLoop:
    """Ends windows and delays when they are due, and removes messages that are too old.

    Ensures that requests get most of the time while there are any: after a slice, the loop rests. Assumes that the
    effects of each commit say when the next message is due. The loop never polls."""

    def __init__(
        self,
        storage: Engine,
        committer: Committer,
        turns: Turns,
        clock: Clock,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        """clock: the engine's clock; timer: returns seconds, to measure slices."""
        self._storage = storage
        self._committer = committer
        self._turns = turns
        self._clock = clock
        self._timer = timer
        self._served = 0  # `served` of the committer at the end of the last slice
        self._shared_until = 0.0

    async def serve(self) -> None:
        """Runs until cancelled."""
        await self._expire()  # at the start, before any commit has said when something is due
        while True:
            await self._committer.expiry.wait(self._clock)
            await self._expire()

    async def _expire(self) -> None:
        async with self._turns.take():
            started = self._timer()
            done = await self._committer.call(self._slice)
            now = self._timer()
            if self._committer.served - self._served > 1:  # more than this slice
                self._shared_until = now + _SHARED
            self._served = self._committer.served
            if now - started >= _SECONDS and now < self._shared_until:
                self._turns.rest(min((now - started) * _REST, _LONGEST_REST))
        if not done:
            await trio.sleep(_TRY_AGAIN)

    def _slice(self) -> None:
        """Ends due windows and delays until the time of the slice or the room of the batch is used up. If more are due,
        the effects of the commit say so."""
        until = self._timer() + _SECONDS
        more = self._storage.expire(_COUNT)
        while more and self._timer() < until and self._storage.room >= LEFT:
            try:
                more = self._storage.expire(_COUNT)
            except NoRoomError:  # something has been done, so this is not a failure
                return


class UpkeepLoop:
    """Runs the engine's upkeep: slices, each as the first work of a batch, and work in a thread between the slices.

    Ensures that after each slice requests have as much time as the slice took, and that the work in the thread is
    finished when the server stops, so that its files are not lost. Assumes that one piece of work is under way at a
    time."""

    def __init__(self, storage: Engine, committer: Committer, turns: Turns, clock: Clock) -> None:
        self._storage = storage
        self._committer = committer
        self._turns = turns
        self._clock = clock

    async def serve(self) -> None:
        """Runs until cancelled, and then finishes the work in the thread."""
        while True:
            await self._committer.upkeep.wait(self._clock)
            begun: list[Background | None] = []  # stays empty if the batch has failed
            slice_ = partial(self._slice, begun)
            async with self._turns.take():
                started = trio.current_time()
                await self._committer.call(slice_, is_first=True)
                rest = trio.current_time() - started
                self._turns.rest(rest)
            if begun and begun[0] is not None:
                with trio.CancelScope(shield=True):  # the engine waits for the work that it has given away
                    await trio.to_thread.run_sync(begun[0].run)
                    await self._committer.call(partial(self._storage.finish_upkeep, begun[0]), is_first=True)
                self._turns.rest(rest)

    def _slice(self, begun: list[Background | None]) -> None:
        begun.append(self._storage.begin_upkeep())


class Changes:
    """Watches the engine's descriptor of inotify events in the hub's poll cycles.

    Ensures that a request is answered after all changes by other processes that came before it: the hub calls this
    reader before all clients, and the next batch reads the events first. Assumes the loop's thread. This reader must
    never read the events itself: that changes queues, and the worker thread may be running a batch."""

    def __init__(self, descriptor: int, hub: Hub, committer: Committer) -> None:
        """Begins to watch. descriptor: the engine's inotify descriptor."""
        self.watched = False
        self._descriptor = descriptor
        self._hub = hub
        self._committer = committer
        hub.first = self
        hub.watch(self)

    def fileno(self) -> int:
        return self._descriptor

    def ready(self) -> int:
        """Schedules a read of the engine's events before all later requests. The hub calls this when there are
        events."""
        job = Job(self._committer.refresh, is_first=True)
        if not self._committer.runs_in_loop:
            self._hub.drop(self)  # unread events would wake the hub again and again
            job.on_batch_end = partial(self._hub.watch, self)
        self._committer.scheduled.append(job)
        return 0
