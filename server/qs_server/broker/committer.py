"""Group commit: runs the requests of all connections as batches, each with one commit.

While the worker thread makes one batch durable, the next one fills. A batch runs in the loop instead if a thread would
only cost time: without syncs, with fast commits, or with one client.

With queues of files, a batch does its pushes first, so that their files are synced together (1.5 times as fast with 16
programs that push and 16 that receive).
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import trio

from qs_storage.engine import Durability, Effects, Engine
from qs_storage.shared import Record

from .alarm import Alarm
from .jobs import Job, Work
from .pushing import push_together
from .subscriptions import SLICE, Subscriptions
from .waiting import Waiters

_logger = logging.getLogger(__name__)
_INTERVAL = 0.05
"""Seconds between syncs with durability `interval`."""
_MESSAGES = 2000
"""Messages after which no more work is added to a batch: some 300 ms if each is synced."""


class Committer:
    """Runs batches on the engine. Once the server runs, nothing else uses the engine."""

    def __init__(self, storage: Engine, durability: Durability, waiters: Waiters, subscriptions: Subscriptions) -> None:
        self._storage = storage
        self._durability = durability
        self._waiters = waiters
        self._subscriptions = subscriptions
        self._waiting: list[Work] = []
        self._more = trio.Event()
        self._dirty = trio.Event()
        self._next_slice: Job | None = None
        self._outdated = False
        self._syncs = durability is Durability.ALWAYS
        self._commit_is_cheap = self._pushes_first = False  # from the last batch's effects
        self._has_subscribers = False  # True if the last batch had work for subscribers
        self.batch_done: Callable[[], None] | None = None
        """Called once in the loop, at the end of the next batch."""
        self.record: Record | None = None
        """The lifecycle record, None if it is off."""
        self.busy = False
        """True while the worker thread runs a batch."""
        self.served = 0
        """The number of request batches and jobs run so far."""
        self.clients = 0
        """The number of connections."""
        self.expiry = Alarm()
        """The time at which the next window or delay ends."""
        self.upkeep = Alarm()
        """The time at which the engine's upkeep is due."""

    @property
    def _in_loop(self) -> bool:
        """True if the next batch runs in the loop."""
        return self._commit_is_cheap or not self._syncs or self.clients <= 1

    async def run(self, work: Work) -> None:
        """Advances the work until it is done or has to wait, and commits; `work.pause` tells why it waits. Ignores
        cancellation, so that no work is left half done."""
        if not self.busy and not self._waiting and self._in_loop:
            self._run_in_loop([work])
            return
        done = trio.Event()
        work.ended = done.set
        self.post(work)
        with trio.CancelScope(shield=True):
            await done.wait()

    def post(self, work: Work) -> None:
        """Schedules the work for one of the next batches, and returns at once."""
        if work.ended is None:
            work.ended = partial(self._post_again, work)
        self._waiting.append(work)
        self._more.set()

    def _post_again(self, work: Work) -> None:
        """Schedules work again that was not run because its batch failed before."""
        if work.runnable:
            self.post(work)

    def enqueue(self, work: Work) -> None:
        """Schedules the work for the end of this poll cycle. The caller makes sure that `on_poll_end` or `hurry` is
        called."""
        self._waiting.append(work)

    def on_poll_end(self) -> bool:
        """Runs the batch of this poll cycle, if it is one for the loop. Returns False if work is left for `serve`."""
        if (self._waiting or self._outdated) and not self.busy and (self._commit_is_cheap or self._in_loop):
            batch = self._next_batch() if len(self._waiting) > 1 else self._waiting
            if batch is self._waiting:
                self._waiting = []
            self._finish(batch, self._batch(batch))
        if not self._waiting:
            return True
        self._more.set()
        return False

    def notice(self) -> bool:
        """Schedules a read of the engine's events at the beginning of the next batch. Returns False if that is not the
        batch of this poll cycle; `batch_done` tells its end."""
        self._outdated = True
        if self.busy:
            return False
        if not self._in_loop:
            self.post(Job())
            return False
        return True

    def hurry(self) -> None:
        """Has `serve` run enqueued work, as no poll cycle is under way."""
        self._more.set()

    async def give_back(self) -> None:
        """Releases all messages of closed connections. Call it when there are no connections."""
        while self._subscriptions.leaving:
            await self.run(Job(self._subscriptions.give_back))
            await trio.lowlevel.checkpoint()

    async def serve(self) -> None:
        """Runs scheduled work until it is cancelled, in the worker thread or in the loop."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._waiting:
                if self._in_loop:
                    await trio.lowlevel.checkpoint()  # lets other tasks run between batches
                    if self._waiting:
                        self._run_in_loop(self._next_batch())
                else:
                    await self._run_in_thread(self._next_batch())

    def _run_in_loop(self, batch: list[Work]) -> None:
        self._finish(batch, self._batch(batch))

    async def _run_in_thread(self, batch: list[Work]) -> None:
        self.busy = True
        with trio.CancelScope(shield=True):
            effects = await trio.to_thread.run_sync(self._batch, batch)
        self.busy = False
        self._finish(batch, effects)

    def _next_batch(self) -> list[Work]:
        """Takes scheduled work, up to `_MESSAGES`, so that later requests do not wait too long."""
        waiting = self._waiting
        held = taken = 0
        for work in waiting:
            if held >= _MESSAGES:
                break
            held += work.weight
            taken += 1
        self._waiting = waiting[taken:]
        return waiting[:taken]

    def _batch(self, works: Sequence[Work]) -> Effects:
        """Runs one batch with its commit, in the worker thread or in the loop."""
        try:
            effects = self._advance(works)
        except Exception as error:
            # No request of the batch may be answered as done.
            known = isinstance(error, OSError)
            _logger.error("a commit failed, and its requests are refused: %s", error, exc_info=not known)
            durable = self._storage.roll_back()
            for work in works:
                if work.early_commits >= durable:
                    work.fail(error)
            if self.record is not None:
                self.record.discard()
            effects = self._storage.effects()
        if effects.failed:
            for work in works:
                work.fail_pushes(effects.failed)
        self._commit_is_cheap, self._pushes_first = effects.commit_is_cheap, effects.pushes_first
        self._has_subscribers = self._subscriptions.busy
        if self._has_subscribers:
            effects = self._hand_out(effects)
        if self.record is not None:
            self.record.commit()
        return effects

    def _hand_out(self, effects: Effects) -> Effects:
        """Delivers visible messages to subscribers, after the commit. Returns all effects, with those of the
        delivery."""
        arrived = effects.arrived
        more = dict(arrived)
        while True:
            self._subscriptions.dispatch(more)
            if self._subscriptions.active:
                self._refresh()
            effects = self._storage.effects()
            more = effects.arrived
            if not more:
                break
            arrived.update(more)
        due, expiry = self._subscriptions.next_due(), effects.next_expiry
        if due is not None and (expiry is None or due < expiry):
            expiry = due
        return effects._replace(arrived=arrived, next_expiry=expiry)

    def _advance(self, works: Sequence[Work]) -> Effects:
        if self._outdated:
            self._outdated = False  # before the refresh: the loop may set it again meanwhile
            self._refresh()
        if self.record is None and works and (len(works) > 1 or works[0].left > 1):
            push_together(self._storage, works)  # not with a lifecycle record, which needs each push's client
            works = [work for work in works if work.runnable]
        if self._syncs and self._pushes_first:
            self._advance_by_kind(works)
        else:
            self._advance_each(works, None)
        return self._storage.commit()

    def _advance_each(self, works: Sequence[Work], pushing: bool | None) -> None:
        record, storage = self.record, self._storage
        for work in works:
            if record is not None:
                record.begin(work.peer)
            try:
                work.advance(pushing=pushing)
            finally:
                work.early_commits = storage.early_commits
        if record is not None:
            record.begin("")

    def _advance_by_kind(self, works: Sequence[Work]) -> None:
        """Does the pushes of all requests first, so that their files are synced together."""
        active = works
        while active:
            self._advance_each(active, True)
            # Reads changes by other processes, and the events of our own, after each half: so the next half is up to
            # date, and no events of ours are left at the end.
            self._refresh()
            active = [work for work in active if work.runnable]
            if active:
                self._advance_each(active, False)
                self._refresh()
                active = [work for work in active if work.runnable]

    def _refresh(self) -> None:
        try:
            self._storage.refresh()
        except OSError as error:
            _logger.error("changes by other programs could not be read: %s", error)

    def _finish(self, works: Sequence[Work], effects: Effects) -> None:
        """Ends a batch, in the loop: adds works that wait to the waiters, then wakes those that can go on."""
        self.served += len(works)
        if self._has_subscribers or self.batch_done is not None:
            self._serve_subscribers()
        for work in works:
            pause = work.pause
            if pause is not None and pause.qids:
                self._waiters.add(work, pause)
        if self._waiters.any:
            self._waiters.wake_all(effects.arrived)
        if effects.next_expiry != self.expiry.due:
            self.expiry.set(effects.next_expiry)
        if effects.next_upkeep != self.upkeep.due:
            self.upkeep.set(effects.next_upkeep)
        if self._durability is Durability.INTERVAL:
            self._dirty.set()
        for work in works:
            ended, work.ended = work.ended, None
            if ended is not None:
                ended()

    def _serve_subscribers(self) -> None:
        """Calls `batch_done`, sends subscribers their mail, and schedules the next slice."""
        done, self.batch_done = self.batch_done, None
        if done is not None:
            done()
        for subscriber in self._subscriptions.take_mail():
            subscriber.deliver()
        if self._subscriptions.unfinished and (self._next_slice is None or not self._next_slice.runnable):
            self._next_slice = Job(self._subscriptions.give_back, SLICE)
            self.post(self._next_slice)

    async def sync_at_intervals(self) -> None:
        """Syncs at most every `_INTERVAL`, for durability `interval`. Never returns."""
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
