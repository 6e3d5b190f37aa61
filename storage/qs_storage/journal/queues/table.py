"""Holds the messages of one queue in memory: state, receives, and place in the log.

The table appends no records. The modules that change it do: `pushing`, `delivery`, `windows`, `deletion`, `claims` and
`batches`. `replay` applies existing records.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ...engine import (
    Message,
    NoSuchMessageError,
    Options,
    Origin,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    Stats,
)
from ...index.message_index import SIZE_SHIFT, Index
from ...index.midmap import MidMap
from ...names import FAR, MAX_MID, WITHHELD
from ...policy import end_of, is_exhausted, too_old_upto, with_origin
from ...shared import Event, Shared
from ..log.claim_records import Staged
from .store import READY, State, Store, reason_size, record_size

Dropped = tuple[int, int, int, bool, Origin | None, str | None]
"""The state of a removed message: its place, its receives, its index entry, True if a subscriber held it, its origin,
its last reason."""
_MOVES = 100
"""The most messages that one `expire` moves to the dead-letter queue: some 5 ms."""
_AT_ONCE = 1000
"""The most messages that a request makes visible before its own work: some 2 ms."""
_SCATTERED = 150
"""Windows that end at a time in a queue that backs off, whose messages are due at random times: some 3 ms."""
_BETWEEN = 10_000
"""Microseconds in which only one request makes so many visible, as a batch may have many requests."""


class MessageTable:
    """The messages of one queue. `drop` and `restore` also count live bytes in the store; `add` does not."""

    def __init__(self, qid: str, number: int, options: Options, shared: Shared, store: Store) -> None:
        """number: the queue's in the log."""
        self.qid = qid
        self.number = number
        self.unit = 1000 if options.timestamps == "ms" else 1
        """Microseconds in one unit of ids and times: 1000 for queues with ids in milliseconds."""
        self.counts = Stats(storage=options.storage)
        self.lifecycle = shared.lifecycle
        self.options = options
        self._store = store
        self._activity = shared.activity
        self._clock = shared.clock
        # A `LogQueue` sets these. They have no defaults: without its queue, a table is only read.
        self.bury: Callable[[int, str | None, int, str | None], bool]
        """Moves a message to the dead-letter queue: see `DeadLetters`."""
        self.back_off: Callable[[Sequence[int], int], list[int]]
        """Hides messages whose windows are over for the queue's back-off: see `Windows`."""
        self.remove_old: Callable[[Sequence[int], str | None], None]
        """Removes messages that are too old: see `Retirement`."""
        self.id_of_staged: Callable[[Staged], int | None]
        """Returns the id of the message that a staged record has become: see `LogBatches`."""
        self._spared_until = 0  # until then, requests make no messages visible; the timer does
        self.reset()

    def reset(self) -> None:
        """Makes the table empty, without counting removals."""
        self.index = Index()
        self.places = MidMap()
        self.receives: dict[int, int] = {}
        """How often each message was received, if at all."""
        self.origins: dict[int, Origin] = {}
        """The origins of dead letters."""
        self.reasons: dict[int, str] = {}
        """Why messages were released or rejected: the last reason of each that has one."""
        self.held: set[int] = set()
        """Hidden messages that subscribers hold: if the process ends, they are visible again."""
        self.last_mid = -1
        self.known_upto: list[tuple[int, int]] = []
        """During a start from a checkpoint: (id, place) with increasing ids. The checkpoint contains all records before
        the place for messages up to the id and after the previous entry's id."""

    def __len__(self) -> int:
        return len(self.index)

    def arrived(self) -> None:
        """Announces that there may be visible messages."""
        self._activity.arrived.add(self.qid)

    def hidden(self, expiry: int) -> None:
        """Announces when a hidden message becomes visible."""
        self._activity.announce(self.qid, expiry * self.unit)
        if self.options.retention is not None:
            self.announce()  # a delayed one may become too old first

    def announce(self) -> None:
        """Announces `next_expiry`."""
        due = self.next_expiry()
        if due is not None:
            self._activity.announce(self.qid, due)

    def saw(self, mid: int) -> None:
        """Makes new ids greater than this one. Ignores ids so large that none could follow."""
        if self.last_mid < mid < FAR:
            self.last_mid = mid

    def note(self, event: Event, mid: int, *, more: int = 0, peer: str | None = None) -> None:
        """Reports an event of a message to the lifecycle record. more: receives to add to those in the table."""
        if self.lifecycle is not None:
            receives = self.receives.get(mid, 0) + more
            self.lifecycle.note(event, self.qid, mid, self.index.size(mid), receives, peer=peer)

    # -- ids and times --------------------------------------------------------------------------------------------

    def time(self, number: int) -> int:
        """Converts an id, or a time in the unit of ids, to microseconds since the Epoch: at most as many as an answer
        can say, as other programs may name a message by any number."""
        return number if self.unit == 1 else min(number * self.unit, MAX_MID)

    def window_end(self, visibility: int | None) -> int:
        """Returns the end of a visibility window that begins now, in the unit of ids. visibility: microseconds, None
        for the queue's own."""
        window = self.options.visibility if visibility is None else visibility
        return max(min((self._clock() + window) // self.unit, MAX_MID), 1)

    def free_ids(self, count: int, now: int) -> range:
        """Returns adjacent unused ids, greater than all given before. QueueFullError if none are left."""
        first = max(now // self.unit, self.last_mid + 1)
        last = self.index.messages.last()
        if last is not None and last >= first:  # copies can have greater ids
            while (taken := self.index.messages.after(first - 1, 1)) and taken[0] < first + count:
                first = taken[0] + 1
        if first + count > MAX_MID:
            raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater id is left")
        return range(first, first + count)

    def expiry_of(self, mid: int) -> int:
        """Returns the time until which a message is hidden, 0: it is visible. NoSuchMessageError."""
        expiry = self.index.expiry(mid)
        if expiry is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return expiry

    def held_until(self, receipt: Receipt) -> int:
        """Checks a receipt. Returns the message's `expiry_of`. NoSuchMessageError; StaleReceiptError: it was received
        again, or is in a claim."""
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

    def next_expiry(self) -> int | None:
        """Returns when the next hidden message is due or the oldest one too old, in microseconds since the Epoch; None:
        never."""
        number = self.index.expiries.first()
        due = None if number is None else number * self.unit
        oldest = None if self.options.retention is None else self.index.oldest()
        end = None if oldest is None else end_of(self.options, self.time(oldest))
        return end if due is None or (end is not None and end < due) else due

    def too_old_upto(self, now: int | None = None) -> int:
        """Returns the greatest id that is too old, -1 if none is. Such messages are delivered no more unless in flight;
        the timer removes them. now: microseconds since the Epoch, None for the clock's."""
        if self.options.retention is None:
            return -1
        return too_old_upto(self.options, self._clock() if now is None else now, self.unit)

    def first_ready(self) -> int | None:
        """Returns the oldest message that can be received, None if there is none."""
        if self.options.retention is None:
            return self.index.ready.first()
        found = self.index.ready.after(self.too_old_upto(), 1)
        return found[0] if found else None

    def is_exhausted(self, mid: int, receives: int | None = None) -> bool:
        """Tells whether a message was received so often that it goes to the dead-letter queue. receives: None for the
        table's number."""
        return is_exhausted(self.options, self.receives.get(mid, 0) if receives is None else receives)

    def with_past(self, message: Message) -> Message:
        """Adds to a message its last reason, and its origin if it is a dead letter."""
        message.reason = self.reasons.get(message.mid)
        return with_origin(message, self.origins)

    def expire(self, count: int | None = None) -> int:
        """Ends windows and delays that are over: makes the messages visible, hides them for the back-off, or moves them
        to the dead-letter queue, at most 100. count: the most messages, None for as many as a request has time for.
        Returns how many. Needs no record, as the log has the times. OSError: see `DeadLetters`."""
        now = self._clock()
        if not self.index.expiries.may_be_due(now // self.unit) or (count is None and now < self._spared_until):
            return 0
        most = _AT_ONCE if self.options.backoff is None else _SCATTERED
        mids = self.index.expiries.pop_due(now // self.unit, most if count is None else count)
        if count is None and len(mids) == most:
            self._spared_until = now + _BETWEEN
        staying = mids if self.options.max_receives is None else self._bury(mids)
        if self.options.backoff is not None:
            staying = self.back_off(staying, now)
        if staying:
            self._show_all(staying, now)
        return len(mids)

    def _bury(self, mids: Sequence[int]) -> list[int]:
        """Moves exhausted messages to the dead-letter queue, at most 100; more stay due. Returns the others.
        OSError."""
        staying: list[int] = []
        later: list[int] = []
        moved = 0
        try:
            for mid in mids:
                if not self.is_exhausted(mid):
                    staying.append(mid)
                elif moved == _MOVES:
                    later.append(mid)
                else:
                    delayed = self.index.is_delayed(mid)
                    if self.bury(mid, "", self.receives.get(mid, 0), None):
                        moved += 1
                        self.counts.expired += not delayed
                    else:
                        staying.append(mid)
        except BaseException:
            later = list(mids)
            raise
        finally:
            self.index.remember(later)
        return staying

    def _show_all(self, mids: Sequence[int], now: int) -> None:
        """Makes hidden messages visible. now: microseconds since the Epoch."""
        ordered = sorted(mids)
        delayed = set(self.index.delayed.among(ordered))
        self.index.show_all(ordered)
        self.held.difference_update(ordered)
        self.arrived()
        self.note_expired([mid for mid in mids if mid not in delayed] if delayed else mids, now)

    def note_expired(self, mids: Sequence[int], now: int) -> None:
        """Counts messages whose windows have ended. now: microseconds since the Epoch."""
        self.counts.expired += len(mids)
        if self.lifecycle is not None:
            upto = self.too_old_upto(now)
            for mid in mids:
                if mid > upto:  # those that are too old are retired instead
                    self.note("expired", mid, peer="")

    # -- adding and removing --------------------------------------------------------------------------------------

    def add(self, mid: int, place: int, size: int, visible: int) -> None:
        """Adds a message. size: bytes of its payload; visible: the time from which it is visible, 0: at once."""
        self.index.add(mid, visible, size)
        self.places.set(mid, place)

    def add_run(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        """Adds visible messages with increasing ids."""
        last = self.index.messages.last()
        if last is not None and last >= mids[0]:
            for mid, place, size in zip(mids, places, sizes, strict=True):
                self.add(mid, place, size, 0)
        else:
            self.index.add_run(mids, sizes)
            self.places.set_run(mids, places)

    def push_run(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        """Adds visible messages that this batch has appended; a roll-back removes them."""
        self._store.undo.append((self.unpush, mids))
        self.add_run(mids, places, sizes)
        self.counts.pushed += len(mids)
        self._activity.arrived.add(self.qid)
        if self.lifecycle is not None:
            for mid in mids:
                self.note("pushed", mid)

    def unpush(self, mids: Sequence[int]) -> None:
        for mid in mids:
            self.drop(mid)
        self.counts.pushed -= len(mids)

    def delete(self, mid: int, expiry: int) -> None:
        """Removes a message whose removal this batch has appended; a roll-back puts it back. expiry: its
        `expiry_of`."""
        if self.lifecycle is not None:
            self.note("deleted", mid, more=expiry == WITHHELD)  # a claim counts as a receive
        self._store.undo.append((self.put_back, mid, expiry, self.drop(mid)))

    def delete_all(self, mids: Sequence[int], expiry: int) -> None:
        """Removes messages as `delete` does, in a third of the time. mids: increasing; expiry: that of each."""
        for mid in mids if self.lifecycle is not None else ():
            self.note("deleted", mid, more=expiry == WITHHELD)
        self._store.undo.append((self._put_back_all, mids, expiry, self.drop_all(mids)))

    def _put_back_all(self, mids: Sequence[int], expiry: int, dropped: Sequence[Dropped]) -> None:
        for mid, each in zip(mids, dropped, strict=True):
            self.put_back(mid, expiry, each)

    def drop(self, mid: int) -> Dropped:
        """Removes a message. Returns its state for `put_back`."""
        receives, held = self.receives.pop(mid, 0), mid in self.held
        if held:
            self.held.remove(mid)
        facts = self.index.remove(mid, retrieved=receives > 0)
        place = self.places.pop(mid) or 0
        self._store.drop(self, mid, place, facts >> SIZE_SHIFT)
        origin = self.origins.pop(mid, None) if self.origins else None
        return place, receives, facts, held, origin, self._drop_reason(mid, place) if self.reasons else None

    def drop_all(self, mids: Sequence[int]) -> list[Dropped]:
        """Removes messages. mids: increasing. Returns their states for `put_back`, in the same order."""
        places = [place or 0 for place in self.places.values_of(mids)]
        self.places.discard_all(mids)
        facts = self.index.remove_all(mids)
        dropped: list[Dropped] = []
        for mid, place, fact in zip(mids, places, facts, strict=True):
            self._store.drop(self, mid, place, fact >> SIZE_SHIFT)
            origin = self.origins.pop(mid, None) if self.origins else None
            reason = self._drop_reason(mid, place) if self.reasons else None
            dropped.append((place, self.receives.pop(mid, 0), fact, mid in self.held, origin, reason))
        self.held.difference_update(mids)
        return dropped

    def put_back(self, mid: int, expiry: int, dropped: Dropped) -> None:
        """Adds a dropped message again. expiry: its `expiry_of` before; dropped: from `drop`."""
        place, receives, facts, held, origin, reason = dropped
        new = not receives and expiry != WITHHELD
        self.index.restore(mid, expiry, facts, new=new, delayed=Index.delayed_in(facts))
        self._store.keep(self, mid, place, Index.size_in(facts))
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

    def show(self, mid: int, expiry: int, *, delayed: bool) -> None:
        """Makes a message visible (expiry 0) or hides it until expiry. delayed: True if that is a delay."""
        self.held.discard(mid)
        if expiry == WITHHELD:
            self.index.withhold(mid)
        elif expiry:
            self.index.hide(mid, expiry, delayed=delayed)
            self.hidden(expiry)
        else:
            self.index.show(mid)
            self.arrived()

    def delay_all(self, untils: dict[int, int]) -> None:
        """Delays messages whose windows are over, in half of the time of `show`. untils: see `Index.delay_all`; at
        least one."""
        self.held.difference_update(untils)
        self.index.delay_all(untils)
        self.hidden(min(untils.values()))

    def set_receives(self, mid: int, receives: int) -> None:
        """Sets how often a message was received; 0 makes it new."""
        if receives:
            self.receives[mid] = receives
            self.index.new.discard(mid)
        else:
            self.receives.pop(mid, None)
            self.index.new.add(mid)

    def set_reason(self, mid: int, reason: str | None) -> None:
        """Sets why a message was given back, None for no reason. Counts its record as live where the payload is: it is
        copied with that."""
        place = self.places.get(mid) or 0
        self._drop_reason(mid, place)
        if reason is not None:
            self.reasons[mid] = reason
            self._store.usage.add(place, reason_size(reason))

    def _drop_reason(self, mid: int, place: int) -> str | None:
        reason = self.reasons.pop(mid, None)
        if reason is not None:
            self._store.usage.drop(place, reason_size(reason))
        return reason

    def state_of(self, mid: int) -> State:
        expiry = 0 if mid in self.held else self.index.expiry(mid) or 0
        return self.receives.get(mid, 0), expiry, expiry != 0 and self.index.is_delayed(mid)

    # -- a start --------------------------------------------------------------------------------------------------

    def is_newer(self, mid: int, place: int) -> bool:
        """Tells whether the record at a place is newer than the checkpoint's state of a message."""
        known = self.known_upto
        return not known or place >= known[-1][1] or place >= known[bisect_left(known, (mid, 0))][1]

    def restore_run(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None:
        """Restores messages that were pushed together, visible at once. mids, places: increasing, in one segment."""
        last = self.index.messages.last()
        copied = bool(self.known_upto) and self.number in self._store.families  # a checkpoint may contain copies
        if copied or (last is not None and last >= mids[0]):
            for mid, place, size in zip(mids, places, sizes, strict=True):
                self.restore(mid, place, size, READY)
            return
        self.add_run(mids, places, sizes)
        self._store.usage.add(places[0], sum(sizes) + len(sizes) * record_size(0))
        self.saw(mids[-1])

    def restore(self, mid: int, place: int, size: int, state: State) -> None:
        """Restores a message, in place of the one with this id if there is one."""
        if mid in self.index.messages:
            self.drop(mid)
        self._store.keep(self, mid, place, size)
        self.add(mid, place, size, 0)
        self.restore_state(mid, state)

    def restore_state(self, mid: int, state: State) -> None:
        """Restores the state of a message, if the queue has it."""
        self.saw(mid)
        if mid not in self.index.messages:
            return
        self._store.refer(self, self.places.get(mid) or 0)
        receives, visible, delayed = state
        if receives:
            self.set_receives(mid, receives)
        if self.index.expiry(mid) != visible:
            self.show(mid, visible, delayed=delayed)
        if not receives and mid in self.receives:
            self.set_receives(mid, 0)  # the last receive was taken back

    def restore_reason(self, mid: int, reason: str) -> None:
        """Restores why a message was given back, if the queue has it."""
        if mid in self.index.messages:
            self.set_reason(mid, reason)

    def restore_deletion(self, mid: int) -> None:
        """Removes a message, if the queue has it."""
        self.saw(mid)
        if mid in self.index.messages:
            self.drop(mid)

    def end_exhausted(self) -> None:
        """Hides visible messages that were received too often, until `expire` moves them to the dead-letter queue:
        those held by subscribers of a killed process, and those that could not be moved. Call it at the end of a
        start."""
        if self.options.max_receives is None:
            return
        for mid in [mid for mid in self.receives if mid in self.index.ready and self.is_exhausted(mid)]:
            self.show(mid, 1, delayed=False)

    def clear(self) -> None:
        """Drops all messages, as the queue is gone, and its state with them."""
        for mids, places in self.places.pages(-1):
            for mid, place, size in zip(mids, places, self.index.sizes(mids), strict=True):
                self._store.drop(self, mid, place, size or 0)
                self._drop_reason(mid, place)
        self.reset()
