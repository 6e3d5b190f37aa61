"""Group commit: runs the requests of all connections as batches, each with one commit.

While the worker thread makes one batch durable, the next one fills. A batch runs in the loop instead if a thread would
only cost time: without syncs, with fast commits, or with one client.

With queues of files, a batch does its pushes first, so that their files are synced together (1.5 times as fast with 16
programs that push and 16 that receive). With other queues, the pushes of a batch, from many clients or from one that
pipelines, are merged into one push for each queue, in half the time (scripts/bench/second_paths.py).
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, repeat

import trio

from qs_schemas import PushMessage
from qs_storage.engine import LEFT, SECOND, Clock, Draft, Durability, Effects, Engine, NoRoomError, StorageError
from qs_storage.shared import Record

from .jobs import Job, Waiters, Work
from .subscriptions import SLICE, Subscriptions

_logger = logging.getLogger(__name__)
_INTERVAL = 0.05
"""Seconds between syncs with durability `interval`."""
_MESSAGES = 2000
"""Messages after which no more work is added to a batch: some 300 ms if each is synced."""
_LEAST = 4096
"""Bytes of room with which work that pushes nothing may begin after pushes: what needs more begins the next batch."""
_ENOUGH = 3
"""Messages that must be exceeded for a merged push."""
_MERGED = 4 << 20
"""Bytes of payload after which no other client's messages are added to a merged push."""
_NEVER = float("inf")
_new = tuple.__new__


class Alarm:
    """The next time at which something is due, which batches set, and the sleep of a task until then. Use it in the
    loop's thread.

    Only an earlier time wakes the task. For a later time, or none, the task wakes at the old time and sleeps again:
    this costs less than waking it for each request."""

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
        """Sleeps until the time has come, even if it changes meanwhile. clock: the engine's."""
        while True:
            self.sleeps_until, self._earlier = _NEVER if self.due is None else self.due, trio.Event()
            with trio.move_on_after(max(self.sleeps_until - clock(), 0) / SECOND) as sleep:
                await self._earlier.wait()
            if sleep.cancelled_caught and self.due is not None and self.due <= clock():
                return


