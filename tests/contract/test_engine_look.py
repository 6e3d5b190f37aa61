"""Looking at messages in every engine: get, list, read and statistics."""

from dataclasses import asdict
from typing import cast

import pytest
from support.storage.calls import hold, listed, mids, receive, states
from support.storage.contract import needs, unguarded
from support.storage.engines import Bench

import qs_schemas as wire
from qs_server.broker.subscriptions import Subscriptions
from qs_server.operations.messages import get_message
from qs_server.operations.remote_requests import _run_to_end, _ServiceElsewhere
from qs_storage.engine import (
    SECOND,
    Draft,
    Engine,
    Feature,
    Message,
    NoSuchMessageError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
    Stats,
    UnsupportedError,
)


def test_get_peek(bench: Bench) -> None:
    """Peeking gives the payload of a visible message and changes nothing."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.push(b"x")
    for _ in range(2):
        message = bench.engine.queue("q").get(mid, peek=True, visibility=None)
        assert message == Message("q", mid, "ready", 0, start, None, b"x")
    assert states(bench)["new"] == [mid]


def test_get_receives(bench: Bench) -> None:
    """Getting a visible message receives it."""
    bench.queue()
    start = bench.clock.now
    a, b = bench.push(b"a", b"b")
    message = bench.engine.queue("q").get(b, peek=False, visibility=SECOND)
    assert message == Message("q", b, "delivered", 1, start + 1, bench.clock.now + SECOND, b"b")
    assert mids(receive(bench)) == [a]


@pytest.mark.parametrize("peek", [True, False])
def test_get_hidden(bench: Bench, peek: bool) -> None:
    """A message that is in flight or delayed is described without its payload, and stays so."""
    bench.queue()
    [flying] = bench.push(b"a")
    receive(bench, visibility=100)
    [delayed] = bench.push(b"b", delay=100)
    now = bench.clock.now
    found = [bench.engine.queue("q").get(mid, peek=peek, visibility=5) for mid in (flying, delayed)]
    assert [(m.status, m.receives, m.payload) for m in found] == [("in-flight", 1, None), ("delayed", 0, None)]
    assert found[0].visible_at == now - 1 + 100
    assert found[1].visible_at == now - 1 + 100
    assert states(bench)["in-flight"] == [flying]


def peek_list(engine: Engine, *wanted: int) -> wire.GetMessage:
    """The answer to the list form of get-message."""
    service = _ServiceElsewhere(engine, cast(Subscriptions, None), lambda: pytest.fail("nobody subscribes"))
    request = wire.GetMessage("q", mids=list(wanted), peek=True)
    return cast(wire.GetMessage, _run_to_end(get_message(service, request)))


def test_peek_at_many(bench: Bench) -> None:
    """The list form of get-message shows payloads whatever the status, in the order asked, and changes nothing."""
    if Feature.GET in bench.engine.cannot:
        engine = unguarded(bench)
        engine.create("q", Options())
        with pytest.raises(UnsupportedError):
            peek_list(engine, *engine.queue("q").push([Draft(b"x")]))
        return
    bench.queue()
    flying, ready, gone = bench.push(b"flying", b"ready", b"gone")
    receive(bench, count=1, visibility=100)
    [delayed] = bench.push(b"delayed", delay=100)
    bench.engine.queue("q").delete(Receipt(gone))
    before = states(bench)
    answer = peek_list(unguarded(bench), delayed, gone, ready, flying)
    assert [(m.mid, m.status, m.receives, m.payload) for m in answer.messages] == [
        (delayed, "delayed", 0, b"delayed"), (ready, "ready", 0, b"ready"), (flying, "in-flight", 1, b"flying"),
    ]  # fmt: skip
    assert [m.visible_at is None for m in answer.messages] == [False, True, False]
    assert (answer.more, states(bench)) == (False, before)


def test_get_missing(bench: Bench) -> None:
    """`get` of a missing message raises NotFound."""
    bench.queue()
    [mid] = bench.push(b"x")
    receive(bench)
    bench.engine.queue("q").delete(Receipt(mid))
    for missing in (mid, mid + 1, 0):
        for peek in (True, False):
            with pytest.raises(NoSuchMessageError):
                bench.engine.queue("q").get(missing, peek=peek, visibility=None)


def test_list_states(bench: Bench) -> None:
    """Each state lists its messages; new are those never retrieved, delayed ones included, released ones not."""
    bench.queue()
    a, b, c = bench.push(b"a", b"b", b"c")
    [d] = bench.push(b"d", delay=SECOND)
    receive(bench, count=2, visibility=SECOND)
    bench.engine.queue("q").release(Receipt(a), 0)
    expected = {"new": [c, d], "ready": [a, c], "in-flight": [b], "delayed": [d], "all": [a, b, c, d]}
    assert states(bench) == expected
    bench.reopen()
    assert states(bench) == expected


@pytest.mark.parametrize("state", list(State))
def test_list_pages(bench: Bench, state: State) -> None:
    """Pages of any size, each after the last id of the one before, give everything once and in order."""
    bench.queue()
    found = [mid for n in range(9) for mid in bench.push(b"x", delay=SECOND * (n % 3 == 0))]
    receive(bench, count=3)
    bench.reopen()
    whole = listed(bench, state)
    for size in (1, 2, 4):
        pages: list[int] = []
        while page := bench.engine.queue("q").list_mids(state, size, pages[-1] if pages else -1):
            assert len(page) <= size
            pages += page
        assert pages == whole
    assert set(whole) <= set(found)
    assert whole


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed"])
def test_read(bench: Bench, state: str) -> None:
    """The holder of the receipt reads the payload in any state of the message, and changes nothing."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.push(b"x", delay=500 if state == "delayed" else 0)
    if state == "in-flight":
        hold(bench, visibility=499)
    before = states(bench)
    receives = int(state == "in-flight")
    visible_at = None if state == "ready" else bench.clock.now + 499
    expected = Message("q", mid, "delivered", receives, start, visible_at, b"x")
    assert bench.engine.queue("q").read(Receipt(mid, receives)) == expected
    assert bench.engine.queue("q").read(Receipt(mid)) == expected
    assert states(bench) == before


