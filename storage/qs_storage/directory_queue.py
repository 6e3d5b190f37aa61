"""A queue in a directory that other programs may share. Every operation acts on the files at once."""

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from .engine import (
    Headers,
    Message,
    NoSuchMessageError,
    OtherMessageError,
    Receipt,
    Redrive,
    StaleReceiptError,
    State,
    Stats,
    StorageError,
    not_in_flight,
)
from .headers import trace_of
from .index.queries import IndexQueries
from .message_store import FOREIGN, Content, MessageState, MessageStore, Publisher, Writer
from .policy import (
    backoff_of,
    end_of,
    refuse_reason,
    refuse_reject,
    refuse_uncounted,
    too_old_since,
    with_origin,
)
from .shared import EngineQueue, Event, take_oldest

_AT_ONCE = 1000
"""Messages in one slice of `prepare_stats` or `purge`: some 30 ms."""
_MOVES = 20
"""The most messages that one `expire` moves to the dead-letter queue: each is synced before it moves."""
_AS_LONG_AS = 25
"""The number of windows that can be ended in the time of one move."""


class DirectoryQueue(Publisher):
    """A queue in a directory that other programs may share. For one thread at a time.

    Ensures:
    1. A message is given to one consumer, whatever other processes do with the directory: each change is one step of
       the store, which succeeds for one process, and the others look again.
    2. The disk is the truth, and the index is what was last seen of the disk. An operation that finds something else on
       the disk goes by the disk.
    3. What is counted and reported has happened, and once.

    Assumes that others keep to the layout, and that the clocks of servers that share the directory agree.

    Never waits for another program's lock, which raises StaleReceiptError, and never closes itself: the engine does,
    between two operations.

    A layout with dead letters and reasons has a class of its own, which overrides `redrive`, `reject`, `_noting_reason`
    and `_move_if_exhausted`.
    """

    push_payloads: ClassVar[None] = None
    claims: None = None
    batches: None = None
    has_dead_letters: ClassVar[bool] = False
    """True for a layout that keeps dead letters and reasons."""

    def __init__(self, store: MessageStore, writer: Writer) -> None:
        """Takes a store that is not open yet, opens it, and lists its directory at once. OSError."""
        super().__init__(store, writer)
        self._clock = store.context.clock
        self._queries = IndexQueries(store.index, store.load, _AT_ONCE)
        self._hidden_loaded: object = None
        """The listing of which all hidden messages are loaded: only the disk knows the delayed ones."""
        store.open()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def last_mid(self) -> int:
        return self.store.last_mid

    @property
    def redrive(self) -> Redrive | None:
        return None

    def time(self, number: int) -> int:
        return self.store.pushed_at(number)

    # -- the directory --------------------------------------------------------------------------------------------

    def in_place(self) -> bool:
        return self.store.in_place()

    def arrived(self) -> None:
        self.store.arrived()

    def commit(self) -> None:
        self.store.commit()

    def dismantle(self) -> None:
        self.store.dismantle()

    # -- events ---------------------------------------------------------------------------------------------------

    def _note(self, event: Event, mid: int, receives: int | None, *, peer: str | None = None) -> None:
        """Reports an event of a loaded message to the lifecycle record. peer, receives: see Lifecycle."""
        if self._context.lifecycle is not None:
            trace = None
            if event == "pushed":
                with contextlib.suppress(OSError, StorageError):  # the record never stops what it records
                    trace = trace_of(self.headers_of(mid))
            self._context.lifecycle.note(event, self.qid, mid, self._index.size(mid), receives, peer=peer, trace=trace)

    def _note_gone(
        self, event: Event, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        """Reports to the lifecycle record why a message is gone. peer: see Lifecycle."""
        if self._context.lifecycle is not None:
            self._context.lifecycle.note(event, self.qid, mid, size, receives, peer=peer)

    def note_removed(self) -> None:
        """Reports all messages deleted with the queue, with sizes as far as known."""
        if self._context.lifecycle is not None:
            for mid in self._index.messages.after(-1, len(self._index)):
                self._note_gone("deleted", mid, self._index.known_size(mid), None)

    # -- receiving ------------------------------------------------------------------------------------------------

    def first_ready(self) -> int | None:
        self.publish()
        if self.options.retention is None:
            return self._index.ready.first()
        found = self._index.ready.after(self._too_old(), 1)
        return found[0] if found else None

    @property
    def ready(self) -> int:
        return len(self._index.ready)

    obtainable = ready

    def priority_of(self, mid: int) -> int:
        return 0

    def obey_options(self) -> None:
        self.arrived()  # it may have been paused, and what is there may be too old now

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        store = self.store
        with store.exclusive(mid) as state:
            # Gone, or taken, since it was listed.
            if state is None or state.hidden:
                return None
            # Read before it is taken: if the disk fails, nothing has changed.
            content = store.read(mid, 0, max_bytes)
            if content is None:
                return None
            # From the state on the disk: another server may have received the message before.
            taken = MessageState(self._end_of(visibility), state.receives + 1)
            # Another process was faster: the caller goes on to the next message.
            if not store.hide(mid, state, taken, durable=not held):
                return None
        self.counts.delivered += 1
        self.counts.redelivered += taken.receives > 1
        self._note("received", mid, taken.receives)
        return self._message(mid, "delivered", taken, content)

    def take_first(self, count: int, visibility: int | None, max_bytes: int, *, held: bool = False) -> list[Message]:
        return take_oldest((self,), count, visibility, max_bytes, held=held)

    def _message(self, mid: int, status: str, state: MessageState, content: Content | None = None) -> Message:
        visible_at = None if state.hidden in (0, FOREIGN) else self.store.time(state.hidden)
        message = Message(self.qid, mid, status, state.receives, self.store.pushed_at(mid), visible_at)
        if content is not None:
            message.payload, message.headers = content
        if self.store.reasons:
            message.reason = self.store.reasons.get(mid)
        return with_origin(message, self.store.origins)

    def _end_of(self, visibility: int | None) -> int:
        window = self.options.visibility if visibility is None else visibility
        return max(self.store.number(self._clock() + window), 1)

    # -- looking --------------------------------------------------------------------------------------------------

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        while True:
            self.expire()
            state = self._find(mid)
            if not state.hidden and mid <= self._too_old():
                raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}: it is too old")
            if not state.hidden and not peek and self.options.paused:
                return self._message(mid, "ready", state)
            message = self._look_at(mid, state) if state.hidden or peek else self.take(mid, visibility)
            if message is not None:
                return message

    def _look_at(self, mid: int, state: MessageState) -> Message | None:
        status = "ready" if not state.hidden else "delayed" if state.delayed else "in-flight"
        content = None if state.hidden else self.store.read(mid, 0)
        if content is None and not state.hidden:
            return None
        return self._message(mid, status, state, content)

    def read(self, receipt: Receipt) -> Message:
        while True:
            state = self._find(receipt.mid)
            if self._matches(receipt, state):
                content = self.store.read(receipt.mid, state.hidden)
                if content is not None:
                    return self._message(receipt.mid, "delivered", state, content)

    def _find(self, mid: int) -> MessageState:
        """Returns the state of a message on the disk. NoSuchMessageError."""
        self.publish()
        state = self.store.look(mid)
        if state is None:
            raise self._no_such(mid)
        return state

    def _no_such(self, mid: int) -> NoSuchMessageError:
        return NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")

    def _matches(self, receipt: Receipt, state: MessageState) -> bool:
        """Compares a message with its receipt. Returns False if another process has changed the message, so that the
        caller looks again. StaleReceiptError."""
        mid, seen = receipt
        if seen is None or state.receives == seen:
            return True
        # The count may be of a moment ago: only if the message is still in that state is the receipt too old.
        if not self.store.is_current(mid, state):
            return False
        raise StaleReceiptError(
            f"message {mid} of queue {self.qid!r} has been received {state.receives} times by now, not {seen}"
        )

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        self.publish()
        self.expire()
        return self._queries.list_mids(state, count, after)

    def prepare_stats(self) -> bool:
        return self._queries.prepare()

    def stats(self) -> Stats:
        self.publish()
        self.expire()
        return self._queries.stats(self.counts, lambda mid: self._clock() - self.store.pushed_at(mid))

    # -- copying --------------------------------------------------------------------------------------------------

    def payload_of(self, mid: int) -> bytes:
        return self._content_of(mid)[0]

    def headers_of(self, mid: int) -> Headers:
        return self._content_of(mid)[1]

    def _content_of(self, mid: int) -> Content:
        while True:
            content = self.store.read(mid, self._find(mid).hidden)
            if content is not None:
                return content

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """Stores a copy of another queue's message, visible at once. Returns False if this queue has the message
        already. FileExistsError for an id that another process is writing."""
        self.publish()
        content = source.payload_of(mid), source.headers_of(mid)
        if self._holds(mid, content):
            return False
        self.require_room(1)
        file = source.store.path_of(mid) if isinstance(source, DirectoryQueue) else None
        # Written before the last look: the file keeps the id from others meanwhile.
        pending = self._writer.write_copy(mid, content, file)
        self.store.saw(mid)
        self._context.watch.refresh()  # a push or copy of that id by another program is reported by now
        taken = False
        try:
            taken = not self._holds(mid, content)
        finally:
            if not taken:
                self._writer.discard([pending])
        if taken:
            pending.trace = trace_of(content[1])
            self.publish_copy(pending)
        return taken

    def _holds(self, mid: int, content: Content) -> bool:
        """Tells whether this queue has the message. OtherMessageError for another message under the same id."""
        while (state := self.store.look(mid)) is not None:
            own = self.store.read(mid, state.hidden)
            if own is not None:
                if own != content:
                    raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
                return True
        return False

    # -- ending or moving a window --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _held(self, receipt: Receipt, *, removing: bool = False) -> Iterator[MessageState]:
        """Keeps other servers away from the message of a receipt, and yields its state. NoSuchMessageError,
        StaleReceiptError."""
        self.publish()
        matches = False
        while not matches:
            with self.store.exclusive(receipt.mid, removing=removing) as state:
                if state is None:
                    raise self._no_such(receipt.mid)
                # Within the lock: nobody changes it between this look and the change.
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
        removed = self.store.remove(mid, state)
        if removed:
            self._note_gone("deleted", mid, size, None if state.receives < 0 else state.receives)
        return removed

    def remove(self, mid: int, expiry: int) -> bool:
        with self.store.exclusive(mid, removing=True) as state:
            return state is not None and state.hidden == expiry and self._remove(mid, state)

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        mid, store = receipt.mid, self.store
        if not self.has_dead_letters:
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
                with self._noting_reason(mid, state, reason):
                    if self._move_if_exhausted(mid, state, receives, None):
                        return None
                    if mid <= self._too_old():
                        if self._retire_one(mid, state, None):
                            return None
                        continue
                    wanted = MessageState(until, receives, delayed=True)
                    if store.hide(mid, state, wanted) if until else store.show(mid, state, receives):
                        self.counts.released += 1
                        self._note("released", mid, receives)
                        return store.time(until) if until else None

    def _noting_reason(
        self, mid: int, state: MessageState, reason: str | None
    ) -> contextlib.AbstractContextManager[None]:
        """Writes why a message is given back, before the body of the with statement gives it back."""
        return contextlib.nullcontext()

    def _move_if_exhausted(self, mid: int, state: MessageState, receives: int, peer: str | None) -> bool:
        """Moves a message to the dead-letter queue if it was received too often. Call it within `exclusive`. peer: see
        Lifecycle. Returns False if the message is not exhausted, or cannot be moved."""
        return False

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        raise refuse_reject(self.options.storage)

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        mid, store = receipt.mid, self.store
        while True:
            self.expire()
            with self._held(receipt) as state:
                if not state.hidden or state.delayed:
                    raise not_in_flight(self.qid, mid)
                until = self._end_of(visibility)
                if store.hide(mid, state, MessageState(until, state.receives)):
                    self._note("extended", mid, state.receives)
                    return store.time(until)

    def purge(self, upto: int, count: int) -> int:
        """Removes messages with ids up to upto, oldest first, at most count. Returns the number removed. Messages that
        other programs have locked stay."""
        self.publish()
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
            # Also for those that were removed before an error.
            self.counts.deleted += removed

    def _purge_one(self, mid: int) -> bool:
        while True:
            with self.store.exclusive(mid, removing=True) as state:
                if state is None or state.hidden == FOREIGN:
                    return False
                if self._remove(mid, state):
                    return True

    # -- time -----------------------------------------------------------------------------------------------------

    def expire(self, count: int | None = None) -> int:
        """Ends windows and delays that are due. Returns their number. Moves at most twenty messages to the dead-letter
        queue, each of which counts as 25 towards count."""
        done = moved = 0
        now, upto = self.store.number(self._clock()), self._too_old()
        while (count is None or done < count) and moved < _MOVES and (mid := self.store.due(now)) is not None:
            done += 1
            with self.store.exclusive(mid) as state:
                # Another server has ended the window, or moved it.
                if state is None or not 0 < state.hidden <= now:
                    continue
                if self._move_if_exhausted(mid, state, state.receives, ""):
                    moved += 1
                    # So the caller, who counts, stops after as much time as usual.
                    done += _AS_LONG_AS - 1
                    self.counts.expired += not state.delayed
                    continue
                until = self._backed_off_until(mid, state)
                if until > now:
                    ended = self.store.hide(mid, state, MessageState(until, state.receives, delayed=True))
                else:
                    ended = self.store.show(mid, state, state.receives)
            # The end of a delay is not an event: the message was given back before.
            if ended and not state.delayed:
                self.counts.expired += 1
                if mid > upto:  # what is too old is retired instead
                    self._note("expired", mid, state.receives, peer="")
        return done if count is None else min(done, count)

    def _backed_off_until(self, mid: int, state: MessageState) -> int:
        """Returns until when a message stays hidden after its window or delay is over, 0 for no longer. The back-off
        begins with the end of the window, not with the present: so all servers that share the directory choose the same
        name."""
        wait = 0 if state.delayed else backoff_of(self.options, mid, state.receives)
        return self.store.number(self.store.time(state.hidden) + wait) if wait else 0

    # -- retention ------------------------------------------------------------------------------------------------

    def _too_old(self) -> int:
        """Returns the greatest id that is too old to be given out, -1 if none is."""
        time = too_old_since(self.options, self._clock())
        return -1 if time is None else self.store.last_at(time)

    def next_expiry(self) -> int | None:
        """Returns when the next window, delay or retention ends, None for never. OSError."""
        due = self.store.next_expiry()
        if self.options.retention is None:
            return due
        index = self._index
        # A new listing has a new index, which knows of no message whether it is delayed.
        if self._hidden_loaded is not index.messages:
            # Once a listing: a delayed message may be too old before its delay ends, and names do not say which are
            # delayed.
            for mid in index.hidden.after(-1, len(index.hidden)):
                self.store.load(mid)
            self._hidden_loaded = index.messages
        oldest = index.oldest()
        end = None if oldest is None else end_of(self.options, self.store.pushed_at(oldest))
        return end if due is None or (end is not None and end < due) else due

    def retire(self, count: int) -> int:
        """Removes messages that are too old, the oldest first. Returns the number of messages it looked at. A failure
        holds up no other message; OSError if all have failed."""
        upto = self._too_old()
        failure: OSError | None = None
        done = 0
        for mid in self._index.old(upto, count) if upto >= 0 else ():
            try:
                with self.store.exclusive(mid, removing=True) as state:
                    if state is not None and (not state.hidden or state.delayed):
                        self._retire_one(mid, state, "")
                done += 1
            except OSError as error:
                failure = error
        # Otherwise the caller comes again for the rest, and then the error is raised.
        if failure is not None and not done:
            raise failure
        return done

    def _retire_one(self, mid: int, state: MessageState, peer: str | None) -> bool:
        """Removes a message that is too old. Call it within `exclusive`. peer: see Lifecycle. Returns False if another
        process was faster."""
        size = self._index.size(mid)
        removed = self.store.remove(mid, state)
        if removed:
            self.counts.retired += 1
            self._note_gone("retired", mid, size, None if state.receives < 0 else state.receives, peer=peer)
        return removed
