"""Where requests meet the engine: batches of groups, each batch with one commit.

While one batch is being made durable in the worker thread, the next one gathers. Where there is nothing to wait for (no
sync asked for, or a lone client, whom a thread would only cost time), the batch runs in the loop instead.
"""

import logging
from collections.abc import Sequence

import trio

from .group import Chore, Work
from .storage.engine import Durability, Engine
from .subscriptions import SLICE, Subscriptions
from .waiting import Waiters

_logger = logging.getLogger(__name__)
_INTERVAL = 0.05
"""Seconds between syncs with durability `interval`."""
_MESSAGES = 2000
"""Messages that one batch is about, if there are several groups: some 300 ms with every one of them synced."""


class Committer:
    """The only one who touches the engine once the server runs."""

    def __init__(self, storage: Engine, durability: Durability, waiters: Waiters, subscriptions: Subscriptions) -> None:
        self._storage = storage
        self._durability = durability
        self._waiters = waiters
        self._subscriptions = subscriptions
        self._waiting: list[tuple[Work, trio.Event | None]] = []
        self._more = trio.Event()
        self._idle = trio.lowlevel.ParkingLot()
        self._dirty = trio.Event()
        self._rest: Chore | None = None
        self.busy = False
        self.clients = 0
        """How many connections there are."""
        self.next_expiry: int | None = None
        self.expiry_changed = trio.Event()

    async def run(self, work: Work) -> None:
        """Advances the work until it is done or has to wait, and makes it durable. Then `work.pause` says why it
        stopped, and a pause for messages has its place among the waiters. Not to be cancelled: what is begun is
        finished."""
        if not self.busy and not self._waiting and (self._durability is not Durability.ALWAYS or self.clients <= 1):
            self._finish([work], *self._batch([work]))
            return
        done = trio.Event()
        self._waiting.append((work, done))
        self._more.set()
        with trio.CancelScope(shield=True):
            await done.wait()

    def post(self, work: Work) -> None:
        """Has the work advanced in one of the next batches, and waits for nothing."""
        self._waiting.append((work, None))
        self._more.set()

    async def give_back(self) -> None:
        """Once nobody is connected any more: finishes what those held who have gone."""
        while self._subscriptions.leaving:
            await self.run(Chore(self._subscriptions.give_back))
            await trio.lowlevel.checkpoint()

    async def serve(self) -> None:
        """Runs the batches that have gathered, for ever: in the worker thread, where there are syncs to wait for."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._waiting:
                if self._durability is not Durability.ALWAYS:
                    await trio.lowlevel.checkpoint()  # whatever is done in the loop must not hold it
                batch = self._next_batch()
                works = [work for work, _ in batch]
                if self._durability is not Durability.ALWAYS:
                    self._finish(works, *self._batch(works))
                else:
                    self.busy = True
                    with trio.CancelScope(shield=True):
                        expiry, arrived = await trio.to_thread.run_sync(self._batch, works)
                    self.busy = False
                    self._finish(works, expiry, arrived)
                for _, done in batch:
                    if done is not None:
                        done.set()

    def _next_batch(self) -> list[tuple[Work, trio.Event | None]]:
        """Whoever waits, but no more than some messages: a batch must not take so long that the next ones suffer."""
        held = taken = 0
        while taken < len(self._waiting) and held < _MESSAGES:
            held += self._waiting[taken][0].weight
            taken += 1
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return batch

    async def batch_done(self) -> None:
        """Waits for the end of the batch that is running."""
        if self.busy:
            await self._idle.park()

    def _batch(self, works: Sequence[Work]) -> tuple[int | None, dict[str, int]]:
        """One batch, start to end: when the next window ends, and what has become visible where. In the worker thread,
        or in the loop while no thread is at it."""
        try:
            self._advance(works)
        except Exception as error:
            # Nothing of the batch may be answered as done.
            known = isinstance(error, OSError)
            _logger.error("a commit failed, and what it covered is refused: %s", error, exc_info=not known)
            for work in works:
                work.fail(error)
        failures = self._storage.take_failures()
        if failures:
            for work in works:
                work.fail_pushes(failures)
        arrived = self._hand_out()
        expiry, due = self._storage.next_expiry(), self._subscriptions.next_due()
        if due is not None and (expiry is None or due < expiry):
            expiry = due
        return expiry, arrived

    def _hand_out(self) -> dict[str, int]:
        """What has arrived, first of all to subscribers: after the commit, as what they get has to be there to stay."""
        arrived = self._storage.take_arrivals()
        self._subscriptions.dispatch(arrived)
        if self._subscriptions.active:
            self._refresh()
            while more := self._storage.take_arrivals():
                arrived.update(more)
                self._subscriptions.dispatch(more)
                self._refresh()
        return arrived

    def _advance(self, works: Sequence[Work]) -> None:
        active = works
        while active:
            # Pushes of all groups first, so that their files are synced together.
            for work in active:
                work.advance(pushing=True)
            self._storage.flush()
            # What others have changed, and the reports of what we have: after each half, so that the one that follows
            # knows the truth, and the descriptor is quiet in the end.
            self._refresh()
            active = [work for work in active if work.runnable]
            if active:
                for work in active:
                    work.advance(pushing=False)
                self._refresh()
                active = [work for work in active if work.runnable]
        self._storage.commit()

    def _refresh(self) -> None:
        try:
            self._storage.refresh()
        except OSError as error:
            _logger.error("changes of other programs could not be followed: %s", error)

    def _finish(self, works: Sequence[Work], expiry: int | None, arrived: dict[str, int]) -> None:
        """After a batch, in the loop: who waits gets a place first, and then whoever has got something is woken."""
        for subscriber in self._subscriptions.take_mail():
            subscriber.deliver()
        if self._subscriptions.unfinished and (self._rest is None or not self._rest.runnable):
            self._rest = Chore(self._subscriptions.give_back, SLICE)
            self.post(self._rest)
        for work in works:
            pause = work.pause
            if pause is not None and pause.qids:
                self._waiters.add(work, pause)
        for qid, count in arrived.items():
            self._waiters.wake(qid, count)
        if expiry != self.next_expiry:
            self.next_expiry = expiry
            self.expiry_changed.set()
        if self._durability is Durability.INTERVAL:
            self._dirty.set()
        if self._idle:
            self._idle.unpark_all()

    async def sync_at_intervals(self) -> None:
        """With durability `interval`: syncs what has happened, for ever, and sleeps while nothing does."""
        while True:
            await self._dirty.wait()
            await trio.sleep(_INTERVAL)
            self._dirty = trio.Event()
            sync = self._storage.background_sync()
            if sync is None:
                continue
            try:
                await trio.to_thread.run_sync(sync)
            except OSError as error:
                _logger.error("the file system could not be synced: %s", error)
