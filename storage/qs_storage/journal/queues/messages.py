"""The messages of one queue in memory: state, receives, and place in the log. A start restores them from the records.

The table appends no records. `queue.LogQueue`, which changes it, does.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import repeat

from ...engine import (
    Message,
    NoSuchMessageError,
    Options,
    Origin,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    Stats,
    StorageError,
)
from ...headers import trace_of
from ...index.message_index import SIZE_SHIFT, Expiries, Index
from ...index.midmap import MidMap
from ...names import FAR, MAX_MID, WITHHELD
from ...policy import end_of, is_exhausted, too_old_upto, with_origin
from ...shared import EngineContext, Event
from ..log import records
from ..log.attributes import Attributes, split_content
from ..log.records import State, reason_size, record_size
from .store import Owner, PayloadStore

READY: State = (0, 0, False)
_NEVER = float("inf")
Dropped = tuple[int, int, int, bool, Origin | None, str | None, Sequence[Owner] | None, Attributes | None]
"""The state of a removed message: its place, its receives, its index entry, True if a subscriber held it, its origin,
its last reason, the owners of its payload, its attributes."""


class MessageTable(ABC):
    """The messages of one queue of the log: their ids, times, places and states.

    Ensures:
    1. Each message of the index has a place, and its payload can be read there.
    2. Live bytes in the store agree with the index. `drop` and `restore` update both; `add` updates the index only, so
       that the caller can count the live bytes of many messages at once.
    3. New ids are greater than all that were given or seen, whatever the clock does.
    4. The result of `drop` is enough for `put_back` to restore the message as it was.

    Assumes that each change in a transaction is noted with the way to take it back, and that all times are those of one
    clock.

    Never appends a record, and never reads a payload."""

    def __init__(self, qid: str, options: Options, shared: EngineContext, store: PayloadStore) -> None:
        self.qid = qid
        self.number = 0
        """The queue's number in the log, 0 before `begin`."""
        self.options = options
        self.unit = 1000 if options.timestamps == "ms" else 1
        """Microseconds in one unit of ids and times: 1000 for queues with ids in milliseconds."""
        self.counts = Stats(storage=options.storage)
        self.lifecycle = shared.lifecycle
        self.store = store
        self.transaction = store.transaction
        self.clock = shared.clock
        self._activity = shared.activity
        self._empty()

    def _empty(self) -> None:
        self.index = Index()
        self.obey_options()
        self.places = MidMap()
        self.receives: dict[int, int] = {}
        """The count of receives of each message that was received."""
        self.origins: dict[int, Origin] = {}
        """The origins of dead letters."""
        self.reasons: dict[int, str] = {}
        """Why messages were released or rejected: the last reason of each that has one."""
        self.attributes: dict[int, Attributes] = {}
        """The attributes of each message that has some: what most have not costs nothing."""
        self.unique: dict[bytes, int] = {}
        """The messages whose keys count for as long as they are there, by the digests of the keys."""
        self.ends = MidMap()
        """The times from which messages are not handed out any more, in microseconds since the Epoch."""
        self.lifetimes = Expiries(self.ends)
        """Lists `ends` in the order of the times. An entry is taken out when it is due, and put back if the message was
        in flight then and is not any more."""
        self.outlived: set[int] = set()
        """Messages in flight whose entries were taken out: only these need new ones, or each release would add one."""
        self.held: set[int] = set()
        """Hidden messages that subscribers hold: if the process ends, they are visible again."""
        self.last_mid = -1
        """The greatest id that was given or seen, -1 without any."""
        self.known_upto: list[tuple[int, int]] = []
        """During a start from a checkpoint: (id, place) with increasing ids. The checkpoint contains all records before
        the place for messages up to the id and after the previous entry's id."""

    def __len__(self) -> int:
        return len(self.index)

    def obey_options(self) -> None:
        """Takes note of the options that concern order and pace, after they were set."""
        self.index.configure(self.options.group_in_flight or 1, fair=self.options.fair)
        self.is_paced = self.options.max_in_flight is not None or self.options.rate is not None

    # -- what others are told -------------------------------------------------------------------------------------

    def arrived(self) -> None:
        """Announces that there may be visible messages."""
        self._activity.arrived.add(self.qid)

    def freed(self) -> None:
        """Announces that limits may let other messages out, after one that was out is not any more."""
        if self.index.order is not None or self.is_paced:
            self.arrived()

    def hidden(self, expiry: int) -> None:
        """Announces when a hidden message becomes visible."""
        due = expiry * self.unit
        # Compared here, without a call: each receive comes by, and most windows end after one that is announced
        # already.
        if due < self._activity.announced.get(self.qid, _NEVER):
            self._activity.announce(self.qid, due)
        if self.options.retention is not None:
            self.announce()  # a delayed one may become too old first

    def announce(self) -> None:
        """Announces the time of `next_expiry` to the engine."""
        due = self.next_expiry()
        if due is not None:
            self._activity.announce(self.qid, due)

    def note(self, event: Event, mid: int, *, more: int = 0, peer: str | None = None) -> None:
        """Reports an event of a message to the lifecycle record. more: receives to add to those in the table."""
        if self.lifecycle is not None:
            receives = self.receives.get(mid, 0) + more
            trace = self._trace_of(mid) if event == "pushed" and self.attributes else None
            self.lifecycle.note(event, self.qid, mid, self.index.size(mid), receives, peer=peer, trace=trace)

    def _trace_of(self, mid: int) -> str | None:
        """Returns the trace of a message for the lifecycle record, None without one, or if its headers cannot be
        read: the record never stops what it records."""
        attributes = self.attributes.get(mid)
        if attributes is None or not attributes.headers:
            return None
        try:
            content = self.store.payload(self.number, mid, self.places.get(mid) or 0)
            return trace_of(split_content(content, attributes)[0])
        except (OSError, StorageError, ValueError):
            return None

    def count(self, name: str, number: int) -> None:
        """Adds to one of `counts`. A transaction that is taken back takes the addition back too."""
        self.uncount(name, -number)
        self.transaction.undo(self.uncount, name, number)

    def uncount(self, name: str, number: int) -> None:
        setattr(self.counts, name, getattr(self.counts, name) - number)

    def note_all(self, event: Event, mids: Sequence[int], *, more: int = 0) -> None:
        """Reports the same event of many messages to the lifecycle record. mids: increasing; more: see `note`."""
        if self.lifecycle is not None:
            sizes = [size or 0 for size in self.index.sizes(mids)]
            receives = (self.receives.get(mid, 0) + more for mid in mids)
            self.lifecycle.note_all(event, self.qid, mids, sizes, receives)

    # -- ids and times --------------------------------------------------------------------------------------------

    def saw(self, mid: int) -> None:
        """Makes new ids greater than this one. Ignores ids so large that none could follow."""
        if self.last_mid < mid < FAR:
            self.last_mid = mid

    def time(self, number: int) -> int:
        """Converts an id, or a time in the unit of ids, to microseconds since the Epoch: at most what an answer can
        say, as other programs may name a message by any number."""
        return number if self.unit == 1 else min(number * self.unit, MAX_MID)

    def window_end(self, visibility: int | None) -> int:
        """Returns the end of a visibility window that begins now, in the unit of ids. visibility: microseconds, None
        for the queue's own."""
        window = self.options.visibility if visibility is None else visibility
        # At least 1, as 0 means visible.
        return max(min((self.clock() + window) // self.unit, MAX_MID), 1)

    def free_ids(self, count: int, now: int) -> range:
        """Returns adjacent unused ids, greater than all given before. QueueFullError if none are left."""
        # The id is the time of the push, unless the clock stands or goes back, or more messages come than time has
        # units.
        first = max(now // self.unit, self.last_mid + 1)
        lasts = self.index.messages.lasts
        if lasts and lasts[-1] >= first:  # copies can have greater ids
            while (taken := self.index.messages.after(first - 1, 1)) and taken[0] < first + count:
                first = taken[0] + 1
        if first + count > MAX_MID:
            raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater id is left")
        return range(first, first + count)

    def next_expiry(self) -> int | None:
        """Returns when the next hidden message is due, or the oldest message too old, in microseconds since the Epoch;
        None for never."""
        number = self.index.expiries.first()
        due = None if number is None else number * self.unit
        oldest = None if self.options.retention is None else self.index.oldest()
        end = None if oldest is None else end_of(self.options, self.time(oldest))
        times = (due, end, self.lifetimes.first() if self.ends.count else None, self.wakes_at)
        return min([each for each in times if each is not None], default=None)

    def too_old_upto(self, now: int | None = None) -> int:
        """Returns the greatest id that is too old, -1 if none is. Messages up to that id are not delivered any more,
        unless they are in flight; the timer removes them. now: microseconds since the Epoch, None for the clock's."""
        if self.options.retention is None:
            return -1
        return too_old_upto(self.options, self.clock() if now is None else now, self.unit)

    # -- one message ----------------------------------------------------------------------------------------------

    def expiry_of(self, mid: int) -> int:
        """Returns the time until which a message is hidden, 0 if the message is visible. NoSuchMessageError."""
        expiry = self.index.expiry(mid)
        if expiry is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return expiry

    def held_until(self, receipt: Receipt) -> int:
        """Checks a receipt. Returns the `expiry_of` its message. NoSuchMessageError; StaleReceiptError if the message
        was received again, or is in a claim."""
        mid, seen = receipt
        expiry = self.index.expiry(mid)
        if expiry is None:
            expiry = self.expiry_of(mid)  # raises
        if seen is not None and (receives := self.receives.get(mid, 0)) != seen:
            raise StaleReceiptError(
                f"message {mid} of queue {self.qid!r} has been received {receives} times by now, not {seen}"
            )
        if expiry == WITHHELD:
            raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is in a claim: list-claims says whose")
        return expiry

    def is_exhausted(self, mid: int) -> bool:
        """Tells whether a message was received so often that it goes to the dead-letter queue."""
        return is_exhausted(self.options, self.receives.get(mid, 0))

    def with_past(self, message: Message) -> Message:
        """Adds to a message its last reason, its attributes, and its origin if it is a dead letter. Takes its headers
        out of its payload, which is the content so far."""
        message.reason = self.reasons.get(message.mid)
        attributes = self.attributes.get(message.mid)
        if attributes is not None:
            message.priority, message.group = attributes.priority, attributes.group
            message.expires_at = attributes.expires or None
            if message.payload is not None:
                message.headers, message.payload = split_content(message.payload, attributes)
        return with_origin(message, self.origins)

    def state_of(self, mid: int) -> State:
        expiry = 0 if mid in self.held else self.index.expiry(mid) or 0
        return self.receives.get(mid, 0), expiry, expiry != 0 and self.index.is_delayed(mid)

    def show(self, mid: int, expiry: int, *, delayed: bool) -> None:
        """Makes a message visible (expiry 0), or hides it until expiry. delayed: True if a delay hides it, and not a
        window."""
        self.held.discard(mid)
        if expiry == WITHHELD:
            self.index.withhold(mid)
        elif expiry:
            self.index.hide(mid, expiry, delayed=delayed)
            self.hidden(expiry)
            self.freed()
        else:
            self.index.show(mid)
            self.arrived()
            self.watch_ends((mid,))

    def watch_ends(self, mids: Iterable[int]) -> None:
        """Sees to it that messages which are not in flight any more are removed if they are over."""
        if self.outlived:
            for mid in self.outlived.intersection(mids):
                self.outlived.remove(mid)
                self._watch_end(mid, self.ends.get(mid) or 0)

    def _watch_end(self, mid: int, end: int) -> None:
        self.lifetimes.push(end, mid)
        self._activity.announce(self.qid, end)

    def set_receives(self, mid: int, receives: int) -> None:
        """Sets how often a message was received; 0 makes it new."""
        if receives:
            self.receives[mid] = receives
            self.index.new.discard(mid)
        else:
            self.receives.pop(mid, None)
            self.index.new.add(mid)

    def set_reason(self, mid: int, reason: str | None) -> None:
        """Sets why a message was given back, None for no reason. Counts the reason's record as live in the segment of
        the payload, because compaction copies both together."""
        place = self.places.get(mid) or 0
        self._drop_reason(mid, place)
        if reason is not None:
            self.reasons[mid] = reason
            self.store.usage.add(place, reason_size(reason))

    def set_attributes(self, mid: int, place: int, attributes: Attributes) -> None:
        """Gives a message the attributes that it was pushed with; call it before the message is added. Counts them as
        live, as `set_reason` does."""
        self.attributes[mid] = attributes
        self.store.usage.add(place, attributes.size)
        if attributes.priority or attributes.group:
            self.index.rank(mid, attributes.priority, attributes.group)
        if attributes.key:
            self.unique[attributes.key] = mid
        if attributes.expires:
            self.ends.set(mid, attributes.expires)
            self._watch_end(mid, attributes.expires)

    def attributes_size(self, mids: Iterable[int]) -> int:
        """Returns the bytes that the attributes of messages take in the log."""
        attributes = self.attributes
        return sum([attributes[mid].size for mid in mids if mid in attributes]) if attributes else 0

    def _drop_attributes(self, mid: int, place: int) -> Attributes | None:
        attributes = self.attributes.pop(mid, None)
        if attributes is None:
            return None
        self.store.usage.drop(place, attributes.size)
        if attributes.key and self.unique.get(attributes.key) == mid:
            del self.unique[attributes.key]
        if attributes.expires:
            self.ends.pop(mid)
            self.outlived.discard(mid)
        return attributes

    def _drop_reason(self, mid: int, place: int) -> str | None:
        reason = self.reasons.pop(mid, None)
        if reason is not None:
            self.store.usage.drop(place, reason_size(reason))
        return reason

    @property
    @abstractmethod
    def wakes_at(self) -> int | None:
        """When the queue's rate lets it hand out messages again, None if it does not wait for that."""

    @abstractmethod
    def expire(self, count: int | None = None, *, keep: int = 0) -> int:
        """Ends windows and delays that are over. See `LogQueue`."""

    @abstractmethod
    def id_of_staged(self, record: records.Staged, /) -> int | None:
        """Returns the id of the message that a staged record has become, None if it was not published."""

    @abstractmethod
    def restore_deletion(self, mid: int, /) -> None:
        """Removes a message, if the queue has it."""

    # -- adding and removing --------------------------------------------------------------------------------------

    def add(self, mid: int, place: int, size: int, visible: int) -> None:
        """Adds a message. size: the bytes of its payload; visible: the time from which the message is visible, 0 for at
        once."""
        self.index.add(mid, visible, size)
        self.places.set(mid, place)

    def add_run(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        """Adds visible messages with increasing ids."""
        lasts = self.index.messages.lasts
        if lasts and lasts[-1] >= mids[0]:
            for mid, place, size in zip(mids, places, sizes, strict=True):
                self.add(mid, place, size, 0)
        else:
            self.index.add_run(mids, sizes)
            self.places.set_run(mids, places)

    def appear(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        """Adds visible messages whose records are in this transaction; taking it back removes them."""
        self.transaction.changed.append((self.unpush, (mids,)))  # `undo` without its call
        lasts = self.index.messages.lasts
        if lasts and lasts[-1] >= mids[0]:
            self.add_run(mids, places, sizes)
        else:  # nearly always
            self.index.add_run(mids, sizes)
            self.places.set_run(mids, places)
        self.counts.pushed += len(mids)
        self._activity.arrived.add(self.qid)
        if self.lifecycle is not None:
            for mid in mids:
                self.note("pushed", mid)

    def vanish(self, mids: Sequence[int], expiry: int) -> None:
        """Removes messages whose removal is in this transaction; taking it back restores them. mids: increasing;
        expiry: the `expiry_of` all of them."""
        self.note_all("deleted", mids, more=int(expiry == WITHHELD))  # a claim counts as a receive
        self.transaction.undo(self.put_back_all, mids, [expiry] * len(mids), self.drop_all(mids))
        self.count("deleted", len(mids))

    def unpush(self, mids: Sequence[int]) -> None:
        """Takes back a push."""
        for mid in mids:
            self.drop(mid)
        self.counts.pushed -= len(mids)

    def drop(self, mid: int, *, releases: bool = True) -> Dropped:
        """Removes a message. releases: False if another queue takes its payload over. Returns the message's state for
        `put_back`."""
        receives, held = self.receives.pop(mid, 0), mid in self.held  # what few messages have is in dicts of its own
        if held:
            self.held.remove(mid)
        facts = self.index.remove(mid, retrieved=receives > 0)
        place = self.places.pop(mid) or 0
        owners = self.store.drop(self, mid, place, facts >> SIZE_SHIFT) if releases else None
        origin = self.origins.pop(mid, None) if self.origins else None
        reason = self._drop_reason(mid, place) if self.reasons else None
        attributes = self._drop_attributes(mid, place) if self.attributes else None
        if self.is_paced or self.index.order is not None:  # `freed` without its call
            self.arrived()
        return place, receives, facts, held, origin, reason, owners, attributes

    def drop_all(self, mids: Sequence[int]) -> Iterable[Dropped]:
        """Removes messages, in a tenth of the time that single drops take. mids: increasing. Returns an iterator over
        their states, in the same order."""
        places = [place or 0 for place in self.places.values_of(mids)]
        if self.store.families and len(set(places)) < len(places):  # a copy came back: two messages with one payload
            return [self.drop(mid) for mid in mids]
        self.places.discard_all(mids)
        # Column by column, each with one pass: most queues have none of the rarer ones, which cost a test.
        facts = self.index.remove_all(mids)
        owners = self.store.drop_all(self, mids, places, [fact >> SIZE_SHIFT for fact in facts])
        receives = [self.receives.pop(mid, 0) for mid in mids] if self.receives else repeat(0)
        held = [mid in self.held for mid in mids] if self.held else repeat(False)
        origins = [self.origins.pop(mid, None) for mid in mids] if self.origins else repeat(None)
        reasons = list(map(self._drop_reason, mids, places)) if self.reasons else repeat(None)
        attributes = list(map(self._drop_attributes, mids, places)) if self.attributes else repeat(None)
        self.held.difference_update(mids)
        self.freed()
        # Put together only if needed.
        return zip(places, receives, facts, held, origins, reasons, owners, attributes, strict=False)

    def put_back(self, mid: int, expiry: int, dropped: Dropped) -> None:
        """Adds a dropped message again. expiry: its `expiry_of` before; dropped: the result of `drop`."""
        place, receives, facts, held, origin, reason, owners, attributes = dropped
        if attributes is not None:
            self.set_attributes(mid, place, attributes)
        # It follows from the rest, so it need not be kept.
        new = not receives and expiry != WITHHELD
        self.index.restore(mid, expiry, facts, new=new, delayed=Index.delayed_in(facts))
        if owners is not None:
            self.store.set_owners(place, owners)
        self.store.keep(self, mid, place, Index.size_in(facts))
        self.places.set(mid, place)
        if receives:
            self.receives[mid] = receives
        if held:
            self.held.add(mid)
        if origin is not None:
            self.origins[mid] = origin
        self.set_reason(mid, reason)
        if not expiry:
            self.arrived()
        elif expiry != WITHHELD:
            self.hidden(expiry)

    def put_back_all(self, mids: Sequence[int], expiries: Sequence[int | None], dropped: Iterable[Dropped]) -> None:
        """Adds dropped messages again. expiries: their `expiry_of` before, None if all were visible."""
        for mid, expiry, each in zip(mids, expiries, dropped, strict=True):
            self.put_back(mid, expiry or 0, each)

    # -- a start -------------------------------------------------------------------------------------------------

    def is_newer(self, mid: int, place: int) -> bool:
        """Tells whether the record at a place is newer than the checkpoint's state of a message."""
        # Without a checkpoint every record is newer. With one, each page of messages has its own end of the log.
        known = self.known_upto
        return not known or place >= known[-1][1] or place >= known[bisect_left(known, (mid, 0))][1]

    def restore_run(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        """Restores messages that were pushed together and are visible at once. mids, places: increasing, in one
        segment."""
        last = self.index.messages.last()
        # Then some of these payloads may be counted already, by a queue that shares them.
        copied = bool(self.known_upto) and self.number in self.store.families  # a checkpoint may contain copies
        if copied or (last is not None and last >= mids[0]):
            for mid, place, size in zip(mids, places, sizes, strict=True):
                self.restore(mid, place, size, READY)
            return
        self.add_run(mids, places, sizes)
        self.store.usage.add(places[0], sum(sizes) + len(sizes) * record_size(0))
        self.saw(mids[-1])

    def restore(self, mid: int, place: int, size: int, state: State, attributes: Attributes | None = None) -> None:
        """Restores a message. Replaces the message with the same id, if there is one."""
        if mid in self.index.messages:
            self.drop(mid)
        self.store.keep(self, mid, place, size)
        if attributes is not None:
            self.set_attributes(mid, place, attributes)
        self.add(mid, place, size, 0)
        if state == READY:
            self.saw(mid)
        else:
            self.restore_state(mid, state)

    def restore_state(self, mid: int, state: State) -> None:
        """Restores the state of a message, if the queue has it."""
        self.saw(mid)
        if mid not in self.index.messages:
            return
        receives, visible, delayed = state
        if receives:
            self.set_receives(mid, receives)
        if self.index.expiry(mid) != visible:
            self.show(mid, visible, delayed=delayed)
        if not receives and mid in self.receives:
            self.set_receives(mid, 0)  # the last receive was taken back
