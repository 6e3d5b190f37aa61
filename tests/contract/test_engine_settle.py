"""Tests what ends a receive in every engine: delete, release, extend, purge."""

from collections.abc import Callable

import pytest
from support.storage.calls import assert_arrived, assert_due, count, listed, mids, receive, states
from support.storage.contract import needs
from support.storage.engines import Bench

from qs_storage.engine import (
    SECOND,
    Feature,
    NoSuchMessageError,
    Receipt,
    StaleReceiptError,
)


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed", "back"])
@pytest.mark.parametrize("with_receipt", [True, False])
def test_delete(bench: Bench, state: str, with_receipt: bool) -> None:
    """A message is deleted in whatever state, with the count of receives that its holder saw or without; once."""
    if state in ("ready", "delayed"):
        needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x", delay=SECOND if state == "delayed" else 0)
    if state in ("in-flight", "back"):
        receive(bench, visibility=100)
    if state == "back":
        bench.clock.now += 100
    seen = (1 if state in ("in-flight", "back") else 0) if with_receipt else None
    bench.engine.queue("q").delete(Receipt(mid, seen))
    with pytest.raises(NoSuchMessageError):
        bench.engine.queue("q").delete(Receipt(mid, seen))
    assert count(bench) == 0
    bench.reopen()
    assert count(bench) == 0


def test_delete_of_what_another_holds(bench: Bench) -> None:
    """Without a count of receives a message is deleted also while a consumer holds it; its holder is told that there is
    none."""
    bench.queue()
    [mid] = bench.push(b"x")
    receive(bench, visibility=SECOND)
    bench.engine.queue("q").delete(Receipt(mid))
    for call in (bench.engine.queue("q").delete, bench.engine.queue("q").read):
        with pytest.raises(NoSuchMessageError):
            call(Receipt(mid, 1))
    for call in (bench.engine.queue("q").release, bench.engine.queue("q").extend):
        with pytest.raises(NoSuchMessageError):
            call(Receipt(mid, 1), 0)
    assert count(bench) == 0


def test_stale_receipt(bench: Bench) -> None:
    """A receiver whose message was received again can change nothing of it."""
    bench.queue()
    [mid] = bench.push(b"x")
    receive(bench, visibility=10)
    bench.clock.now += 10
    receive(bench, visibility=SECOND)
    old, current = Receipt(mid, 1), Receipt(mid, 2)
    calls: tuple[Callable[[], object], ...] = (
        lambda: bench.engine.queue("q").delete(old),
        lambda: bench.engine.queue("q").release(old, 0),
        lambda: bench.engine.queue("q").release(old, 5),
        lambda: bench.engine.queue("q").extend(old, SECOND),
    )
    for call in calls:
        with pytest.raises(StaleReceiptError):
            call()
    assert states(bench)["in-flight"] == [mid]
    bench.engine.queue("q").extend(current, SECOND)
    bench.engine.queue("q").delete(current)


@pytest.mark.parametrize("receives", [1, None])
def test_release_makes_message_visible(bench: Bench, receives: int | None) -> None:
    """A released message is visible at once, at its old place, still counted, and announced."""
    needs(bench, Feature.ORDER)
    bench.queue()
    a, b = bench.push(b"a", b"b")
    receive(bench, count=1)
    assert_arrived(bench)
    assert bench.engine.queue("q").release(Receipt(a, receives), 0) is None
    assert_arrived(bench, {"q": 2})
    bench.reopen()
    assert [(m.mid, m.receives) for m in receive(bench)] == [(a, 2), (b, 1)]
    assert bench.engine.queue("q").stats().expired == 0


@pytest.mark.parametrize("state", ["in-flight", "delayed"])
def test_release_with_delay(bench: Bench, state: str) -> None:
    """With a delay a message is delayed until then, from the moment of the release."""
    bench.queue()
    [mid] = bench.push(b"x", delay=5 if state == "delayed" else 0)
    if state == "in-flight":
        receive(bench)
    until = bench.clock.now + 100
    assert bench.engine.queue("q").release(Receipt(mid), 100) == until
    bench.reopen()
    assert states(bench)["delayed"] == [mid]
    assert states(bench)["new"] == ([] if state == "in-flight" else [mid])
    assert_due(bench, until)
    bench.clock.now = until
    assert mids(receive(bench)) == [mid]


