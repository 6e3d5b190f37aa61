"""Pushes into every engine: payloads, lists, delays, keys, capacity and ids."""

import pytest
from support.storage.calls import assert_due, listed, mids, receive, states
from support.storage.contract import needs
from support.storage.engines import Bench, arrived

from qs_storage.engine import (
    SECOND,
    Draft,
    Feature,
    Options,
    QueueFullError,
    Receipt,
    StaleReceiptError,
)


@pytest.mark.parametrize("payload", [b"", b"\0\xff<&]]>", b"x" * 200_000])
def test_push_any_bytes(bench: Bench, payload: bytes) -> None:
    """A payload is any bytes, none or many, and comes back as it was."""
    bench.queue()
    bench.push(payload)
    bench.reopen()
    [message] = receive(bench)
    assert message.payload == payload


def test_push_is_announced(bench: Bench) -> None:
    """A pushed message is among the effects, once."""
    bench.queue()
    arrived(bench.engine)
    bench.engine.queue("q").push([Draft(b"x")])
    effects = bench.engine.effects()
    assert (effects.arrived, effects.failed) == ({"q": 1}, {})
    assert not bench.engine.effects().arrived


@pytest.mark.parametrize("look", ["receive", "get", "list", "delete", "stats", "release", "purge"])
def test_looking_flushes(bench: Bench, look: str) -> None:
    """Every look at the messages sees those pushed before."""
    if look in ("delete", "release"):
        needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.engine.queue("q").push([Draft(b"x")])
    engine = bench.engine
    if look == "receive":
        assert mids(receive(bench)) == [mid]
    elif look == "get":
        assert engine.queue("q").get(mid, peek=True, visibility=None).payload == b"x"
    elif look == "list":
        assert listed(bench) == [mid]
    elif look == "delete":
        engine.queue("q").delete(Receipt(mid))
    elif look == "stats":
        assert engine.queue("q").stats().ready == 1
    elif look == "release":
        with pytest.raises(StaleReceiptError):  # and not that there is none
            engine.queue("q").release(Receipt(mid), 5)
    else:
        assert engine.queue("q").purge(mid, 10) == 1


def test_push_list(bench: Bench) -> None:
    """A list gets increasing ids and is received in its order."""
    bench.queue()
    pushed = bench.engine.queue("q").push([Draft(b"%d" % n) for n in range(20)])
    assert pushed == sorted(set(pushed))
    assert [(m.mid, m.payload) for m in receive(bench)] == [(mid, b"%d" % n) for n, mid in enumerate(pushed)]


def test_push_empty_list(any_bench: Bench) -> None:
    """A list of nothing changes nothing."""
    any_bench.queue()
    assert any_bench.engine.queue("q").push([]) == []
    any_bench.engine.commit()
    assert not receive(any_bench)


def test_push_delay(bench: Bench) -> None:
    """A delayed message is invisible until exactly its time, never retrieved, and not received before."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.engine.queue("q").push([Draft(b"x", 500)])
    bench.engine.commit()
    assert_due(bench, start + 500)
    bench.clock.now = start + 499
    assert not receive(bench)
    assert states(bench) == {"new": [mid], "ready": [], "in-flight": [], "delayed": [mid], "all": [mid]}
    bench.clock.now = start + 500
    [message] = receive(bench)
    assert (message.mid, message.receives) == (mid, 1)


def test_push_list_with_delays(bench: Bench) -> None:
    """Each message of a list has its own delay."""
    bench.queue()
    a, b, c = bench.engine.queue("q").push([Draft(b"a", 100), Draft(b"b"), Draft(b"c", 50)])
    assert mids(receive(bench)) == [b]
    bench.clock.now += 100
    assert mids(receive(bench)) == [a, c]


def test_push_key(bench: Bench) -> None:
    """A push with a key that was there before stores nothing and gets the id of the first, also after a reopening."""
    bench.queue()
    [first] = bench.engine.queue("q").push([Draft(b"1", key="a")])
    bench.engine.commit()
    assert bench.engine.queue("q").push([Draft(b"2", key="a")]) == [first]
    bench.reopen()
    assert bench.engine.queue("q").push([Draft(b"3", key="a")]) == [first]
    [other] = bench.engine.queue("q").push([Draft(b"4", key="b")])
    assert [(m.mid, m.payload) for m in receive(bench)] == [(first, b"1"), (other, b"4")]


def test_push_key_after_a_purge(bench: Bench) -> None:
    """A key is remembered after its message was purged, also over a reopening. A removed queue takes its keys along."""
    bench.queue()
    [first] = bench.engine.queue("q").push([Draft(b"1", key="a")])
    while bench.engine.queue("q").purge(first, 10):
        pass
    bench.engine.commit()
    assert bench.engine.queue("q").push([Draft(b"2", key="a")]) == [first]
    bench.reopen()
    assert bench.engine.queue("q").push([Draft(b"3", key="a")]) == [first]
    assert receive(bench) == []
    bench.engine.remove("q", force=True)
    bench.queue()
    bench.engine.queue("q").push([Draft(b"4", key="a")])
    assert [m.payload for m in receive(bench)] == [b"4"]


def test_push_capacity(bench: Bench) -> None:
    """A queue holds no more than its capacity, in whatever state, staged or not; a list goes in whole or not at all."""
    bench.queue(capacity=3)
    bench.push(b"1")
    receive(bench)
    bench.engine.queue("q").push([Draft(b"2", SECOND)])
    with pytest.raises(QueueFullError):
        bench.engine.queue("q").push([Draft(b"3"), Draft(b"4")])
    [last] = bench.engine.queue("q").push([Draft(b"3")])
    with pytest.raises(QueueFullError):
        bench.engine.queue("q").push([Draft(b"4")])
    bench.engine.queue("q").delete(Receipt(last))
    bench.push(b"4")
    assert len(listed(bench)) == 3


def test_mids_increase_whatever_the_clock_does(bench: Bench) -> None:
    """Ids increase strictly although the clock stands still or goes back, also over a reopening."""
    bench.queue()
    found = [*bench.push(b"x"), *bench.engine.queue("q").push([Draft(b"x")] * 3)]
    bench.clock.now -= 1000 * SECOND
    found += bench.push(b"x", b"x")
    bench.reopen()
    found += bench.push(b"x")
    assert found == sorted(set(found))
    assert bench.engine.queue("q").last_mid == found[-1]
    assert mids(receive(bench)) == found


def test_last_mid(bench: Bench) -> None:
    """The greatest id is known also when its message is gone; -1 before there is one."""
    bench.queue()
    assert bench.engine.queue("q").last_mid == -1
    [mid] = bench.push(b"x")
    receive(bench)
    bench.engine.queue("q").delete(Receipt(mid))
    assert bench.engine.queue("q").last_mid == mid


def test_close_keeps_what_was_pushed(bench: Bench) -> None:
    """Closing makes everything that was pushed visible and durable."""
    bench.queue()
    [mid] = bench.engine.queue("q").push([Draft(b"x")])
    bench.reopen()
    assert mids(receive(bench)) == [mid]


def test_options_type(any_bench: Bench) -> None:
    """The options that were passed stay the caller's."""
    options = Options(visibility=SECOND)
    any_bench.engine.create("q", options)
    assert options.storage == ""
