"""Options that are changed while a queue is used, by every engine that can."""

from typing import Any, cast

import pytest
from support.storage.calls import configure
from support.storage.contract import needs
from support.storage.engines import LOTS, Bench, arrived

from qs_schemas import NewQueue, QueueOptions
from qs_server.operations import queues
from qs_server.operations.service import Service
from qs_storage.engine import (
    SECOND,
    Draft,
    Feature,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    QueueFullError,
)


@pytest.fixture
def settable(bench: Bench) -> Bench:
    needs(bench, Feature.SET, Feature.PAUSE)
    bench.queue()
    return bench


def test_made_again(any_bench: Bench) -> None:
    """A `new-queue` with exist-ok finds the queue that is there, in this process and the next, and compares its
    options."""
    bench = any_bench
    service = Service(bench.engine, cast(Any, None), cast(Any, None))

    def made(**options: Any) -> None:
        queues.new_queue(service, NewQueue("made", QueueOptions(**options), exist_ok=True))

    made(visibility=5)
    for _ in range(2):
        made()
        made(visibility=5)
        with pytest.raises(QueueExistsError, match=r"its visibility is 5, not 6$"):
            made(visibility=6)
        service.storage = bench.reopen()
    assert service.storage.options("made").visibility == 5 * SECOND


def received(bench: Bench) -> list[int]:
    return [message.mid for message in bench.engine.receive(["q"], 10, None, LOTS)]


def test_at_once_and_after_a_start(settable: Bench) -> None:
    """Capacity and visibility hold for the next request, and for the next process."""
    bench = settable
    configure(bench, capacity=2, visibility=5 * SECOND)
    for _ in range(2):
        assert bench.engine.queue("q").options.visibility == 5 * SECOND
        bench.push(b"x")
        bench.engine.commit()
        bench.reopen()
    with pytest.raises(QueueFullError):
        bench.engine.queue("q").push([Draft(b"x")])
    configure(bench, capacity=None)
    bench.push(b"x")
    bench.engine.commit()
    assert len(received(bench)) == 3
    bench.clock.now += 6 * SECOND
    assert len(received(bench)) == 3


def test_paused(settable: Bench) -> None:
    """A paused queue is empty for receives and claims, announces nothing, and stays so over a start; resuming announces
    what it has."""
    bench = settable
    mids = bench.push(b"a", b"b")
    bench.engine.commit()
    arrived(bench.engine)
    configure(bench, paused=True)
    for _ in range(2):
        assert received(bench) == []
        mids += bench.push(b"c")
        assert arrived(bench.engine) == {}
        found = bench.engine.queue("q").get(mids[0], peek=False, visibility=None)
        assert (found.status, found.payload, found.receives) == ("ready", None, 0)
        assert bench.engine.queue("q").get(mids[0], peek=True, visibility=None).payload == b"a"
        claims = bench.engine.queue("q").claims
        if claims is not None:
            assert claims.claim(f"c{len(mids)}", 1, 10, None, None).count == 0
        bench.reopen()
    configure(bench, paused=False)
    assert [*arrived(bench.engine)] == ["q"]
    assert received(bench) == mids


def test_several_queues_of_which_one_is_paused(settable: Bench) -> None:
    """A receive from several queues skips the paused one."""
    bench = settable
    bench.queue("other")
    bench.push(b"a")
    [there] = bench.push(b"b", qid="other")
    bench.engine.commit()
    configure(bench, paused=True)
    assert [each.mid for each in bench.engine.receive(["q", "other"], 10, None, LOTS)] == [there]


def test_configure_missing_queue_raises(settable: Bench) -> None:
    """Options of a queue that does not exist cannot be changed."""
    with pytest.raises(NoSuchQueueError):
        settable.engine.configure("absent", Options())


def test_schema_and_condition(any_bench: Bench) -> None:
    """A queue keeps the name of its schema and the condition of a durable name, over a start and for an engine that has
    not made it; so does one where they are changed, and one where they are taken away."""
    bench = any_bench
    where = """/order[@kind='a "b" \\ ü']/total > 100"""
    bench.queue("q", schema="order.xsd", where=where)
    for _ in range(2):
        found = bench.engine.options("q")
        assert (found.schema, found.where) == ("order.xsd", where)
        bench.reopen()
    needs(bench, Feature.SET)
    for schema, condition in (("other", ""), ("", "/a"), ("", "")):
        configure(bench, schema=schema, where=condition)
        for _ in range(2):
            found = bench.engine.options("q")
            assert (found.schema, found.where) == (schema, condition)
            bench.reopen()