def test_release_of_delayed(bench: Bench) -> None:
    """Released without a delay, a delayed message is visible at once. With the count of receives that a holder saw it
    stays: nobody holds it."""
    needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x", delay=SECOND)
    before = bench.engine.queue("q").get(mid, peek=True, visibility=None)
    for delay in (0, 5):
        with pytest.raises(StaleReceiptError, match="not in flight"):
            bench.engine.queue("q").release(Receipt(mid, 0), delay)
    assert bench.engine.queue("q").get(mid, peek=True, visibility=None) == before
    assert bench.engine.queue("q").release(Receipt(mid), 0) is None
    assert states(bench) == {"new": [mid], "ready": [mid], "in-flight": [], "delayed": [], "all": [mid]}


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("state", ["ready", "released", "expired"])
def test_release_of_visible(bench: Bench, state: str, delay: int) -> None:
    """Releasing a visible message is an error and changes nothing, with or without a receipt: nobody holds it."""
    if state != "expired":
        needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x")
    if state != "ready":
        receive(bench, visibility=10)
    if state == "released":
        bench.engine.queue("q").release(Receipt(mid, 1), 0)
    bench.clock.now += 10
    for receives in (None, int(state != "ready")):
        with pytest.raises(StaleReceiptError):
            bench.engine.queue("q").release(Receipt(mid, receives), delay)
    assert mids(receive(bench)) == [mid]


def test_extend(bench: Bench) -> None:
    """A window is moved to end that long from now, or the queue's own window from now; not counted as a receive."""
    bench.queue(visibility=3 * SECOND)
    [mid] = bench.push(b"x")
    receive(bench, visibility=100)
    bench.clock.now += 50
    assert bench.engine.queue("q").extend(Receipt(mid, 1), SECOND) == bench.clock.now + SECOND
    assert bench.engine.queue("q").extend(Receipt(mid), None) == bench.clock.now + 3 * SECOND
    assert_due(bench, bench.clock.now + 3 * SECOND)
    bench.reopen()
    message = bench.engine.queue("q").get(mid, peek=True, visibility=None)
    assert (message.status, message.receives, message.visible_at) == ("in-flight", 1, bench.clock.now + 3 * SECOND)


def test_extend_to_shorter(bench: Bench) -> None:
    """A window may be made shorter, and ends then."""
    bench.queue()
    [mid] = bench.push(b"x")
    receive(bench, visibility=100 * SECOND)
    until = bench.engine.queue("q").extend(Receipt(mid), 10)
    assert_due(bench, until)
    bench.clock.now = until
    assert mids(receive(bench)) == [mid]


@pytest.mark.parametrize("state", ["ready", "delayed", "expired"])
def test_extend_not_in_flight(bench: Bench, state: str) -> None:
    """Only a message in flight has a window to extend."""
    if state != "expired":
        needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x", delay=SECOND if state == "delayed" else 0)
    if state == "expired":
        receive(bench, visibility=10)
        bench.clock.now += 10
    with pytest.raises(StaleReceiptError):
        bench.engine.queue("q").extend(Receipt(mid), SECOND)


def test_missing_message(any_bench: Bench) -> None:
    """A message that does not exist cannot be deleted, released or extended."""
    any_bench.queue()
    engine = any_bench.engine
    for receipt in (Receipt(5), Receipt(5, 1)):
        with pytest.raises(NoSuchMessageError):
            engine.queue("q").delete(receipt)
        with pytest.raises(NoSuchMessageError):
            engine.queue("q").release(receipt, 0)
        with pytest.raises(NoSuchMessageError):
            engine.queue("q").extend(receipt, None)


def test_purge_removes_oldest_up_to_id(bench: Bench) -> None:
    """The oldest messages up to an id go, in whatever state, in slices; a short slice was the last."""
    needs(bench, Feature.PART)
    bench.queue()
    found = bench.push(*[b"x"] * 5)
    receive(bench, count=2)
    [late] = bench.push(b"y", delay=SECOND)
    upto = bench.engine.queue("q").last_mid
    [newer] = bench.push(b"z")
    assert bench.engine.queue("q").purge(upto, 4) == 4
    assert listed(bench) == [found[4], late, newer]
    assert bench.engine.queue("q").purge(upto, 4) == 2
    assert bench.engine.queue("q").purge(upto, 4) == 0
    bench.reopen()
    assert listed(bench) == [newer]
