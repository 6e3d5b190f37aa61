"""The cache of payloads holds what it counts, and nothing else."""

from qs_storage.journal.log.places import place_of
from qs_storage.journal.log.reader import PayloadCache

SLICE = 8 << 20


def _put(cache: PayloadCache, place: int) -> list[int]:
    places = [place + 1000 * number for number in range(8)]
    cache.put(places, [bytes(900)] * 8, 8 * 900)
    return places


def test_nothing_stays_of_what_is_deleted() -> None:
    """Deleted messages leave nothing in the cache, however long the log: a server whose consumers keep up does not
    grow."""
    cache = PayloadCache(64 << 20)
    for number in range(100):
        places = _put(cache, number * SLICE)
        if number % 2:
            cache.drop_all([*places, number * SLICE + 500_000])
        for place in places:
            cache.drop(place)
    assert cache.size == 0
    assert not cache._slices


def test_payloads_dropped_together_may_be_in_two_slices() -> None:
    """Exactly the payloads that were dropped go, in several slices of the log."""
    cache = PayloadCache(64 << 20)
    first, second, third = (_put(cache, number * SLICE) for number in range(3))
    before = cache.size
    cache.drop_all([*third[4:], *first[4:]])
    assert [cache.get(place) is None for place in (*first, *second, *third)] == [
        *[False] * 4,
        *[True] * 4,
        *[False] * 12,
        *[True] * 4,
    ]
    assert cache.size == before * 2 // 3


def test_what_was_copied_from_a_segment_goes_with_it() -> None:
    """Payloads at places in a segment that is removed are not kept; others are."""
    cache = PayloadCache(64 << 20)
    old = _put(cache, place_of(7, 0)) + _put(cache, place_of(7, 5 * SLICE))
    before = cache.size
    new = _put(cache, place_of(8, 0))
    cache.forget(7)
    assert [cache.get(place) for place in old] == [None] * 16
    assert all(cache.get(place) for place in new)
    assert cache.size == before // 2
