"""Queues at an SQS endpoint, which is moto's server here."""

import contextlib
import functools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import ManualClock
from support.sqs_serving import CREDENTIALS, HASTY, FaultySqs, SqsServer, sqs_engine, sqs_serving

from qs_server.storage.engine import (
    SECOND,
    BadQueueNameError,
    Draft,
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
    RemoteError,
    StaleReceiptError,
    State,
    StorageError,
    UnsupportedError,
)
from qs_server.storage.remote.sqs import SqsEngine
from qs_server.storage.remote.sqs.long_polls import LongPolls
from qs_server.storage.remote.sqs.messages import MOST_BYTES, Received
from qs_server.storage.remote.sqs.names import name_at_sqs
from qs_server.storage.remote.sqs.receipts import Held, Receipts
from qs_server.storage.vsqs import micros

LOTS = 1 << 40
"""Bytes: no bound."""
LONG = 20
"""Seconds: only a failure waits that long."""


@pytest.fixture(scope="module")
def server() -> Iterator[SqsServer]:
    """One endpoint for all tests of the file."""
    with pytest.MonkeyPatch.context() as patch, sqs_serving() as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.setattr(boto3.session, "Session", functools.cache(boto3.session.Session))  # making one takes 0.2 s
        yield server


@pytest.fixture
def proxy(server: SqsServer) -> Iterator[FaultySqs]:
    """What stands before the endpoint, and sees what is asked."""
    proxy = FaultySqs(server)
    yield proxy
    proxy.close()


class LateClock:
    """The time, and so much more."""

    ahead = 0

    def __call__(self) -> int:
        return micros() + self.ahead


@pytest.fixture
def clock() -> LateClock:
    return LateClock()


@pytest.fixture
def engine(tmp_path: Path, proxy: FaultySqs, clock: LateClock) -> Iterator[SqsEngine]:
    """An engine with a queue `q`."""
    engine = sqs_engine(tmp_path, proxy.url, clock=clock)
    engine.create("q", Options())
    yield engine
    engine.close()


@pytest.fixture
def other(server: SqsServer) -> Any:
    """Another program that uses SQS."""
    return boto3.session.Session().client("sqs", region_name="us-east-1", endpoint_url=server.url)


def url_of(engine: SqsEngine, qid: str = "q") -> str:
    return engine._api._url(qid)


def push(engine: SqsEngine, *payloads: bytes, qid: str = "q", delay: int = 0) -> list[int]:
    return engine.queue(qid).push([Draft(payload, delay) for payload in payloads])


def receive(
    engine: SqsEngine, *qids: str, count: int = 100, visibility: int | None = None, room: int = LOTS
) -> list[Message]:
    return engine.receive(qids or ["q"], count, visibility, room)


def wait(
    engine: SqsEngine, *qids: str, count: int = 100, visibility: int | None = None, seconds: float = LONG,
    stop: threading.Event | None = None,
) -> list[Message]:  # fmt: skip
    return engine.receive(qids or ["q"], count, visibility, LOTS, wait=seconds, stop=stop)


def mids(messages: list[Message]) -> list[int]:
    return [message.mid for message in messages]


# -- names


@pytest.mark.parametrize(
    ("qid", "name"),
    [
        ("orders", "orders"),
        ("my_queue-1", "my_queue-1"),
        ("a/b", "a_x2Fb"),
        ("a.fifo", "a_x2Efifo"),
        ("ü", "_xC3_xBC"),
        ("a_x2Fb", "a_x5Fx2Fb"),
        ("_x", "_x"),
        ("_x2f", "_x2f"),
    ],
)
def test_name_at_sqs(qid: str, name: str) -> None:
    """A name is taken as it is where SQS allows it, and is escaped where not, or where it looks like an escaped one."""
    assert name_at_sqs(qid, "") == name
    assert name_at_sqs(qid, "p-") == f"p-{name}"


