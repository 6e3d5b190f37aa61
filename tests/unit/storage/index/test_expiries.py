"""When hidden messages are due, many at once and with stale entries; and what the index does with many messages."""

import random
from array import array

from qs_storage.index.message_index import Expiries, Index
from qs_storage.index.midmap import CHUNK, MidMap, MidSet
from qs_storage.names import WITHHELD


def test_many_are_due() -> None:
    """Due ids come by their times, at most as many as asked for, none twice."""
    hidden = MidMap()
    expiries = Expiries(hidden)
    for mid in range(100, 0, -1):
        hidden.set(mid, 1000 + mid // 10)
        expiries.push(1000 + mid // 10, mid)
        expiries.push(1000 + mid // 10, mid)
    assert (expiries.first(), expiries.may_be_due(999), expiries.may_be_due(1000)) == (1000, False, True)
    assert (expiries.due(999), expiries.due(1000), expiries.pop_due(999, 9)) == (None, 1, [])
    found: list[int] = []
    while part := expiries.pop_due(1004, 7):
        assert len(part) <= 7
        found += part
        hidden.discard_all(part)
    assert found == list(range(1, 50))
    assert expiries.first() == 1005


def test_times_that_changed() -> None:
    """Each message is due once, at its last time, whatever happened before, with every order of calls."""
    for seed in range(20):
        chance = random.Random(seed)
        hidden = MidMap()
        expiries = Expiries(hidden)
        for _ in range(3000):
            mid = chance.randrange(60)
            if chance.random() < 0.3:
                hidden.pop(mid)
            else:
                expiry = chance.randrange(1, 500)
                hidden.set(mid, expiry)
                expiries.push(expiry, mid)
        assert len(expiries) < 400
        expected = sorted((hidden.get(mid) or 0, mid) for mid in hidden.after(-1, 100))
        found: list[tuple[int, int]] = []
        for now in range(0, 500, 25):
            for _ in range(200):
                found += [(hidden.pop(mid) or 0, mid) for mid in expiries.pop_due(now + 24, 5)]
        assert found == expected
        assert expiries.first() is None


def test_stale_times_take_no_call_long() -> None:
    """A hundred thousand windows that end early: no call looks at more than some entries, and in the end none is
    left."""
    hidden = MidMap(range(100_000), 5)
    looks = 0

    class Counted:
        def get(self, mid: int) -> int | None:
            nonlocal looks
            looks += 1
            return hidden.get(mid)

        def __len__(self) -> int:
            return len(hidden)

    expiries = Expiries(Counted(), ((5, mid) for mid in range(100_000)))
    hidden.discard_all(range(100_000))
    for number in range(1, 30_000):
        looks = 0
        hidden.set(200_000, number)
        expiries.push(number, 200_000)
        assert expiries.first() is not None
        assert looks < 100
    assert (len(expiries) < 200, expiries.first()) == (True, 29_999)


def test_adding_many() -> None:
    """`add_all` and among are what adding and asking one by one is, between, before and behind what is there."""
    for seed in range(30):
        chance = random.Random(seed)
        some = sorted(chance.sample(range(20_000), chance.choice((0, 3, 5 * CHUNK))))
        others = sorted(set(chance.sample(range(30_000), chance.choice((1, 200, 3 * CHUNK)))) - set(some))
        keys = MidSet(array("Q", some))
        assert keys.among(others) == []
        keys.add_all(others)
        assert (keys.after(-1, 10**6), len(keys)) == (sorted(some + others), len(some) + len(others))
        asked = sorted(chance.sample(range(30_000), 500))
        assert keys.among(asked) == [key for key in asked if key in keys]
        keys.discard_all(some)
        assert keys.after(-1, 10**6) == others


def described(index: Index, mids: list[int]) -> object:
    return (
        [(mid, index.expiry(mid), mid in index.new, index.is_delayed(mid)) for mid in mids],
        [len(each) for each in (index, index.ready, index.hidden, index.new, index.delayed)],
        (index.bytes, index.unloaded, index.oldest(), index.old(1500, 40)),
    )


def test_many_messages_of_an_index() -> None:
    """`show_all` and remove_all do what show and remove do one by one; what was removed can be put back."""
    for seed in range(6):
        chance = random.Random(seed)
        every = list(range(0, 4000, 2))
        both = Index(every), Index(every)
        states = [(chance.choice((0, 0, 7, 9, WITHHELD)), chance.random() < 0.5) for _ in every]
        for index in both:
            for mid, (expiry, delayed) in zip(every, states, strict=True):
                index.load(mid, mid % 100, retrieved=False, delayed=False)
                if expiry == WITHHELD:
                    index.withhold(mid)
                elif expiry:
                    index.hide(mid, expiry, delayed=delayed)
        together, apart = both
        due = sorted(together.expiries.pop_due(8, 10_000))
        assert due == [mid for mid, (expiry, _) in zip(every, states, strict=True) if expiry == 7]
        together.show_all(due)
        for mid in due:
            apart.show(mid)
        assert described(together, every) == described(apart, every)
        before = described(together, every)
        some = sorted(chance.sample(every, 300))
        old = [(index.expiry(mid) or 0, mid in index.new, index.is_delayed(mid)) for index in [apart] for mid in some]
        facts = together.remove_all(some)
        assert facts == [apart.remove(mid) for mid in some]
        assert described(together, every) == described(apart, every)
        for mid, fact, (expiry, new, delayed) in zip(some, facts, old, strict=True):
            together.restore(mid, expiry, fact, new=new, delayed=delayed)
        assert described(together, every) == before
