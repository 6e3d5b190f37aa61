"""Receives that wait for messages: who is woken when something has come, and when a wait is over."""

import heapq
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

from ..remote_engine import Operation, Receive, end_all
from .known import Known

_order = itemgetter(0)


class Waiting:
    """Receives that found nothing, in the order in which they came.

    Ensures that a message which comes while a receive begins to wait wakes it: `add` compares the counts of arrivals.
    Any thread may use it. Assumes that `tick` is called when `next_end` has come. Never asks the database."""

    def __init__(self, again: Callable[[Sequence[Operation[Any]]], object], sooner: Callable[[], object]) -> None:
        """again: does receives once more; sooner: called when `next_end` has become earlier."""
        self._again = again
        self._sooner = sooner
        self._lock = threading.Lock()
        self._lines: dict[str, list[tuple[int, Receive]]] = {}
        self._waits: set[Receive] = set()
        # Of those that wait, and of some that have been woken since the last `wake_all`, which drops these.
        self._ends: list[tuple[float, int, Receive]] = []
        self._closed = False
        self._number = count()
        self._arrivals: dict[str, int] = {}
        self._wakes: dict[Known, tuple[float, int]] = {}

    def begin(self, operation: Receive) -> None:
        """Notes the counts of arrivals before a receive is tried, for `add`."""
        operation.seen = {qid: self._arrivals.get(qid, 0) for qid in operation.qids}

    def add(self, operation: Receive) -> None:
        """Lets a receive wait that found nothing, or ends it if its time is over."""
        now = time.monotonic()
        with self._lock:
            if not (operation.stopped or self._closed) and operation.deadline > now:
                if operation.order < 0:
                    operation.order = next(self._number)
                if any(self._arrivals.get(qid, 0) != seen for qid, seen in operation.seen.items()):
                    ending = None
                else:
                    for qid in operation.qids:
                        insort(self._lines.setdefault(qid, []), (operation.order, operation), key=_order)
                    self._waits.add(operation)
                    heapq.heappush(self._ends, (operation.deadline, next(self._number), operation))
                    if self._ends[0][2] is operation:
                        self._sooner()
                    return
            else:
                ending = operation
        if ending is None:
            self._again([operation])
        else:
            self._end([operation])

    def wake(self, known: Known, number: int) -> None:
        """Tries the first receives of a queue again. number: of messages that have come."""
        woken: list[Operation[Any]] = []
        with self._lock:
            self._arrivals[known.qid] = self._arrivals.get(known.qid, 0) + 1
            line = self._lines.get(known.qid)
            while line and number > 0:
                operation = line[0][1]
                self._remove(operation)
                woken.append(operation)
                number -= operation.count
                line = self._lines.get(known.qid)
        if woken:
            self._again(woken)

    def wake_at(self, known: Known, at: float, number: int) -> None:
        """Tries the first receives of a queue again at a time of the monotonic clock. number: see `wake`."""
        with self._lock:
            if known not in self._wakes or at < self._wakes[known][0]:
                self._wakes[known] = at, number
        self._sooner()

    def wake_all(self) -> None:
        """Tries all receives again: something may have come that nobody has told."""
        with self._lock:
            woken: list[Operation[Any]] = list(self._waits)
            for operation in list(self._waits):
                self._remove(operation)
            self._ends.clear()
        if woken:
            self._again(woken)

    @property
    def any(self) -> bool:
        return bool(self._waits)

    def queues(self) -> list[str]:
        """Returns the queues for which receives wait."""
        with self._lock:
            return list(self._lines)

    def stop(self, operation: Receive) -> None:
        """Ends a receive soon, without messages."""
        operation.stopped = True
        with self._lock:
            waits = operation in self._waits
            if waits:
                self._remove(operation)
        if waits:
            self._end([operation])

    def _remove(self, operation: Receive) -> None:
        self._waits.discard(operation)
        order = operation.order
        for qid in operation.qids:
            line = self._lines.get(qid, [])
            at = bisect_left(line, order, key=_order)
            if at < len(line) and line[at][0] == order:
                del line[at]
            if not line:
                self._lines.pop(qid, None)

    @property
    def next_end(self) -> float | None:
        """When the next wait is over, or `wake_at` is due, by the monotonic clock."""
        with self._lock:
            return min([end[0] for end in self._ends[:1]] + [at for at, _ in self._wakes.values()], default=None)

    def tick(self) -> None:
        """Ends the receives whose time is over, and does what `wake_at` has noted for now."""
        over: list[Receive] = []
        now = time.monotonic()
        with self._lock:
            due = [(known, number) for known, (at, number) in self._wakes.items() if at <= now]
            for known, _ in due:
                del self._wakes[known]
            while self._ends and (self._ends[0][0] <= now or self._ends[0][2] not in self._waits):
                operation = heapq.heappop(self._ends)[2]
                if operation in self._waits and operation.deadline <= now:
                    self._remove(operation)
                    over.append(operation)
        self._end(over)
        for known, number in due:
            self.wake(known, number)

    def close(self) -> None:
        """Ends all receives that wait, and those that would begin to."""
        with self._lock:
            self._closed = True
            left = list(self._waits)
            for operation in left:
                self._remove(operation)
        self._end(left)

    def _end(self, operations: Sequence[Receive]) -> None:
        for operation in operations:
            operation.succeed([])
        end_all(operations)
