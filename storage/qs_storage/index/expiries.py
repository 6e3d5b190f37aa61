"""The times at which the hidden messages of a queue are due: a heap of times and ids.

A window that is moved or ends early leaves a stale entry, which is dropped at the top. When most entries are stale,
each new entry also sweeps a few, so that no call has to go over all.
"""

import heapq
from collections.abc import Iterable
from typing import Protocol

_MID = (1 << 64) - 1
_FEW = 64
_SWEPT = 4
"""Entries that each new one sweeps."""


class Hidden(Protocol):
    """Maps each hidden message to the time until which it is hidden."""

    def get(self, mid: int, /) -> int | None: ...
    def __len__(self) -> int: ...


class Expiries:
    """The times of one queue. The same time of a message may be pushed twice."""

    __slots__ = ("_entries", "_hidden", "_stale_at", "_unswept")

    def __init__(self, hidden: Hidden, times: Iterable[tuple[int, int]] = ()) -> None:
        """hidden: the current times, by which stale entries are recognized; times: the first entries, (time, id)."""
        self._hidden = hidden
        self._entries = [expiry << 64 | mid for expiry, mid in times]
        heapq.heapify(self._entries)
        self._unswept: list[int] = []  # a heap of older entries; popping its last one leaves a heap
        self._stale_at = 2 * len(self._entries) + _FEW

    def __len__(self) -> int:
        """Counts stale entries too."""
        return len(self._entries) + len(self._unswept)

    def push(self, expiry: int, mid: int) -> None:
        heapq.heappush(self._entries, expiry << 64 | mid)
        if self._unswept or len(self._entries) > self._stale_at:
            self._sweep(_SWEPT)

    def push_all(self, expiry: int, mids: Iterable[int]) -> None:
        for mid in mids:
            self.push(expiry, mid)

    def _sweep(self, count: int) -> None:
        if not self._unswept:
            self._stale_at = 2 * len(self._hidden) + _FEW
            if len(self._entries) <= self._stale_at:
                return
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
            if entry != before and self._is_true(entry):
                found.append(entry & _MID)
            before = entry
        return found