def test_read_what_is_not_held(bench: Bench) -> None:
    """An outdated receipt reads nothing, and a deleted message is missing."""
    bench.queue()
    [mid] = bench.push(b"x")
    hold(bench, visibility=10)
    bench.clock.now += 10
    receive(bench)
    with pytest.raises(StaleReceiptError):
        bench.engine.queue("q").read(Receipt(mid, 1))
    bench.engine.queue("q").delete(Receipt(mid))
    with pytest.raises(NoSuchMessageError):
        bench.engine.queue("q").read(Receipt(mid, 2))


def test_stats(bench: Bench) -> None:
    """Messages by state, bytes, the age of the oldest, and counts since the start."""
    bench.queue()
    bench.push(b"1", b"22", b"333", b"4444")
    bench.push(b"55555", delay=100 * SECOND)
    oldest, second = receive(bench, count=2, visibility=SECOND)
    bench.engine.queue("q").delete(Receipt(second.mid))
    bench.clock.now += SECOND
    stats = bench.engine.queue("q").stats()
    assert (stats.new, stats.ready, stats.in_flight, stats.delayed) == (3, 3, 0, 1)
    assert stats.bytes == 1 + 3 + 4 + 5
    assert stats.oldest == bench.clock.now - oldest.pushed_at
    assert (stats.pushed, stats.delivered, stats.expired, stats.deleted) == (5, 2, 1, 1)
    assert stats.storage == bench.engine.name


def test_stats_of_empty_queue(any_bench: Bench) -> None:
    """An empty queue has nothing, and no oldest message."""
    any_bench.queue()
    stats = any_bench.engine.queue("q").stats()
    assert (stats.oldest, stats.limited) == (None, "")
    assert {value for name, value in vars_of(stats).items() if name not in ("oldest", "storage", "limited")} == {0}


def vars_of(stats: Stats) -> dict[str, object]:
    return asdict(stats)


def test_stats_after_reopening(bench: Bench) -> None:
    """Prepared in slices or at once, the figures after reopening are those before, but for the counts."""
    needs(bench, Feature.FIGURES)
    bench.queue()
    bench.push(*[b"x" * n for n in range(30)])
    receive(bench, count=5)
    bench.push(b"z", delay=SECOND)
    before = vars_of(bench.engine.queue("q").stats())
    bench.reopen()
    while bench.engine.queue("q").prepare_stats():
        pass
    after = vars_of(bench.engine.queue("q").stats())
    counts = {"pushed", "delivered", "expired", "deleted"}
    assert {k: v for k, v in before.items() if k not in counts} == {k: v for k, v in after.items() if k not in counts}
    assert {after[name] for name in counts} == {0}
