"""One queue in memcached: its size, keys, capacity and copies, and the engine's arguments."""

import logging
from collections import Counter
from pathlib import Path

import pytest
from support.storage.engines import LOTS, ManualClock
from support.storage.memcached import MakeEngine, Memcached, drain, items, listed, needs_memcached, push_numbers

from qs_storage.engine import (
    SECOND,
    Draft,
    Options,
    OtherMessageError,
    QueueFullError,
    Receipt,
    RemoteError,
    State,
    UnsupportedError,
)
from qs_storage.remote.memcached import MemcachedEngine

pytestmark = needs_memcached


# -- size


def test_many_pages(make: MakeEngine) -> None:
    """A queue of many pages keeps its order; any message of it can be read, listed and deleted."""
    engine, other = make(), make()
    mids = push_numbers(engine, 2500, at_once=130)
    assert mids == sorted(set(mids))
    assert listed(other) == mids
    for number in (0, 1, 199, 200, 777, 1300, 2499):
        message = other.queue("q").get(mids[number], peek=True, visibility=None)
        assert message.payload == b"%d" % number
        assert other.queue("q").list_mids(State.READY, 3, mids[number]) == mids[number + 1 : number + 4]
        engine.queue("q").delete(Receipt(mids[number]))
        mids[number] = -1
    left = [mid for mid in mids if mid >= 0]
    stats = engine.queue("q").stats()
    assert (stats.ready, stats.new, stats.deleted) == (len(left), len(left), 7)
    assert drain(other, 333) == left


def test_long_list(make: MakeEngine) -> None:
    """A list that is longer than a page is still one push, and what is too long for memcached is refused."""
    engine = make()
    push_numbers(engine, 150)
    mids = push_numbers(engine, 1500, at_once=1500)
    assert listed(engine)[150:] == mids
    with pytest.raises(UnsupportedError, match="20000 is the most"):
        engine.queue("q").push([Draft(b"")] * 20_001)
    assert engine.queue("q").purge(mids[-1], 10_000) == 1650


def test_costs_do_not_grow(make: MakeEngine, calls: Counter[str]) -> None:
    """Operations make no more calls on a queue of 10,000 messages, half of them delayed, than on one of 1,000."""
    engine = make()

    def cost() -> int:
        before = calls.total()
        push_numbers(engine, 1)
        [message] = engine.receive(["q"], 1, None, LOTS)
        engine.queue("q").extend(Receipt(message.mid, message.receives), 100 * SECOND)
        engine.queue("q").release(Receipt(message.mid, message.receives), 0)
        [message] = engine.receive(["q"], 1, None, LOTS)
        engine.queue("q").delete(Receipt(message.mid, message.receives))
        return calls.total() - before

    costs = []
    for depth in (500, 4500):
        push_numbers(engine, depth, delay=10**6 * SECOND)
        push_numbers(engine, depth)
        assert engine.receive(["q"], 1, None, LOTS)  # which looks at each page of delayed ones once
        costs.append(cost())
    assert costs[1] <= costs[0] < 30


def test_used_up_pages_are_given_up(make: MakeEngine) -> None:
    """A queue that has been emptied leaves only the graves of its pages, which expire."""
    with Memcached() as alone:
        engine = make(alone)
        empty = items(alone)
        for _ in range(3):
            push_numbers(engine, 1000)
            drain(engine)
        assert items(alone) <= empty + 20


def test_remove_leaves_nothing(make: MakeEngine, tmp_path: Path) -> None:
    """A removed queue leaves no items, whether it was used up before or had messages."""
    with Memcached() as alone:
        engine = make(alone)
        empty = items(alone)
        for force in (False, True):
            push_numbers(engine, 1000)
            if not force:
                drain(engine)
            engine.remove("q", force=force)
            # Reserves stay, and for a minute the graves of pages that were used up.
            assert items(alone) <= empty + 1 + 5
            engine.create("q", Options())


def test_large_payloads(make: MakeEngine) -> None:
    """A payload may be larger than memcached's items."""
    engine = make()
    payloads = [bytes([n]) * size for n, size in enumerate((500_000, 500_001, 8 * 1024 * 1024, 1_000_000, 0))]
    engine.queue("q").push([Draft(payload) for payload in payloads])
    assert [message.payload for message in engine.receive(["q"], 10, None, LOTS)] == payloads


@pytest.mark.parametrize("qid", ["a" * 200, "ü" * 41, "a b\t"[:3] + "c", "%", "=a", "a:b"])
def test_any_name(make: MakeEngine, qid: str) -> None:
    """Names that keys cannot have, or that are too long for them, are queues like any other, and different ones."""
    engine = make()
    other = qid[:-1] + "x"
    for name in (qid, other):
        engine.create(name, Options())
        engine.queue(name).push([Draft(name.encode())])
    for name in (qid, other):
        assert [m.payload for m in engine.receive([name], 10, None, LOTS)] == [name.encode()]


# -- keys


def test_key(make: MakeEngine, clock: ManualClock) -> None:
    """A push with a key that was used in the last five minutes, here or at another server, gives the first id."""
    a, b = make(), make()
    [mid] = a.queue("q").push([Draft(b"x", key="k")])
    clock.now += 299 * SECOND
    assert b.queue("q").push([Draft(b"y", key="k")]) == [mid]
    a.queue("q").delete(Receipt(mid))
    assert a.queue("q").push([Draft(b"y", key="k")]) == [mid]
    assert listed(b) == []
    clock.now += SECOND
    [later] = b.queue("q").push([Draft(b"z", key="k")])
    assert later > mid
    assert listed(a) == [later]


