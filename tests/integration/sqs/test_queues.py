"""Queues at SQS: made, taken up, purged, counted and removed."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.storage.sqs import (
    LONG,
    SqsServer,
    mids,
    push,
    receive,
    sqs_engine,
    url_of,
    wait,
)

from qs_storage.engine import (
    SECOND,
    BadQueueNameError,
    NoSuchMessageError,
    Options,
    QueueExistsError,
    QueueNotEmptyError,
    Receipt,
    RemoteError,
    StaleReceiptError,
    UnsupportedError,
)
from qs_storage.remote.sqs import SqsEngine


def test_name_too_long(engine: SqsEngine) -> None:
    """A name that SQS would not take is refused, with its length; no queue is left."""
    with pytest.raises(BadQueueNameError, match=r"needs? the name '.*' of 89 characters; 80 is the most"):
        engine.create("a" * 80, Options())
    assert list(engine.queues()) == ["q"]


def test_create_makes_it_at_sqs(engine: SqsEngine, other: Any) -> None:
    """A queue is made at SQS, with its window in whole seconds, and is taken up again by the next engine."""
    engine.create("a/b", Options(visibility=6_500_000))
    asked = other.get_queue_attributes(QueueUrl=url_of(engine, "a/b"), AttributeNames=["VisibilityTimeout"])
    assert asked["Attributes"] == {"VisibilityTimeout": "7"}
    assert url_of(engine, "a/b").endswith("-a_x2Fb")
    with pytest.raises(QueueExistsError):
        engine.create("a/b", Options())


def test_reopened(tmp_path: Path, server: SqsServer) -> None:
    """The queues, their options and messages are there for the next engine, which asks nothing of SQS at its start."""
    engine = sqs_engine(tmp_path, server.url, prefix="reopened-")
    engine.create("q", Options(visibility=7 * SECOND))
    [mid] = push(engine, b"x")
    engine.close()
    engine = sqs_engine(tmp_path, server.url, prefix="reopened-")
    assert list(engine.queues()) == ["q"]
    assert (engine.queue("q").options.visibility, engine.queue("q").options.storage) == (7 * SECOND, "sqs")
    assert engine.queue("q").last_mid == -1
    assert mids(receive(engine)) == [mid]
    assert engine.queue("q").last_mid == mid
    engine.close()


def test_existing_queue_is_taken_up(engine: SqsEngine, other: Any, tmp_path: Path, server: SqsServer) -> None:
    """A queue that is at SQS already keeps its attributes and messages."""
    made = other.create_queue(QueueName="taken-up", Attributes={"VisibilityTimeout": "99"})["QueueUrl"]
    other.send_message(QueueUrl=made, MessageBody="hello")
    (tmp_path / "another").mkdir()
    second = sqs_engine(tmp_path / "another", server.url, prefix="taken-")
    second.create("up", Options(visibility=5 * SECOND))
    assert [message.payload for message in receive(second, "up")] == [b"hello"]
    asked = other.get_queue_attributes(QueueUrl=made, AttributeNames=["VisibilityTimeout"])
    assert asked["Attributes"] == {"VisibilityTimeout": "99"}
    second.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(capacity=5), "no capacity"),
        (Options(timestamps="ms"), "microseconds only"),
        (Options(visibility=43_201 * SECOND), "a visibility window of at most 43200 seconds; 43201"),
    ],
)
def test_options_that_sqs_has_not(engine: SqsEngine, options: Options, text: str, tmp_path: Path) -> None:
    """Options that SQS lacks are refused, and no queue is left."""
    with pytest.raises(UnsupportedError, match=text):
        engine.create("other", options)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed"])
def test_remove_not_empty(engine: SqsEngine, state: str) -> None:
    """Without force a queue stays while it holds a message in any state, as far as SQS knows."""
    push(engine, b"x", delay=60 * SECOND if state == "delayed" else 0)
    if state == "in-flight":
        receive(engine)
    with pytest.raises(QueueNotEmptyError, match="holds about"):
        engine.remove("q", force=False)
    assert list(engine.queues()) == ["q"]
    engine.remove("q", force=True)
    assert not list(engine.queues())


def test_remove(engine: SqsEngine, other: Any, tmp_path: Path) -> None:
    """A removed queue is gone here and there, with what was in flight; a new one of the name is empty."""
    url = url_of(engine)
    engine.remove("q", force=False)
    with pytest.raises(other.exceptions.QueueDoesNotExist):
        other.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    assert not list(tmp_path.iterdir())
    engine.create("q", Options())
    assert not receive(engine)
    [mid] = push(engine, b"x")
    receive(engine)
    engine.remove("q", force=True)
    engine.create("q", Options())
    with pytest.raises(NoSuchMessageError):
        engine.queue("q").delete(Receipt(mid))
    assert engine.queue("q").stats().pushed == 0


def test_remove_what_sqs_has_not(engine: SqsEngine, other: Any) -> None:
    """The error names a queue that was removed at SQS, and it can be removed here."""
    other.delete_queue(QueueUrl=url_of(engine))
    with pytest.raises(RemoteError, match=r"there is no queue '.*-q' at SQS .*make it there, or remove 'q' here"):
        push(engine, b"x")
    engine.remove("q", force=True)
    assert not list(engine.queues())


def test_purge(engine: SqsEngine, tmp_path: Path, server: SqsServer) -> None:
    """A purge removes everything and says about how much; asked again at once it says 0, and later that it is soon."""
    found = push(engine, *[b"x"] * 5)
    receive(engine, count=2)
    assert engine.queue("q").purge(engine.queue("q").last_mid, 4) == 5
    assert engine.queue("q").purge(engine.queue("q").last_mid, 4) == 0
    assert not receive(engine)
    with pytest.raises(NoSuchMessageError):
        engine.queue("q").delete(Receipt(found[0]))
    engine.queue("q")._purged -= 10
    with pytest.raises(RemoteError, match="once a minute, and has done so with 'q': try again in a minute"):
        engine.queue("q").purge(0, 4)


def test_stats(engine: SqsEngine) -> None:
    """Messages as SQS counts them, and what has happened here."""
    push(engine, *[b"x"] * 4)
    push(engine, b"x", delay=60 * SECOND)
    first, _ = receive(engine, count=2)
    engine.queue("q").delete(Receipt(first.mid, 1))
    stats = engine.queue("q").stats()
    assert (stats.new, stats.ready, stats.in_flight, stats.delayed) == (3, 2, 1, 1)
    assert (stats.pushed, stats.delivered, stats.deleted, stats.expired) == (5, 2, 1, 0)
    assert (stats.storage, stats.bytes, stats.oldest) == ("sqs", 0, None)


def consume(engine: SqsEngine, found: list[bytes], every: int, seconds: float) -> None:
    """Receives and deletes until there are as many different payloads. moto gives one message to two at times, as
    SQS may: then one of them has a receipt that is worth nothing."""
    until = time.monotonic() + LONG
    while len(set(found)) < every and time.monotonic() < until:
        for message in wait(engine, "q", "r", count=1, seconds=seconds):
            with contextlib.suppress(StaleReceiptError, NoSuchMessageError):
                engine.queue(message.qid).delete(Receipt(message.mid, message.receives))
                found.append(message.payload or b"")


@pytest.mark.parametrize("seconds", [0.03, 1])
def test_threads(engine: SqsEngine, seconds: float) -> None:
    """Several threads push, receive and delete at once, and nothing is lost, also when most leave before a message
    comes: all are handed out and deleted within their first windows."""
    engine.create("r", Options())
    every, found = 30, list[bytes]()
    threads = [threading.Thread(target=consume, args=(engine, found, every, seconds)) for _ in range(3)]
    threads += [
        threading.Thread(
            target=lambda qid: [push(engine, b"%s%d" % (qid.encode(), n), qid=qid) for n in range(15)], args=(qid,)
        )
        for qid in "qr"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert set(found) == {b"%s%d" % (qid, number) for qid in (b"q", b"r") for number in range(15)}
    assert [engine.queue(qid).stats().ready + engine.queue(qid).stats().in_flight for qid in "qr"] == [0, 0]
