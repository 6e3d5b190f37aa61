"""Group commit: what the connections ask for at the same time is run as one batch, with one commit.

While the worker thread makes one batch durable, the next one fills. A batch runs in the loop instead where a thread
would only cost time: when no sync was asked for, when commits are quick, or when there is one client.

With queues of files, a batch does its pushes before everything else, so that their files are synced together: 16
programs that push and 16 that receive got 1.5 times as much done as in the order of the requests.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import trio

from ..storage.engine import Durability, Effects, Engine
from ..storage.lifecycle import Record
from .alarm import Alarm
from .jobs import Job, Work
from .pushing import push_together
from .subscriptions import SLICE, Subscriptions
from .waiting import Waiters

_logger = logging.getLogger(__name__)
_INTERVAL = 0.05
"""Seconds between syncs with durability `interval`."""
_MESSAGES = 2000
"""Messages that one batch is about, if there are several groups: some 300 ms with every one of them synced."""


class Committer:
    """Runs batches on the engine. Nothing else touches the engine once the server runs."""

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
        self._commit_is_cheap = self._pushes_first = False  # as the engine said last
        self._has_subscribers = False  # whether the last batch had something to do for them
        self.batch_done: Callable[[], None] | None = None
        """Called in the loop at the end of the next batch, once."""
        self.record: Record | None = None
        self.busy = False
        self.served = 0
        """The number of groups of requests, and of jobs, that have been in batches so far."""
        self.clients = 0
        """The number of connections."""
        self.expiry = Alarm()
        """When the next window or delay ends."""
        self.upkeep = Alarm()
        """When the engine's upkeep is due."""

    @property
    def _in_loop(self) -> bool:
        """True if the next batch is run in the loop, as a thread would only cost time."""
        return self._commit_is_cheap or not self._syncs or self.clients <= 1

    async def run(self, work: Work) -> None:
        """Advances the work until it is done or has to wait, and makes it durable. Then `work.pause` says why it
        stopped, and a pause for messages has its place among the waiters. Not to be cancelled: what is begun is
        finished."""
        if not self.busy and not self._waiting and self._in_loop:
            self._run_in_loop([work])
            return
        done = trio.Event()
        work.ended = done.set
        self.post(work)
        with trio.CancelScope(shield=True):
            await done.wait()

    def post(self, work: Work) -> None:
        """Has the work advanced in one of the next batches. Returns at once."""
        if work.ended is None:
            work.ended = partial(self._post_again, work)
        self._waiting.append(work)
        self._more.set()

    def _post_again(self, work: Work) -> None:
        """Makes up for a batch that failed before it came to the work, as nobody else would."""
        if work.runnable:
            self.post(work)

    def enqueue(self, work: Work) -> None:
        """Has the work advanced with what else this poll cycle brings. The caller makes sure that `on_poll_end` or
        `hurry` is called later."""
        self._waiting.append(work)

    def on_poll_end(self) -> bool:
        """Runs what was enqueued in this poll cycle, if that is for the loop. Returns False when something is left that
        `serve` has to do."""
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
        """Has the next batch begin with a refresh of the engine, as its files may have changed. Returns False when that
        batch does not belong to this poll cycle; `batch_done` tells its end."""
        self._outdated = True
        if self.busy:
            return False
        if not self._in_loop:
            self.post(Job())
            return False
        return True

    def hurry(self) -> None:
        """Has what was enqueued run soon, as no poll cycle is under way."""
        self._more.set()

    async def give_back(self) -> None:
        """Releases all that closed connections still hold. Call it once nobody is connected any more."""
        while self._subscriptions.leaving:
            await self.run(Job(self._subscriptions.give_back))
            await trio.lowlevel.checkpoint()

    async def serve(self) -> None:
        """Runs what waits, until it is cancelled: in the worker thread where there are syncs to wait for."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._waiting:
                if self._in_loop:
                    await trio.lowlevel.checkpoint()  # whatever is done in the loop must not hold it
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
        """Takes what waits, up to some messages, so that the batch does not take too long for those that come next."""
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
        """Runs one batch, start to end: in the worker thread, or in the loop while no thread is at it."""
        try:
            effects = self._advance(works)
        except Exception as error:
            # Nothing of the batch may be answered as done.
            known = isinstance(error, OSError)
            _logger.error("a commit failed, and what it covered is refused: %s", error, exc_info=not known)
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
        """Hands what has arrived to subscribers, after the commit: they get only what is there to stay. Returns all
        effects, with what has arrived by that and when it is over."""
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
            self._outdated = False  # first: the loop may set it again meanwhile
            self._refresh()
        if self.record is None and works and (len(works) > 1 or works[0].left > 1):
            push_together(self._storage, works)  # not where it is recorded who has pushed what
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
            # What others have changed, and the reports of what we have: after each half, so that the one that follows
            # knows the truth, and the descriptor is quiet in the end.
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
            _logger.error("changes of other programs could not be followed: %s", error)

    def _finish(self, works: Sequence[Work], effects: Effects) -> None:
        """Ends a batch, in the loop: gives those who wait their places, and then wakes whoever has got something."""
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
        """Delivers what the batch has handed out, has the next slice done if there is one, and calls `batch_done`."""
        done, self.batch_done = self.batch_done, None
        if done is not None:
            done()
        for subscriber in self._subscriptions.take_mail():
            subscriber.deliver()
        if self._subscriptions.unfinished and (self._next_slice is None or not self._next_slice.runnable):
            self._next_slice = Job(self._subscriptions.give_back, SLICE)
            self.post(self._next_slice)

    async def sync_at_intervals(self) -> None:
        """Syncs now and then what has happened, with durability `interval`. Never returns."""
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
