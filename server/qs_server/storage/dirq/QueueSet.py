# ruff: noqa: N999 - programs import the module under this name
"""Walks through several directory queues as if they were one."""

from collections.abc import Sequence
from typing import Self

from .Exceptions import QueueError
from .QueueBase import QueueBase

Found = tuple[QueueBase, str] | tuple[None, None]
"""A queue of the set and the name of an element in it; (None, None): there is no more."""


class QueueSet:
    """Merges the elements of its queues by their names. It has copies of the queues: their own cursors do not move."""

    def __init__(self, *queues: QueueBase | Sequence[QueueBase]) -> None:
        """queues: one by one, or in a list or tuple. QueueError when one is there twice, TypeError for other things."""
        self.qset: list[QueueBase] = []
        self._iterating = False
        self._next: dict[str, str] = {}
        """The next element of each queue, by the queue's id. "" when it has no more; missing: not looked up yet."""
        self.add(*queues)

    def add(self, *queues: QueueBase | Sequence[QueueBase]) -> None:
        """Adds queues, given as for the constructor: all of them or none."""
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
        """Takes the queue, also if it is another object for the same directory, out of the set. Nothing when it is not
        in there; TypeError when it is no queue."""
        _check(given_queue)
        self.qset = [queue for queue in self.qset if queue.id != given_queue.id]
        self._next.pop(given_queue.id, None)

    def count(self) -> int:
        """Counts the elements of all queues, whatever their state."""
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
        """Returns an iterator over all elements: pairs of a queue and a name."""
        return self.__iter__()

    def __next__(self) -> tuple[QueueBase, str]:
        queue, name = self._advance()
        if queue is None or name is None:
            self._iterating = False
            raise StopIteration
        return queue, name

    def first(self) -> Found:
        """Returns the first element: (queue, name), or (None, None). What comes next is looked up now and cached.
        OSError when a directory cannot be read."""
        self._begin()
        return self.next()

    def next(self) -> Found:
        """Returns the next element: (queue, name). At the end (None, None), or StopIteration if iter() or names() has
        begun the walk."""
        found = self._advance()
        if found[0] is None and self._iterating:
            self._iterating = False
            raise StopIteration
        return found


def _check(queue: object) -> None:
    if not isinstance(queue, QueueBase):
        raise TypeError(f"directory queues expected, or a list or tuple of them, not {queue!r}")
