"""A queue of the log: an index of its messages, where each stands in the log, and what is known of receives.

Every change is a record, and a change of the table at once; the store commits the record, or takes the change back.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import ClassVar

from ..capacity import require_room
from ..engine import (
    Draft,
    Message,
    NoSuchMessageError,
    Options,
    OtherMessageError,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    State,
    Stats,
    StorageError,
)
from ..index.queries import IndexQueries
from ..lifecycle import Event
from ..names import MAX_MID, WITHHELD
from ..queues import EngineQueue
from ..shared import Shared
from . import records
from .batches import LogBatches
from .claims import LogClaims
from .door import Door, Doors
from .intake import File
from .keys import WINDOW, Keys, digest
from .places import segment_of
from .reader import DamagedRecordError
from .store import Store, record_size
from .table import MessageTable

_logger = logging.getLogger(__name__)


class LogQueue:
    """One queue. Not for several threads at once."""

    merges_pushes: ClassVar[bool] = True

    def __init__(  # noqa: PLR0917
        self, path: str, qid: str, options: Options, shared: Shared, store: Store, number: int, doors: Doors
    ) -> None:
        """path: of its directory, empty: it has none; number: what it is called in the log."""
        self.path = path
        self.qid = qid
        self.options = options
        self.keys = Keys(store)
        self.counts = Stats(storage=options.storage)
        self._unit = 1000 if options.timestamps == "ms" else 1
        self.table = MessageTable(qid, number, store, shared.activity, self._unit)
        self.claims = LogClaims(self, store, shared.clock)
        self.batches = LogBatches(self, store)
        self.is_closed = False
        self._store = store
        self._log = store.log
        self._clock = shared.clock
        self._lifecycle = shared.lifecycle
        self._watch = shared.watch
        self._on_vanished = shared.vanished
        self.taken: dict[int, int] = {}
        """Tokens of files that are messages, and may be there still: where their records stand."""
        self.door = Door(path, shared.disk, doors, shared.clock, self) if path else None
        self._watched = self._watch.add(path, self) if path else -1

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""
        return self.table.last_mid

    @property
    def number(self) -> int:
        """What the queue is called in the log."""
        return self.table.number

    def record(self) -> bytes:
        """What a segment has to say of the queue before anything else."""
        return records.queue(self.number, self.last_mid, self.qid)

    def announce(self) -> None:
        """Says in the log that there is the queue. OSError."""
        body, last = self.record(), self._log.number
        self._log.reserve(records.HEAD.size + len(body))
        if self._log.number == last:  # else the new segment says so already
            self._log.name(body)

    def reset(self) -> None:
        """Forgets everything, to be read in another way."""
        self.keys = Keys(self._store)
        self.table.reset()
        self.taken.clear()
        self.claims.consumers.clear()
        self.batches.producers.clear()

    def clear(self) -> None:
        """Holds nothing and knows nothing any more: the queue is gone."""
        self.table.clear()
        self.keys.clear()
        self.batches.clear()
        self._store.leave(self.number)
        self.reset()

    def settle(self) -> None:
        """After a start: what is visible is announced, and when the next message will be; files are looked for."""
        self.table.known_upto.clear()
        self.rescan()
        self.claims.settle()
        if self.table.index.ready:
            self.table.arrived()
        if (due := self.table.index.next_expiry()) is not None:
            self.table.hidden(due)

    def __len__(self) -> int:
        return len(self.table.index)

    def note(self, event: Event, mid: int, *, peer: str | None = None) -> None:
        """Tells the lifecycle record what has happened to a message that is here."""
        if self._lifecycle is not None:
            size, receives = self.table.index.size(mid), self.table.receives.get(mid, 0)
            self._lifecycle.note(event, self.qid, mid, size, receives, peer=peer)

    def arrived(self) -> None:
        """Announces that there may be visible messages."""
        self.table.arrived()

    def time(self, number: int) -> int:
        """When a message was pushed, from its id."""
        return number * self._unit

    # -- pushing --------------------------------------------------------------------------------------------------

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none. Their ids, increasing. QueueFullError."""
        if self.options.capacity is not None:
            require_room(self.qid, self.options.capacity, self.table.index.__len__, len(drafts))
        now = self._clock()
        payloads: list[bytes] = []
        for draft in drafts:
            if draft.delay or draft.key is not None:
                return self._push_each(drafts, now)
            payloads.append(draft.payload)
        if not payloads:
            return []
        mids = self._free_run(len(payloads), now)
        self._append_run(mids, payloads, now)
        self.table.last_mid = mids[-1]
        return list(mids)

    def _free_run(self, count: int, now: int) -> Sequence[int]:
        """Ids that nobody has, greater than all that were given."""
        first = max(now // self._unit, self.table.last_mid + 1)
        last = self.table.index.messages.last()
        if last is not None and last >= first:  # copies can have greater ids
            mids: list[int] = []
            for _ in range(count):
                first = self._free(first)
                mids.append(first)
                first += 1
            return mids
        if first + count > MAX_MID:
            raise self._no_more_ids()
        return range(first, first + count)

    def _free(self, mid: int) -> int:
        while self.table.index.expiry(mid) is not None:
            mid += 1
        if mid > MAX_MID:
            raise self._no_more_ids()
        return mid

    def _no_more_ids(self) -> QueueFullError:
        return QueueFullError(f"queue {self.qid!r} has seen the message {self.table.last_mid}: no greater id is left")

    def _append_run(self, mids: Sequence[int], payloads: Sequence[bytes], now: int) -> None:
        """Stores messages with these ids, visible at once."""
        sizes = list(map(len, payloads))
        size = sum(sizes)
        whole = size + len(sizes) * records.PUSH_SIZE
        log, table, store = self._log, self.table, self._store
        log.reserve(whole, push=True)
        places = log.append_pushes(records.pushes(table.number, mids, now), payloads, sizes)
        store.undo.append((self._unpush, mids))
        table.add_run(mids, places, sizes)
        store.usage.add(places[0], whole)
        store.cache.put(places, payloads, size)
        self.counts.pushed += len(sizes)
        table.arrived()
        if self._lifecycle is not None:
            for mid in mids:
                self.note("pushed", mid)

    def _unpush(self, mids: Sequence[int]) -> None:
        for mid in mids:
            self.table.drop(mid)
        self.counts.pushed -= len(mids)

    def _push_each(self, drafts: Sequence[Draft], now: int) -> list[int]:
        """Stores messages of which some have a delay or a key."""
        mids: list[int] = []
        fresh: list[tuple[int, Draft, bytes | None]] = []
        asked: dict[bytes, int] = {}
        following = max(now // self._unit, self.table.last_mid + 1)
        self.keys.forget_old(now, len(drafts))
        for draft in drafts:
            key = None if draft.key is None else digest(draft.key)
            known = None if key is None else asked.get(key) or self.keys.find(key, now)
            if known is not None:
                mids.append(known)
                continue
            mid = self._free(following)
            following = mid + 1
            mids.append(mid)
            fresh.append((mid, draft, key))
            if key is not None:
                asked[key] = mid
        size = sum(len(draft.payload) for _, draft, _ in fresh) + len(fresh) * records.PUSH_SIZE
        self._log.reserve(size, push=True)
        for mid, draft, key in fresh:
            self._push_one(mid, draft, key, now)
        return mids

    def _push_one(self, mid: int, draft: Draft, key: bytes | None, now: int) -> None:
        payload = draft.payload
        visible = min((now + draft.delay) // self._unit, MAX_MID) if draft.delay else 0
        place = self._log.append(records.push(self.number, mid, visible, key, now), payload)
        self._store.undo.append((self._unpush, (mid,)))
        self.table.add(mid, place, len(payload), visible)
        self.table.last_mid = mid
        self._store.usage.add(place, record_size(len(payload)))
        self._store.cache.put((place,), (payload,), len(payload))
        self.counts.pushed += 1
        if visible:
            self.table.hidden(visible)
        else:
            self.table.arrived()
        if key is not None:
            self.keys.note(key, mid, now, place >> 32)
            self._store.undo.append((self.keys.forget, key))
        self.note("pushed", mid)

    # -- receiving ------------------------------------------------------------------------------------------------

    def first_ready(self) -> int | None:
        """The oldest visible message."""
        return self.table.index.ready.first()

    @property
    def ready(self) -> int:
        """How many messages are visible."""
        return self.table.index.ready.count

    def _end_of(self, visibility: int | None) -> int:
        window = self.options.visibility if visibility is None else visibility
        return max(min((self._clock() + window) // self._unit, MAX_MID), 1)

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives a visible message; None when its payload is over max_bytes. held: for a subscriber; if the process
        ends, the message is visible again."""
        table, index = self.table, self.table.index
        if max_bytes is not None and index.size(mid) > max_bytes:
            return None
        try:
            payload = self._store.payload(table.places.get(mid) or 0)
        except DamagedRecordError as error:
            self._set_aside(mid, error)
            return None
        expiry = self._end_of(visibility)
        receives = table.receives.get(mid, 0) + 1
        if self._log.left_to_pushes < records.SMALL:
            self._store.make_room_for_notes()
        self._log.note(records.state(table.number, mid, receives, 0 if held else expiry, delayed=False))
        table.receives[mid] = receives
        index.take(mid, expiry, retrieved=receives > 1)
        if held:
            table.held.add(mid)
        table.hidden(expiry)
        self.counts.delivered += 1
        if self._lifecycle is not None:
            self.note("received", mid)
        unit = self._unit
        return Message(self.qid, mid, "delivered", receives, mid * unit, expiry * unit, payload)

    def take_first(self, count: int, visibility: int | None, max_bytes: int, *, held: bool = False) -> list[Message]:
        """Receives the oldest visible messages, at most count, as `take` does each; the first whatever its size, the
        others as long as all payloads together have at most max_bytes. Should a payload not be readable, the messages
        before it are received, and the next call raises; a damaged one is given to nobody. OSError: none is
        received."""
        if count == 1:
            return self._take_one(visibility, held=held)
        table, index, unit = self.table, self.table.index, self._unit
        mids, payloads = self._first_readable(count, max_bytes)
        if not mids:
            return []
        expiry = self._end_of(visibility)
        receives = [table.receives.get(mid, 0) + 1 for mid in mids]
        self._note_states(mids, receives, 0 if held else expiry)
        table.receives.update(zip(mids, receives, strict=True))
        index.take_all(mids, expiry)
        if held:
            table.held.update(mids)
        table.hidden(expiry)
        self.counts.delivered += len(mids)
        if self._lifecycle is not None:
            for mid in mids:
                self.note("received", mid)
        until = expiry * unit
        return [
            Message(self.qid, mid, "delivered", times, mid * unit, until, payload)
            for mid, times, payload in zip(mids, receives, payloads, strict=True)
        ]

    def _take_one(self, visibility: int | None, *, held: bool) -> list[Message]:
        """Receives the oldest visible message, in a quarter of the time that the way for lists takes."""
        while (mid := self.table.index.ready.first()) is not None:
            try:
                message = self.take(mid, visibility, held=held)
            except (OSError, StorageError):
                self.arrived()  # it is there still, for whoever comes next
                raise
            if message is not None:
                return [message]
        return []

    def _set_aside(self, mid: int, error: DamagedRecordError) -> None:
        """Hides a message that cannot be read, until the next start."""
        _logger.error("message %d of queue %r is given to nobody: %s", mid, self.qid, error)
        self.table.index.withhold(mid)

    def _first_readable(self, count: int, max_bytes: int) -> tuple[list[int], list[bytes]]:
        """The oldest visible messages and their payloads: see `take_first`. Sets damaged ones aside."""
        while True:
            mids = self.table.index.ready.after(-1, count)
            try:
                payloads = self._payloads(mids, max_bytes)
            except DamagedRecordError as error:
                self._set_aside(mids[0], error)
            else:
                return mids[: len(payloads)], payloads

    def _payloads(self, mids: Sequence[int], max_bytes: int) -> list[bytes]:
        """The payloads of the first of these messages, in increasing order: see `take_first`."""
        found: list[bytes] = []
        room = max_bytes
        for place, size in zip(self.table.places.values_of(mids), self.table.index.sizes(mids), strict=True):
            room -= size or 0
            if found and room < 0:
                break
            try:
                found.append(self._store.payload(place or 0))
            except (OSError, StorageError):
                if found:
                    break
                self.arrived()  # the message is there still, for whoever comes next
                raise
        return found

    def _note_states(self, mids: Sequence[int], receives: Sequence[int], visible: int) -> None:
        """Has the next commit write what a receive has changed. Nobody waits for that, as losing it only makes the
        messages visible again."""
        self._store.make_room_for_notes(len(mids))
        self._log.note_all(
            [
                records.state(self.number, mid, times, visible, delayed=False)
                for mid, times in zip(mids, receives, strict=True)
            ]
        )

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """One message: received if it is visible and not peeked at; its state and no payload if it is hidden."""
        self.expire()
        expiry = self._found(mid)
        if not expiry and not peek:
            message = self.take(mid, visibility)
            if message is not None:
                return message
        receives = self.table.receives.get(mid, 0)
        if not expiry:
            payload = self._store.payload(self.table.places.get(mid) or 0)
            return Message(self.qid, mid, "ready", receives, self.time(mid), None, payload)
        status = "delayed" if self.table.index.is_delayed(mid) else "in-flight"
        if expiry == WITHHELD:
            return Message(self.qid, mid, status, receives + 1, self.time(mid))
        return Message(self.qid, mid, status, receives, self.time(mid), self.time(expiry))

    def read(self, receipt: Receipt) -> Message:
        """A message and its payload, for whoever holds the receipt."""
        mid = receipt.mid
        expiry = self._held(receipt)
        payload = self._store.payload(self.table.places.get(mid) or 0)
        visible_at = self.time(expiry) if expiry else None
        return Message(self.qid, mid, "delivered", self.table.receives.get(mid, 0), self.time(mid), visible_at, payload)

    def _found(self, mid: int) -> int:
        expiry = self.table.index.expiry(mid)
        if expiry is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return expiry

    def _held(self, receipt: Receipt) -> int:
        """The expiry of a message that is still as the holder of the receipt saw it, and in no claim."""
        mid, seen = receipt
        expiry = self.table.index.expiry(mid)
        if expiry is None:
            expiry = self._found(mid)  # raises
        if seen is not None and (receives := self.table.receives.get(mid, 0)) != seen:
            raise StaleReceiptError(
                f"message {mid} of queue {self.qid!r} has been received {receives} times by now, not {seen}"
            )
        if expiry == WITHHELD:
            raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is in a claim: list-claims says whose")
        return expiry

    # -- deleting -------------------------------------------------------------------------------------------------

    def delete(self, receipt: Receipt) -> None:
        """Removes a message, in whatever state it is."""
        self.remove(receipt.mid, self._held(receipt))
        self.counts.deleted += 1

    def remove(self, mid: int, expiry: int) -> bool:
        """Removes a message that is here, in the state that expiry says."""
        self._log.reserve(records.SMALL)
        self._log.append(records.delete(self.table.number, mid))
        self._remove(mid, expiry)
        if expiry == WITHHELD:
            self.claims.removed(mid)
        return True

    def _remove(self, mid: int, expiry: int) -> None:
        """Removes a message from memory; a record says so already."""
        if self._lifecycle is not None:
            self._note_deleted(mid, expiry)
        table = self.table
        self._store.undo.append((table.put_back, mid, expiry, table.drop(mid)))

    def _note_deleted(self, mid: int, expiry: int) -> None:
        if expiry == WITHHELD:
            self._note_once_more("deleted", mid)  # that it was in a claim counts
        else:
            self.note("deleted", mid)

    def purge(self, upto: int, count: int) -> int:
        """Removes the oldest messages with ids up to upto, at most count; how many."""
        removed = 0
        while removed < count and (mid := self.table.index.messages.first()) is not None and mid <= upto:
            removed += self.remove(mid, self.table.index.expiry(mid) or 0)
        self.counts.deleted += removed
        return removed

    # -- ending or moving a window --------------------------------------------------------------------------------

    def release(self, receipt: Receipt, delay: int) -> int | None:
        """Makes a message visible, now (None) or later (when)."""
        self.expire()
        mid = receipt.mid
        expiry = self._held(receipt)
        until = min((self._clock() + delay) // self._unit, MAX_MID) if delay else 0
        if not until and not expiry:
            return None  # it was visible before
        self._change(mid, expiry, until, delayed=bool(until))
        self.note("released", mid)
        return self.time(until) if until else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Moves the end of the window of a message in flight."""
        self.expire()
        mid = receipt.mid
        expiry = self._held(receipt)
        if not expiry or self.table.index.is_delayed(mid):
            raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is not in flight")
        until = self._end_of(visibility)
        held = mid in self.table.held
        self._change(mid, expiry, until, delayed=False, held=held)
        self.note("extended", mid)
        return self.time(until)

    def _change(self, mid: int, old: int, new: int, *, delayed: bool, held: bool = False) -> None:
        self._log.reserve(records.SMALL)
        visible = 0 if held else new
        self._log.append(records.state(self.number, mid, self.table.receives.get(mid, 0), visible, delayed))
        was_delayed = old != 0 and self.table.index.is_delayed(mid)
        was_new = mid in self.table.index.new
        was_held = mid in self.table.held
        self._store.undo.append((self._change_back, mid, old, was_delayed, was_new, was_held))
        self.table.show(mid, new, delayed=delayed)
        if held:
            self.table.held.add(mid)

    def _change_back(self, mid: int, old: int, delayed: bool, new: bool, held: bool) -> None:
        self.table.show(mid, old, delayed=delayed)
        if held:
            self.table.held.add(mid)
        if new:
            self.table.index.new.add(mid)

    def next_expiry(self) -> int | None:
        """When the next hidden message is due."""
        number = self.table.index.next_expiry()
        return None if number is None else number * self._unit

    def expire(self, count: int | None = None) -> int:
        """Makes visible what is due, at most count messages; how many. That needs no record: the time has passed."""
        done = 0
        now = self._clock() // self._unit
        index = self.table.index
        if not index.may_be_due(now):
            return 0
        while (count is None or done < count) and (mid := index.due(now)) is not None:
            done += 1
            delayed = index.is_delayed(mid)
            self.table.show(mid, 0, delayed=False)
            if not delayed:
                self.counts.expired += 1
                self.note("expired", mid, peer="")
        return done

    # -- copying --------------------------------------------------------------------------------------------------

    def payload_of(self, mid: int) -> bytes:
        """The payload of a message, in whatever state it is. NoSuchMessageError."""
        self._found(mid)
        return self._store.payload(self.table.places.get(mid) or 0)

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """Stores the message of another queue; two queues of the log share the payload. False: it is here already.
        NoSuchMessageError, OtherMessageError, QueueFullError."""
        known = self.table.places.get(mid)
        if known is not None and isinstance(source, LogQueue) and source.table.places.get(mid) == known:
            return False
        payload = source.payload_of(mid)
        if known is not None:
            if self._store.payload(known) != payload:
                raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
            return False
        require_room(self.qid, self.options.capacity, self.table.index.__len__, 1)
        if isinstance(source, LogQueue):
            self._share(mid, source)
        else:
            self._append_run((mid,), (payload,), self._clock())
        self.table.saw(mid)
        return True

    def reserve_copies(self, count: int) -> None:
        """Makes sure that a message of this queue can be copied to so many others in one frame, so that a crash leaves
        all of the copies or none. OSError."""
        if count:
            self._log.reserve(records.SMALL * count, push=True)

    def _share(self, mid: int, source: "LogQueue") -> None:
        """Stores a message whose payload is that of another queue's."""
        place, size = source.table.places.get(mid) or 0, source.table.index.size(mid)
        self._log.reserve(records.SMALL, push=True)
        self._log.append(records.shared(records.Shared(self.number, mid, 0, 0, False, place, size, source.number)))
        self._store.undo.append((self._unpush, (mid,)))
        self._store.join(source.number, self.number)
        self.table.add(mid, place, size, 0)
        self.counts.pushed += 1
        self.table.arrived()
        self.note("pushed", mid)

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def _queries(self) -> IndexQueries:
        return IndexQueries(self.table.index, lambda mid: True, 1)  # all messages are loaded

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        self.expire()
        return self._queries.list_mids(state, count, after)

    def prepare_stats(self) -> bool:
        return False

    def stats(self) -> Stats:
        self.expire()
        return self._queries.stats(self.counts, lambda mid: self._clock() - self.time(mid))

    def note_removed(self) -> None:
        """Tells the lifecycle record that the queue has gone with all that it held."""
        if self._lifecycle is not None:
            for mid in self.table.index.messages.after(-1, len(self.table.index)):
                self._lifecycle.note("deleted", self.qid, mid, self.table.index.size(mid), None)

    # -- for claims and batches -----------------------------------------------------------------------------------

    def remove_claimed(self, mids: Sequence[int]) -> None:
        """Removes messages whose claim is acknowledged, of which a record says so."""
        for mid in mids:
            self._remove(mid, WITHHELD)
        self.counts.deleted += len(mids)

    def note_claimed(self, mids: Sequence[int]) -> None:
        """Counts messages as delivered, because they are in a claim."""
        self.counts.delivered += len(mids)
        for mid in mids if self._lifecycle is not None else ():
            self._note_once_more("received", mid)

    def note_unclaimed(self, mids: Sequence[int]) -> None:
        """Tells that messages of a claim are visible again."""
        for mid in mids if self._lifecycle is not None else ():
            self.note("released", mid)

    def _note_once_more(self, event: Event, mid: int) -> None:
        if self._lifecycle is not None:
            receives = self.table.receives.get(mid, 0) + 1
            self._lifecycle.note(event, self.qid, mid, self.table.index.size(mid), receives)

    def free_range(self, count: int) -> range:
        """Ids that follow one another, greater than all that were given or are here."""
        first = max(self._clock() // self._unit, self.last_mid + 1, (self.table.index.messages.last() or 0) + 1)
        if first + count > MAX_MID:
            raise self._no_more_ids()
        return range(first, first + count)

    def add_published(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        """Makes messages of what was staged, of which a record says so."""
        self._store.undo.append((self._unpublish, mids, places, sizes))
        self.table.add_run(mids, places, sizes)
        self.table.saw(mids[-1])
        self.counts.pushed += len(mids)
        self.table.arrived()
        for mid in mids if self._lifecycle is not None else ():
            self.note("pushed", mid)

    def _unpublish(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        self._unpush(mids)
        for place, size in zip(places, sizes, strict=True):
            self._store.usage.add(place, record_size(size))  # it is staged again

    def carry_keys(self, segment: int, now: int) -> Iterator[None]:
        """Says again at the end of the log which keys only segments up to that one know of, and forgets those whose
        time is over. Yields now and then. OSError."""
        for page in self.keys.pages():
            for known in page:
                if known.at <= now - WINDOW:
                    self.keys.forget(known.key)
                elif known.segment <= segment:
                    self._log.reserve(records.KEY_SIZE)
                    place = self._log.append(records.key_of(self.number, known.mid, known.key, known.at))
                    self._store.undo.append((self.keys.note, *known))
                    self.keys.note(known.key, known.mid, known.at, segment_of(place))
            yield

    # -- the directory --------------------------------------------------------------------------------------------

    def in_place(self) -> bool:
        """Whether the directory is still the one that was opened."""
        return self.door is not None and self.door.in_place()

    def changed(self, name: bytes, *, appeared: bool) -> None:
        """A file has been made, renamed or removed in the directory (from Watch)."""
        if appeared and self.door is not None:
            self.door.appeared(name)

    def rescan(self) -> None:
        """Has all files in the directory looked at: reports were lost (from Watch)."""
        if self.door is not None:
            self.door.list_again()

    def dismantle(self) -> None:
        """Removes what is left of files that are messages already. OSError."""
        if self.door is not None:
            self.door.clear()

    def room(self) -> int:
        """How many messages the queue takes yet."""
        capacity = self.options.capacity
        return MAX_MID if capacity is None else capacity - len(self.table.index)

    def take_in_files(self, files: Sequence[File], token: int) -> None:
        """Stores the messages of files: each keeps its id where that is free. OSError: nothing has changed."""
        now = self._clock()
        size = sum(len(file.payload) + records.PUSH_SIZE + records.SMALL for file in files) + records.SMALL
        self._log.reserve(size, push=True)  # all of it in one frame
        kept: dict[int, File] = {}
        others: list[File] = []
        for file in sorted(files, key=itemgetter(1)):
            if file.mid in kept or self.table.index.expiry(file.mid) is not None:
                others.append(file)
            else:
                kept[file.mid] = file
        self._take_in_run(list(kept), list(kept.values()), now)
        self._take_in_run(self._free_run(len(others), now), others, now)
        self.taken[token] = self._log.append(records.taken(self.number, token))
        self._store.undo.append((self.taken.pop, token))

    def _take_in_run(self, mids: Sequence[int], files: Sequence[File], now: int) -> None:
        if not files:
            return
        self._append_run(mids, [file.payload for file in files], now)
        self.table.saw(mids[-1])
        for mid, file in zip(mids, files, strict=True):
            if any(file.state):
                self._log.append(records.state(self.number, mid, *file.state))
                self.table.restore_state(mid, file.state)

    def note_unlinked(self, tokens: Iterable[int]) -> None:
        """Notes that the files of these tokens are gone. Lost without harm: a start finds no such files."""
        for token in tokens:
            del self.taken[token]
            with suppress(OSError):  # of what was asked for before: that fails with its batch
                self._store.make_room_for_notes()
            self._log.note(records.unlinked(self.number, token))

    def carry_taken(self, segment: int) -> None:
        """Says again at the end of the log which tokens only segments up to that one know of. OSError."""
        for token, place in list(self.taken.items()):
            if segment_of(place) <= segment:
                self._log.reserve(records.SMALL)
                self.taken[token] = self._log.append(records.taken(self.number, token))
                self._store.undo.append((self.taken.__setitem__, token, place))

    def vanished(self) -> None:
        """The directory is gone (from Watch)."""
        self._on_vanished(self.qid)

    def commit(self) -> None:
        """Nothing of the queue is in the directory."""

    def close(self) -> list[int]:
        """Lets go of the directory."""
        self.is_closed = True
        if self.door is not None:
            self.door.close()
        if self._watched >= 0:
            self._watch.remove(self._watched)
        return []

    # -- a start --------------------------------------------------------------------------------------------------

    def restore_shared(self, record: records.Shared) -> None:
        """Takes up a message that shares its payload with another queue's. A checkpoint may have it, and not know yet
        that it is shared: it is dropped while it counts on its own."""
        if record.mid in self.table.index.messages:
            self.table.drop(record.mid)
        self._store.join(record.source, self.number)
        self.table.restore(record.mid, record.place, record.size, (record.receives, record.visible, record.delayed))

    def restore_deletion(self, mid: int) -> None:
        """Removes a message, if it is here."""
        if self.table.index.expiry(mid) == WITHHELD:
            self.claims.removed(mid)
        self.table.restore_deletion(mid)
