"""Tests which segments have to go before others, and which one compaction chooses."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from qs_storage.journal.log.absent_record import (
    LIMIT,
    Absent,
    Run,
    is_absent,
    missing_from,
    needed_from,
    with_segment,
)
from qs_storage.journal.log.links import MOST, Links
from qs_storage.journal.log.places import Position, place_of
from qs_storage.journal.queues.store import Store
from qs_storage.journal.queues.usage import Usage
from qs_storage.journal.upkeep.choice import choose


def links(*pairs: tuple[int, int]) -> Links:
    """pairs: segments and older ones of which they say something."""
    made = Links()
    for made.segment, older in pairs:
        made.note(place_of(older, 4096))
    return made


def test_what_a_segment_says_of_itself_is_no_link() -> None:
    made = links((3, 3))
    made.note_all([place_of(3, 0), None])
    assert made.is_free(3)
    made.note_all([place_of(3, 0), None, place_of(1, 5)])
    assert not made.is_free(3)
    made.forget(1)
    assert made.is_free(3)


def test_a_segment_waits_for_those_behind_which_others_wait() -> None:
    """Segment 5 says something of 4, which says something of 2; 3 is in nobody's way."""
    made = links((5, 4), (4, 2), (3, 1))
    assert made.before(5) == [4, 2]
    assert made.before(3) == [1]
    made.forget(4)
    assert made.before(5) == []


def test_a_broad_record_waits_for_all_older_segments() -> None:
    made = links((5, 4))
    made.segment = 4
    made.widen()
    assert made.before(5) is None
    assert not made.is_free(4)
    made.forget(4)
    assert made.before(5) == []


def test_a_segment_that_waits_for_very_many_waits_for_all_older_ones() -> None:
    made = links(*((1000, older) for older in range(1, MOST + 1)), (999, 1))
    assert len(made.before(1000) or ()) == MOST
    made.segment = 1000
    made.note_all([place_of(999, 0)])
    assert made.before(1000) is None
    assert not made.is_free(1000)


def test_a_search_for_what_is_in_the_way_ends_soon() -> None:
    made = links(*((number, number - 1) for number in range(2, 1000)))
    assert made.before(MOST + 1) == list(range(MOST, 0, -1))
    assert made.before(MOST + 2) is None


def test_what_is_gone_is_forgotten() -> None:
    made = links((5, 4), (5, 3), (6, 4), (7, 1))
    made.forget(4)
    assert sorted(made.pairs()) == [(5, 3), (7, 1)]
    made.segment = 6
    made.widen()
    made.keep({1, 5, 7})
    assert (sorted(made.pairs()), made.broad) == ([(7, 1)], set())


def test_runs() -> None:
    """Neighbours are one run, which begins at the frame of its first segment."""
    runs: tuple[Run, ...] = ()
    for number in (7, 4, 5, 9, 8):
        runs = with_segment(runs, number, number * 10)
    assert runs == (Run(4, 5, 40), Run(7, 9, 70))
    assert Absent.read(memoryview(Absent(runs).body())).runs == runs
    assert [number for number in range(12) if is_absent(runs, number)] == [4, 5, 7, 8, 9]
    assert needed_from(runs, 6) == (Run(7, 9, 70),)


@pytest.mark.parametrize(("present", "missing"), [({3, 6, 10}, None), ({6, 10}, 3), ({3, 10}, 6), ({3, 6}, 10)])
def test_what_is_missing(present: set[int], missing: int | None) -> None:
    assert missing_from(present, 10, 3, (Run(4, 5, 40), Run(7, 9, 70))) == missing


def store(live: dict[int, int], known: Links, *, checkpoint: int | None = 9, absent: int = 0) -> Store:
    """Ten segments of 100 bytes, the last one being written."""
    usage = Usage()
    usage.live, usage.total = live, sum(live.values())
    runs = tuple(Run(100 + 2 * each, 100 + 2 * each, 1) for each in range(absent))
    segments = SimpleNamespace(sizes=dict.fromkeys(range(1, 11), 100), oldest=1, links=known, absent=runs)
    log = SimpleNamespace(segments=segments, tight=False)
    position = None if checkpoint is None else Position(checkpoint, 0, 0)
    return cast("Any", SimpleNamespace(log=log, usage=usage, checkpointed=position))


def chosen(made: Store, *, damaged: int = 0) -> int | None:
    below = made.usage.total < made.usage.least(made.log.segments.sizes, 1000, tight=False)
    return choose(made, is_below=below, damaged=damaged)


COLD = {1: 100, 2: 100, 3: 100, 4: 30}


def test_the_one_in_the_way_goes_before_what_is_old() -> None:
    """Segments 5 to 8 are dead, and wait for the 30 bytes of segment 4."""
    waiting = links((5, 4), (6, 5), (7, 6), (8, 7))
    assert chosen(store(COLD, waiting)) == 4
    assert chosen(store(COLD, waiting), damaged=7) == 1
    assert chosen(store(COLD, waiting), damaged=1) is None
    assert chosen(store(COLD, waiting, absent=LIMIT)) == 1


def test_dead_segments_that_wait_for_nothing_go_at_once() -> None:
    """Dead segments that wait for nothing go at once, however much of the log is live: they cost nothing."""
    full = dict.fromkeys((1, 2, 3, 4, 5, 9, 10), 100)
    assert chosen(store(full, links((7, 3)))) == 6
    assert chosen(store(full, links((6, 3), (7, 6), (8, 1)))) is None


def test_what_no_checkpoint_has_stays() -> None:
    """Segments that no checkpoint covers stay: the next start would have to read them all."""
    assert chosen(store(COLD, Links(), checkpoint=None)) == 1
    assert chosen(store(COLD, links((5, 4)), checkpoint=6)) == 4
    assert chosen(store(COLD, links((5, 4)), checkpoint=5)) == 1


def test_the_oldest_goes_when_that_costs_less() -> None:
    """A segment that waits for everything before it costs as much as the oldest ones do."""
    waiting = links((5, 4), (5, 3), (5, 2))
    assert chosen(store({1: 10, 2: 90, 3: 90, 4: 90}, waiting, checkpoint=6)) == 1
