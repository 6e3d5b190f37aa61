"""A queue of the log. Each change appends a record and changes the memory at once. The transaction then commits the
record, or takes back the record and the change.

A receive need not be durable: losing its record makes the message visible again. All other changes are.
"""

import logging
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat

from ...engine import (
    Draft,
    Headers,
    Message,
    NoRoomError,
    NoSuchMessageError,
    Options,
    OtherMessageError,
    Queue,
    Receipt,
    State,
    Stats,
    StorageError,
    not_in_flight,
)
from ...headers import pack_headers
from ...index.queries import IndexQueries
from ...names import MAX_MID, WITHHELD, token_of
from ...pace import Pace
from ...policy import DeadLetterMoves, backoff_of, dead_letter_queue, new_origin, other_storage, require_room
from ...shared import DirectoryIdentity, EngineContext, EngineQueue, take_oldest
from ..log import records
from ..log.attributes import Attributes, content_of, split_content
from ..log.places import SHIFT
from ..log.reader import DamagedRecordError
from ..log.records import NO_KEY, PUSH_SIZE, SHARED_SIZE, SMALL, STATE_SIZE, record_size
from .keys import digest
from .messages import READY
from .moving import move, move_size
from .state import QueueState
from .store import PayloadStore

_logger = logging.getLogger(__name__)
_MOVES = 100
"""The most messages that one `expire` moves to the dead-letter queue: some 5 ms."""
_AT_ONCE = 1000
"""The most messages that a request makes visible before its own work: some 2 ms. And the most dead letters that are
looked at together."""
_SCATTERED = 150
"""Windows that end at a time in a queue that backs off, whose messages are due at random times: some 3 ms."""
_ROUNDS = 5
"""How often a receive removes `_AT_ONCE` messages that are over before it finds nothing: some 20 ms. The timer removes
the others, and wakes those who wait."""
_OWN = 8 << 10
"""Bytes of room that a request which ends windows leaves for its own record: more than a reason can have."""
_BETWEEN = 10_000
"""Microseconds in which only one request makes so many visible, as a batch may have many requests."""
_push = records.Push.FORMAT.pack
_state = records.Changed.FORMAT.pack
_delete = records.Delete.FORMAT.pack


