"""Operations with many ids have the result of one operation for each."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from qs_storage.index.message_index import Index
from qs_storage.index.midmap import CHUNK, MidMap, MidSet
from qs_storage.names import WITHHELD

SIZES = [0, 1, 2, 10, CHUNK, 3 * CHUNK + 7]


def chosen(seed: int, size: int) -> tuple[list[int], list[int]]:
    """Ids, and some of them and some others, both in order: a run, every other one, some, all, none, a few."""
    chance = random.Random(seed)
    every = sorted(chance.sample(range(10 * size + 10), size))
    start = chance.randrange(size + 1)
    some = [
        every[start : start + chance.randrange(size + 1)], every[::2], every[:], chance.sample(every, size // 10),
        [-1 + 2**40, 2**40], [], chance.sample(every, size // 60),
    ][seed % 7]  # fmt: skip
    return every, sorted({*some, *chance.sample(range(10 * size + 10), min(3, size))})


@pytest.mark.parametrize("size", SIZES)
def test_a_set(size: int) -> None:
    """A set after discard_all is the same as after single discards."""
    for seed in range(14):
        every, some = chosen(seed, size)
        together, apart = MidSet(every), MidSet(every)
        together.discard_all(some)
        for key in some:
            apart.discard(key)
        assert together.after(-1, size) == apart.after(-1, size) == sorted(set(every) - set(some))
        assert (len(together), together.first(), together.last()) == (len(apart), apart.first(), apart.last())
        assert not any(key in together for key in some)
        together.add(5)
        assert 5 in together


@pytest.mark.parametrize("size", SIZES)
def test_a_map(size: int) -> None:
    """A map gives the same with values_of, set_all and discard_all as one by one, for keys inside, between, before and
    behind its own."""
    for seed in range(14):
        every, some = chosen(seed, size)
        together, apart = MidMap(every), MidMap(every)
        for number, key in enumerate(every):
            together.set(key, number)
            apart.set(key, number)
        assert together.values_of(some) == [apart.get(key) for key in some]
        later = [key + 20 * size + 2**41 for key in some]
        for keys in (some, later):
            together.set_all(keys, 9)
            for key in keys:
                apart.set(key, 9)
            assert [*together.after(-1, 3 * size + 9)] == apart.after(-1, 3 * size + 9)
        together.discard_all(some)
        for key in some:
            apart.pop(key)
        left = apart.after(-1, 3 * size + 9)
        assert together.after(-1, 3 * size + 9) == left
        assert together.values_of(left) == [apart.get(key) for key in left]
        assert (len(together), together.first(), together.last()) == (len(apart), apart.first(), apart.last())


def described(index: Index, mids: list[int]) -> object:
    return (
        [(mid, index.expiry(mid), mid in index.new, index.size(mid)) for mid in mids],
        [len(each) for each in (index, index.ready, index.hidden, index.new, index.delayed)],
        (index.bytes, index.unloaded),
    )


def test_an_index() -> None:
    """An index gives the same with withhold_all and sizes as one by one; some messages are loaded, some not, some
    hidden."""
    for seed in range(6):
        every, some = chosen(6 * seed, 500)
        together, apart = Index(every, {}), Index(every, {})
        for index in (together, apart):
            for mid in every[::3]:
                index.load(mid, mid % 100, retrieved=mid % 2 == 0, delayed=False)
            index.add(10**12, 5, 77)
        wanted = [mid for mid in some if mid in together.ready]
        assert together.sizes(wanted) == [apart.size(mid) if apart.loaded(mid) else None for mid in wanted]
        together.withhold_all(wanted)
        for mid in wanted:
            apart.withhold(mid)
        assert described(together, every) == described(apart, every)
        assert all(together.expiry(mid) == WITHHELD for mid in wanted)
        assert together.expiries.first() == 5


T = TypeVar("T", MidSet, MidMap)


def seconds(kind: type[T], change: Callable[[T], object]) -> float:
    """Returns how long a change of 300,000 ids takes."""
    found: list[float] = []
    for _ in range(5):
        ids = kind(range(0, 600_000, 2))
        started = time.process_time()
        change(ids)
        found.append(time.process_time() - started)
    return min(found)


def test_a_few_of_many() -> None:
    """Two ids in each of hundreds of chunks, as of messages that are due at random times, take about as long together
    as one by one: no chunk of a thousand ids is gone over."""
    few = sorted(key + more for key in range(10, 600_000, 2200) for more in (0, 20))
    odd = [key + 1 for key in few]

    def one_by_one(ids: MidSet) -> None:
        for key in few:
            ids.discard(key)

    least = seconds(MidSet, one_by_one)
    # They take up to 3 times as long, and took 9 to 70 times as long.
    assert seconds(MidSet, lambda ids: ids.among(few)) < 6 * least
    assert seconds(MidSet, lambda ids: ids.add_all(odd)) < 6 * least
    assert seconds(MidSet, lambda ids: ids.discard_all(few)) < 6 * least
    assert seconds(MidMap, lambda ids: ids.discard_all(few)) < 6 * least
    assert seconds(MidMap, lambda ids: ids.values_of(few)) < 6 * least
