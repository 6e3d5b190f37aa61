"""A queue of the server in a dirq directory: every operation is what dirq does to the element.

Ready is an element that is not locked; in flight or delayed is one that is locked, as dirq's own consumers lock it. So
any number of processes may work on the directory at once, of ours and of others: making a lock succeeds for one of
them.
"""

from typing import ClassVar

from ..engine import Message, NoSuchMessageError, Options, OtherMessageError, Receipt, StaleReceiptError, State, Stats
from ..index.queries import IndexQueries
from ..publisher import Publisher
from ..queues import EngineQueue
from ..recording import QueueRecorder
from ..shared import Shared
from .body import body_of
from .element_state import FOREIGN, Elements, ElementState
from .layout import Layout
from .lease_metadata import Lease
from .listing import ElementListing
from .mids import time_of
from .places import Places
from .queue_layout import QueueLayout
from .simple_layout import SimpleLayout
from .writer import ElementWriter

_AT_ONCE = 1000
"""Elements that are looked at in one slice of `prepare_stats` or `purge`: some 30 ms."""
_LATEST = 10**17
"""Microseconds: the end of the longest window."""


class DirqQueue:
    """The messages of one directory. Not for several threads at once. See EngineQueue.

    Methods that change a message raise StaleReceiptError also when another program has it locked."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None
    time = staticmethod(time_of)

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        """path: an existing directory, which is listed at once. OSError; StorageError when elements of its schema
        cannot be messages."""
        self.path = path
        self.qid = qid
        self.options = options
        self._clock = shared.clock
        places = Places(shared.watch)
        self._layout = self._make_layout(shared, places)
        elements = self._elements = Elements(path, qid, shared, self._layout, places)
        index = self._index = elements.index
        self._recorder = QueueRecorder(qid, index, shared.lifecycle)
        self.note_removed = self._recorder.note_all_deleted
        self._writer = ElementWriter(qid, elements, shared)
        refresh = shared.watch.refresh
        self._publisher = Publisher(qid, options, self._writer, shared.activity, self._recorder, index.__len__, refresh)
        self._counts = self._publisher.counts
        self.push = self._publisher.push
        self._queries = IndexQueries(index, elements.load, _AT_ONCE)
        self.prepare_stats = self._queries.prepare
        self.arrived = elements.arrived
        self.in_place = elements.in_place
        self.next_expiry = elements.next_expiry
        self.commit = elements.commit
        self.dismantle = self._layout.dismantle
        self._listing = ElementListing(elements, shared, lambda: shared.vanished(qid))
        try:
            self._listing.rescan()
        except BaseException:
            self._listing.unwatch()
            raise

    def _make_layout(self, shared: Shared, places: Places) -> Layout:
        def folder_made(folder: str) -> None:
            self._listing.folder_made(folder)

        if self.options.storage != "dirq":
            return SimpleLayout(
                self.path, shared.disk, sync=shared.always, expect=places.expect, folder_made=folder_made
            )
        body = body_of(self.options)
        return QueueLayout(
            self.path, shared.disk, body, sync=shared.always, expect=places.expect, folder_made=folder_made
        )

    def __len__(self) -> int:
        return len(self._index)

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""
        return self._elements.last_mid

    def close(self) -> list[int]:
        left = self._publisher.close()
        self._layout.bury()
        self._listing.unwatch()
        return left

    # -- receiving ------------------------------------------------------------------------------------------------

    def first_ready(self) -> int | None:
        self._publisher.publish()
        return self._index.ready.first()

    @property
    def ready(self) -> int:
        return len(self._index.ready)

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        with self._elements.exclusive(mid) as state:
            if state is None or state.hidden or (max_bytes is not None and self._index.size(mid) > max_bytes):
                return None
            payload = self._elements.read(mid)
            if payload is None:
                return None
            expiry = self._end_of(visibility)
            receives = state.lease.receives + 1
            lease = Lease(receives, expiry)
            if not self._elements.lock(mid, state, lease):
                return None
        self._elements.hide(mid, lease, durable=not held)
        self._counts.delivered += 1
        self._recorder.note("received", mid, receives)
        return Message(self.qid, mid, "delivered", receives, time_of(mid), expiry, payload)

    def _end_of(self, visibility: int | None) -> int:
        """Returns the end of a window that begins now."""
        window = self.options.visibility if visibility is None else visibility
        return max(min(self._clock() + window, _LATEST), 1)

    # -- looking --------------------------------------------------------------------------------------------------

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        while True:
            self.expire()
            state = self._find(mid)
            message = self._look_at(mid, state) if state.hidden or peek else self.take(mid, visibility)
            if message is not None:
                return message

    def _look_at(self, mid: int, state: ElementState) -> Message | None:
        receives = state.lease.receives
        if state.hidden:
            status = "delayed" if self._index.is_delayed(mid) else "in-flight"
            return Message(self.qid, mid, status, receives, time_of(mid), state.visible_at)
        payload = self._elements.read(mid)
        return None if payload is None else Message(self.qid, mid, "ready", receives, time_of(mid), None, payload)

    def read(self, receipt: Receipt) -> Message:
        mid = receipt.mid
        while True:
            state = self._find(mid)
            self._check(receipt, state)
            payload = self._elements.read(mid)
            if payload is not None:
                receives = state.lease.receives
                return Message(self.qid, mid, "delivered", receives, time_of(mid), state.visible_at, payload)

    def _find(self, mid: int) -> ElementState:
        """Returns how a message is now. NoSuchMessageError."""
        self._publisher.publish()
        state = self._elements.look(mid)
        if state is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return state

    def _check(self, receipt: Receipt, state: ElementState) -> None:
        """StaleReceiptError unless a message is as the holder of the receipt saw it."""
        mid, seen = receipt
        if seen is not None and state.lease.receives != seen:
            raise StaleReceiptError(
                f"message {mid} of queue {self.qid!r} has been received {state.lease.receives} times by now, not {seen}"
            )

    def _check_own(self, receipt: Receipt, state: ElementState) -> None:
        """StaleReceiptError also when another program has locked the message."""
        self._check(receipt, state)
        if state.hidden == FOREIGN:
            raise StaleReceiptError(
                f"message {receipt.mid} of queue {self.qid!r} is locked by another program: it can be changed when "
                "that has unlocked it"
            )

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        self._publisher.publish()
        self.expire()
        return self._queries.list_mids(state, count, after)

    def stats(self) -> Stats:
        self._publisher.publish()
        self.expire()
        return self._queries.stats(self._counts, lambda mid: self._clock() - time_of(mid))

    # -- copying --------------------------------------------------------------------------------------------------

    def payload_of(self, mid: int) -> bytes:
        self._publisher.publish()
        payload = self._payload_if_here(mid)
        if payload is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return payload

    def _payload_if_here(self, mid: int) -> bytes | None:
        while self._elements.look(mid) is not None:
            if (payload := self._elements.read(mid)) is not None:
                return payload
        return None

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        self._publisher.publish()
        payload = source.payload_of(mid)
        if (own := self._payload_if_here(mid)) is not None:
            if own != payload:
                raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
            return False
        self._publisher.require_room(1)
        staged = self._writer.write(mid, payload, 0)
        self._elements.saw(mid)
        self._publisher.publish_copy(staged)
        return True

    # -- ending or moving a window --------------------------------------------------------------------------------

    def delete(self, receipt: Receipt) -> None:
        mid = receipt.mid
        while True:
            self._find(mid)
            with self._elements.exclusive(mid) as state:
                if state is None:
                    continue
                self._check_own(receipt, state)
                if self._remove(mid, state):
                    self._counts.deleted += 1
                    return

    def _remove(self, mid: int, state: ElementState) -> bool:
        size = self._index.size(mid)
        removed = self._elements.remove(mid, state)
        if removed:
            self._recorder.note_deleted(mid, size, state.lease.receives)
        return removed

    def remove(self, mid: int, expiry: int) -> bool:
        with self._elements.exclusive(mid) as state:
            return state is not None and state.hidden == expiry and self._remove(mid, state)

    def release(self, receipt: Receipt, delay: int) -> int | None:
        mid = receipt.mid
        while True:
            self.expire()
            self._find(mid)
            with self._elements.exclusive(mid) as state:
                if state is None:
                    continue
                self._check_own(receipt, state)
                receives = state.lease.receives
                if not delay:
                    if state.hidden:
                        self._elements.unlock(mid, state)
                        self._recorder.note("released", mid, receives)
                    return None
                until = min(self._clock() + delay, _LATEST)
                if self._elements.hide_until(mid, state, Lease(receives, until, delayed=True)):
                    self._recorder.note("released", mid, receives)
                    return until

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        mid = receipt.mid
        while True:
            self.expire()
            self._find(mid)
            with self._elements.exclusive(mid) as state:
                if state is None:
                    continue
                self._check_own(receipt, state)
                if not state.hidden or state.lease.delayed:
                    raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is not in flight")
                until = self._end_of(visibility)
                self._elements.hide_until(mid, state, state.lease._replace(until=until))
                self._recorder.note("extended", mid, state.lease.receives)
                return until

    def purge(self, upto: int, count: int) -> int:
        """See EngineQueue. What others have locked stays."""
        self._publisher.publish()
        removed, after = 0, -1
        try:
            while removed < count and (mids := self._index.messages.after(after, min(count - removed, _AT_ONCE))):
                for mid in mids:
                    after = mid
                    if mid > upto:
                        return removed
                    with self._elements.exclusive(mid) as state:
                        if state is not None and state.hidden != FOREIGN:
                            removed += self._remove(mid, state)
            return removed
        finally:
            self._counts.deleted += removed

    # -- time -----------------------------------------------------------------------------------------------------

    def expire(self, count: int | None = None) -> int:
        """See EngineQueue. Also looks after what others have locked."""
        self._elements.look_at_foreign()
        done = 0
        now = self._clock()
        while (count is None or done < count) and (mid := self._index.due(now)) is not None:
            done += 1
            with self._elements.exclusive(mid) as state:
                if state is None or not 0 < state.hidden <= now:
                    continue  # the index says so too by now
                delayed, receives = state.lease.delayed, state.lease.receives
                self._elements.unlock(mid, state)
            if not delayed:
                self._counts.expired += 1
                self._recorder.note("expired", mid, receives, peer="")
        return done
