"""Messages at SQS: pushed, received, and settled."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.storage.engines import ManualClock
from support.storage.sqs import FaultySqs, LateClock, SqsServer, mids, push, receive, sqs_engine, url_of, wait

from qs_storage.engine import (
    SECOND,
    Draft,
    Headers,
    NoSuchMessageError,
    Options,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    UnsupportedError,
)
from qs_storage.remote.sqs import SqsEngine
from qs_storage.remote.sqs_calls import MOST_BYTES
from qs_storage.vsqs import micros

# -- push


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b"hello \xc3\xbc\r\n\t", "hello ü\r\n\t"),
        (b"", "-"),
        (b"-", "-"),
        (b"\0", "AA=="),
        (b"\xff", "/w=="),
        ("\ufffe".encode(), "77++"),
        ("\U0001f41f <&]]>".encode(), "\U0001f41f <&]]>"),
        (b"x" * 200_000, "x" * 200_000),
    ],
)
def test_payloads(engine: SqsEngine, other: Any, payload: bytes, body: str) -> None:
    """Any bytes come back as they were; other programs see text as it is, and other bytes as Base64."""
    push(engine, payload)
    seen = other.receive_message(QueueUrl=url_of(engine), VisibilityTimeout=0)["Messages"]
    assert [message["Body"] for message in seen] == [body]
    assert [message.payload for message in receive(engine)] == [payload]


def test_largest_payload(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A payload of SQS's largest size is stored; with one byte more, a list is refused and nothing is sent."""
    [mid] = push(engine, b"x")
    around = len("qs-mid") + len("Number") + len(str(mid))
    push(engine, b"x" * (MOST_BYTES - around))
    before = proxy.calls.count("SendMessageBatch")
    for refused in (b"x" * (MOST_BYTES - around + 1), b"\xff" * (MOST_BYTES * 3 // 4)):
        with pytest.raises(QueueFullError, match=f"{MOST_BYTES} is the most"):
            push(engine, b"y", refused)
    assert proxy.calls.count("SendMessageBatch") == before
    assert len(receive(engine)) == 2


def test_push_list(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A long list goes in calls of ten, and its ids increase."""
    pushed = push(engine, *(b"%d" % number for number in range(25)))
    assert pushed == sorted(set(pushed))
    assert proxy.calls.count("SendMessageBatch") == 3
    assert [(m.mid, m.payload) for m in receive(engine)] == [(mid, b"%d" % n) for n, mid in enumerate(pushed)]
    assert push(engine) == []


def test_push_list_of_large_ones(engine: SqsEngine, proxy: FaultySqs) -> None:
    """No call has more bytes than SQS takes."""
    push(engine, *[b"x" * 100_000] * 5)
    assert proxy.calls.count("SendMessageBatch") == 3
    assert len(receive(engine)) == 5


def headed(count: int) -> Headers:
    return tuple((f"h{number}", f"text {number}") for number in range(count))


def test_headers_are_attributes(engine: SqsEngine, other: Any) -> None:
    """Headers are attributes that other programs see, as many as SQS has room for, and theirs are headers here."""
    headers = (*headed(7), ("traceparent", "\u20ac"), ("x.Amazon.y", "z"))
    engine.queue("q").push([Draft(b"x", headers=headers)])
    url = url_of(engine)
    [seen] = other.receive_message(QueueUrl=url, VisibilityTimeout=0, MessageAttributeNames=["All"])["Messages"]
    theirs = {name: value["StringValue"] for name, value in seen["MessageAttributes"].items() if name != "qs-mid"}
    assert theirs == dict(headers)
    [message] = receive(engine)
    assert message.headers == headers
    engine.queue("q").delete(Receipt(message.mid))
    attributes = {
        "b": {"DataType": "String", "StringValue": "1"},
        "a": {"DataType": "Number.int", "StringValue": "2"},
        "binary": {"DataType": "Binary", "BinaryValue": b"3"},
        "qs-encoding": {"DataType": "String", "StringValue": "nothing of ours"},
    }
    other.send_message(QueueUrl=url, MessageBody="theirs", MessageAttributes=attributes)
    [message] = wait(engine)
    assert (message.payload, message.headers) == (b"theirs", (("a", "2"), ("b", "1")))


def test_headers_count_for_the_size(engine: SqsEngine) -> None:
    """SQS counts the message with its attributes."""
    with pytest.raises(QueueFullError, match=f"{MOST_BYTES} is the most"):
        engine.queue("q").push([Draft(b"x" * (MOST_BYTES - 100), headers=(("a", "\u20ac" * 30),))])


@pytest.mark.parametrize(
    ("draft", "text"),
    [
        (Draft(b"x", key="k"), "keeps no keys"),
        (Draft(b"x", headers=headed(10)), "at most 10 attributes at SQS, of which the server needs 1 here.*10 headers"),
        (Draft(b"", headers=headed(9)), "needs 2 here; this one has 9 headers: send 8 at most"),
        (Draft(b"x", headers=(("a", ""),)), "the header 'a' has no text"),
        (Draft(b"x", headers=(("AWS.x", "y"),)), "does not allow an attribute 'AWS.x'"),
        (Draft(b"x", headers=(("amazon.x", "y"),)), "'amazon.x'"),
        (Draft(b"x", headers=((".x", "y"),)), "'.x'"),
        (Draft(b"x", headers=(("x.", "y"),)), "'x.'"),
        (Draft(b"x", headers=(("x..y", "y"),)), "'x..y'"),
        (Draft(b"x", 900 * SECOND + 1), "a delay of at most 900 seconds; 901 were asked for"),
    ],
)
def test_push_unsupported(engine: SqsEngine, proxy: FaultySqs, draft: Draft, text: str) -> None:
    """A key, a longer delay than SQS has, or headers that SQS does not take, are refused before anything is sent."""
    with pytest.raises(UnsupportedError, match=text):
        engine.queue("q").push([Draft(b"y"), draft])
    assert "SendMessageBatch" not in proxy.calls


def test_push_delay(engine: SqsEngine) -> None:
    """A delayed message is not visible before its time, which is in whole seconds."""
    start = time.monotonic()
    [mid] = push(engine, b"x", delay=2)
    assert not receive(engine)
    assert (engine.queue("q").stats().delayed, engine.queue("q").stats().ready) == (1, 0)
    assert mids(wait(engine)) == [mid]
    assert time.monotonic() - start >= 1  # the server's clock has whole seconds, and may have been late in one


def test_ids_increase(tmp_path: Path, server: SqsServer) -> None:
    """Ids increase although the clock stands still or goes back, also over a removal."""
    clock = ManualClock()
    engine = sqs_engine(tmp_path, server.url, clock=clock)
    engine.create("q", Options())
    found = push(engine, b"x", b"x")
    clock.now -= SECOND
    found += push(engine, b"x")
    engine.remove("q", force=True)
    engine.create("q", Options())
    assert engine.queue("q").last_mid == -1
    found += push(engine, b"x")
    assert found == [found[0] + number for number in range(4)]
    assert engine.queue("q").last_mid == found[-1]
    engine.close()


# -- receive


def test_receive(engine: SqsEngine) -> None:
    """A message handed out says all about itself, and nobody else gets it."""
    start = micros()
    [mid] = push(engine, b"x")
    [message] = receive(engine, visibility=9_500_000)
    assert (message.qid, message.mid, message.status, message.receives) == ("q", mid, "delivered", 1)
    assert message.payload == b"x"
    assert start - 1000 <= message.pushed_at <= micros()  # in milliseconds at SQS
    assert message.visible_at is not None
    assert start + 10 * SECOND <= message.visible_at <= micros() + 10 * SECOND
    assert not receive(engine)


def test_receive_default_window(engine: SqsEngine) -> None:
    """Without a window it is the queue's own."""
    engine.create("short", Options(visibility=3 * SECOND))
    push(engine, b"x", qid="short")
    [message] = receive(engine, "short")
    assert message.visible_at is not None
    assert 0 < message.visible_at - micros() <= 3 * SECOND


def test_receive_count(engine: SqsEngine) -> None:
    """At most count, over several calls."""
    pushed = push(engine, *[b"x"] * 25)
    assert not receive(engine, count=0)
    assert mids(receive(engine, count=12)) == pushed[:12]
    assert mids(receive(engine, count=50)) == pushed[12:]


def test_receive_from_several_queues(engine: SqsEngine) -> None:
    """Several queues have their turns, and what comes is ordered by id; one named twice is asked once."""
    engine.create("r", Options())
    pushed = [(qid, push(engine, b"x", qid=qid)[0]) for qid in "qrqrrq"]
    assert sorted((m.mid, m.qid) for m in receive(engine, "q", "r", "q")) == sorted((m, q) for q, m in pushed)
    push(engine, *[b"x"] * 30)
    push(engine, *[b"x"] * 30, qid="r")
    found = receive(engine, "q", "r", count=40)
    assert mids(found) == sorted(mids(found))
    assert {message.qid for message in found} == {"q", "r"}


def test_receive_max_bytes(engine: SqsEngine) -> None:
    """No more than fit, but for the first; what is too much is visible again at once."""
    a, b, c = push(engine, b"x" * 100, b"x" * 10, b"x" * 11)
    assert mids(receive(engine, room=50)) == [a]
    assert mids(receive(engine, room=20)) == [b]
    [last] = receive(engine, room=0)
    assert (last.mid, last.receives > 1) == (c, True)


def test_receive_without_a_window(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A window of nothing has ended at once; SQS is asked once, and each message handed out once."""
    pushed = push(engine, *[b"x"] * 3)
    assert mids(receive(engine, visibility=0)) == pushed
    assert proxy.calls.count("ReceiveMessage") == 1
    assert mids(receive(engine, visibility=0)) == pushed
    with pytest.raises(StaleReceiptError):
        engine.queue("q").delete(Receipt(pushed[0]))


def test_window_too_long(engine: SqsEngine) -> None:
    """SQS hides a message for 12 hours at most."""
    push(engine, b"x")
    with pytest.raises(UnsupportedError, match="at most 43200 seconds"):
        receive(engine, visibility=43_200 * SECOND + 1)
    assert len(receive(engine, visibility=43_200 * SECOND)) == 1


def test_messages_of_other_programs(engine: SqsEngine, other: Any) -> None:
    """A message that another program sent has the time of its sending in its id, the same whenever it is received."""
    for body in ("a", "b"):
        other.send_message(QueueUrl=url_of(engine), MessageBody=body)
    first = receive(engine, visibility=0)
    second = receive(engine)
    assert sorted((m.mid, m.payload) for m in first) == sorted((m.mid, m.payload) for m in second)
    assert {message.payload for message in first} == {b"a", b"b"}
    for message in second:
        assert message.mid // 1000 * 1000 == message.pushed_at
        engine.queue("q").delete(Receipt(message.mid, message.receives))
    assert sum((engine.queue("q").stats().ready, engine.queue("q").stats().in_flight)) == 0


def test_attributes_of_other_programs(engine: SqsEngine, other: Any) -> None:
    """Attributes that look like ours and are not are no reason to fail: the body is the payload."""
    attributes = {
        "qs-mid": {"DataType": "String", "StringValue": "-5"},
        "qs-encoding": {"DataType": "String", "StringValue": "base64"},
    }
    other.send_message(QueueUrl=url_of(engine), MessageBody="no Base64!", MessageAttributes=attributes)
    [message] = receive(engine)
    assert message.payload == b"no Base64!"
    assert message.mid // 1000 * 1000 == message.pushed_at


def test_window_that_ends(engine: SqsEngine) -> None:
    """When its window is over a message is received again; the old receipt is stale, the new one is not."""
    [mid] = push(engine, b"x")
    [first] = receive(engine, visibility=SECOND)
    [second] = wait(engine)
    assert (first.mid, second.mid, first.receives, second.receives) == (mid, mid, 1, 2)
    queue = engine.queue("q")
    for call in (queue.delete, lambda receipt: queue.release(receipt, 0)):
        with pytest.raises(StaleReceiptError, match="received 2 times"):
            call(Receipt(mid, 1))
    assert engine.queue("q").stats().expired == 1
    engine.queue("q").delete(Receipt(mid, 2))


# -- in flight


def test_what_is_not_in_flight_here(engine: SqsEngine) -> None:
    """A message that was not received through this engine cannot be settled, and the text says why."""
    [mid] = push(engine, b"x")
    calls: tuple[Callable[[], object], ...] = (
        lambda: engine.queue("q").delete(Receipt(mid)),
        lambda: engine.queue("q").release(Receipt(mid), 0),
        lambda: engine.queue("q").extend(Receipt(mid), None),
    )
    for call in calls:
        with pytest.raises(NoSuchMessageError, match="is not in flight through this server"):
            call()


def test_window_has_ended(engine: SqsEngine, clock: LateClock) -> None:
    """After the end of its window a receipt is stale, whether or not somebody else has the message."""
    [mid] = push(engine, b"x")
    receive(engine)
    clock.ahead = 31 * SECOND
    calls: tuple[Callable[[], object], ...] = (
        lambda: engine.queue("q").delete(Receipt(mid)),
        lambda: engine.queue("q").release(Receipt(mid, 1), 0),
        lambda: engine.queue("q").extend(Receipt(mid, 1), None),
    )
    for call in calls:
        with pytest.raises(StaleReceiptError, match=r"the window of message .* has ended"):
            call()


def test_release(engine: SqsEngine) -> None:
    """A released message is visible at once, with its count; its receipt is gone."""
    [mid] = push(engine, b"x")
    receive(engine)
    assert engine.queue("q").release(Receipt(mid, 1), 0) is None
    with pytest.raises(NoSuchMessageError):
        engine.queue("q").extend(Receipt(mid, 1), None)
    assert [(m.mid, m.receives) for m in receive(engine)] == [(mid, 2)]


def test_release_with_delay(engine: SqsEngine) -> None:
    """With a delay it is visible after that, in whole seconds."""
    [mid] = push(engine, b"x")
    receive(engine)
    start = micros()
    until = engine.queue("q").release(Receipt(mid, 1), 5)
    assert until is not None
    assert start + SECOND <= until <= micros() + SECOND
    assert not receive(engine)
    assert mids(wait(engine)) == [mid]
    assert micros() >= start + SECOND


def test_extend(engine: SqsEngine, proxy: FaultySqs, clock: LateClock) -> None:
    """A window is moved at SQS and here: to the time from now, or to the queue's own window from now."""
    [mid] = push(engine, b"x")
    receive(engine, visibility=5 * SECOND)
    asked: list[int] = []
    proxy.before = lambda _, parameters: asked.append(parameters["VisibilityTimeout"])
    now = micros()
    assert now + 11 * SECOND <= engine.queue("q").extend(Receipt(mid, 1), 10 * SECOND + 1) <= micros() + 11 * SECOND
    assert now + 30 * SECOND <= engine.queue("q").extend(Receipt(mid), None) <= micros() + 30 * SECOND
    assert asked == [11, 30]
    proxy.before = None
    clock.ahead = 20 * SECOND
    engine.queue("q").delete(Receipt(mid, 1))


def test_extend_too_far(engine: SqsEngine) -> None:
    """An extension that SQS refuses is refused, and the window stays."""
    [mid] = push(engine, b"x")
    receive(engine)
    with pytest.raises(UnsupportedError, match="at most 43200 seconds"):
        engine.queue("q").extend(Receipt(mid), 43_201 * SECOND)
    engine.queue("q").delete(Receipt(mid, 1))


def test_receipt_that_sqs_does_not_take(engine: SqsEngine, other: Any) -> None:
    """When SQS says that a receipt is worth nothing, so do we."""
    [mid] = push(engine, b"x")
    receive(engine)
    other.purge_queue(QueueUrl=url_of(engine))
    with pytest.raises(StaleReceiptError, match="does not take the receipt"):
        engine.queue("q").delete(Receipt(mid, 1))
