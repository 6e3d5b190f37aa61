"""Implements group commit: runs the requests of all connections as batches, each with one commit.

How it works. Connections add their requests to `scheduled` in a poll cycle of the hub. At the end of the cycle the hub
calls `on_poll_end`, and all requests of the cycle are one batch, with one sync: group commit. While the worker thread
makes one batch durable, the next one fills, so batches grow with the number of clients by themselves, and no request
waits for a timer. A batch runs in the loop instead if a thread would only cost time: without syncs, with fast commits,
or with one client.

A batch has one of three forms, in `_batch`:
- With queues of files, the batch does its pushes first, so that their files are synced together (1.5 times as fast with
  16 programs that push and 16 that receive).
- With other queues, the pushes of one message each with which the works begin are merged into one push for each queue,
  which takes half the time (scripts/bench/documents.py); then the other requests follow in their order.
- With a history, each request runs by itself, because each event needs the address of its client.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import trio

from qs_schemas import PushMessage
from qs_storage.engine import LEFT, SECOND, Clock, Durability, Effects, Engine, NoRoomError, StorageError

from .gatherer import Gatherer
from .jobs import Job, Waiters, Work
from .subscriptions import SLICE, Subscriptions

if TYPE_CHECKING:
    from ..history.history import History

_logger = logging.getLogger(__name__)
_INTERVAL = 0.05
"""Seconds between syncs with durability `interval`: the flag promises 50 ms."""
_MESSAGES = 2000
"""Messages after which no more work is added to a batch: some 300 ms if each is synced."""
_LEAST = 4096
"""Bytes of room with which work that pushes nothing may begin after pushes: what needs more begins the next batch. Less
than for pushes, which would otherwise keep deletes and receives out of every batch."""
_MERGED = 4 << 20
"""Bytes of payload after which no other client's messages are added to a merged push."""
_NEVER = float("inf")


class Alarm:
    """Keeps the next time at which something is due, which batches set, and lets one task sleep until then.

    Ensures that `wait` returns when the time that was set last has come, and not before. Only an earlier time wakes the
    task. For a later time, or none, the task wakes at the old time and sleeps again: that costs less than waking the
    task for each request.

    Assumes the loop's thread, and one task that waits."""

    def __init__(self) -> None:
        self.due: int | None = None
        """Microseconds by the engine's clock, None if nothing is due."""
        self.sleeps_until = _NEVER
        """The time at which the task wakes. A `due` before it takes effect by `set`."""
        self._earlier = trio.Event()

    def set(self, due: int | None) -> None:
        self.due = due
        if due is not None and due < self.sleeps_until:
            self.sleeps_until = due
            self._earlier.set()

    async def wait(self, clock: Clock) -> None:
        """Sleeps until the time `due` has come, also if `due` changes meanwhile. clock: the engine's clock."""
        while True:
            self.sleeps_until, self._earlier = _NEVER if self.due is None else self.due, trio.Event()
            with trio.move_on_after(max(self.sleeps_until - clock(), 0) / SECOND) as sleep:
                await self._earlier.wait()
            # Without a time-out the task was woken for an earlier time. After a time-out, `due` may have become later.
            if sleep.cancelled_caught and self.due is not None and self.due <= clock():
                return


