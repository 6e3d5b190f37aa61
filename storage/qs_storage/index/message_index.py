"""The index of a queue in memory: the ready messages in order, and the times until which the others are hidden.

For queues of files, it starts with the ids and times in file names, so that a deep queue is ready once its directory is
listed. Sizes, and whether a message was ever retrieved or is delayed, are loaded when needed.
"""

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

from ..names import WITHHELD
from .midmap import MidMap, MidSet
from .order import DELAYED, OUT, READY, Order

_MID = (1 << 64) - 1
"""Masks the id in an entry: one integer with the time above the id is compared faster than a pair."""
_FEW = 64
"""Stale entries that do not matter; and those that one look at the first time drops at most."""
_SWEPT = 4
"""Entries that each new one sweeps: more than one, so that a sweep ends before as many new ones have come."""


class Expiries:
    """The times at which the hidden messages of one queue are due: a heap of times and ids.

    Ensures that each message that is hidden until a time is found from that time on, and that no call goes over all
    entries, however many are stale. An entry becomes stale when its message's window is moved or ends early. Stale
    entries are dropped when they reach the top of the heap, as removing them from the middle would cost more.

    The same time of a message may be pushed twice."""

    __slots__ = ("_entries", "_hidden", "_stale_at", "_unswept")

    def __init__(self, hidden: MidMap, times: Iterable[tuple[int, int]] = ()) -> None:
        """hidden: the current times, by which stale entries are recognized; times: the first entries, (time, id)."""
        self._hidden = hidden
        self._entries = [expiry << 64 | mid for expiry, mid in times]
        heapq.heapify(self._entries)
        self._unswept: list[int] = []  # a heap of older entries; popping its last one leaves a heap
        self._stale_at = 2 * len(self._entries) + _FEW

    def __len__(self) -> int:
        """Counts all entries, also stale ones."""
        return len(self._entries) + len(self._unswept)

    def push(self, expiry: int, mid: int) -> None:
        """Adds the time until which a message is hidden."""
        heapq.heappush(self._entries, expiry << 64 | mid)
        if self._unswept or len(self._entries) > self._stale_at:
            self._sweep(_SWEPT)

    def push_all(self, expiry: int, mids: Iterable[int]) -> None:
        """Adds the same time for many messages."""
        for mid in mids:
            self.push(expiry, mid)

    def _sweep(self, count: int) -> None:
        if not self._unswept:
            self._stale_at = 2 * len(self._hidden) + _FEW
            if len(self._entries) <= self._stale_at:
                return
            # The old heap is emptied from its end, a few at each push: one pass over a million entries would hold up
            # a request.
            self._unswept, self._entries = self._entries, []
        for _ in range(min(count, len(self._unswept))):
            entry = self._unswept.pop()
            if self._is_true(entry):
                heapq.heappush(self._entries, entry)

    def _is_true(self, entry: int) -> bool:
        return self._hidden.get(entry & _MID) == entry >> 64

    def _top(self) -> list[int]:
        """Returns the heap with the first entry; it is empty if there is none."""
        entries, unswept = self._entries, self._unswept
        return unswept if unswept and (not entries or unswept[0] < entries[0]) else entries

    def first(self) -> int | None:
        """Returns when the next hidden message is due, or an earlier time if there are many stale entries; None if
        there is none."""
        # Bounded, as a commit asks: many stale entries in a row would make it slow, and a time that is too early does
        # no harm.
        for _ in range(_FEW):
            heap = self._top() if self._unswept else self._entries
            if not heap:
                return None
            expiry, mid = heap[0] >> 64, heap[0] & _MID
            if self._hidden.get(mid) == expiry:  # `_is_true` without its call: every commit asks
                return expiry
            heapq.heappop(heap)
        heap = self._top()
        return heap[0] >> 64 if heap else None

    def may_be_due(self, now: int) -> bool:
        """Tells, fast, whether a message may be due."""
        heap = self._top() if self._unswept else self._entries
        return bool(heap) and heap[0] >> 64 <= now

    def due(self, now: int) -> int | None:
        """Returns a message that is due, without removing its entry; None if none is due."""
        while self.may_be_due(now):
            heap = self._top()
            if self._is_true(heap[0]):
                return heap[0] & _MID
            heapq.heappop(heap)
        return None

    def pop_due(self, now: int, count: int) -> list[int]:
        """Removes and returns messages that are due, by their times; the caller changes the state of each. count: the
        most entries to take, including stale ones."""
        found: list[int] = []
        before = -1
        for _ in range(count):
            heap = self._top()
            if not heap or heap[0] >> 64 > now:
                break
            entry = heapq.heappop(heap)
            # The same entry may be there twice, one after the other.
            if entry != before and self._is_true(entry):
                found.append(entry & _MID)
            before = entry
        return found


