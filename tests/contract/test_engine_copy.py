"""Copies between queues of every engine that can copy."""

import pytest
from support.storage.calls import assert_arrived, listed, receive
from support.storage.engines import LOTS, Bench

from qs_storage.engine import (
    SECOND,
    Draft,
    NoSuchMessageError,
    NoSuchQueueError,
    QueueFullError,
    Receipt,
    State,
)


def copied(bench: Bench, *into: str) -> int:
    """A message of `q`, copied."""
    [mid] = bench.push(b"x")
    bench.engine.copy("q", mid, into)
    bench.engine.commit()
    return mid


def test_copy(bench: Bench) -> None:
    """A copy is ready and new, under the same id, announced, and stays; the source is as it was."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    mid = copied(bench, "r", "s", "r")
    assert_arrived(bench, {"q": 1, "r": 1, "s": 1})
    for _ in range(2):
        for qid in ("q", "r", "s"):
            assert listed(bench, State.NEW, qid) == listed(bench, State.READY, qid) == [mid]
            assert bench.engine.queue(qid).get(mid, peek=True, visibility=None).payload == b"x"
        bench.reopen()
    assert bench.engine.queue("r").last_mid == mid
    [newer] = bench.push(b"y", qid="r")
    assert newer > mid


def test_copy_again(bench: Bench) -> None:
    """A queue that holds the id, in whatever state, is left alone, and so is the source itself."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    mid = copied(bench, "r")
    receive(bench, "r", visibility=SECOND)
    bench.engine.copy("q", mid, ["r", "s", "q"])
    assert listed(bench, State.IN_FLIGHT, "r") == listed(bench, State.READY, "s") == listed(bench) == [mid]
    bench.reopen()
    bench.engine.copy("q", mid, ["r", "s"])
    assert listed(bench, State.ALL, "r") == listed(bench, State.ALL, "s") == [mid]
    assert bench.engine.queue("r").stats().in_flight == 1


def test_copy_keeps_things_apart(bench: Bench) -> None:
    """A copy has its own count, window and deletion, also after a start."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    mid = copied(bench, "r", "s")
    for _ in range(3):
        receive(bench, "r", visibility=10)
        bench.clock.now += 10
    receive(bench, "s", visibility=10)
    bench.engine.queue("s").release(Receipt(mid), 500)
    for _ in range(2):
        looked = {qid: bench.engine.queue(qid).get(mid, peek=True, visibility=None) for qid in "qrs"}
        assert {qid: (m.status, m.receives) for qid, m in looked.items()} == {
            "q": ("ready", 0), "r": ("ready", 3), "s": ("delayed", 1)
        }  # fmt: skip
        bench.reopen()
    bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.queue("s").delete(Receipt(mid))
    bench.reopen()
    assert (listed(bench), listed(bench, qid="s")) == ([], [])
    [left] = receive(bench, "r")
    assert (left.mid, left.payload, left.receives) == (mid, b"x", 4)


@pytest.mark.parametrize("state", ["in-flight", "held", "delayed"])
def test_copy_what_is_hidden(bench: Bench, state: str) -> None:
    """A message that is in flight or delayed is copied too: it is ready there, and hidden here still."""
    bench.queue("q")
    bench.queue("r")
    [mid] = bench.push(b"x", delay=100 if state == "delayed" else 0)
    bench.engine.receive(["q"], 1, 100, LOTS, held=state == "held")
    bench.engine.copy("q", mid, ["r"])
    assert (listed(bench, State.READY), listed(bench, State.READY, "r")) == ([], [mid])
    bench.reopen()
    assert listed(bench, State.READY, "r") == [mid]


def test_copy_into_a_queue_with_messages(bench: Bench) -> None:
    """A queue that has messages of its own gets the copy at the place of its id, and its own stay as they are."""
    bench.queue("q")
    bench.queue("r")
    [first] = bench.push(b"1", qid="r")
    [message] = receive(bench, "r", visibility=10)
    [mid] = bench.push(b"2")
    [last] = bench.push(b"3", qid="r")
    bench.engine.copy("q", mid, ["r"])
    bench.clock.now += 10
    assert [(m.mid, m.receives) for m in receive(bench, "r")] == [(first, 2), (mid, 1), (last, 1)]
    assert (message.mid, listed(bench, State.NEW)) == (first, [mid])


def test_copy_all_or_none(bench: Bench) -> None:
    """When one of the queues is full or missing nothing is copied to the others."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    bench.queue("full", capacity=1)
    bench.push(b"y", qid="full")
    [mid] = bench.push(b"x")
    with pytest.raises(QueueFullError):
        bench.engine.copy("q", mid, ["r", "full", "s"])
    with pytest.raises(NoSuchQueueError):
        bench.engine.copy("q", mid, ["r", "no"])
    for _ in ("at once", "after a start"):
        assert [len(listed(bench, qid=qid)) for qid in ("q", "r", "s", "full")] == [1, 0, 0, 1]
        bench.reopen()
    bench.engine.copy("q", mid, ["r", "s"])
    assert listed(bench, qid="r") == listed(bench, qid="s") == [mid]


def test_copy_up_to_the_capacity(bench: Bench) -> None:
    """Copies count against the capacity, and one that is there already needs no room."""
    bench.queue("q")
    bench.queue("r", capacity=1)
    mid = copied(bench, "r")
    bench.engine.copy("q", mid, ["r"])
    [other] = bench.push(b"y")
    with pytest.raises(QueueFullError):
        bench.engine.copy("q", other, ["r"])
    bench.engine.queue("r").delete(Receipt(mid))
    bench.engine.copy("q", other, ["r"])
    assert listed(bench, qid="r") == [other]


def test_copy_what_is_not_there(bench: Bench) -> None:
    """A message that is not in the queue cannot be copied, also when a target has it."""
    bench.queue("q")
    bench.queue("r")
    mid = copied(bench, "r")
    bench.engine.queue("q").delete(Receipt(mid))
    with pytest.raises(NoSuchMessageError):
        bench.engine.copy("q", mid, ["r"])
    assert listed(bench, qid="r") == [mid]


def test_copy_staged(bench: Bench) -> None:
    """A copy sees pushes of the same batch."""
    bench.queue("q")
    bench.queue("r")
    [mid] = bench.engine.queue("q").push([Draft(b"x")])
    bench.engine.copy("q", mid, ["r"])
    assert listed(bench) == listed(bench, qid="r") == [mid]
