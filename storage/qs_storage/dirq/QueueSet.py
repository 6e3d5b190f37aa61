# ruff: noqa: N999 - programs import the module under this name
"""Walks through several directory queues as if they were one."""

from collections.abc import Sequence
from typing import Self

from .Exceptions import QueueError
from .QueueBase import QueueBase

Found = tuple[QueueBase, str] | tuple[None, None]
"""(None, None): there is no more."""


class QueueSet:
    """Merges the elements of queues by name. It has copies of the queues, with their own cursors."""

    def __init__(self, *queues: QueueBase | Sequence[QueueBase]) -> None:
        """queues: one by one, or in a list or tuple. QueueError for one that is there twice, TypeError."""
        self.qset: list[QueueBase] = []
        self._iterating = False
        self._next: dict[str, str] = {}
        """The next element by queue id, "" at the end of a queue; missing: not read yet."""
        self.add(*queues)

    def add(self, *queues: QueueBase | Sequence[QueueBase]) -> None:
        """Adds all queues, as for the constructor, or none."""
        wanted: list[QueueBase] = []
        for given in queues:
            wanted.extend(given if isinstance(given, list | tuple) else [given])  # type: ignore[list-item]
        known = {queue.id for queue in self.qset}
        for queue in wanted:
            _check(queue)
            if queue.id in known:
                raise QueueError(f"queue already in the set: {getattr(queue, 'path', queue.id)}")
            known.add(queue.id)
        self.qset += [queue.copy() for queue in wanted]
        self._begin()

    def remove(self, given_queue: QueueBase) -> None:
        """Removes a queue, by its directory, if it is in the set. TypeError for something else."""
        _check(given_queue)
        self.qset = [queue for queue in self.qset if queue.id != given_queue.id]
        self._next.pop(given_queue.id, None)

    def count(self) -> int:
        return sum(queue.count() for queue in self.qset)

    def _begin(self) -> None:
        for queue in self.qset:
            queue._begin()
        self._next = {}
        self._iterating = False

    def _advance(self) -> Found:
        for queue in self.qset:
            if queue.id not in self._next:
                self._next[queue.id] = queue.next()
        ready = [queue for queue in self.qset if self._next[queue.id]]
        if not ready:
            return None, None
        queue = min(ready, key=lambda queue: self._next[queue.id])
        return queue, self._next.pop(queue.id)

    def __iter__(self) -> Self:
        self._begin()
        self._iterating = True
        return self

    def names(self) -> Self:
        """Returns an iterator over pairs of a queue and a name."""
        return self.__iter__()

    def __next__(self) -> tuple[QueueBase, str]:
        queue, name = self._advance()
        if queue is None or name is None:
            self._iterating = False
            raise StopIteration
        return queue, name

    def first(self) -> Found:
        """Returns the first (queue, name), or (None, None). Reads and caches what comes next. OSError."""
        self._begin()
        return self.next()

    def next(self) -> Found:
        """Returns the next (queue, name). At the end (None, None), or StopIteration after iter() or names()."""
        found = self._advance()
        if found[0] is None and self._iterating:
            self._iterating = False
            raise StopIteration
        return found


def _check(queue: object) -> None:
    if not isinstance(queue, QueueBase):
        raise TypeError(f"directory queues expected, or a list or tuple of them, not {queue!r}")