def test_keys_in_a_list(make: MakeEngine) -> None:
    """A list stores what is new of it."""
    engine = make()
    [old] = engine.queue("q").push([Draft(b"old", key="a")])
    found = engine.queue("q").push(
        [Draft(b"1"), Draft(b"2", key="a"), Draft(b"3", key="b"), Draft(b"4", key="b"), Draft(b"5")]
    )
    assert found[1] == old
    assert found[2] == found[3]
    assert listed(engine) == [old, found[0], found[2], found[4]]
    assert [m.payload for m in engine.receive(["q"], 10, None, LOTS)] == [b"old", b"1", b"3", b"5"]


def test_key_of_a_refused_push(make: MakeEngine) -> None:
    """A push that is refused does not use its key up."""
    engine = make(capacity=1)
    [first] = engine.queue("q").push([Draft(b"")])
    with pytest.raises(QueueFullError):
        engine.queue("q").push([Draft(b"x", key="k")])
    engine.queue("q").delete(Receipt(first))
    [mid] = engine.queue("q").push([Draft(b"x", key="k")])
    assert engine.queue("q").push([Draft(b"x", key="k")]) == [mid]
    assert listed(engine) == [mid]


# -- capacity


def test_capacity_is_corrected(make: MakeEngine, memcached: Memcached) -> None:
    """A count that is wrong, because a server was killed between two steps, is found out when the queue seems full."""
    engine = make(capacity=3)
    push_numbers(engine, 2)
    queue = engine.queue("q")
    look = queue.pages.make()
    engine._servers.count(queue.pages.keys.count(look.head.generation), 1)
    push_numbers(engine, 1)
    with pytest.raises(QueueFullError, match="holds 3 messages; its capacity is 3"):
        push_numbers(engine, 1)


# -- copies


def test_copy_between(make: MakeEngine) -> None:
    """Copies come to their places between others, also in queues of many pages, and go when they are deleted."""
    engine = make()
    engine.create("r", Options())
    clock = engine._clock
    assert isinstance(clock, ManualClock)
    expected = []
    for number in range(1000):
        clock.now += 10
        [mid] = engine.queue("q" if number % 10 == 0 else "r").push([Draft(b"%d" % number)])
        expected.append(mid)
    for mid in listed(engine):
        engine.copy("q", mid, ["r"])
    assert engine.queue("r").list_mids(State.ALL, 2000, -1) == expected
    for number, mid in enumerate(expected):
        message = engine.queue("r").get(mid, peek=False, visibility=None)
        assert message.payload == b"%d" % number
        engine.queue("r").delete(Receipt(mid, 1))
    assert engine.queue("r").list_mids(State.ALL, 10, -1) == []
    assert len(listed(engine)) == 100


def test_copy_of_another_message(make: MakeEngine, clock: ManualClock) -> None:
    """An id that is that of another message is not overwritten, and copies made before that is found are taken back."""
    engine = make()
    for qid in ("r", "s"):
        engine.create(qid, Options())
    [mid] = engine.queue("q").push([Draft(b"x")])
    assert engine.queue("r").push([Draft(b"y")]) == [mid]
    with pytest.raises(OtherMessageError):
        engine.copy("q", mid, ["s", "r"])
    assert engine.queue("s").list_mids(State.ALL, 10, -1) == []
    assert engine.queue("r").get(mid, peek=True, visibility=None).payload == b"y"


# -- the start


def test_bad_arguments(tmp_path: Path) -> None:
    """No server, and a namespace that keys cannot have, are refused."""
    with pytest.raises(RemoteError, match="HOST:PORT"):
        MemcachedEngine(str(tmp_path), clock=ManualClock(), servers=[])
    for namespace in ("", "a b", "a:b", "x" * 41):
        with pytest.raises(UnsupportedError, match="namespace"):
            MemcachedEngine(str(tmp_path), clock=ManualClock(), namespace=namespace)


def test_options_of_directories(make: MakeEngine) -> None:
    """Options that only directories can have are refused, and leave no queue."""
    engine = make()
    with pytest.raises(UnsupportedError, match="no files"):
        engine.create("r", Options(timestamps="ms"))
    assert list(engine.queues()) == ["q"]


def test_describe(tmp_path: Path) -> None:
    """An engine says where its messages are, and that they are volatile."""
    engine = MemcachedEngine(str(tmp_path), clock=ManualClock(), servers=[("a", 1), ("::1", 2)])
    assert engine.describe().startswith("memcached at a:1, [::1]:2: volatile: messages are gone when it restarts")


def test_foreign_items(make: MakeEngine, memcached: Memcached, caplog: pytest.LogCaptureFixture) -> None:
    """Something else under a key of a queue is an error that says what to do."""
    engine = make()
    engine._servers.set_many({engine.queue("q").pages.keys.head: b"somebody else's"})
    with pytest.raises(RemoteError, match="choose another namespace"), caplog.at_level(logging.ERROR):
        engine.receive(["q"], 1, None, LOTS)
