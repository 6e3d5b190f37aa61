"""Says which segment compaction is to remove next.

The oldest can always go. A later one can, but not before those of which it says something: see `links.py`. So when what
is new has gone while what is old is still needed, little of the old has to be copied to get at the room behind it. What
goes in that way is in the last checkpoint, which the next start can use therefore.
"""

from .absent_record import LIMIT
from .store import Store


def choose(store: Store, *, oldest_only: bool) -> int | None:
    """Returns the number of the segment that should go next, None: none is worth it. oldest_only: none but the
    oldest."""
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
    """Returns the segments before the end of the last checkpoint of which no payload is needed, oldest first."""
    if store.checkpointed is None:
        return []
    live, end = store.usage.live, store.checkpointed.segment
    return [number for number in store.log.segments.sizes if number < end and not live.get(number)]