@given(st.text(alphabet="_x2F5CA/ü\U0001f41f-", min_size=1, max_size=5))
def test_names_at_sqs_are_different(qid: str) -> None:
    """SQS allows every name, and it can be read back: no two queues have the same."""
    name = name_at_sqs(qid, "")
    assert re.fullmatch("[A-Za-z0-9_-]{1,80}", name)
    groups = re.sub(b"_x([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), name.encode())
    assert groups.decode() == qid


def test_name_too_long(engine: SqsEngine) -> None:
    """A name that SQS would not take is refused, with its length; no queue is left."""
    with pytest.raises(BadQueueNameError, match=r"needs? the name '.*' of 89 characters; 80 is the most"):
        engine.create("a" * 80, Options())
    assert list(engine.queues()) == ["q"]


@pytest.mark.parametrize("prefix", ["a/", "x" * 80, "a.b", "a\n"])
def test_bad_prefix(tmp_path: Path, prefix: str) -> None:
    """A prefix that no name can begin with is refused."""
    with pytest.raises(StorageError, match="the prefix of names at SQS is"):
        sqs_engine(tmp_path, None, prefix=prefix)


@pytest.mark.parametrize("endpoint", ["localhost:9324", "ftp://a", "http://", "http://a:b", "http://[::1", ""])
def test_bad_endpoint(tmp_path: Path, endpoint: str) -> None:
    """An endpoint that is no URL is refused."""
    with pytest.raises(StorageError, match="the endpoint of SQS is a URL like"):
        sqs_engine(tmp_path, endpoint)


# -- queues


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
    """What SQS cannot promise is refused, and no queue is left."""
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
    """A queue that somebody has removed at SQS is said to be missing there, and can be removed here."""
    other.delete_queue(QueueUrl=url_of(engine))
    with pytest.raises(RemoteError, match=r"there is no queue '.*-q' at SQS .*make it there, or remove 'q' here"):
        push(engine, b"x")
    engine.remove("q", force=True)
    assert not list(engine.queues())


def test_no_such_queue(engine: SqsEngine) -> None:
    """Every method that names a queue says when there is none."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: engine.queue("no"),
        lambda: engine.remove("no", force=True),
        lambda: push(engine, b"", qid="no"),
        lambda: receive(engine, "q", "no"),
        lambda: wait(engine, "no"),
        lambda: engine.queue("no").get(1, peek=True, visibility=None),
        lambda: engine.queue("no").list_mids(State.ALL, 1, -1),
        lambda: engine.queue("no").delete(Receipt(1)),
        lambda: engine.queue("no").release(Receipt(1), 0),
        lambda: engine.queue("no").extend(Receipt(1), None),
        lambda: engine.queue("no").purge(1, 1),
        lambda: engine.queue("no").stats(),
        lambda: engine.queue("no").prepare_stats(),
        lambda: engine.queue("no").last_mid,
        lambda: engine.queue("no").read(Receipt(1)),
        lambda: engine.copy("no", 1, ["q"]),
    )
    push(engine, b"x")
    for call in calls:
        with pytest.raises(NoSuchQueueError):
            call()
    assert engine.queue("q").stats().in_flight == 0


def test_what_sqs_cannot_do(engine: SqsEngine) -> None:
    """What is refused says why, and names the queue."""
    [mid] = push(engine, b"x")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: engine.queue("q").get(mid, peek=True, visibility=None),
        "list_mids": lambda: engine.queue("q").list_mids(State.ALL, 1, -1),
        "read": lambda: engine.queue("q").read(Receipt(mid)),
        "copy": lambda: engine.copy("q", mid, ["q"]),
    }
    for call in calls.values():
        with pytest.raises(UnsupportedError, match="queue 'q' has the storage 'sqs', and SQS "):
            call()


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
    """What SQS can carry is carried; one byte more is refused, and of the list nothing is sent."""
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


@pytest.mark.parametrize(
    ("draft", "text"),
    [
        (Draft(b"x", key="k"), "keeps no keys"),
        (Draft(b"x", 900 * SECOND + 1), "a delay of at most 900 seconds; 901 were asked for"),
    ],
)
def test_push_unsupported(engine: SqsEngine, proxy: FaultySqs, draft: Draft, text: str) -> None:
    """A key, or a longer delay than SQS has, is refused before anything is sent."""
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


# -- waiting


class Seen:
    """Tells when an operation reaches SQS."""

    def __init__(self, proxy: FaultySqs, wanted: str) -> None:
        self.polls = 0
        self.event = threading.Event()
        self._wanted = wanted
        proxy.before = self

    def __call__(self, operation: str, parameters: dict[str, Any]) -> None:
        self.polls += bool(parameters.get("WaitTimeSeconds"))
        if operation == self._wanted and (operation != "ReceiveMessage" or parameters.get("WaitTimeSeconds")):
            self.event.set()


def in_thread(call: Callable[[], list[Message]]) -> Callable[[], list[Message]]:
    """Starts it; gives what gives its result."""
    found: list[list[Message]] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def result() -> list[Message]:
        thread.join(LONG)
        [messages] = found
        return messages

    return result


@pytest.mark.parametrize("qids", [["q"], ["r", "q"]])
def test_wait(engine: SqsEngine, proxy: FaultySqs, qids: list[str]) -> None:
    """Whoever waits gets the message when it comes, from whichever of the queues."""
    engine.create("r", Options())
    seen = Seen(proxy, "ReceiveMessage")
    waiting = in_thread(lambda: wait(engine, *qids))
    assert seen.event.wait(LONG)
    [mid] = push(engine, b"x")
    assert mids(waiting()) == [mid]
    engine.queue("q").delete(Receipt(mid, 1))


def test_wait_for_what_is_there(engine: SqsEngine, proxy: FaultySqs) -> None:
    """What is there is not waited for, also when it is more than one call gives."""
    pushed = push(engine, *[b"x"] * 25)
    assert mids(wait(engine, count=20)) == pushed[:20]
    assert mids(wait(engine, count=20)) == pushed[20:]
    assert wait(engine, seconds=0) == []


def test_wait_in_vain(engine: SqsEngine, proxy: FaultySqs) -> None:
    """Without a message it ends when its time is over, not before, and has asked once."""
    seen = Seen(proxy, "ReceiveMessage")
    start = time.monotonic()
    assert wait(engine, seconds=0.2) == []
    assert time.monotonic() - start >= 0.2
    assert seen.polls == 1


def test_wait_in_vain_beside_a_poll(engine: SqsEngine, proxy: FaultySqs) -> None:
    """Who joins a poll that goes on, for 20 s, asks for nothing, and does not wait for its end."""
    seen, stop = Seen(proxy, "ReceiveMessage"), threading.Event()
    waiting = in_thread(lambda: wait(engine, stop=stop))
    assert seen.event.wait(LONG)
    stop.set()
    assert waiting() == []
    start = time.monotonic()
    assert wait(engine, seconds=0.2) == wait(engine, seconds=0.2) == []
    assert 0.4 <= time.monotonic() - start < LONG / 2
    assert seen.polls == 1
    pushed = push(engine, b"x")  # ends it
    assert mids(wait(engine)) == pushed


def test_wait_goes_on_with_the_poll_that_was_left(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A message that comes to a poll that others began is that of who waits now."""
    seen = Seen(proxy, "ReceiveMessage")
    assert wait(engine, seconds=0.05) == []
    assert seen.event.wait(LONG)
    [mid] = push(engine, b"x")
    found = wait(engine)
    assert [(message.mid, message.payload) for message in found] == [(mid, b"x")]


def test_stop(engine: SqsEngine, proxy: FaultySqs) -> None:
    """Who is told to stop does so at once; a message that comes to the poll that is left is given back."""
    polling, stop = Seen(proxy, "ReceiveMessage"), threading.Event()
    waiting = in_thread(lambda: wait(engine, stop=stop))
    assert polling.event.wait(LONG)
    start = time.monotonic()
    stop.set()
    assert waiting() == []
    assert time.monotonic() - start < LONG / 2
    given_back = threading.Event()
    proxy.after = lambda operation, _: given_back.set() if operation == "ChangeMessageVisibilityBatch" else None
    [mid] = push(engine, b"x")
    assert given_back.wait(LONG)
    [message] = receive(engine)
    assert (message.mid, message.receives) == (mid, 2)


def test_stopped_before(engine: SqsEngine) -> None:
    """Who is told to stop before it begins takes nothing away."""
    [mid] = push(engine, b"x")
    stop = threading.Event()
    stop.set()
    assert wait(engine, seconds=5, stop=stop) == []
    assert mids(wait(engine, seconds=5)) == [mid]


def test_stop_just_when_a_message_comes() -> None:
    """What comes to one who is told to stop at the same moment is given back."""
    stop = threading.Event()
    message = Received("q", "id", "handle", 1, 1, 0, b"x", 0)
    given_back: list[Received] = []

    def receive_one(qid: str, window: int, count: int, seconds: int) -> list[Received]:
        stop.set()
        return [message]

    polls = LongPolls(receive_one, given_back.extend, HASTY)
    assert polls.wait({"q": 30}, 10, time.monotonic() + LONG, stop) == []
    polls.close()
    assert given_back == [message]


def test_close_with_a_poll_that_was_left(tmp_path: Path, server: SqsServer) -> None:
    """Closing waits for polls that nobody waits for, for a moment."""
    engine = sqs_engine(tmp_path, server.url, policy=replace(HASTY, leave=LONG))
    engine.create("left", Options())
    assert wait(engine, "left", seconds=0.05) == []
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sqs poll left"]


# -- in flight


def test_delete(engine: SqsEngine) -> None:
    """A message that was received here is deleted, once."""
    [mid] = push(engine, b"x")
    receive(engine)
    engine.queue("q").delete(Receipt(mid, 1))
    with pytest.raises(NoSuchMessageError):
        engine.queue("q").delete(Receipt(mid, 1))
    assert engine.queue("q").stats().in_flight == 0
    assert engine.queue("q").stats().deleted == 1


def test_what_is_not_in_flight_here(engine: SqsEngine) -> None:
    """Nothing can be done to a message that was not received through this engine, and the text says why."""
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
    """What SQS refuses is refused, and the window stays."""
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


# -- receipts


def test_receipts_are_bounded() -> None:
    """Only so many messages are remembered; those whose window ended long ago make room."""
    clock = ManualClock()
    receipts = Receipts(clock, most=2)
    for number in (1, 2):
        receipts.add("q", number, Held(f"m{number}", "handle", 1, clock.now + 10 * SECOND))
    with pytest.raises(RemoteError, match="2 messages of SQS are in flight through this server"):
        receipts.room()
    clock.now += 69 * SECOND
    with pytest.raises(StaleReceiptError):
        receipts.find("q", Receipt(1))
    clock.now += 2 * SECOND
    assert receipts.room() == 2
    assert receipts.expired("q") == 2
    with pytest.raises(NoSuchMessageError):
        receipts.find("q", Receipt(1))


def test_receipts_with_the_same_id() -> None:
    """Two messages of one id are told apart while they are in flight, and keep what they have."""
    clock = ManualClock()
    receipts = Receipts(clock)
    held = [Held(name, f"handle {name}", 1, clock.now + SECOND) for name in "abc"]
    assert [receipts.add("q", 7, each) for each in held] == [7, 8, 9]
    again = Held("b", "new handle", 1, clock.now + SECOND)
    assert receipts.add("q", 7, again) == 8
    assert receipts.find("q", Receipt(8, 2)) is again
    assert not receipts.drop("q", 8, held[1])
    assert receipts.drop("q", 8, again)
    assert receipts.find("q", Receipt(9, 1)) is held[2]


# -- threads, and what is missing


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


def test_without_boto3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without boto3 the engine is there, and says what to install when it is needed."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    engine = sqs_engine(tmp_path, "http://127.0.0.1:1")
    with pytest.raises(RemoteError, match=r"needs boto3.*pip install 'qsbus\[sqs\]'"):
        engine.create("q", Options())
    assert not list(engine.queues())
    engine.close()
