"""Queues of every engine: made, named, listed and removed."""

import pytest
from support.storage.calls import count, mids, receive
from support.storage.engines import Bench

from qs_storage.engine import (
    DEFAULT_VISIBILITY,
    SECOND,
    BadQueueNameError,
    Draft,
    NoSuchQueueError,
    QueueExistsError,
    QueueNotEmptyError,
    Receipt,
    State,
)


def test_create(any_bench: Bench) -> None:
    """A created queue is among the queues, with its options, and stays."""
    any_bench.queue("q", visibility=7 * SECOND, capacity=3)
    for engine in (any_bench.engine, any_bench.reopen()):
        assert list(engine.queues()) == ["q"]
        options = engine.queue("q").options
        assert (options.visibility, options.capacity) == (7 * SECOND, 3)
        assert options.storage == engine.name


def test_create_default_options(any_bench: Bench) -> None:
    """Without options a queue has the default window and no capacity."""
    any_bench.queue()
    options = any_bench.engine.queue("q").options
    assert (options.visibility, options.capacity) == (DEFAULT_VISIBILITY, None)


def test_create_again(bench: Bench) -> None:
    """A name is given once; the queue that has it keeps its messages."""
    bench.queue()
    [mid] = bench.push(b"x")
    with pytest.raises(QueueExistsError):
        bench.queue()
    assert mids(receive(bench)) == [mid]


def test_create_bad_names(any_bench: Bench) -> None:
    """A name that cannot be kept is refused."""
    for qid in ("", "a" * 201, "a\nb", "a\0b", "é" * 100):
        with pytest.raises(BadQueueNameError):
            any_bench.queue(qid)
    assert not list(any_bench.engine.queues())


def test_create_any_name(bench: Bench) -> None:
    """Any text is a name, also what means something to a file system; it stays the same when reopened."""
    names = ["a/b", "..", ".", ".hidden", "ü 日 🐟", "a%20b", "q.new", "1", "~", "A", "a"]
    pushed = {}
    for qid in names:
        bench.queue(qid)
        pushed[qid] = bench.push(b"x", qid=qid)
    assert sorted(bench.reopen().queues()) == sorted(names)
    for qid in names:
        assert mids(receive(bench, qid)) == pushed[qid]


def test_remove(any_bench: Bench) -> None:
    """A removed queue is gone, and its name is free for a new one that is empty."""
    any_bench.queue()
    any_bench.engine.remove("q", force=False)
    assert not list(any_bench.engine.queues())
    with pytest.raises(NoSuchQueueError):
        count(any_bench)
    any_bench.queue()
    assert not receive(any_bench)


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed", "staged"])
def test_remove_not_empty(bench: Bench, state: str) -> None:
    """A queue with a message in any state is removed by force only."""
    bench.queue()
    bench.engine.queue("q").push([Draft(b"x", SECOND if state == "delayed" else 0)])
    if state != "staged":
        bench.engine.commit()
    if state == "in-flight":
        receive(bench)
    with pytest.raises(QueueNotEmptyError):
        bench.engine.remove("q", force=False)
    assert count(bench) == 1
    bench.engine.remove("q", force=True)
    assert not list(bench.reopen().queues())


def test_every_method_refuses_missing_queue(any_bench: Bench) -> None:
    """Every method that names a queue says when there is none."""
    engine = any_bench.engine
    for call in (
        lambda: engine.queue("no").options,
        lambda: engine.remove("no", force=True),
        lambda: engine.queue("no").push([Draft(b"")]),
        lambda: engine.receive(["no"], 1, None, 1),
        lambda: engine.queue("no").get(1, peek=True, visibility=None),
        lambda: engine.queue("no").list_mids(State.ALL, 1, -1),
        lambda: engine.queue("no").delete(Receipt(1)),
        lambda: engine.queue("no").release(Receipt(1), 0),
        lambda: engine.queue("no").extend(Receipt(1), None),
        lambda: engine.queue("no").purge(1, 1),
        lambda: engine.queue("no").stats(),
        lambda: engine.queue("no").prepare_stats(),
        lambda: engine.queue("no").last_mid,
        lambda: engine.receive(["no"], 1, None, 1, held=True),
        lambda: engine.queue("no").read(Receipt(1)),
        lambda: engine.copy("no", 1, ["no"]),
    ):
        with pytest.raises(NoSuchQueueError):
            call()


def test_receive_one_of_two_queues_missing(bench: Bench) -> None:
    """When one of several queues is missing nothing is received from the others."""
    bench.queue()
    [mid] = bench.push(b"x")
    with pytest.raises(NoSuchQueueError):
        receive(bench, "q", "no")
    assert mids(receive(bench)) == [mid]
