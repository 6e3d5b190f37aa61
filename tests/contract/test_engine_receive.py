"""Receives from every engine: order, windows, bounds, subscribers' receives, expiry and arrivals."""

import pytest
from support.storage.calls import assert_due, hold, mids, next_due, receive, states
from support.storage.contract import needs
from support.storage.engines import Bench, arrived

from qs_storage.engine import (
    SECOND,
    Feature,
    Message,
    Receipt,
)


def test_receive(bench: Bench) -> None:
    """A message handed out says all about itself, and is in flight for the window that was asked for."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.push(b"x")
    [message] = receive(bench, visibility=10 * SECOND)
    until = bench.clock.now + 10 * SECOND
    assert message == Message("q", mid, "delivered", 1, start, until, b"x")
    assert not receive(bench)
    assert_due(bench, until)
    assert states(bench) == {"new": [], "ready": [], "in-flight": [mid], "delayed": [], "all": [mid]}


def test_receive_default_window(bench: Bench) -> None:
    """Without a window a message is in flight for the queue's own."""
    bench.queue(visibility=7 * SECOND)
    bench.push(b"x")
    [message] = receive(bench)
    assert message.visible_at == bench.clock.now + 7 * SECOND


def test_receive_oldest_first(bench: Bench) -> None:
    """At most count messages, the oldest."""
    needs(bench, Feature.ORDER)
    bench.queue()
    a, b, c = bench.push(b"a", b"b", b"c")
    assert mids(receive(bench, count=2)) == [a, b]
    assert mids(receive(bench, count=2)) == [c]
    assert not receive(bench, count=0)


def test_receive_from_several_queues(bench: Bench) -> None:
    """Messages of several queues come merged by id, each from its queue, a queue named twice once."""
    for qid in "abc":
        bench.queue(qid)
    pushed = [(qid, bench.push(qid.encode(), qid=qid)[0]) for qid in "abcacbba"]
    found = receive(bench, "a", "b", "c", "a")
    assert [(m.qid, m.mid) for m in found] == pushed
    assert all(m.payload == m.qid.encode() for m in found)


def test_receive_window_of_each_queue(bench: Bench) -> None:
    """Without a window each message has that of its own queue."""
    bench.queue("a", visibility=SECOND)
    bench.queue("b", visibility=2 * SECOND)
    bench.push(b"", qid="a")
    bench.push(b"", qid="b")
    now = bench.clock.now
    assert [m.visible_at for m in receive(bench, "a", "b")] == [now + SECOND, now + 2 * SECOND]


def test_receive_max_bytes(bench: Bench) -> None:
    """No more than fit, in order; the first one whatever its size; none is skipped for a smaller one behind it."""
    needs(bench, Feature.ORDER)
    bench.queue()
    a, b, c, d, e = bench.push(b"x" * 100, b"x" * 10, b"", b"x" * 11, b"")

    def take(room: int) -> list[int]:
        return mids(bench.engine.receive(["q"], 10, None, room))

    assert take(50) == [a]
    assert take(20) == [b, c]
    assert take(0) == [d]
    assert take(0) == [e]


def test_expired_comes_back_before_newer(bench: Bench) -> None:
    """A message whose window has ended is received again, before newer ones, and counts."""
    bench.queue()
    a, b = bench.push(b"a", b"b")
    receive(bench, count=1, visibility=100)
    bench.clock.now += 99
    assert bench.engine.queue("q").get(a, peek=True, visibility=None).status == "in-flight"
    bench.clock.now += 1
    found = receive(bench)
    assert [(m.mid, m.receives) for m in found] == [(a, 2), (b, 1)]
    assert bench.engine.queue("q").stats().expired == 1


def test_zero_window(bench: Bench) -> None:
    """A window of nothing has ended at once."""
    bench.queue()
    [mid] = bench.push(b"x")
    assert mids(receive(bench, count=1, visibility=0)) == [mid]
    assert mids(receive(bench, count=1, visibility=5)) == [mid]


def test_receive_held(bench: Bench) -> None:
    """While the process lives, a receive for a subscriber is like any other receive."""
    bench.queue()
    start = bench.clock.now
    a, b = bench.push(b"a", b"b")
    [message] = hold(bench, count=1, visibility=100)
    assert message == Message("q", a, "delivered", 1, start, bench.clock.now + 100, b"a")
    assert states(bench)["in-flight"] == [a]
    bench.engine.queue("q").delete(Receipt(a, 1))
    [message] = hold(bench, visibility=100)
    assert bench.engine.queue("q").release(Receipt(b, 1), 0) is None
    [message] = hold(bench, visibility=100)
    bench.clock.now += 50
    assert bench.engine.queue("q").extend(Receipt(b, 2), 100) == bench.clock.now + 100
    bench.clock.now += 100
    assert [(m.mid, m.receives) for m in receive(bench)] == [(b, 3)]


