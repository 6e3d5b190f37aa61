"""Chooses the segment that compaction removes next.

The oldest can always be removed. A later one without live payloads can be removed first, which saves copying old
messages again and again, if its records are about no older segment (see `links.py`) and the last checkpoint covers
it.
"""

from ..log.absent_record import LIMIT
from ..queues.store import Store


class Choice:
    """Caches the chosen segment while nothing relevant changes, as every commit asks for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: object = None
        self._least = 0
        self._is_below = False
        self._chosen: int | None = None

    def segment(self, *, damaged: int) -> int | None:
        """Returns the segment to remove next: see `choose`."""
        store = self._store
        log, usage = store.log, store.usage
        seen = (log.segments.changes, usage.emptied, store.checkpointed, store.rollbacks, log.tight, damaged)
        if seen != self._seen:
            self._least = usage.least(log.segments.sizes, log.segments.size, tight=log.tight)
        is_below = usage.total < self._least
        if seen != self._seen or is_below != self._is_below:
            self._seen, self._is_below = seen, is_below
            self._chosen = choose(store, is_below=is_below, damaged=damaged)
        return self._chosen


def choose(store: Store, *, is_below: bool, damaged: int) -> int | None:
    """Returns the segment to remove next, None if none is worth it. is_below: True if fewer bytes are live than
    `Usage.least`; damaged: a segment that cannot be copied, 0: none is known. With one, only the oldest is copied."""
    log, live = store.log, store.usage.live
    sizes, oldest = log.segments.sizes, log.segments.oldest
    if oldest is None or len(sizes) <= 1:
        return None
    if not live.get(oldest):
        return oldest
    dead = [] if len(log.segments.absent) >= LIMIT else _dead(store)
    for each in dead:
        if log.segments.links.is_free(each):
            return each
    if not is_below:
        return None
    for each in () if log.tight or damaged else dict.fromkeys((*dead[:1], *dead[-1:])):
        if (ahead := _in_the_way(store, oldest, each)) is not None:
            return ahead
    return oldest if oldest != damaged else None


def _in_the_way(store: Store, oldest: int, dead: int) -> int | None:
    """Returns the oldest of the segments that must be removed before a dead one, if that costs less than removing the
    oldest of all."""
    sizes, live = store.log.segments.sizes, store.usage.live
    ahead = store.log.segments.links.before(dead)
    if not ahead:
        return None
    copied = sum(live.get(each, 0) for each in ahead)
    freed = sizes[dead] + sum(sizes[each] for each in ahead)
    return ahead[-1] if copied * sizes[oldest] < live[oldest] * freed else None


def _dead(store: Store) -> list[int]:
    """Returns the segments without live payloads before the last checkpoint, oldest first."""
    if store.checkpointed is None:
        return []
    live, end = store.usage.live, store.checkpointed.segment
    return [number for number in store.log.segments.sizes if number < end and not live.get(number)]
