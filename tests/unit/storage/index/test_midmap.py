"""The ordered map and the index, against plain Python."""

from bisect import bisect_right

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from qs_storage.index import midmap
from qs_storage.index.message_index import Index
from qs_storage.index.midmap import MidMap, MidSet

KEYS = st.integers(0, 60) | st.integers(0, 2**64 - 1)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "pop", "front"]), KEYS, st.integers(0, 2**64 - 1)), max_size=120)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(midmap, "CHUNK", 4)


def same(found: MidMap, expected: dict[int, int]) -> None:
    keys = sorted(expected)
    assert len(found) == len(keys)
    assert found.after(-1, len(keys) + 1) == keys
    assert (found.first(), found.last()) == ((keys[0], keys[-1]) if keys else (None, None))
    assert all(found.get(key) == value for key, value in expected.items())


@given(start=st.sets(KEYS), steps=STEPS)
@settings(deadline=None, derandomize=True)
def test_as_a_dict(start: set[int], steps: list[tuple[str, int, int]]) -> None:
    """A MidMap holds what a dict would, in order, whatever the sequence of changes."""
    expected = dict.fromkeys(start, 3)
    found = MidMap(sorted(start), 3)
    for step, key, value in steps:
        if step == "set":
            found.set(key, value)
            expected[key] = value
        else:
            at = min(expected) if step == "front" and expected else key
            assert (at in found) is (at in expected)
            assert found.pop(at) == expected.pop(at, None)
    same(found, expected)


@given(start=st.sets(KEYS), steps=STEPS)
@settings(deadline=None, derandomize=True)
def test_as_a_set(start: set[int], steps: list[tuple[str, int, int]]) -> None:
    """A MidSet holds what a set would, in order, whatever the sequence of changes."""
    expected = set(start)
    found = MidSet(sorted(start))
    for step, key, _ in steps:
        at = min(expected) if step == "front" and expected else key
        assert (at in found) is (at in expected)
        if step == "set":
            found.add(key)
            expected.add(key)
        else:
            found.discard(at)
            expected.discard(at)
    keys = sorted(expected)
    assert (len(found), found.after(-1, len(keys) + 1)) == (len(keys), keys)
    assert (found.first(), found.last()) == ((keys[0], keys[-1]) if keys else (None, None))


@given(start=st.sets(st.integers(0, 60)), counts=st.lists(st.integers(1, 11), max_size=9))
@settings(deadline=None, derandomize=True)
def test_runs(start: set[int], counts: list[int]) -> None:
    """A run of keys behind all others is as if each had been added."""
    expected = dict.fromkeys(start, 3)
    found, keys = MidMap(sorted(start), 3), MidSet(sorted(start))
    for count in counts:
        first = max(expected, default=-1) + 2
        run = range(first, first + count)
        found.set_run(run, [7 * key for key in run])
        keys.extend(run)
        expected.update((key, 7 * key) for key in run)
    same(found, expected)
    assert keys.after(-1, len(expected) + 1) == sorted(expected)


@given(keys=st.sets(KEYS), key=KEYS | st.just(-1), count=st.integers(0, 9))
@settings(deadline=None, derandomize=True)
def test_after(keys: set[int], key: int, count: int) -> None:
    """`after` gives the next keys, across chunks."""
    whole = sorted(keys)
    at = bisect_right(whole, key)
    assert MidMap(whole).after(key, count) == whole[at : at + count]


def test_index_drops_ends_of_windows_that_were_moved() -> None:
    """A lease that is extended for ever does not make the index grow."""
    index = Index([1])
    index.load(1, 5, retrieved=False, delayed=False)
    for expiry in range(10, 10_000):
        index.hide(1, expiry, delayed=False)
    assert len(index.expiries) < 100
    assert index.expiries.first() == 9999
    assert index.due(9998) is None
    assert index.due(9999) == 1


def test_index_counts() -> None:
    """Counts and bytes follow every change of state; what was retrieved is not new again."""
    index = Index([2, 3], {1: 7})
    assert (index.unloaded, index.bytes, len(index.delayed), len(index)) == (3, 0, 0, 3)
    index.load(1, 10, retrieved=False, delayed=True)
    index.load(2, 20, retrieved=True, delayed=False)
    assert (index.unloaded, index.bytes, len(index.delayed)) == (1, 30, 1)
    assert index.new.after(-1, 9) == [1, 3]
    index.show(1)
    assert (len(index.delayed), index.ready.after(-1, 9), index.expiries.first()) == (0, [1, 2, 3], None)
    index.hide(1, 50, delayed=False)
    assert (len(index.delayed), index.expiry(1), index.new.after(-1, 9)) == (0, 50, [3])
    index.hide(2, 60, delayed=True)
    index.remove(2)
    index.remove(3)
    assert (index.unloaded, index.bytes, len(index.delayed), len(index)) == (0, 10, 0, 1)