class Committer:
    """Runs batches on the engine.

    Ensures:
    1. No request is answered before the batch in which it ran is committed. When the commit fails, the engine takes the
       batch back, and every request of it is refused.
    2. Before a batch runs, the engine secures `LEFT` bytes of room, or as many as the batch's first work needs, if the
       disk has them. Work that lacks room has changed nothing, and comes first in the next batch, with room secured for
       it. A request that lacks room even then is refused, and the work goes on with its next request.
    3. Work that has to come first (upkeep, changes by other programs) runs before its batch has changed anything.
    4. Batches are bounded: in messages, and in bytes by the room. Work that no request bounds is done in slices, with
       requests of other clients in between.

    Assumes that nothing else uses the engine once the server runs, that the loop's thread runs all of this except
    `_batch`, and that the engine commits nothing inside a request. So the engine needs no lock: while the worker
    thread runs a batch, the loop leaves it alone and only schedules work.

    A committer must never end work half way (so cancellation waits), block the loop for a slow commit, or know what a
    request means, except that it merges pushes of one message.
    """

    def __init__(
        self,
        storage: Engine,
        durability: Durability,
        waiters: Waiters,
        subscriptions: Subscriptions,
        history: "History | None" = None,
    ) -> None:
        """history: the lifecycle record, None without one."""
        self._storage = storage
        self._durability = durability
        self._waiters = waiters
        self._subscriptions = subscriptions
        self._history = history
        self._more = trio.Event()  # wakes `serve`
        self._dirty = trio.Event()  # wakes `sync_at_intervals`
        self._next_slice: Job | None = None  # the job that gives back messages of closed connections
        self._syncs = durability is Durability.ALWAYS
        self._complaint = ""  # the last logged line about missing room
        self._commit_is_cheap = self._pushes_first = False  # both come from the last batch's effects
        self._room = storage.room
        self._has_subscribers = False  # True if the last batch had work for subscribers
        self._busy = False  # True while the worker thread runs a batch
        self.gatherer = Gatherer()
        """Begins operations that need no batch, when a poll cycle or a batch ends."""
        self.scheduled: list[Work] = []
        """The work for the next batches. What is added in a poll cycle is run at its end."""
        self.served = 0
        """The number of request batches and jobs run so far."""
        self._clients = 0
        self.expiry = Alarm()
        """The time at which the next window or delay ends."""
        self.upkeep = Alarm()
        """The time at which the engine's upkeep is due."""

    # -- scheduling

    def note_clients(self, count: int) -> None:
        """Notes the number of connections: with only one, a thread for its batches would only cost time."""
        self._clients = count

    @property
    def runs_in_loop(self) -> bool:
        """True if the next batch runs in the loop, at the end of a poll cycle or at once."""
        return not self._busy and (self._commit_is_cheap or not self._syncs or self._clients <= 1)

    async def run(self, work: Work) -> None:
        """Runs the work until it is done or has to wait, and commits. `work.pause` tells why it waits. Ignores
        cancellation, so that no work is left half done."""
        if not self.scheduled and self.runs_in_loop:
            batch = [work]
            self._finish(batch, self._batch(batch))
            return
        done = trio.Event()
        work.on_batch_end = done.set
        self.post(work)
        with trio.CancelScope(shield=True):
            await done.wait()

    async def call(self, function: Callable[[], object], *, is_first: bool = False) -> bool:
        """Runs a function on the engine, in a batch. Returns False if the function or its commit failed. is_first: True
        if the function has to run first in its batch."""
        job = Job(function, is_first=is_first)
        while job.unanswered:  # the function lacked room, or its batch failed before
            await self.run(job)
        return not job.failed

    def post(self, work: Work) -> None:
        """Schedules the work for one of the next batches, and returns at once."""
        if work.on_batch_end is None:
            work.on_batch_end = partial(self._post_again, work)  # since nobody waits for its end
        self.scheduled.append(work)
        self._more.set()

    def wake(self) -> None:
        """Begins the operations that were added, soon. Call it after adding some outside of a poll cycle."""
        self._more.set()

    def _post_again(self, work: Work) -> None:
        """Schedules work again that was not run, because it lacked room or its batch failed before."""
        if work.runnable:
            self.post(work)

    def on_poll_end(self) -> bool:
        """Begins the operations of this poll cycle. Runs its batch, if it can run in the loop. Returns False if work is
        left for `serve`."""
        if self.gatherer.begun:
            self.gatherer.submit()
        if self.scheduled and not self._busy and (self._commit_is_cheap or self.runs_in_loop):
            # With one client there is one work in a cycle, and no list has to be divided.
            batch = self._next_batch() if len(self.scheduled) > 1 else self.scheduled
            if batch is self.scheduled:
                self.scheduled = []
            self._finish(batch, self._batch(batch))
        if not self.scheduled:
            return True
        self._more.set()
        return False

    async def serve(self) -> None:
        """Runs scheduled work until cancelled, in the worker thread or in the loop."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            self.gatherer.submit()
            while self.scheduled:
                if self.runs_in_loop:
                    await trio.lowlevel.checkpoint()  # lets other tasks run between batches
                    if self.scheduled:
                        batch = self._next_batch()
                        self._finish(batch, self._batch(batch))
                else:
                    batch = self._next_batch()
                    self._busy = True
                    # A commit that has begun cannot be called back, and its requests must get their answers.
                    with trio.CancelScope(shield=True):
                        effects = await trio.to_thread.run_sync(self._batch, batch)
                    self._busy = False
                    self._finish(batch, effects)

    def _next_batch(self) -> list[Work]:
        """Takes scheduled work for one batch: at most `_MESSAGES`, so that later requests do not wait too long, and
        nothing from the next work on that has to be first in its batch."""
        messages = taken = 0
        for work in self.scheduled:
            if messages >= _MESSAGES or (taken and work.is_first):
                break
            messages += work.weight
            taken += 1
        batch, self.scheduled = self.scheduled[:taken], self.scheduled[taken:]
        return batch

    # -- one batch, in the worker thread or in the loop

    def _batch(self, works: Sequence[Work]) -> Effects:  # noqa: C901, PLR0912 - its steps, without a call each
        """Runs one batch with its commit. Returns the effects of the commit."""
        # No work may raise here for a fault of one request: an error is one of the engine, and concerns the batch.
        storage, history, first = self._storage, self._history, works[0]
        try:
            least = self._room
            if first.lacked is not None or least < LEFT:
                self._secure(first.lacked)
                least = storage.room
            least = min(least, LEFT)  # a full disk has no more room for the next batch either
            if self._syncs and self._pushes_first:
                self._advance_by_kind(works, least)
            else:
                others = works
                if first.is_first:  # nearly every second batch first reads changes by other programs
                    if history is not None:
                        history.begin(first.peer)
                    first.advance(None)
                    others = works[1:]
                if history is None and (len(others) > 1 or (others and others[0].may_push)):
                    _push_together(storage, others)  # not with a history, which needs each push's client
                for work in others:
                    if not work.unanswered:
                        continue
                    # The first work always runs, so that each batch gets something done.
                    if work is not first and storage.room < least:
                        break  # this work and all later ones are left for the next batch
                    if history is not None:
                        history.begin(work.peer)
                    work.advance(None)
            if history is not None:
                history.begin("")  # events of the commit itself belong to no client
            effects = storage.commit()
        except Exception as error:
            effects = self._take_back(works, error)
        self._commit_is_cheap, self._pushes_first = effects.commit_is_cheap, effects.pushes_first
        self._room = effects.room
        self._has_subscribers = self._subscriptions.busy
        if self._has_subscribers:
            effects = self._deliver(effects)
        if history is not None:
            history.commit()
        return effects

    def _secure(self, lacked: NoRoomError | None) -> None:
        """Secures room for a batch. If that fails, requests that lack room are refused."""
        complaint = ""
        try:
            self._storage.secure(lacked)
        except OSError as error:
            complaint = str(error)
            if complaint != self._complaint:  # once, not for each batch
                _logger.error("no room could be made for requests: %s", error)
        self._complaint = complaint

    def _take_back(self, works: Sequence[Work], error: Exception) -> Effects:
        """Refuses a batch that failed: no request of it may be answered as done."""
        expected = isinstance(error, OSError)  # any other error is a fault of the code: traceback
        _logger.error("a commit failed, and its requests are refused: %s", error, exc_info=not expected)
        self._storage.roll_back()
        for work in works:
            work.fail(error)
        if self._history is not None:
            self._history.discard()
        return self._storage.effects()

    def _advance_by_kind(self, works: Sequence[Work], least: int) -> None:
        """Does the pushes of all requests first, so that their files are synced together. least: bytes of room that
        must be free before another work is run."""
        storage, history = self._storage, self._history
        if works[0].is_first:
            works[0].advance(None)
        # In rounds, because a client that pipelines alternates between pushes and other requests, which stay in order.
        while works := [work for work in works if work.runnable and not work.is_first]:
            for pushing in (True, False):
                for work in works:
                    if storage.room < (least if pushing else min(least, _LEAST)):
                        if not pushing:
                            return  # the others are left for the next batch
                        break  # work that pushes nothing still runs
                    if history is not None:
                        history.begin(work.peer)
                    work.advance(pushing)
                # Each half is followed by a read of changes by other processes and of the events of our own: so the
                # next half is up to date, and no events of ours are left at the end.
                self.refresh()
            if storage.room < least:
                return  # the other pushes wait for the next batch; work that pushes nothing has run

    def refresh(self) -> None:
        """Reads changes by other programs. Call it in a batch."""
        try:
            self._storage.refresh()
        except OSError as error:
            _logger.error("changes by other programs could not be read: %s", error)

    def _deliver(self, effects: Effects) -> Effects:
        """Delivers visible messages to subscribers. Runs after the commit, because a message must not be delivered
        before its push is durable; the records of the deliveries' receives need no sync before the messages are sent.
        Returns the effects of the commit and of the deliveries together."""
        arrived, failed = effects.arrived, effects.failed
        more = dict(arrived)
        left = SLICE
        # Until nothing more has come: the refresh may find messages of other programs, and a message that is taken may
        # let another one of its group out. All rounds together deliver one slice.
        while True:
            left = self._subscriptions.dispatch(more, left)
            if self._pushes_first and self._subscriptions.active:  # only queues of files are other programs' too
                self.refresh()
            effects = self._storage.effects()
            more = effects.arrived
            if not more:
                break
            arrived.update(more)
        # The subscriptions are due at times of their own: when leases end, and when a failed queue is tried again.
        due, expiry = self._subscriptions.next_due(), effects.next_expiry
        if due is not None and (expiry is None or due < expiry):
            expiry = due
        return effects._replace(arrived=arrived, failed=failed, next_expiry=expiry)

    # -- the end of a batch, in the loop

    def _finish(self, works: Sequence[Work], effects: Effects) -> None:  # noqa: C901 - as `_batch`
        """Ends a batch: has answers sent, adds waiting works to the waiters, and wakes waiting works whose messages
        have come."""
        self.served += len(works)
        for work in works:
            if effects.failed:
                work.fail_pushes(effects.failed)
            pause = work.pause
            if pause is not None and pause.qids:
                self._waiters.add(work, pause)
            on_batch_end, work.on_batch_end = work.on_batch_end, None  # before the call, which may post the work again
            if on_batch_end is not None:
                on_batch_end()
        if self._has_subscribers:  # behind the answers, with which a session has sent its own client's deliveries
            self._serve_subscribers()
        # After the works of the batch, so that works that have just begun to wait are woken too.
        if effects.arrived and self._waiters.any:
            self._waiters.wake_all(effects.arrived)
        for alarm, due in ((self.expiry, effects.next_expiry), (self.upkeep, effects.next_upkeep)):
            alarm.due = due  # `set` is called only for an earlier time: most batches have none
            if due is not None and due < alarm.sleeps_until:
                alarm.set(due)
        if self._durability is Durability.INTERVAL:
            self._dirty.set()
        if self.gatherer.begun:
            self.gatherer.submit()
        if self.scheduled:
            self._more.set()

    def _serve_subscribers(self) -> None:
        """Sends subscribers their pending deliveries, and schedules the next slice."""
        for subscriber in self._subscriptions.take_mail():
            subscriber.deliver()
        if self._subscriptions.unfinished and (self._next_slice is None or not self._next_slice.unanswered):
            # One slice at a time. The job's weight is that of a slice, so that its batch takes fewer requests.
            self._next_slice = Job(self._subscriptions.give_back, SLICE)
            self.post(self._next_slice)

    async def give_back(self) -> None:
        """Releases all messages of closed connections. Call it when there are no connections."""
        while True:
            await self.call(self._subscriptions.give_back)  # behind the jobs with which the connections have left
            if not self._subscriptions.leaving:
                break
            await trio.lowlevel.checkpoint()

    async def sync_at_intervals(self) -> None:
        """Syncs at most every `_INTERVAL`, for durability `interval`. Never returns."""
        while True:
            await self._dirty.wait()
            await trio.sleep(_INTERVAL)
            self._dirty = trio.Event()  # before the sync: later changes are for the next sync
            sync = self._storage.background_sync()
            if sync is None:
                continue
            try:
                await trio.to_thread.run_sync(sync)
            except OSError as error:
                _logger.error("the file system could not be synced: %s", error)


def _push_together(storage: Engine, works: Sequence[Work]) -> None:
    """Merges the next pushes of all works, queue by queue, for queues that are faster with many at once. Leaves out
    pushes with lists, delays or keys. A merged push fails as a whole: then each push is handled by itself later, and
    gets its own error."""
    runs: dict[str, list[tuple[Work, list[PushMessage]]]] = {}
    for work in works:
        if work.may_push and (pushes := work.pushes()):
            runs.setdefault(pushes[0].qid or "", []).append((work, pushes))
    for qid, found in runs.items():
        _push_run(storage, qid, found)


def _push_run(storage: Engine, qid: str, found: list[tuple[Work, list[PushMessage]]]) -> None:
    """Does the pushes to one queue as one push. found: works, each with its pushes."""
    payloads: list[bytes] = []
    size = taken = 0
    try:
        push = storage.queue(qid).push_payloads
        if push is None:
            return
        for _, pushes in found:
            if size > _MERGED:
                break
            for request in pushes:
                payload = cast(bytes, request.payload)  # see `Work.pushes`
                payloads.append(payload)
                size += len(payload)
            taken += 1
        mids = iter(push(payloads))
    except (StorageError, OSError):
        return
    for work, pushes in found[:taken]:
        work.pushed(pushes, mids)
