"""Applies the records of a log to its queues, in the order of the log.

A record can be applied twice without harm, as a checkpoint may contain some of the records after it.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from ..log import records
from ..log.places import place_of
from .keys import WINDOW
from .state import QueueState

Q = TypeVar("Q", bound=QueueState)


class Replay(Generic[Q]):
    """Makes the queues that records name, and applies records to them."""

    def __init__(self, make: Callable[[str, int], Q], now: int) -> None:
        """make: makes a queue from its name and its number; now: microseconds since the Epoch."""
        self.make = make
        self.keys_since = now - WINDOW
        """Keys of pushes up to then are over. A log may have any number of them, and memory has not."""
        self.queues: dict[int, Q] = {}
        self._run = _Run()

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Applies the records of a frame. start: byte of the first record in the segment. BadRecordError."""
        place = place_of(segment, start)
        run = self._run
        for body in bodies:
            push = records.plain_push(body)
            if push is not None:
                number, mid, size = push
                if number != run.number or mid <= run.last:
                    self._flush()
                    run.number = number
                run.mids.append(mid)
                run.places.append(place)
                run.sizes.append(size)
                run.last = mid
            else:
                self._flush()
                records.parse(body).replay(self, place)
            place += records.HEAD.size + len(body)
        self._flush()

    def _flush(self) -> None:
        run = self._run
        if run.mids:
            queue = self.queues.get(run.number)
            if queue is not None:
                run.drop_covered(queue.is_newer)
                if run.mids:
                    queue.restore_run(run.mids, run.places, run.sizes)
            run.clear()

    # -- for records: see `ReplayedLog` ---------------------------------------------------------------------------

    def queue(self, number: int) -> Q | None:
        return self.queues.get(number)

    def add_queue(self, record: records.Queue) -> None:
        queue = self.queues.get(record.number)
        if queue is None:
            queue = self.queues[record.number] = self.make(record.qid, record.number)
        queue.last_mid = max(queue.last_mid, record.last_mid)

    def remove_queue(self, number: int) -> None:
        queue = self.queues.pop(number, None)
        if queue is not None:
            queue.clear()


class _Run:
    """Collects adjacent pushes to one queue with increasing ids, which are applied together."""

    def __init__(self) -> None:
        self.number = -1
        self.clear()

    def clear(self) -> None:
        self.last = -1
        self.mids: list[int] = []
        self.places: list[int] = []
        self.sizes: list[int] = []

    def drop_covered(self, is_newer: Callable[[int, int], bool]) -> None:
        """Drops the messages that a checkpoint already covers."""
        if is_newer(self.mids[0], self.places[0]):
            return
        new = [each for each in zip(self.mids, self.places, self.sizes, strict=True) if is_newer(*each[:2])]
        self.mids, self.places, self.sizes = ([each[at] for each in new] for at in range(3))
