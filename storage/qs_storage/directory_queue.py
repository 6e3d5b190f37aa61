"""A queue in a directory that other programs may share. Every operation acts on the files at once."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from .directory_dead_letters import DirectoryDeadLetters
from .directory_retirement import DirectoryRetirement
from .engine import (
    Message,
    NoSuchMessageError,
    Options,
    Origin,
    OtherMessageError,
    Receipt,
    StaleReceiptError,
    State,
    Stats,
    not_in_flight,
)
from .index.queries import IndexQueries
from .message_state import FOREIGN, MessageState
from .message_store import DirectoryWatch, MessageMover, MessageStore
from .policy import backoff_of, dead_letter_queue, refuse_reason, refuse_reject, refuse_uncounted, with_origin
from .publisher import Publisher, Writer
from .queues import EngineQueue
from .recording import QueueRecorder
from .shared import Shared

_AT_ONCE = 1000
"""Messages in one slice of `prepare_stats` or `purge`: some 30 ms."""
_MOVES = 20
_AS_LONG_AS = 25
"""Windows that can be ended in the time of a move, for which a file is synced."""


class DirectoryQueue:
    """See EngineQueue. For one thread at a time. Locks of other programs raise StaleReceiptError."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None

    def __init__(  # noqa: PLR0917
        self,
        path: str,
        qid: str,
        options: Options,
        shared: Shared,
        store: MessageStore,
        writer: Writer[Any],
        watch: DirectoryWatch,
        dismantle: Callable[[], None],
        mover: MessageMover | None = None,
    ) -> None:
        """path: is listed at once; dismantle: removes what is no file; mover: None without dead letters. OSError."""
        self.path = path
        self.qid = qid
        self.options = options
        self.watch = watch
        self.dismantle = dismantle
        self._clock = shared.clock
        self._refresh = shared.watch.refresh
        self._find_or_make = shared.find_or_make
        self._store = store
        self._writer = writer
        index = self._index = store.index
        self._recorder = QueueRecorder(qid, index, shared)
        self._publisher = Publisher(qid, options, writer, shared, index.__len__)
        self.counts = self._publisher.counts
        self._queries = IndexQueries(index, store.load, _AT_ONCE)
        self._origins: Mapping[int, Origin] = {} if mover is None else mover.origins
        self._reasons: Mapping[int, str] = {} if mover is None else mover.reasons
        self.redrive: DirectoryDeadLetters | None = None
        if mover is not None:
            self.redrive = DirectoryDeadLetters(store, mover, self._publisher, self._recorder, self._find_dead_letters)
        self.push = self._publisher.push
        self.flush = self._publisher.flush
        self.note_removed = self._recorder.note_all_deleted
        self.prepare_stats = self._queries.prepare
        self.time = store.pushed_at
        self.arrived = store.arrived
        self.in_place = store.in_place
        self._retirement = DirectoryRetirement(options, store, self._recorder, self.counts)
        self.retire, self.next_expiry = self._retirement.retire, self._retirement.next_due
        self.commit = store.commit
        self.file_of = store.path_of
        try:
            watch.rescan()
        except BaseException:
            watch.unwatch()
            raise

    def _find_dead_letters(self) -> DirectoryDeadLetters | None:
        """Returns those of the dead-letter queue, which is made if needed. StorageError, OSError."""
        return dead_letter_queue(self._find_or_make, self.options, DirectoryQueue).redrive

    def __len__(self) -> int:
        return len(self._index)

    @property
    def last_mid(self) -> int:
        return self._store.last_mid

    def close(self) -> list[int]:
        left = self._publisher.close()
        self.watch.unwatch()
        return left

    # -- receiving ------------------------------------------------------------------------------------------------

    def first_ready(self) -> int | None:
        self._publisher.publish()
        if self.options.retention is None:
            return self._index.ready.first()
        found = self._index.ready.after(self._retirement.upto(), 1)
        return found[0] if found else None

    @property
    def ready(self) -> int:
        return len(self._index.ready)

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        store = self._store
        with store.exclusive(mid) as state:
            if state is None or state.hidden:
                return None
            payload = store.read(mid, 0, max_bytes)
            if payload is None:
                return None
            taken = MessageState(self._end_of(visibility), state.receives + 1)
            if not store.hide(mid, state, taken, durable=not held):
                return None
        self.counts.delivered += 1
        self.counts.redelivered += taken.receives > 1
        self._recorder.note("received", mid, taken.receives)
        return self._message(mid, "delivered", taken, payload)

    def _message(self, mid: int, status: str, state: MessageState, payload: bytes | None = None) -> Message:
        visible_at = None if state.hidden in (0, FOREIGN) else self._store.time(state.hidden)
        message = Message(self.qid, mid, status, state.receives, self.time(mid), visible_at, payload)
        if self._reasons:
            message.reason = self._reasons.get(mid)
        return with_origin(message, self._origins)

    def _end_of(self, visibility: int | None) -> int:
        window = self.options.visibility if visibility is None else visibility
        return max(self._store.number(self._clock() + window), 1)

    # -- looking --------------------------------------------------------------------------------------------------

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        while True:
            self.expire()
            state = self._find(mid)
            if not state.hidden and mid <= self._retirement.upto():
                raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}: it is too old")
            if not state.hidden and not peek and self.options.paused:
                return self._message(mid, "ready", state)
            message = self._look_at(mid, state) if state.hidden or peek else self.take(mid, visibility)
            if message is not None:
                return message

    def _look_at(self, mid: int, state: MessageState) -> Message | None:
        status = "ready" if not state.hidden else "delayed" if state.delayed else "in-flight"
        payload = None if state.hidden else self._store.read(mid, 0)
        if payload is None and not state.hidden:
            return None
        return self._message(mid, status, state, payload)

    def read(self, receipt: Receipt) -> Message:
        while True:
            state = self._find(receipt.mid)
            if self._matches(receipt, state):
                payload = self._store.read(receipt.mid, state.hidden)
                if payload is not None:
                    return self._message(receipt.mid, "delivered", state, payload)

    def _find(self, mid: int) -> MessageState:
        """Raises NoSuchMessageError."""
        self._publisher.publish()
        state = self._store.look(mid)
        if state is None:
            raise self._no_such(mid)
        return state

    def _no_such(self, mid: int) -> NoSuchMessageError:
        return NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")

    def _matches(self, receipt: Receipt, state: MessageState) -> bool:
        """Tells whether a message is as the receipt says; False: look again. StaleReceiptError."""
        mid, seen = receipt
        if seen is None or state.receives == seen:
            return True
        if not self._store.is_current(mid, state):
            return False
        raise StaleReceiptError(
            f"message {mid} of queue {self.qid!r} has been received {state.receives} times by now, not {seen}"
        )

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        self._publisher.publish()
        self.expire()
        return self._queries.list_mids(state, count, after)

    def stats(self) -> Stats:
        self._publisher.publish()
        self.expire()
        return self._queries.stats(self.counts, lambda mid: self._clock() - self.time(mid))

    # -- copying --------------------------------------------------------------------------------------------------

    def payload_of(self, mid: int) -> bytes:
        while True:
            payload = self._store.read(mid, self._find(mid).hidden)
            if payload is not None:
                return payload

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """See EngineQueue. FileExistsError for an id that another process is writing."""
        self._publisher.publish()
        payload = source.payload_of(mid)
        if self._holds(mid, payload):
            return False
        self._publisher.require_room(1)
        file = source.file_of(mid) if isinstance(source, DirectoryQueue) else None
        staged = self._writer.write_copy(mid, payload, file)
        self._store.saw(mid)
        self._refresh()  # whoever has pushed or copied one of that id has been reported by now
        taken = False
        try:
            taken = not self._holds(mid, payload)
        finally:
            if not taken:
                self._writer.discard([staged])
        if taken:
            self._publisher.publish_copy(staged)
        return taken

    def _holds(self, mid: int, payload: bytes) -> bool:
        """Tells whether the message is here. OtherMessageError for another one of that id."""
        while (state := self._store.look(mid)) is not None:
            own = self._store.read(mid, state.hidden)
            if own is not None:
                if own != payload:
                    raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
                return True
        return False

    # -- ending or moving a window --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _held(self, receipt: Receipt, *, removing: bool = False) -> Iterator[MessageState]:
        """Keeps other servers away from a message, and gives its state. NoSuchMessageError, StaleReceiptError."""
        self._publisher.publish()
        matches = False
        while not matches:
            with self._store.exclusive(receipt.mid, removing=removing) as state:
                if state is None:
                    raise self._no_such(receipt.mid)
                matches = self._matches(receipt, state)
                if matches and state.hidden == FOREIGN:
                    raise StaleReceiptError(
                        f"message {receipt.mid} of queue {self.qid!r} is locked by another program: it can be changed "
                        "when that has unlocked it"
                    )
                if matches:
                    yield state

    def delete(self, receipt: Receipt) -> None:
        removed = False
        while not removed:
            with self._held(receipt, removing=receipt.receives is None) as state:
                removed = self._remove(receipt.mid, state)
        self.counts.deleted += 1

    def _remove(self, mid: int, state: MessageState) -> bool:
        size = self._index.size(mid)
        removed = self._store.remove(mid, state)
        if removed:
            self._recorder.note_gone("deleted", mid, size, None if state.receives < 0 else state.receives)
        return removed

    def remove(self, mid: int, expiry: int) -> bool:
        with self._store.exclusive(mid, removing=True) as state:
            return state is not None and state.hidden == expiry and self._remove(mid, state)

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        letters, mid, store = self.redrive, receipt.mid, self._store
        if letters is None:
            refuse_uncounted(self.options.storage, count=count)
            refuse_reason(self.options.storage, reason)
        while True:
            self.expire()
            with self._held(receipt) as state:
                if not state.hidden or (state.delayed and receipt.receives is not None):
                    raise not_in_flight(self.qid, mid)
                in_flight = not state.delayed
                receives = state.receives if count or not in_flight else state.receives - 1
                wait = delay or 0
                if delay is None and in_flight and count:
                    wait = backoff_of(self.options, mid, receives)
                until = store.number(self._clock() + wait) if wait else 0
                with contextlib.nullcontext() if letters is None else letters.giving(mid, state, reason):
                    if letters is not None and letters.bury(mid, state, receives, None):
                        return None
                    if mid <= self._retirement.upto():
                        if self._retirement.remove(mid, state, None):
                            return None
                        continue
                    wanted = MessageState(until, receives, delayed=True)
                    if store.hide(mid, state, wanted) if until else store.show(mid, state, receives):
                        self.counts.released += 1
                        self._recorder.note("released", mid, receives)
                        return store.time(until) if until else None

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        letters = self.redrive
        if letters is None:
            raise refuse_reject(self.options.storage)
        rejected = False
        while not rejected:
            self.expire()
            with self._held(receipt) as state:
                rejected = letters.reject(receipt.mid, state, reason)

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        mid, store = receipt.mid, self._store
        while True:
            self.expire()
            with self._held(receipt) as state:
                if not state.hidden or state.delayed:
                    raise not_in_flight(self.qid, mid)
                until = self._end_of(visibility)
                if store.hide(mid, state, MessageState(until, state.receives)):
                    self._recorder.note("extended", mid, state.receives)
                    return store.time(until)

    def purge(self, upto: int, count: int) -> int:
        """See EngineQueue. Messages that others have locked stay."""
        self._publisher.publish()
        removed, after = 0, -1
        try:
            while removed < count and (mids := self._index.messages.after(after, min(count - removed, _AT_ONCE))):
                for mid in mids:
                    after = mid
                    if mid > upto:
                        return removed
                    removed += self._purge_one(mid)
            return removed
        finally:
            self.counts.deleted += removed

    def _purge_one(self, mid: int) -> bool:
        while True:
            with self._store.exclusive(mid, removing=True) as state:
                if state is None or state.hidden == FOREIGN:
                    return False
                if self._remove(mid, state):
                    return True

    # -- time -----------------------------------------------------------------------------------------------------

    def expire(self, count: int | None = None) -> int:
        """See EngineQueue. Moves at most twenty messages to the dead-letter queue, which count as 25 each."""
        done = moved = 0
        now, upto = self._store.number(self._clock()), self._retirement.upto()
        while (count is None or done < count) and moved < _MOVES and (mid := self._store.due(now)) is not None:
            done += 1
            with self._store.exclusive(mid) as state:
                if state is None or not 0 < state.hidden <= now:
                    continue
                if self.redrive is not None and self.redrive.bury(mid, state, state.receives, ""):
                    moved += 1
                    done += _AS_LONG_AS - 1
                    self.counts.expired += not state.delayed
                    continue
                until = self._backed_off_until(mid, state)
                if until > now:
                    ended = self._store.hide(mid, state, MessageState(until, state.receives, delayed=True))
                else:
                    ended = self._store.show(mid, state, state.receives)
            if ended and not state.delayed:
                self.counts.expired += 1
                if mid > upto:  # what is too old is retired instead
                    self._recorder.note("expired", mid, state.receives, peer="")
        return done if count is None else min(done, count)

    def _backed_off_until(self, mid: int, state: MessageState) -> int:
        """Returns until when a message stays hidden whose window or delay is over, 0: no longer. It follows from the
        end of the window, and not from now, so that all servers that share the directory choose the same name."""
        wait = 0 if state.delayed else backoff_of(self.options, mid, state.receives)
        return self._store.number(self._store.time(state.hidden) + wait) if wait else 0