class Committer:
    """Runs batches on the engine.

    Ensures:
    1. No request is answered before the batch in which it ran is committed. When the commit fails, the engine takes the
       batch back, and every request of it is refused.
    2. A batch begins with `LEFT` bytes of room in the engine, or as many as its first work needs, if the disk has them.
       Work that lacks room has changed nothing; it begins the next batch, with room secured for it. What still lacks
       room then is refused, and the work goes on with its next request.
    3. Work that has to come first (upkeep, changes by other programs) runs before its batch has changed anything.
    4. Batches are bounded: in messages, and in bytes by the room. What no request bounds is done in slices, with the
       requests of others in between.

    Assumes that nothing else uses the engine once the server runs, that the loop's thread runs all of this except
    `_batch`, and that the engine commits nothing inside a request.

    It must never end work half way (so cancellation waits), block the loop for a slow commit, or know what a request
    means.
    """

    def __init__(
        self,
        storage: Engine,
        durability: Durability,
        waiters: Waiters,
        subscriptions: Subscriptions,
        record: Record | None = None,
    ) -> None:
        """record: the lifecycle record, None if it is off."""
        self._storage = storage
        self._durability = durability
        self._waiters = waiters
        self._subscriptions = subscriptions
        self._record = record
        self._more = trio.Event()
        self._dirty = trio.Event()
        self._next_slice: Job | None = None
        self._syncs = durability is Durability.ALWAYS
        self._complaint = ""  # about room, as it was said last
        self._commit_is_cheap = self._pushes_first = False  # these are from the last batch's effects
        self._room = storage.room
        self._has_subscribers = False  # True if the last batch had work for subscribers
        self._busy = False  # True while the worker thread runs a batch
        self.scheduled: list[Work] = []
        """The work for the next batches. What is added in a poll cycle is run at its end."""
        self.served = 0
        """The number of request batches and jobs run so far."""
        self.clients = 0
        """The number of connections."""
        self.expiry = Alarm()
        """The time at which the next window or delay ends."""
        self.upkeep = Alarm()
        """The time at which the engine's upkeep is due."""

    # -- scheduling

    @property
    def runs_in_loop(self) -> bool:
        """True if the next batch runs in the loop, at the end of a poll cycle or at once."""
        return not self._busy and (self._commit_is_cheap or not self._syncs or self.clients <= 1)

    async def run(self, work: Work) -> None:
        """Advances the work until it is done or has to wait, and commits; `work.pause` tells why it waits. Ignores
        cancellation, so that no work is left half done."""
        if not self.scheduled and self.runs_in_loop:
            batch = [work]
            self._finish(batch, self._batch(batch))
            return
        done = trio.Event()
        work.ended = done.set
        self.post(work)
        with trio.CancelScope(shield=True):
            await done.wait()

    async def call(self, function: Callable[[], object], *, begins: bool = False) -> bool:
        """Runs a function on the engine, in a batch. Returns False if the function or its commit failed. begins: True
        if it has to be the first of the batch."""
        job = Job(function, begins=begins)
        while job.left:  # it lacked room, or its batch failed before
            await self.run(job)
        return not job.failed

    def post(self, work: Work) -> None:
        """Schedules the work for one of the next batches, and returns at once."""
        if work.ended is None:
            work.ended = partial(self._post_again, work)
        self.scheduled.append(work)
        self._more.set()

    def _post_again(self, work: Work) -> None:
        """Schedules work again that was not run, because it lacked room or its batch failed before."""
        if work.runnable:
            self.post(work)

    def on_poll_end(self) -> bool:
        """Runs the batch of this poll cycle, if it is one for the loop. Returns False if work is left for `serve`."""
        if self.scheduled and not self._busy and (self._commit_is_cheap or self.runs_in_loop):
            batch = self._next_batch() if len(self.scheduled) > 1 else self.scheduled
            if batch is self.scheduled:
                self.scheduled = []
            self._finish(batch, self._batch(batch))
        if not self.scheduled:
            return True
        self._more.set()
        return False

    async def serve(self) -> None:
        """Runs scheduled work until it is cancelled, in the worker thread or in the loop."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self.scheduled:
                if self.runs_in_loop:
                    await trio.lowlevel.checkpoint()  # lets other tasks run between batches
                    if self.scheduled:
                        batch = self._next_batch()
                        self._finish(batch, self._batch(batch))
                else:
                    batch = self._next_batch()
                    self._busy = True
                    with trio.CancelScope(shield=True):
                        effects = await trio.to_thread.run_sync(self._batch, batch)
                    self._busy = False
                    self._finish(batch, effects)

    def _next_batch(self) -> list[Work]:
        """Takes scheduled work, up to `_MESSAGES`, so that later requests do not wait too long, and up to work that
        begins a batch."""
        held = taken = 0
        for work in self.scheduled:
            if held >= _MESSAGES or (taken and work.begins):
                break
            held += work.weight
            taken += 1
        batch, self.scheduled = self.scheduled[:taken], self.scheduled[taken:]
        return batch

    # -- one batch, in the worker thread or in the loop

    def _batch(self, works: Sequence[Work]) -> Effects:  # noqa: C901, PLR0912 - its steps, without a call each
        """Runs one batch with its commit."""
        storage, record, first = self._storage, self._record, works[0]
        try:
            least = self._room
            if first.lacked is not None or least < LEFT:
                self._secure(first.lacked)
                least = storage.room
            least = min(least, LEFT)  # a full disk has no more for the next batch either
            if self._syncs and self._pushes_first:
                self._advance_by_kind(works, least)
            else:
                others = works
                if first.begins:  # nearly every second batch begins with a look at changes by other programs
                    if record is not None:
                        record.begin(first.peer)
                    first.advance(None)
                    others = works[1:]
                if record is None and (len(others) > 1 or (others and others[0].left > 1)):
                    _push_together(storage, others)  # not with a lifecycle record, which needs each push's client
                for work in others:
                    if work is not first and storage.room < least:
                        break  # it is left for the next batch, with those behind it
                    if record is not None:
                        record.begin(work.peer)
                    work.advance(None)
            if record is not None:
                record.begin("")
            effects = storage.commit()
        except Exception as error:
            effects = self._take_back(works, error)
        self._commit_is_cheap, self._pushes_first = effects.commit_is_cheap, effects.pushes_first
        self._room = effects.room
        self._has_subscribers = self._subscriptions.busy
        if self._has_subscribers:
            effects = self._hand_out(effects)
        if record is not None:
            record.commit()
        return effects

    def _secure(self, lacked: NoRoomError | None) -> None:
        """Secures room for a batch. Without it, requests are refused as they find none."""
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
        known = isinstance(error, OSError)
        _logger.error("a commit failed, and its requests are refused: %s", error, exc_info=not known)
        self._storage.roll_back()
        for work in works:
            work.fail(error)
        if self._record is not None:
            self._record.discard()
        return self._storage.effects()

    def _advance_by_kind(self, works: Sequence[Work], least: int) -> None:
        """Does the pushes of all requests first, so that their files are synced together. least: bytes of room with
        which work may begin."""
        storage, record = self._storage, self._record
        if works[0].begins:
            works[0].advance(None)
        while works := [work for work in works if work.runnable and not work.begins]:
            for pushing in (True, False):
                for work in works:
                    if storage.room < (least if pushing else min(least, _LEAST)):
                        if not pushing:
                            return  # the others are left for the next batch
                        break  # what pushes nothing has its turn all the same
                    if record is not None:
                        record.begin(work.peer)
                    work.advance(pushing)
                # Reads changes by other processes, and the events of our own, after each half: so the next half is up
                # to date, and no events of ours are left at the end.
                self.refresh()
            if storage.room < least:
                return  # the pushes that are left wait for the next batch; what pushes nothing had its turn

    def refresh(self) -> None:
        """Reads changes by other programs. Call it in a batch."""
        try:
            self._storage.refresh()
        except OSError as error:
            _logger.error("changes by other programs could not be read: %s", error)

    def _hand_out(self, effects: Effects) -> Effects:
        """Delivers visible messages to subscribers, after the commit. Returns all effects, with those of the
        delivery."""
        arrived, failed = effects.arrived, effects.failed
        more = dict(arrived)
        while True:
            self._subscriptions.dispatch(more)
            if self._subscriptions.active:
                self.refresh()
            effects = self._storage.effects()
            more = effects.arrived
            if not more:
                break
            arrived.update(more)
        due, expiry = self._subscriptions.next_due(), effects.next_expiry
        if due is not None and (expiry is None or due < expiry):
            expiry = due
        return effects._replace(arrived=arrived, failed=failed, next_expiry=expiry)

    # -- the end of a batch, in the loop

    def _finish(self, works: Sequence[Work], effects: Effects) -> None:  # noqa: C901 - as `_batch`
        """Ends a batch: has answers sent, adds works that wait to the waiters, and wakes those that can go on."""
        self.served += len(works)
        if self._has_subscribers:
            self._serve_subscribers()
        for work in works:
            if effects.failed:
                work.fail_pushes(effects.failed)
            pause = work.pause
            if pause is not None and pause.qids:
                self._waiters.add(work, pause)
            ended, work.ended = work.ended, None
            if ended is not None:
                ended()
        if effects.arrived and self._waiters.any:
            self._waiters.wake_all(effects.arrived)
        for alarm, due in ((self.expiry, effects.next_expiry), (self.upkeep, effects.next_upkeep)):
            alarm.due = due
            if due is not None and due < alarm.sleeps_until:
                alarm.set(due)
        if self._durability is Durability.INTERVAL:
            self._dirty.set()
        if self.scheduled:
            self._more.set()

    def _serve_subscribers(self) -> None:
        """Sends subscribers their mail, and schedules the next slice."""
        for subscriber in self._subscriptions.take_mail():
            subscriber.deliver()
        if self._subscriptions.unfinished and (self._next_slice is None or not self._next_slice.left):
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
            self._dirty = trio.Event()
            sync = self._storage.background_sync()
            if sync is None:
                continue
            try:
                await trio.to_thread.run_sync(sync)
            except OSError as error:
                _logger.error("the file system could not be synced: %s", error)


def _push_together(storage: Engine, works: Sequence[Work]) -> None:
    """Does the next pushes of each work, queue by queue, for queues that are faster with many at once. Pushes with
    lists, delays or keys, and those that fail here, are handled like any other request."""
    runs: dict[str, list[tuple[Work, list[PushMessage]]]] = {}
    for work in works:
        pushes = work.pushes()
        if pushes:
            runs.setdefault(pushes[0].qid or "", []).append((work, pushes))
    for qid, found in runs.items():
        if len(found) + len(found[0][1]) > _ENOUGH:
            _push_run(storage, qid, found)


def _push_run(storage: Engine, qid: str, found: list[tuple[Work, list[PushMessage]]]) -> None:
    drafts: list[Draft] = []
    size = taken = 0
    try:
        queue = storage.queue(qid)
        if not queue.merges_pushes:
            return
        for _, pushes in found:
            if size > _MERGED:
                break
            payloads = [p if isinstance(p := push.payload, bytes) else (p or "").encode() for push in pushes]
            size += sum(map(len, payloads))
            drafts += map(_new, repeat(Draft), zip(payloads, repeat(0), repeat(None)))  # half the time of `Draft(…)`
            taken += 1
        mids = iter(queue.push(drafts))
    except (StorageError, OSError):
        return
    for work, pushes in found[:taken]:
        work.pushed(islice(mids, len(pushes)))