def test_held_counts_survive(bench: Bench) -> None:
    """The count of deliveries survives the process, as that of any receive does."""
    bench.queue()
    [mid] = bench.push(b"x")
    hold(bench, visibility=10)
    bench.clock.now += 10
    bench.reopen()
    assert bench.engine.queue("q").get(mid, peek=True, visibility=None).receives == 1
    assert states(bench)["new"] == []


def test_next_expiry(bench: Bench) -> None:
    """The next time at which a message becomes visible by itself, over all queues, whatever became of earlier ones."""
    bench.queue("a")
    bench.queue("b")
    engine = bench.engine
    assert next_due(engine) is None
    now = bench.clock.now
    [late] = bench.push(b"", qid="a", delay=300)
    [early] = bench.push(b"", qid="b", delay=100)
    assert next_due(engine) == now + 101
    engine.queue("b").delete(Receipt(early))
    assert next_due(engine) == now + 300
    engine.queue("a").release(Receipt(late), 0)
    assert next_due(engine) is None
    engine.receive(["a"], 1, 50, 1)
    assert next_due(engine) == bench.clock.now + 50
    engine.remove("a", force=True)
    assert next_due(engine) is None


def test_next_expiry_after_reopening(bench: Bench) -> None:
    """A reopened engine knows what is to expire."""
    bench.queue()
    bench.push(b"x")
    [message] = receive(bench, visibility=77)
    assert next_due(bench.reopen()) == message.visible_at


def test_expire(bench: Bench) -> None:
    """`expire` makes at most so many due messages visible, over all queues, and announces them."""
    bench.queue("a")
    bench.queue("b")
    bench.push(*[b"x"] * 3, qid="a")
    bench.push(*[b"x"] * 3, qid="b")
    receive(bench, "a", "b", visibility=10)
    arrived(bench.engine)
    bench.engine.expire(100)
    assert not arrived(bench.engine)
    bench.clock.now += 10
    bench.engine.expire(4)
    assert sum(arrived(bench.engine).values()) == 4
    assert next_due(bench.engine) == bench.clock.now
    bench.engine.expire(4)
    assert next_due(bench.engine) is None
    assert {qid: bench.engine.queue(qid).stats().expired for qid in "ab"} == {"a": 3, "b": 3}


def test_arrivals(bench: Bench) -> None:
    """Queues where messages have become visible, and how many are visible now; none for a delayed or a taken one."""
    bench.queue("a")
    bench.queue("b")
    bench.push(b"1", b"2", qid="a")
    bench.push(b"1", qid="b", delay=5)
    assert arrived(bench.engine) == {"a": 2}
    bench.push(b"3", qid="a")
    assert arrived(bench.engine) == {"a": 3}
    receive(bench, "a", visibility=SECOND)
    assert arrived(bench.engine) == {}
    bench.clock.now += 5
    bench.engine.expire(10)
    assert arrived(bench.engine) == {"b": 1}


def test_arrivals_at_the_start(bench: Bench) -> None:
    """Messages that are visible when an engine is opened are announced as arrivals."""
    bench.queue()
    bench.push(b"x")
    assert arrived(bench.reopen()) == {"q": 1}


@pytest.mark.parametrize("way", ["release", "expiry", "reopen", "release later"])
def test_receives_survive(bench: Bench, way: str) -> None:
    """The count of receives survives release, expiry and reopening."""
    bench.queue()
    [mid] = bench.push(b"x")
    for count in range(1, 4):
        [message] = receive(bench, visibility=100)
        assert (message.mid, message.receives) == (mid, count)
        if way == "release":
            bench.engine.queue("q").release(Receipt(mid, count), 0)
        elif way == "release later":
            bench.engine.queue("q").release(Receipt(mid, count), 10)
        elif way == "reopen":
            bench.engine.commit()
            bench.reopen()
        bench.clock.now += 100
        assert not states(bench)["new"]
        assert bench.engine.queue("q").get(mid, peek=True, visibility=None).receives == count
