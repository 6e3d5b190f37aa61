"""Chooses the segment that compaction removes next.

The oldest can always be removed. A later one with no live payloads can be removed before it, so that old messages need
not be copied again and again, but not before the older segments that its records are about: see `links.py`. Only
segments before the last checkpoint are removed in that way, so that the checkpoint stays valid.
"""

from .absent_record import LIMIT
from .store import Store


def choose(store: Store, *, oldest_only: bool) -> int | None:
    """Returns the number of the segment to remove next, None if none is worth it. oldest_only: True to consider the
    oldest only."""
    log, live = store.log, store.usage.live
    sizes, oldest = log.segments.sizes, log.segments.oldest
    if oldest is None or len(sizes) <= 1:
        return None
    if not live.get(oldest):
        return oldest
    dead = [] if oldest_only or len(log.segments.absent) >= LIMIT else _dead(store)
    for each in dead:
        if log.segments.links.is_free(each, sizes):
            return each
    if store.usage.total >= store.usage.least(sizes, tight=log.tight):
        return None
    if not dead or log.tight:
        return oldest
    ahead = log.segments.links.before(dead[-1], sizes)
    copied = sum(live.get(each, 0) for each in ahead)
    freed = sizes[dead[-1]] + sum(sizes[each] for each in ahead)
    return ahead[-1] if copied * sizes[oldest] < live[oldest] * freed else oldest


def _dead(store: Store) -> list[int]:
    """Returns the segments without live payloads before the end of the last checkpoint, oldest first."""
    if store.checkpointed is None:
        return []
    live, end = store.usage.live, store.checkpointed.segment
    return [number for number in store.log.segments.sizes if number < end and not live.get(number)]