class LogQueue(QueueState):
    """One queue of the log, with the operations on it.

    Ensures:
    1. An operation changes nothing unless it succeeds: it first checks what can fail (the queue's capacity, the room in
       the transaction, a payload that cannot be read), and appends cannot fail.
    2. If the commit fails, every change but a receive is taken back, with its counts: each change notes how.
    3. A message is in one queue, also after a crash: a move is one record.
    4. A full disk refuses pushes, staged messages and copies. Other operations need few bytes, which `upkeep.room` has
       kept for them.

    Assumes one thread at a time, and that room was secured before the batch. Never commits, and never waits."""

    def __init__(
        self, path: str | None, qid: str, options: Options, shared: EngineContext, store: PayloadStore
    ) -> None:
        """path: the queue's directory, None for a queue that is only in the log. A new queue has no number yet: see
        `begin`. OSError if the directory does not exist."""
        super().__init__(qid, options, shared, store)
        self.path = path or ""
        self._directory = None if path is None else DirectoryIdentity(path, shared.disk)
        self._shared = shared
        self._moves = DeadLetterMoves(qid, options)
        self._spared_until = 0  # until then, requests end no windows and remove nothing; the timer does
        self._pace = Pace()
        self._wakes_at: int | None = None

    def record(self) -> bytes:
        """Returns the body of the QUEUE record, which comes before all other records of the queue in a segment."""
        return records.Queue(self.number, self.last_mid, self.qid).write()

    # -- adding messages ------------------------------------------------------------------------------------------

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none. Returns their ids, increasing. QueueFullError, NoRoomError."""
        payloads: list[bytes] = []
        for payload, delay, key, _, priority, expires, group, headers in drafts:
            if delay or key is not None or priority or group or headers or expires is not None:
                return self._push_each(drafts)
            payloads.append(payload)
        return list(self.push_payloads(payloads)) if payloads else []

    def push_payloads(self, payloads: Sequence[bytes]) -> Sequence[int]:
        """Implements `Queue.push_payloads`: no loop over the messages. payloads: not empty."""
        if self.options.capacity is not None:
            require_room(self.qid, self.options.capacity, self.__len__, len(payloads))
        now = self.clock()
        first, lasts = max(now // self.unit, self.last_mid + 1), self.index.messages.lasts
        # Nearly always these ids are free: only copies can have greater ones. So nothing is searched.
        mids = range(first, first + len(payloads))
        # `free_ids` without its call: a push is what the server does most.
        if mids[-1] >= MAX_MID or (lasts and lasts[-1] >= first):  # nearly never
            mids = self.free_ids(len(payloads), now)
        self.push_run(mids, payloads, now)
        self.last_mid = mids[-1]
        return mids

    def push_run(self, mids: Sequence[int], payloads: Sequence[bytes], now: int) -> None:
        """Stores messages that are visible at once. mids: increasing and free. NoRoomError."""
        transaction, store = self.transaction, self.store
        sizes = list(map(len, payloads))
        size = sum(sizes)
        whole = size + len(sizes) * PUSH_SIZE
        if whole > transaction.left_to_pushes:
            raise transaction.refusal(whole, push=True)
        mids = array("Q", mids)  # for the index and the table of places, which keep arrays
        # Packed lazily, in C: a push of a thousand messages costs no loop in Python.
        bodies = map(_push, repeat(2), repeat(self.number), mids, repeat(0), repeat(NO_KEY), repeat(now))
        places = transaction.append_all(bodies, payloads, sizes, PUSH_SIZE)
        store.usage.add(places[0], whole)
        store.cache.put(places, payloads, size)
        self.appear(mids, places, sizes)

    def _push_each(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages of which some have a delay, a key or attributes."""
        require_room(self.qid, self.options.capacity, self.__len__, len(drafts))
        now = self.clock()
        mids: list[int] = []
        fresh: list[tuple[int, int, bytes | None, bytes, Attributes | None]] = []
        asked: dict[bytes, int] = {}
        size = 0
        # For all of them, though those with a known key need none: ids are not scarce.
        following = iter(self.free_ids(len(drafts), now))
        self.keys.forget_old(now, len(drafts))
        for draft in drafts:
            key = None if draft.key is None else digest(draft.key)
            # The same key may stand twice in one push.
            known = None if key is None else asked.get(key) or self._find_pushed(key, draft.unique, now)
            if known is not None:
                mids.append(known)
                continue
            mid = next(following)
            mids.append(mid)
            content, attributes = content_of(draft, now, key)
            size += len(content) + PUSH_SIZE + (0 if attributes is None else attributes.size)
            fresh.append((mid, draft.delay, None if draft.unique else key, content, attributes))
            if key is not None:
                asked[key] = mid
        if not fresh:
            return mids  # that writes nothing, which a full disk has room for
        if asked:
            self.keys.require_room(len(asked), now)
        if size > self.transaction.left_to_pushes:
            raise self.transaction.refusal(size, push=True)
        for mid, delay, key, content, attributes in fresh:
            visible = min((now + delay) // self.unit, MAX_MID) if delay else 0
            self.append_push(mid, visible, key, now, content, attributes)
            self.last_mid = mid
        return mids

    def _find_pushed(self, key: bytes, unique: bool, now: int) -> int | None:
        """Returns the message that was pushed with a key which still counts, None without one. unique: True for a push
        whose key counts no longer than the message of the first is there."""
        known = self.unique.get(key)
        if known is None:
            known = self.keys.find(key, now)
            if unique and known is not None and known not in self.index.messages:
                return None
        return known

    def append_push(  # noqa: PLR0917
        self, mid: int, visible: int, key: bytes | None, now: int, content: bytes, attributes: Attributes | None
    ) -> None:
        """Stores one message. The caller has checked that the transaction has room. mid: free; visible: when the
        message becomes visible, 0 for at once; key: the digest of a key to remember; now: the time of the push;
        content: headers and payload."""
        if attributes is None:
            body = _push(2, self.number, mid, visible, key or NO_KEY, now)
        else:
            body = _push(22, self.number, mid, visible, key or NO_KEY, now) + attributes.pack()
        place = self.transaction.append(body, content)
        self.store.usage.add(place, record_size(len(content)))
        self.store.cache.put((place,), (content,), len(content))
        self._add_one(mid, place, len(content), visible, attributes)
        if key is not None:
            self.keys.note(key, mid, now, place >> SHIFT)
            self.transaction.undo(self.keys.forget, key)

    def _add_one(self, mid: int, place: int, size: int, visible: int, attributes: Attributes | None) -> None:
        """Adds a message of this transaction. visible: when the message becomes visible, 0 for at once."""
        self.transaction.undo(self.unpush, (mid,))
        if attributes is not None:
            self.set_attributes(mid, place, attributes)
        self.add(mid, place, size, visible)
        self.counts.pushed += 1
        if visible:
            self.hidden(visible)
        else:
            self.arrived()
        self.note("pushed", mid)

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """Stores a copy of another queue's message under the same id, visible at once; queues of the log share its
        payload. Returns False if this queue has the message. NoSuchMessageError, OtherMessageError, QueueFullError."""
        # Only queues of this log can share the payload: one of files has it in a file.
        shares = source if isinstance(source, QueueState) else None
        # An id means one message, wherever it was copied to: so the message may be here already.
        known = self.places.get(mid)
        if known is not None:
            if shares is not None and shares.places.get(mid) == known:
                return False
            if self.payload_of(mid) != source.payload_of(mid) or self.headers_of(mid) != source.headers_of(mid):
                raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
            return False
        if shares is None:
            draft = Draft(source.payload_of(mid), headers=source.headers_of(mid))
            require_room(self.qid, self.options.capacity, self.__len__, 1)
            self.require_copies(1, source, mid)
            now = self.clock()
            self.append_push(mid, 0, None, now, *content_of(draft, now, None))
        else:
            shares.expiry_of(mid)  # raises if the message is gone
            require_room(self.qid, self.options.capacity, self.__len__, 1)
            self.require_copies(1, source, mid)
            place, size = shares.places.get(mid) or 0, shares.index.size(mid)
            attributes = shares.attributes.get(mid)
            if attributes is not None:
                attributes = attributes.copied()
            record = records.Shared(self.number, mid, *READY, place, size, shares.number, attributes)
            self.transaction.append(record.write())
            # From here on, a payload of one queue may be needed by the other.
            self.store.join(shares.number, self.number)
            self.store.note_copied(place)
            self._add_one(mid, place, size, 0, attributes)
        self.saw(mid)
        return True

    def require_copies(self, count: int, source: EngineQueue, mid: int) -> None:
        """Checks that so many copies of a message fit into this transaction, together with their deletes: so a crash,
        or a queue that is full, leaves all copies or none. NoRoomError, NoSuchMessageError."""
        if isinstance(source, QueueState):  # its copies share the payload
            attributes = source.attributes.get(mid)
            size = SHARED_SIZE + SMALL + (0 if attributes is None else attributes.size)
        else:
            headers = pack_headers(source.headers_of(mid))
            size = len(source.payload_of(mid)) + PUSH_SIZE + SMALL + len(headers) + Attributes().size
        if count * size > self.transaction.left_to_pushes:
            raise self.transaction.refusal(count * size, push=True)

    # -- delivering -----------------------------------------------------------------------------------------------

    @property
    def wakes_at(self) -> int | None:
        return self._wakes_at

    def obey_options(self) -> None:
        super().obey_options()
        self.arrived()  # it may have been paused or limited, and what is there may be too old now

    def _allowed(self) -> int:
        """Returns how many messages the queue's limits let out now. If the rate lets none out, announces when it
        will."""
        options, most = self.options, sys.maxsize
        if options.max_in_flight is not None:
            most = max(options.max_in_flight - self.index.out, 0)
        if most and options.rate is not None:
            most = min(most, self._pace.room(options.rate, self.clock()))
            if not most:
                self._wakes_at = self._pace.next
                self._activity.announce(self.qid, self._wakes_at)
        return most

    def _keep_pace(self, count: int) -> None:
        """Counts messages that are handed out. If these were all that the rate lets out now, announces when it lets
        out more: nobody else asks, if others wait already."""
        self._pace.count(count)
        self._allowed()

    @property
    def obtainable(self) -> int:
        """The number of messages that may be handed out now, without those of a group behind its next one."""
        order = self.index.order
        count = self.index.ready.count if order is None else order.count
        return min(count, self._allowed()) if count and self.is_paced else count

    def first_ready(self) -> int | None:
        """Returns the message that is handed out next, None if none may be. Removes those that are over on its way."""
        index = self.index
        if self.is_paced and not self._allowed():
            return None
        if self.options.retention is None and not self.ends.count:
            return index.first()
        now = self.clock()
        upto = self.too_old_upto(now)
        if index.order is None and not self.ends.count:
            found = index.ready.after(upto, 1)  # however many are too old: the timer removes them
            return found[0] if found else None
        for _ in range(_ROUNDS):
            mid = index.first()
            if mid is None or (mid > upto and not self._is_over(mid, now)):
                return mid
            if mid <= upto:
                self.retire(_AT_ONCE)
            else:
                self._end_lifetimes(now, _AT_ONCE)
        return None

    def _is_over(self, mid: int, now: int) -> bool:
        """Tells whether a message is not handed out any more because of its own end."""
        return self.ends.count > 0 and 0 < (self.ends.get(mid) or 0) <= now

    def priority_of(self, mid: int) -> int:
        return 0 if self.index.order is None else self.index.order.priority_of(mid)

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives a visible message. Returns None if its payload has more than max_bytes or is damaged. held: True for
        a subscriber, whose message is visible again if the process ends. OSError."""
        index = self.index
        # Looked at in the index: a payload that does not fit is not read.
        if max_bytes is not None and index.size(mid) > max_bytes:
            return None
        try:
            payload = self.store.payload(self.number, mid, self.places.get(mid) or 0)
        except DamagedRecordError as error:
            self._withhold(mid, error)
            return None
        expiry = self.window_end(visibility)
        receives = self.receives.get(mid, 0) + 1
        # A note, as no answer waits for it. A subscriber's message is written as visible: if the process ends, so
        # does the subscription.
        self.transaction.note((_state(4, self.number, mid, receives, 0 if held else expiry, False),))
        self.receives[mid] = receives
        index.take(mid, expiry, retrieved=receives > 1)
        if held:
            self.held.add(mid)
        self.hidden(expiry)
        if self.options.rate is not None:
            self._keep_pace(1)
        if index.order is not None:
            self.arrived()  # its group may have another one that may go
        self.counts.delivered += 1  # a failed batch does not take a receive back, nor its count
        self.counts.redelivered += receives > 1
        if self.lifecycle is not None:
            self.note("received", mid)
        unit = self.unit
        message = Message(self.qid, mid, "delivered", receives, mid * unit, expiry * unit, payload)
        return self.with_past(message) if self.origins or self.reasons or self.attributes else message

    def take_first(self, count: int, visibility: int | None, max_bytes: int, *, held: bool = False) -> list[Message]:
        """Receives the oldest visible messages, at most count and max_bytes of payload, but always the first. Leaves
        out damaged ones. If the disk cannot read a payload, returns the messages before it, and the next call raises.
        OSError: no message is received."""
        if self.is_paced and not (count := min(count, self._allowed())):
            return []
        # Mostly the oldest ready message is the next one: then there is nothing to ask, not even the clock.
        by_age = self.index.order is None and (not self.ends.count or not self.lifetimes.may_be_due(self.clock()))
        if count == 1:  # four times as fast as the code for many
            oldest = by_age and self.options.retention is None
            while (mid := self.index.ready.first() if oldest else self.first_ready()) is not None:
                try:
                    message = self.take(mid, visibility, held=held)
                except (OSError, StorageError):
                    self.arrived()  # the message is still visible: wake the next consumer
                    raise
                if message is not None:
                    return [message]
            return []
        if by_age:
            return self._take_many(count, visibility, max_bytes, held=held)
        return take_oldest((self,), count, visibility, max_bytes, held=held)  # each may change which is next

    def _take_many(self, count: int, visibility: int | None, max_bytes: int, *, held: bool) -> list[Message]:
        """Receives the oldest visible messages: see `take_first`."""
        # All payloads are read before any message is received: if the disk fails, nothing has changed.
        mids, payloads = self._first_readable(count, max_bytes)
        if not mids:
            return []
        expiry, unit = self.window_end(visibility), self.unit
        receives = [self.receives.get(mid, 0) + 1 for mid in mids]
        visible = 0 if held else expiry
        self.transaction.note(
            list(map(_state, repeat(4), repeat(self.number), mids, receives, repeat(visible), repeat(0)))
        )
        self.receives.update(zip(mids, receives, strict=True))
        self.index.take_all(mids, expiry)
        if held:
            self.held.update(mids)
        self.hidden(expiry)
        if self.options.rate is not None:
            self._keep_pace(len(mids))
        self.counts.delivered += len(mids)
        self.counts.redelivered += len(mids) - receives.count(1)
        self.note_all("received", mids)
        messages = [
            Message(self.qid, mid, "delivered", times, mid * unit, expiry * unit, payload)
            for mid, times, payload in zip(mids, receives, payloads, strict=True)
        ]
        return list(map(self.with_past, messages)) if self.origins or self.reasons or self.attributes else messages

    def _withhold(self, mid: int, error: DamagedRecordError) -> None:
        _logger.error("message %d of queue %r is not delivered: %s", mid, self.qid, error)
        self.index.set_aside(mid)

    def _first_readable(self, count: int, max_bytes: int) -> tuple[list[int], list[bytes]]:
        """Returns the oldest visible messages and their payloads. Hides damaged messages. Arguments: see
        `take_first`."""
        while True:
            mids = self.index.ready.after(self.too_old_upto(), count)
            try:
                payloads = self._payloads(mids, max_bytes)
            except DamagedRecordError as error:
                self._withhold(mids[0], error)
            else:
                return mids[: len(payloads)], payloads

    def _payloads(self, mids: Sequence[int], max_bytes: int) -> list[bytes]:
        """Returns the payloads of the first of these messages, as many as `take_first` would. mids: increasing."""
        found: list[bytes] = []
        room = max_bytes
        for mid, place, size in zip(mids, self.places.values_of(mids), self.index.sizes(mids), strict=True):
            room -= (size or 0) + (len(self.reasons.get(mid, "")) if self.reasons else 0)
            if found and room < 0:
                break
            try:
                found.append(self.store.payload(self.number, mid, place or 0))
            except (OSError, StorageError):
                if found:
                    break
                self.arrived()  # the message is still visible: wake the next consumer
                raise
        return found

    # -- looking --------------------------------------------------------------------------------------------------

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """Receives a visible message, or with peek only shows it. A hidden message comes without its payload.
        NoSuchMessageError."""
        self.expire()
        expiry = self.expiry_of(mid)
        now = self.clock()
        if not expiry and (mid <= self.too_old_upto(now) or self._is_over(mid, now)):
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}: it is too old")
        # A queue that is paused or limited gives nothing out, and still shows what it has.
        paused = not peek and (self.options.paused or not self._may_go(mid))
        if not expiry and not peek and not paused and (message := self.take(mid, visibility)) is not None:
            return message
        receives = self.receives.get(mid, 0)
        if not expiry:
            payload = None if paused else self._content_of(mid)
            return self.with_past(Message(self.qid, mid, "ready", receives, self.time(mid), None, payload))
        status = "delayed" if self.index.is_delayed(mid) else "in-flight"
        if expiry == WITHHELD:
            return self.with_past(Message(self.qid, mid, status, receives + 1, self.time(mid)))
        return self.with_past(Message(self.qid, mid, status, receives, self.time(mid), self.time(expiry)))

    def read(self, receipt: Receipt) -> Message:
        """Returns the message of a receipt, with its payload. NoSuchMessageError, StaleReceiptError."""
        mid = receipt.mid
        expiry = self.held_until(receipt)
        payload = self._content_of(mid)
        visible_at = self.time(expiry) if expiry else None
        receives = self.receives.get(mid, 0)
        return self.with_past(Message(self.qid, mid, "delivered", receives, self.time(mid), visible_at, payload))

    def _may_go(self, mid: int) -> bool:
        """Tells whether a visible message may be handed out, though it was asked for by its id."""
        if self.is_paced and not self._allowed():
            return False
        return self.index.order is None or self.index.order.may_go(mid)

    def _content_of(self, mid: int) -> bytes:
        """Returns the headers and the payload of a message in any state. NoSuchMessageError."""
        self.expiry_of(mid)
        return self.store.payload(self.number, mid, self.places.get(mid) or 0)

    def payload_of(self, mid: int) -> bytes:
        """Returns the payload of a message in any state. NoSuchMessageError."""
        return split_content(self._content_of(mid), self.attributes.get(mid, Attributes()))[1]

    def headers_of(self, mid: int) -> Headers:
        """Returns the headers of a message in any state. NoSuchMessageError."""
        return split_content(self._content_of(mid), self.attributes.get(mid, Attributes()))[0]

    @property
    def ready(self) -> int:
        return self.index.visible_count

    @property
    def _queries(self) -> IndexQueries:
        return IndexQueries(self.index, lambda mid: True, 1)  # all messages are loaded

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        self.expire()
        return self._queries.list_mids(state, count, after)

    def prepare_stats(self) -> bool:
        return False

    def stats(self) -> Stats:
        self.expire()
        counts = self._queries.stats(self.counts, lambda mid: self.clock() - self.time(mid))
        return replace(counts, limited=self._limited_by()) if counts.ready and not self.obtainable else counts

    def _limited_by(self) -> str:
        """Returns the option that keeps the visible messages back."""
        if self.options.max_in_flight is not None and self.index.out >= self.options.max_in_flight:
            return "max-in-flight"
        return "rate" if self.options.rate is not None and not self._allowed() else "group-in-flight"

    # -- windows --------------------------------------------------------------------------------------------------

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        """Makes a message visible. Returns the time from which the message is visible, None for now. Instead, moves a
        message that was received too often to the dead-letter queue, and removes one that is too old. delay:
        microseconds, None for the queue's back-off; count: False to take back the receive of a message in flight;
        reason: kept with the message. NoSuchMessageError; StaleReceiptError if nobody holds the message."""
        mid = receipt.mid
        self.expire(keep=_OWN)  # first: a window that is over makes the receipt stale
        expiry = self.held_until(receipt)
        delayed = self.index.is_delayed(mid)
        # Who has a receipt has received the message: if it is delayed now, it was given back since.
        if not expiry or (delayed and receipt.receives is not None):
            raise not_in_flight(self.qid, mid)
        receives = self.receives.get(mid, 0)
        counted = receives if count or delayed else receives - 1  # a delayed message was released already
        if delay is None:
            backs_off = count and not delayed and self.options.backoff is not None
            delay = backoff_of(self.options, mid, receives) if backs_off else 0
        until = min((self.clock() + delay) // self.unit, MAX_MID) if delay else 0
        most = self.options.max_receives
        if (
            most is not None
            and counted >= most
            and self._moves.attempt(partial(self._move, mid, None, counted, "receives", reason))
        ):
            return None
        now = self.clock()
        if mid <= self.too_old_upto(now) or self._is_over(mid, now):
            self._retire([mid], None)
            return None
        # Looked at before anything changes, as all that follows cannot fail.
        self._require(STATE_SIZE if reason is None else STATE_SIZE + len(reason.encode()))
        if counted != receives:
            self.transaction.undo(self.set_receives, mid, receives)
            self.set_receives(mid, counted)
        self._change(mid, expiry, until, delayed=bool(until), reason=reason)
        self.counts.released += 1
        self.transaction.changed.append((self.uncount, ("released", 1)))  # `count` without its calls
        if self.lifecycle is not None:
            self.note("released", mid)
        return self.time(until) if until else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Sets the end of the window of a message in flight, and returns it. visibility: microseconds from now, None
        for the queue's own. NoSuchMessageError, StaleReceiptError."""
        mid = receipt.mid
        self.expire(keep=_OWN)
        expiry = self.held_until(receipt)
        if not expiry or self.index.is_delayed(mid):
            raise not_in_flight(self.qid, mid)
        until = self.window_end(visibility)
        self._require(STATE_SIZE)
        self._change(mid, expiry, until, delayed=False, held=mid in self.held)
        self.note("extended", mid)
        return self.time(until)

    def _require(self, size: int) -> None:
        """Checks that records of `size` bytes, heads included, fit into this transaction. NoRoomError."""
        if size > self.transaction.left:
            raise self.transaction.refusal(size)

    def _change(
        self, mid: int, old: int, new: int, *, delayed: bool, held: bool = False, reason: str | None = None
    ) -> None:
        """Changes a message's state. The caller has checked that the transaction has room."""
        state = self.number, mid, self.receives.get(mid, 0), 0 if held else new, delayed
        if reason is None:
            self.transaction.append(_state(4, *state))
        else:
            self.transaction.append(records.Reason(*state, reason).write())
            self.transaction.undo(self.set_reason, mid, self.reasons.get(mid))
            self.set_reason(mid, reason)
        index = self.index
        # Looked up now, as the change overwrites it.
        before = old, old != 0 and index.is_delayed(mid), mid in index.new, mid in self.held
        self.transaction.undo(self._change_back, mid, *before)
        self.show(mid, new, delayed=delayed)
        if held:
            self.held.add(mid)

    def _change_back(self, mid: int, old: int, delayed: bool, new: bool, held: bool) -> None:
        self.show(mid, old, delayed=delayed)
        if held:
            self.held.add(mid)
        if new:
            self.index.new.add(mid)

    def expire(self, count: int | None = None, *, keep: int = 0) -> int:
        """Ends windows and delays that are over: makes the messages visible, hides them for the back-off, or moves them
        to the dead-letter queue, at most 100 and as many as the transaction has room for. count: the most messages,
        None for as many as a request has time for; keep: the bytes of room to leave for that request. Returns the
        number of messages. Appends no records for windows, because the log has the times. With a count, raises
        NoRoomError if the transaction has no room for a single move."""
        now = self.clock()
        done = 0
        if self._wakes_at is not None and self._wakes_at <= now:
            self._wakes_at = None
            self.arrived()  # the rate lets some out again
            done = 1
        spared = count is None and now < self._spared_until
        # Asked by nearly every request, and nearly always nothing is due.
        if self.index.expiries.may_be_due(now // self.unit) and not spared:
            done += self._end_windows(now, count, keep)
        most = _AT_ONCE if count is None else count - done
        if self.ends.count and self.lifetimes.may_be_due(now) and most > 0 and not spared:
            removed = self._end_lifetimes(now, most)
            if count is None and removed == _AT_ONCE:
                self._spared_until = now + _BETWEEN
            done += removed
        return done

    def _end_lifetimes(self, now: int, count: int) -> int:
        """Removes messages that are over, at most count, but for those in flight: these follow when they are visible
        again. Returns their number. NoRoomError."""
        due = self.lifetimes.pop_due(now, count)
        index = self.index
        mids = sorted(mid for mid in due if not index.hidden.get(mid) or index.is_delayed(mid))
        self.outlived.update(due)
        self.outlived.difference_update(mids)
        try:
            if mids:
                self._retire(mids, "")
                self.arrived()  # a receive may have found nothing for them
        except NoRoomError:
            for mid in mids:
                self.lifetimes.push(self.ends.get(mid) or 0, mid)
            raise
        return len(due)

    def _end_windows(self, now: int, count: int | None, keep: int) -> int:
        """Ends windows and delays: see `expire`."""
        most = _AT_ONCE if self.options.backoff is None else _SCATTERED
        # Taken out of the heap together: what is not handled below has to be put back with `remember`.
        mids = self.index.expiries.pop_due(now // self.unit, most if count is None else count)
        if count is None and len(mids) == most:
            self._spared_until = now + _BETWEEN
        staying: Sequence[int] = mids
        later: list[int] = []
        if self.options.max_receives is not None:
            staying, later = self._move_exhausted(mids, keep)
            if count is not None and later and len(later) == len(mids):  # the timer would ask again at once
                raise self.transaction.refusal(
                    move_size(self.reasons.get(later[0]), self.attributes.get(later[0])) + SMALL
                )
        if self.options.backoff is not None:
            # After the dead letters: a message that is exhausted does not come back, so it needs no back-off.
            staying = self._back_off(staying, now)
        if staying:
            self._show_all(staying, now)
        return len(mids) - len(later)

    def _show_all(self, mids: Sequence[int], now: int) -> None:
        """Makes hidden messages visible. now: microseconds since the Epoch."""
        ordered = sorted(mids)
        delayed = set(self.index.delayed.among(ordered))
        self.index.show_all(ordered)
        self.held.difference_update(ordered)
        self.arrived()
        self.watch_ends(ordered)
        self._note_expired([mid for mid in mids if mid not in delayed] if delayed else mids, now)

    def _note_expired(self, mids: Sequence[int], now: int) -> None:
        """Counts messages whose windows have ended. now: microseconds since the Epoch."""
        self.counts.expired += len(mids)
        if self.lifecycle is not None:
            upto = self.too_old_upto(now)
            for mid in mids:
                if mid > upto:  # those that are too old are retired instead
                    self.note("expired", mid, peer="")

    def _back_off(self, mids: Sequence[int], now: int) -> list[int]:
        """Hides messages whose windows are over, but not their back-off. Returns the other messages. now: microseconds
        since the Epoch.

        A back-off begins with the end of the window, also if the server notices that later, and follows from the
        message's id and receives. So the record need not be durable: a start computes the same back-off, unless the
        options have changed."""
        index = self.index
        ordered = sorted(mids)
        delayed = set(index.delayed.among(ordered))
        untils: dict[int, int] = {}
        for mid, end in zip(ordered, index.hidden.values_of(ordered), strict=True):
            wait = 0 if mid in delayed else backoff_of(self.options, mid, self.receives.get(mid, 0))
            # From the end of the window, and not from now: see above.
            until = min((end or 0) + wait // self.unit, MAX_MID)
            if wait and until > now // self.unit:
                untils[mid] = until
        if not untils:
            return list(mids)
        self.transaction.note(
            [_state(4, self.number, mid, self.receives.get(mid, 0), untils[mid], True) for mid in untils]
        )
        self.held.difference_update(untils)
        index.delay_all(untils)
        self.hidden(min(untils.values()))
        self.freed()
        self.watch_ends(untils)
        self._note_expired([mid for mid in mids if mid in untils], now)
        return [mid for mid in mids if mid not in untils]

    # -- removing -------------------------------------------------------------------------------------------------

    def delete(self, receipt: Receipt) -> None:
        """Removes a message in any state. NoSuchMessageError, StaleReceiptError."""
        self.remove(receipt.mid, self.held_until(receipt))
        self.counts.deleted += 1
        self.transaction.changed.append((self.uncount, ("deleted", 1)))  # `count` without its calls

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message. expiry: the time until which the message is hidden, 0 for a visible one. Returns True."""
        transaction = self.transaction
        # A tombstone is small, and pushes leave room for it: a full disk refuses no delete.
        if transaction.left < SMALL:
            raise transaction.refusal(SMALL)
        transaction.append(_delete(5, self.number, mid))
        if self.lifecycle is not None:
            self.note("deleted", mid, more=expiry == WITHHELD)  # a claim counts as a receive
        transaction.changed.append((self.put_back, (mid, expiry, self.drop(mid))))  # `undo` without its call
        if expiry == WITHHELD:
            self.claims.removed(mid)
        return True

    def purge(self, upto: int, count: int) -> int:
        """Removes the oldest messages with ids up to upto, at most count, and as many as the transaction has room for.
        Returns their number."""
        index, transaction = self.index, self.transaction
        removed = 0
        while removed < count and (mid := index.messages.first()) is not None and mid <= upto:
            if removed and transaction.left < SMALL:
                break
            removed += self.remove(mid, index.expiry(mid) or 0)
        if removed:
            self.count("deleted", removed)
        return removed

    def retire(self, count: int) -> int:
        """Removes visible and delayed messages that are too old, oldest first, at most count. Returns their number."""
        upto = self.too_old_upto(self.clock())
        # One record for all of them: each is gone with it, or none.
        mids = self.index.old(upto, count) if upto >= 0 else []
        if mids:
            self._retire(mids, "")
        return len(mids)

    def _retire(self, mids: Sequence[int], peer: str | None) -> None:
        """Removes messages that are in no claim. mids: increasing; peer: see Lifecycle."""
        body = records.Retired(self.number, mids).write()
        self._require(records.HEAD.size + len(body))
        self.transaction.append(body)
        for mid in mids if self.lifecycle is not None else ():
            self.note("retired", mid, peer=peer)
        expiries = self.index.hidden.values_of(mids)
        self.transaction.undo(self.put_back_all, mids, expiries, self.drop_all(mids))
        self.count("retired", len(mids))

    def note_removed(self) -> None:
        """Reports all messages as deleted to the lifecycle record. Called when the queue is removed."""
        if self.lifecycle is not None:
            for mid in self.index.messages.after(-1, len(self.index)):
                self.lifecycle.note("deleted", self.qid, mid, self.index.size(mid), None)

    # -- dead letters ---------------------------------------------------------------------------------------------

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        """Makes a message a dead letter: implements `Queue.reject`."""
        mid = receipt.mid
        self.expire(keep=_OWN)
        self.held_until(receipt)
        self._moves.reject(mid, partial(self._move, mid, None, self.receives.get(mid, 0), "rejected", reason))

    def _move_exhausted(self, mids: Sequence[int], keep: int) -> tuple[list[int], list[int]]:
        """Moves exhausted messages to the dead-letter queue, at most 100, and as many as the transaction has room for.
        Returns two lists: messages that are not exhausted or cannot be moved, and messages that stay due. keep: see
        `expire`."""
        staying: list[int] = []
        later: list[int] = []
        moved = 0
        for mid in mids:
            if not self.is_exhausted(mid):
                staying.append(mid)
            elif (
                moved == _MOVES
                or self.transaction.left < move_size(self.reasons.get(mid), self.attributes.get(mid)) + SMALL + keep
            ):
                later.append(mid)
            else:
                delayed = self.index.is_delayed(mid)
                try:
                    buried = self._moves.attempt(
                        partial(self._move, mid, "", self.receives.get(mid, 0), "receives", None)
                    )
                except NoRoomError:  # the dead-letter queue had to be made
                    later.append(mid)
                    continue
                if buried:
                    moved += 1
                    if not delayed:  # what was delayed has had its window's end counted
                        self.count("expired", 1)
                else:
                    staying.append(mid)
        self.index.remember(later)
        return staying, later

    def _move(self, mid: int, peer: str | None, receives: int, why: str, reason: str | None) -> None:
        """Moves a message to the dead-letter queue. peer: see Lifecycle; receives: how often the message was received;
        why: see Origin; reason: the release's, None without one. If it raises a StorageError or an OSError, nothing has
        changed, and the caller makes the message visible; after a NoRoomError, the caller may try again in another
        batch."""
        target = dead_letter_queue(self._shared.find_or_make, self.options, LogQueue)
        # `set-queue` refuses such a name, but the file with the options may have been written by hand.
        if target is self:
            raise StorageError("it is the same queue")
        if target.options.capacity is not None:
            require_room(target.qid, target.options.capacity, target.__len__, 1)
        kept = self.reasons.get(mid) if reason is None else reason
        needed = move_size(kept, self.attributes.get(mid))
        if needed > self.transaction.left:  # now, as making the target has taken some
            raise self.transaction.refusal(needed)
        now, before = self.clock(), self.origins.get(mid)
        # Before anything changes: no id may be left.
        new = target.free_ids(1, now)[0]
        origin = new_origin(self.qid, mid, receives, now, pushed_at=self.time(mid), before=before, reason=why)
        if self.lifecycle is not None:
            self.note("dead", mid, more=receives - self.receives.get(mid, 0), peer=peer)
        move(self, mid, target, new, origin, kept)
        self.counts.dead += 1
        self.transaction.changed.append((self.uncount, ("dead", 1)))  # `count` without its calls
        if why == "rejected":
            self.count("rejected", 1)

    @property
    def redrive(self) -> "LogQueue":
        """Returns the queue itself, which moves its dead letters."""
        return self

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """Returns (id, former queue) of dead letters that are in no claim, oldest first, at most count. mids: the ids
        to consider, empty for all."""
        chosen = (mid for mid in (sorted(set(mids)) if mids else self._may_be_letters()) if mid in self.origins)
        # A message in a claim is its consumer's until the claim ends.
        free = (mid for mid in chosen if self.index.expiry(mid) != WITHHELD)
        return [(mid, self.origins[mid].qid) for mid in islice(free, count)]

    def _may_be_letters(self) -> Iterator[int]:
        """Yields the ids of all dead letters, and perhaps of other messages, oldest first. Does not sort a million ids
        to find a few."""
        if len(self.origins) <= _AT_ONCE:
            yield from sorted(self.origins)
            return
        after = -1
        while block := self.index.messages.after(after, _AT_ONCE):
            yield from block
            after = block[-1]

    def move(self, letters: Sequence[tuple[int, Queue]]) -> list[tuple[int, int]]:
        """Moves dead letters, each to the end of a queue, visible and never received: as many as the transaction has
        room for, oldest first. Returns (id, new id) of each that moved. If it raises, none has moved: QueueFullError,
        UnsupportedError for a queue of another storage, NoRoomError if the transaction has no room for the first
        one."""
        chosen: list[tuple[int, LogQueue]] = []
        size = 0
        for mid, queue in letters:
            if not isinstance(queue, LogQueue):
                raise other_storage(self.options.storage, queue.options.storage)
            # The answer names those that moved: for the rest, the client sends another request.
            size += move_size(self.reasons.get(mid), self.attributes.get(mid))
            if size > self.transaction.left:
                break
            chosen.append((mid, queue))
        if letters and not chosen:
            raise self.transaction.refusal(size)
        targets = [target for _, target in chosen]
        for target in dict.fromkeys(targets):
            require_room(target.qid, target.options.capacity, target.__len__, targets.count(target))
        now = self.clock()
        ids = {target: iter(target.free_ids(targets.count(target), now)) for target in dict.fromkeys(targets)}
        moved: list[tuple[int, int]] = []
        for mid, target in chosen:
            self.note("redriven", mid)
            new = next(ids[target])
            move(self, mid, target, new, None, self.reasons.get(mid))
            moved.append((mid, new))
        return moved

    # -- the directory: see `EngineQueue`. What is put into it becomes messages: see `upkeep.ingest` -----------------

    def in_place(self) -> bool:
        """Tells whether the directory is still the one that was opened. OSError."""
        return self._directory is not None and self._directory.in_place()

    def dismantle(self) -> None:
        """Removes files that are messages already, so that the directory of an empty queue can be removed. OSError."""
        for name in self._shared.disk.files_in(self.path):
            if token_of(os.fsencode(name)) in self.taken:
                self._shared.disk.unlink(f"{self.path}/{name}")

    def commit(self) -> None:
        """Does nothing, because the queue's directory holds no messages."""

    def close(self) -> list[int]:
        """Returns an empty list, because no push is unfinished."""
        return []