_NOTHING: Mapping[int, int] = MappingProxyType({})
_LOADED = 1
_DELAYED = 2
SIZE_SHIFT = 2
"""The facts of a message are one number: its bytes above two bits, which say that it is loaded, and that it is delayed.
A dict or an object for each message would take ten times the memory."""


class Index:
    """The messages of one queue in memory: which are ready, and until when the others are hidden.

    Ensures:
    1. Each message is either ready or hidden, never both; `ready` (or `order`), `hidden` and `messages` say the same.
    2. `new` has every message that was never received. It may also have messages that are not loaded and were received.
    3. Ready messages with a priority or a group are in `order`, and all others in `ready`. While no message has either,
       there is no order, and it costs nothing.
    4. A ready message takes some 32 bytes, and a change of one costs next to nothing more in a deep queue.

    Assumes that ids are below 2^64, and that the caller knows which messages there are: nothing is checked twice. An
    expiry of 0 means ready. Never reads a file, and knows no clock."""

    def __init__(self, ready: Iterable[int] = (), hidden: Mapping[int, int] = _NOTHING) -> None:
        self._most = 1
        self._fair = False
        self.reset(ready, hidden)

    def reset(self, ready: Iterable[int] = (), hidden: Mapping[int, int] = _NOTHING) -> None:
        """Replaces all messages. ready: strictly increasing ids; hidden: for each other id, the time until which the
        message is hidden."""
        own = ready if isinstance(ready, array) else array("Q", ready)
        every = array("Q", sorted([*own, *hidden])) if hidden else own
        self.messages = MidMap(every)
        self.ready = MidSet(own)
        self.hidden = MidMap(sorted(hidden))
        # Candidates: a message that is not loaded may turn out to have been retrieved.
        self.new = MidSet(every)
        for mid, expiry in hidden.items():
            self.hidden.set(mid, expiry)
            if expiry == WITHHELD:
                self.new.discard(mid)
        self.expiries = Expiries(self.hidden, ((expiry, mid) for mid, expiry in hidden.items() if expiry != WITHHELD))
        self.unloaded = len(every)
        self.bytes = 0
        self.delayed = MidSet()
        """Loaded messages that are hidden by a delay."""
        self.order: Order | None = None
        self.aside: set[int] = set()
        """Withheld messages that nobody has: see `set_aside`."""

    @classmethod
    def of(cls, mids: "array[int]", sizes: "array[int]", hidden: Mapping[int, tuple[int, bool]]) -> Self:
        """Makes an index of loaded messages. mids: strictly increasing; hidden: (time, True if delayed) for each hidden
        one. All messages are new, unless they are withheld."""
        made = cls()
        made.messages = MidMap.of(mids, array("Q", [size << SIZE_SHIFT | _LOADED for size in sizes]))
        made.ready, made.new = MidSet(mids[:]), MidSet(mids[:])
        made.bytes = sum(sizes)
        for mid, (expiry, delayed) in hidden.items():
            if mid not in made.messages:
                continue
            if expiry == WITHHELD:
                made.withhold(mid)
            else:
                made.ready.discard(mid)
                made._hide(mid, expiry)
                if delayed:
                    made._set_delayed(mid)
        return made

    def __len__(self) -> int:
        return len(self.messages)

    def expiry(self, mid: int) -> int | None:
        """Returns the time until which a message is hidden, 0 if the message is ready, None if there is no such
        message."""
        expiry = self.hidden.get(mid)
        # First among the hidden ones: what is deleted, released or extended is in flight.
        if expiry is not None or mid in self.ready:
            return expiry or 0
        return None if self.order is None or mid not in self.order.ready else 0

    # -- order

    def configure(self, most: int, *, fair: bool) -> None:
        """Sets the rules of the order: see `Order`."""
        self._most, self._fair = most, fair
        if self.order is not None:
            self.order.configure(most, fair=fair)

    def rank(self, mid: int, priority: int, group: str) -> None:
        """Gives a message its priority and its group (empty for none): one that is added next, or that is there."""
        if self.order is None:
            self.order = Order(self.ready, self._most, fair=self._fair)
        self.order.rank(mid, priority, group)
        if mid in self.messages:  # a start gives a message its priority after it has read the messages
            self.ready.discard(mid)
            self.order.set(mid, self._state(mid))

    def _state(self, mid: int) -> int:
        if self.hidden.get(mid) is None:
            return READY
        return DELAYED if self.is_delayed(mid) else OUT

    def first(self) -> int | None:
        """Returns the ready message that is handed out next, None if none may be."""
        return self.ready.first() if self.order is None else self.order.first()

    def visible(self, after: int, count: int) -> list[int]:
        """Returns the ids of all ready messages greater than after (-1 for all), oldest first, at most count."""
        found = self.ready.after(after, count)
        return found if self.order is None else sorted(found + self.order.ready.after(after, count))[:count]

    @property
    def visible_count(self) -> int:
        """The number of ready messages."""
        return self.ready.count if self.order is None else self.ready.count + self.order.ready.count

    @property
    def out(self) -> int:
        """The number of messages that consumers have: in flight, or in a claim."""
        return self.hidden.count - self.delayed.count - len(self.aside)

    def set_aside(self, mid: int) -> None:
        """Withholds a message that nobody can read, and nobody has."""
        self.withhold(mid)
        self.aside.add(mid)
        if self.order is not None:
            self._leave(self.order, (mid,))

    def _leave(self, order: Order, mids: Iterable[int]) -> None:
        """Takes removed messages out of the order, which goes with the last message that needs one."""
        order.set_all(mids, 0)
        if not order:
            self.order = None

    # -- changes

    def add(self, mid: int, expiry: int, size: int | None = None) -> None:
        """Adds a message. size: the bytes of a message that was just written, which is loaded then and, if hidden,
        delayed; None for a message that is not loaded."""
        if expiry != WITHHELD:
            self.new.add(mid)
        if expiry:
            self._hide(mid, expiry)
        if size is None:
            self.messages.set(mid, 0)
            self.unloaded += 1
        else:
            self.messages.set(mid, size << SIZE_SHIFT | _LOADED)
            self.bytes += size
            if expiry:
                self._set_delayed(mid)
        if (self.order is None or not self.order.set(mid, self._state(mid))) and not expiry:
            self.ready.add(mid)

    def add_run(self, mids: Sequence[int], sizes: Sequence[int]) -> None:
        """Adds loaded, ready messages. mids: increasing, greater than all ids so far; sizes: their bytes."""
        self.new.extend(mids)
        self.ready.extend(mids)
        self.messages.set_run(mids, map(_LOADED.__add__, map((1 << SIZE_SHIFT).__mul__, sizes)))
        self.bytes += sum(sizes)
        if self.order is not None and (ranked := self.order.set_all(mids, READY)):
            self.ready.discard_all(ranked)

    def restore(self, mid: int, expiry: int, facts: int, *, new: bool, delayed: bool) -> None:
        """Adds a removed message again. facts: the result of `remove`."""
        self.messages.set(mid, facts & ~_DELAYED)
        if facts & _LOADED:
            self.bytes += facts >> SIZE_SHIFT
        else:
            self.unloaded += 1
        if new:
            self.new.add(mid)
        if expiry:
            self._hide(mid, expiry)
            if delayed:
                self._set_delayed(mid)
        if (self.order is None or not self.order.set(mid, self._state(mid))) and not expiry:
            self.ready.add(mid)

    def remove(self, mid: int, *, retrieved: bool = False) -> int:
        """Removes a message. retrieved: True if the message is known to have been retrieved. Returns facts for
        `restore`."""
        if self.hidden.pop(mid) is None:
            self.ready.discard(mid)
        if not retrieved:
            self.new.discard(mid)
        facts = self.messages.pop(mid) or 0
        if facts & _DELAYED:
            self.delayed.discard(mid)
        if facts & _LOADED:
            self.bytes -= facts >> SIZE_SHIFT
        else:
            self.unloaded -= 1
        if self.order is not None:
            self._leave(self.order, (mid,))
        if self.aside:
            self.aside.discard(mid)
        return facts

    def take(self, mid: int, expiry: int, *, retrieved: bool) -> None:
        """Hides a ready, loaded message, as a receive does. retrieved: True if the message was received before."""
        self.ready.discard(mid)
        self.hidden.set(mid, expiry)
        self.expiries.push(expiry, mid)
        if not retrieved:
            self.new.discard(mid)
        if self.order is not None:
            self.order.take(mid)

    def take_all(self, mids: Sequence[int], expiry: int) -> None:
        """Hides many ready, loaded messages, as a receive does. mids: increasing."""
        self.ready.discard_all(mids)
        self.new.discard_all(mids)
        self.hidden.set_all(mids, expiry)
        self.expiries.push_all(expiry, mids)
        if self.order is not None:
            self.order.set_all(mids, OUT)

    def hide(self, mid: int, expiry: int, *, delayed: bool) -> None:
        """Hides a loaded message, or changes the time until which it is hidden. delayed: False for a message that was
        received."""
        self._show(mid)
        self.ready.discard(mid)
        self._hide(mid, expiry)
        if delayed:
            self._set_delayed(mid)
        else:
            self.new.discard(mid)
        if self.order is not None:
            self.order.set(mid, DELAYED if delayed else OUT)

    def withhold(self, mid: int) -> None:
        """Hides a message without a time limit."""
        self._show(mid)
        self.ready.discard(mid)
        self.hidden.set(mid, WITHHELD)
        self.new.discard(mid)
        if self.order is not None:
            self.order.set(mid, OUT)

    def withhold_all(self, mids: Sequence[int]) -> None:
        """Withholds many ready messages. mids: increasing."""
        self.ready.discard_all(mids)
        self.new.discard_all(mids)
        self.hidden.set_all(mids, WITHHELD)
        if self.order is not None:
            self.order.set_all(mids, OUT)

    def show_all(self, mids: Sequence[int]) -> None:
        """Makes many hidden messages ready. mids: increasing."""
        for mid in self.delayed.among(mids):
            self.delayed.discard(mid)
            self.messages.set(mid, (self.messages.get(mid) or 0) & ~_DELAYED)
        self.hidden.discard_all(mids)
        if self.order is not None and (ranked := set(self.order.set_all(mids, READY))):
            mids = [mid for mid in mids if mid not in ranked]
        self.ready.add_all(mids)

    def delay_all(self, untils: dict[int, int]) -> None:
        """Delays many hidden messages that have been received. untils: the times until which they are hidden, by ids,
        which are increasing."""
        for mid, until in untils.items():
            self.hidden.set(mid, until)
            self.messages.set(mid, (self.messages.get(mid) or 0) | _DELAYED)
            self.expiries.push(until, mid)
        self.delayed.add_all(list(untils))
        if self.order is not None:
            self.order.set_all(untils, DELAYED)

    def remove_all(self, mids: Sequence[int]) -> list[int]:
        """Removes many messages. mids: increasing. Returns the facts of each for `restore`."""
        wanted = mids if isinstance(mids, array) else array("Q", mids)
        for each in (self.ready, self.hidden, self.delayed, self.new):
            each.discard_all(wanted)
        facts = [fact or 0 for fact in self.messages.values_of(wanted)]
        self.messages.discard_all(wanted)
        self.bytes -= sum([fact >> SIZE_SHIFT for fact in facts])
        if self.unloaded:
            self.unloaded -= sum(not fact & _LOADED for fact in facts)
        if self.order is not None:
            self._leave(self.order, mids)
        if self.aside:
            self.aside.difference_update(mids)
        return facts

    def sizes(self, mids: Sequence[int]) -> list[int | None]:
        """Returns the bytes of many messages, None for one that is not loaded or gone. mids: increasing."""
        facts = self.messages.values_of(mids)
        return [None if fact is None or not fact & _LOADED else fact >> SIZE_SHIFT for fact in facts]

    def show(self, mid: int) -> None:
        """Makes a hidden message ready."""
        self._show(mid)
        if self.order is None or not self.order.set(mid, READY):
            self.ready.add(mid)

    def _hide(self, mid: int, expiry: int) -> None:
        self.hidden.set(mid, expiry)
        if expiry == WITHHELD:
            return
        self.expiries.push(expiry, mid)

    def _show(self, mid: int) -> None:
        if self.hidden.pop(mid) is None:
            return
        if self.aside:
            self.aside.discard(mid)
        facts = self.messages.get(mid) or 0
        if facts & _DELAYED:
            self.messages.set(mid, facts & ~_DELAYED)
            self.delayed.discard(mid)

    def _set_delayed(self, mid: int) -> None:
        self.messages.set(mid, (self.messages.get(mid) or 0) | _DELAYED)
        self.delayed.add(mid)

    # -- loading

    def loaded(self, mid: int) -> bool:
        """Tells whether the bytes of a message, and whether it was ever received, are known."""
        return bool((self.messages.get(mid) or 0) & _LOADED)

    def load(self, mid: int, size: int, *, retrieved: bool, delayed: bool) -> None:
        """Notes the facts of a message that are read from its file. retrieved: True if the message was ever received;
        delayed: True if the message is hidden by a delay."""
        self.messages.set(mid, size << SIZE_SHIFT | _LOADED)
        self.unloaded -= 1
        self.bytes += size
        if retrieved:
            self.new.discard(mid)
        if delayed:
            self._set_delayed(mid)

    def known_size(self, mid: int) -> int | None:
        """Returns the bytes of a message, None if it is not loaded or gone."""
        facts = self.messages.get(mid)
        return None if facts is None or not facts & _LOADED else facts >> SIZE_SHIFT

    def size(self, mid: int) -> int:
        """Returns the bytes of a message, 0 if they are not known."""
        return (self.messages.get(mid) or 0) >> SIZE_SHIFT

    @staticmethod
    def size_in(facts: int) -> int:
        """Returns the bytes of a removed message. facts: the result of `remove`."""
        return facts >> SIZE_SHIFT

    @staticmethod
    def delayed_in(facts: int) -> bool:
        """Tells whether a removed message was hidden by a delay. facts: the result of `remove`."""
        return bool(facts & _DELAYED)

    def is_delayed(self, mid: int) -> bool:
        """Tells whether a message is hidden by a delay, and not by a window."""
        return bool((self.messages.get(mid) or 0) & _DELAYED)

    # -- time

    def due(self, now: int) -> int | None:
        """Returns a hidden message whose time is over, None if there is none."""
        return self.expiries.due(now)

    def remember(self, mids: Iterable[int]) -> None:
        """Adds entries again that `Expiries.pop_due` has removed, for messages that are still hidden."""
        for mid in mids:
            expiry = self.hidden.get(mid)
            if expiry is not None and expiry != WITHHELD:
                self.expiries.push(expiry, mid)

    # -- age

    def oldest(self) -> int | None:
        """Returns the smallest id of a ready or delayed message, None if there is none."""
        firsts = self.visible(-1, 1) + self.delayed.after(-1, 1)
        return min(firsts, default=None)

    def old(self, upto: int, count: int) -> list[int]:
        """Returns the ids of ready and delayed messages, oldest first, at most count. upto: the greatest id."""
        # Ready and delayed ones are two sets: the oldest of both together are among the first of each.
        found = self.visible(-1, count)
        if len(self.delayed):
            found = sorted(found + self.delayed.after(-1, count))[:count]
        return found if not found or found[-1] <= upto else found[: bisect_right(found, upto)]
