"""An SQS endpoint that fails, hangs, is missing, or does not know us: retries and errors."""

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.storage.sqs import (
    HASTY,
    LONG,
    NO_METADATA,
    FaultySqs,
    RefusedError,
    SqsServer,
    failing,
    give_credentials,
    push,
    receive,
    sqs_engine,
    sqs_serving,
    wait,
)

from qs_storage.engine import (
    SECOND,
    Options,
    Receipt,
    RemoteError,
    StaleReceiptError,
    UnsupportedError,
)
from qs_storage.remote.sqs import SqsEngine
from qs_storage.vsqs import micros
from qs_testing.proxy import Proxy

THROTTLED = RefusedError(400, "ThrottlingException")
BROKEN = RefusedError(500, "InternalFailure")
UNAVAILABLE = RefusedError(503, "ServiceUnavailable")
HANG_UP = ConnectionError()


@pytest.fixture
def server(sqs_server: SqsServer) -> SqsServer:
    """The endpoint, for tests that do not end it."""
    return sqs_server


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch)


@pytest.fixture
def proxy(server: SqsServer) -> Iterator[FaultySqs]:
    proxy = FaultySqs(server)
    yield proxy
    proxy.close()


@pytest.fixture
def engine(tmp_path: Path, proxy: FaultySqs, _credentials: None) -> Iterator[SqsEngine]:
    """An engine with a queue `q`, behind what can fail."""
    engine = sqs_engine(tmp_path, proxy.url)
    engine.create("q", Options())
    proxy.calls.clear()
    yield engine
    engine.close()


# -- what passes


OPERATIONS: dict[str, Callable[[SqsEngine, int], object]] = {
    "SendMessageBatch": lambda engine, mid: push(engine, b"x"),
    "ReceiveMessage": lambda engine, mid: wait(engine),
    "ChangeMessageVisibility": lambda engine, mid: engine.queue("q").extend(Receipt(mid), None),
    "DeleteMessage": lambda engine, mid: engine.queue("q").delete(Receipt(mid, 1)),
    "GetQueueAttributes": lambda engine, mid: engine.queue("q").stats(),
    "PurgeQueue": lambda engine, mid: engine.queue("q").purge(0, 1),
    "CreateQueue": lambda engine, mid: engine.create("r", Options()),
    "DeleteQueue": lambda engine, mid: engine.remove("q", force=True),
}


def test_every_operation_is_tried_again(engine: SqsEngine, proxy: FaultySqs) -> None:
    """Every operation is retried while SQS fails, and succeeds."""
    for operation, call in OPERATIONS.items():
        proxy.calls.clear()
        proxy.before = failing(3, THROTTLED, operation)
        call(engine, engine.queue("q").last_mid)
        assert proxy.calls.count(operation) == 4


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (THROTTLED, "could not do .*, after 4 attempts: ThrottlingException: as the test wants; try again later"),
        (BROKEN, "could not do .*, after 4 attempts: InternalFailure"),
        (UNAVAILABLE, "could not do .*, after 4 attempts: ServiceUnavailable"),
        (HANG_UP, "does not answer, after 4 attempts: .*; is it running, is that its address"),
    ],
    ids=["throttled", "500", "503", "hung up"],
)
def test_what_passes(engine: SqsEngine, proxy: FaultySqs, fault: Exception, text: str) -> None:
    """Temporary faults are retried. After the last attempt the error names the server, the fault, and what to do."""
    proxy.before = failing(3, fault)
    assert len(push(engine, b"x")) == 1
    proxy.calls.clear()
    proxy.before = failing(4, fault)
    with pytest.raises(RemoteError, match=f"SQS at {proxy.url} {text}"):
        push(engine, b"x")
    assert len(proxy.calls) == 4


def test_every_operation_is_given_up(engine: SqsEngine, proxy: FaultySqs) -> None:
    """An operation whose every attempt fails has changed nothing, and later ones succeed."""
    [mid] = push(engine, b"x")
    receive(engine)
    proxy.before = failing(1000, BROKEN)
    for call in OPERATIONS.values():
        proxy.calls.clear()
        with pytest.raises(RemoteError, match="after 4 attempts: InternalFailure"):
            call(engine, mid)
        assert len(proxy.calls) == 4
    proxy.before = None
    assert list(engine.queues()) == ["q"]
    engine.queue("q").delete(Receipt(mid, 1))
    assert len(push(engine, b"y")) == 1


# -- what is done, and nobody is told


def test_push_whose_answer_is_lost(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A push is stored twice when its answer is lost, which standard queues do not prevent; both can be told apart."""
    proxy.after = failing(1, HANG_UP, "SendMessageBatch")
    [mid] = push(engine, b"x")
    found = receive(engine)
    assert [(message.mid, message.payload) for message in found] == [(mid, b"x"), (mid + 1, b"x")]
    for message in found:
        engine.queue("q").delete(Receipt(message.mid, 1))
    assert engine.queue("q").stats().in_flight == 0


def test_push_without_an_answer(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A push that is given up may have been done, and the error says so."""
    proxy.after = failing(1000, HANG_UP, "SendMessageBatch")
    with pytest.raises(RemoteError, match=r"does not answer.*; the message may have been stored"):
        push(engine, b"x")
    assert {message.payload for message in receive(engine)} == {b"x"}


def test_receive_whose_answer_is_lost(engine: SqsEngine, proxy: FaultySqs) -> None:
    """Messages of a lost answer come back when their window is over."""
    [mid] = push(engine, b"x")
    proxy.after = failing(1, HANG_UP, "ReceiveMessage")
    assert receive(engine, visibility=1) == []
    [message] = wait(engine)
    assert (message.mid, message.receives) == (mid, 2)


@pytest.mark.parametrize("operation", ["DeleteMessage", "ChangeMessageVisibility"])
def test_answer_about_a_receipt_is_lost(engine: SqsEngine, proxy: FaultySqs, operation: str) -> None:
    """A delete or a release that was done is done, however often it is asked for."""
    [mid] = push(engine, b"x")
    receive(engine)
    proxy.after = failing(2, HANG_UP, operation)
    if operation == "DeleteMessage":
        engine.queue("q").delete(Receipt(mid, 1))
        assert engine.queue("q").stats().in_flight == 0
    else:
        engine.queue("q").release(Receipt(mid, 1), 0)
        assert [message.mid for message in receive(engine)] == [mid]


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("ReceiptHandleIsInvalid", "", StaleReceiptError),
        ("AWS.SimpleQueueService.MessageNotInflight", "", StaleReceiptError),
        ("InvalidParameterValue", "Value X for parameter ReceiptHandle is invalid. Reason: expired", StaleReceiptError),
        ("InvalidParameterValue", "Total VisibilityTimeout is beyond the limit", UnsupportedError),
    ],
)
def test_receipt_is_refused(
    engine: SqsEngine, proxy: FaultySqs, code: str, text: str, expected: type[Exception]
) -> None:
    """A refused receipt, in any wording of SQS, is told apart from a refused time."""
    [mid] = push(engine, b"x")
    receive(engine)
    proxy.before = failing(1, RefusedError(400, code, text))
    with pytest.raises(expected, match=code):
        engine.queue("q").extend(Receipt(mid, 1), None)
    engine.queue("q").delete(Receipt(mid, 1))


def test_window_of_a_slow_receive(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A window counts from before the attempt that gave the message, so it never ends later here than at SQS."""
    push(engine, b"x")
    began: list[int] = []
    proxy.before = lambda *_: began.append(micros())
    [message] = receive(engine, visibility=5 * SECOND)
    assert message.visible_at is not None
    assert message.visible_at <= began[0] + 5 * SECOND


# -- lists


def test_part_of_a_list_is_refused(engine: SqsEngine, proxy: FaultySqs) -> None:
    """Only the part of a list that SQS refused is sent again."""
    refused = ["1", "4"]

    def refuse_once(entry: dict[str, Any]) -> bool:
        return entry["Id"] in refused and not refused.remove(entry["Id"])

    proxy.refuse = refuse_once
    pushed = push(engine, *(b"%d" % number for number in range(6)))
    assert proxy.calls == ["SendMessageBatch"] * 2
    assert [(m.mid, m.payload) for m in receive(engine)] == [(mid, b"%d" % n) for n, mid in enumerate(pushed)]


def test_part_of_a_list_is_refused_for_good(engine: SqsEngine, proxy: FaultySqs) -> None:
    """When SQS does not take a part the error says so, and that others may have been stored."""
    proxy.refuse = lambda entry: entry["MessageBody"] in ("1", "4")
    with pytest.raises(RemoteError, match=r"did not take 2 messages \(InternalError: no\); some of the 6 .* stored"):
        push(engine, *(b"%d" % number for number in range(6)))
    assert len(proxy.calls) == 4
    assert {message.payload for message in receive(engine)} == {b"0", b"2", b"3", b"5"}


def test_second_part_of_a_list_fails(engine: SqsEngine, proxy: FaultySqs) -> None:
    """When the second call of a long list fails the error says that some may have been stored."""

    def fail_second(operation: str, _: dict[str, Any]) -> None:
        if proxy.calls.count("SendMessageBatch") > 1:
            raise BROKEN

    proxy.before = fail_second
    with pytest.raises(RemoteError, match=r"InternalFailure.*; some of the 12 messages may have been stored"):
        push(engine, *[b"x"] * 12)
    proxy.before = None
    assert engine.queue("q").stats().ready == 10
    assert engine.queue("q").stats().pushed == 10


# -- receiving


def test_second_queue_fails(engine: SqsEngine, proxy: FaultySqs) -> None:
    """If one of two queues fails, messages of the other are handed out; if it is alone, its error is raised."""
    engine.create("r", Options())
    [mid] = push(engine, b"x")

    def fail_r(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "ReceiveMessage" and parameters["QueueUrl"].endswith("-r"):
            raise BROKEN

    proxy.before = fail_r
    for receiving in (receive, wait):
        [message] = receiving(engine, "q", "r")
        assert message.mid == mid
        engine.queue("q").release(Receipt(mid), 0)
        with pytest.raises(RemoteError, match="InternalFailure"):
            receiving(engine, "r")


def test_giving_back_fails(engine: SqsEngine, proxy: FaultySqs, caplog: pytest.LogCaptureFixture) -> None:
    """A message that cannot be given back keeps no others from it; the log says so."""
    first, _ = push(engine, b"xx", b"y")
    proxy.before = failing(1000, BROKEN, "ChangeMessageVisibilityBatch")
    assert [message.mid for message in receive(engine, room=2)] == [first]
    assert re.search("1 messages of queue 'q' are not given back before their time: .*InternalFailure", caplog.text)


# -- queues


def test_queue_deleted_recently(engine: SqsEngine, proxy: FaultySqs) -> None:
    """The error says that SQS does not give a name again yet; no queue is left here."""
    proxy.before = failing(1, RefusedError(400, "QueueDeletedRecently"), "CreateQueue")
    with pytest.raises(RemoteError, match=r"deleted a queue '.*-r' less than a minute ago.*try again in a minute"):
        engine.create("r", Options())
    assert list(engine.queues()) == ["q"]
    engine.create("r", Options())


def test_queues_of_others(engine: SqsEngine, proxy: FaultySqs, tmp_path: Path) -> None:
    """A principal that may not make queues may use an existing one; if it is missing, the error says why."""
    (tmp_path / "second").mkdir()
    second = sqs_engine(tmp_path / "second", proxy.url, prefix=engine._prefix)
    proxy.before = failing(1000, RefusedError(400, "AccessDenied", "no right"), "CreateQueue")
    second.create("q", Options())
    [mid] = push(engine, b"x")
    assert [message.mid for message in receive(second)] == [mid]
    with pytest.raises(RemoteError, match=r"does not accept the server's credentials for create_queue: .*no right"):
        second.create("r", Options())
    second.close()


# -- credentials


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId", "SignatureDoesNotMatch", "AccessDenied"])
def test_credentials_are_refused(engine: SqsEngine, proxy: FaultySqs, code: str) -> None:
    """Credentials that SQS does not take are not tried again; the error says to renew them."""
    proxy.before = failing(1, RefusedError(403, code))
    with pytest.raises(RemoteError, match=f"does not accept the server's credentials .*: {code}: .*; renew them"):
        push(engine, b"x")
    assert len(proxy.calls) == 1
    assert len(push(engine, b"x")) == 1


@pytest.fixture
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in NO_METADATA.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_no_credentials")
def test_no_credentials(tmp_path: Path) -> None:
    """Without credentials nothing is asked, and the error says where they are looked for."""
    engine = sqs_engine(tmp_path, "http://127.0.0.1:1")
    with pytest.raises(
        RemoteError, match=r"no credentials for SQS at http://127\.0\.0\.1:1: set AWS_ACCESS_KEY_ID and"
    ):
        engine.create("q", Options())
    engine.close()


@pytest.mark.usefixtures("_no_credentials")
def test_no_such_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what boto3 says of its configuration."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    engine = sqs_engine(tmp_path, "http://127.0.0.1:1")
    with pytest.raises(RemoteError, match=r"cannot be used: The config profile \(nobody\) could not be found"):
        engine.create("q", Options())
    engine.close()


@pytest.mark.usefixtures("_no_credentials")
def test_no_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amazon's SQS needs a region; an endpoint that was named does not."""
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    engine = sqs_engine(tmp_path, None, region=None)
    with pytest.raises(RemoteError, match="SQS needs a region: set AWS_DEFAULT_REGION"):
        engine.create("q", Options())
    engine.close()
    engine = sqs_engine(tmp_path, "http://127.0.0.1:1", region=None)
    with pytest.raises(RemoteError, match=r"no credentials for SQS at http://127\.0\.0\.1:1"):
        engine.create("q", Options())
    engine.close()


# -- the endpoint


@pytest.mark.slow
@pytest.mark.usefixtures("_credentials")
def test_killed_and_restarted(tmp_path: Path) -> None:
    """While the endpoint is gone errors say so, and when it is back it is used again; 8 s, to start it twice."""
    with sqs_serving() as server:
        engine = sqs_engine(tmp_path, server.url)
        engine.create("q", Options())
        push(engine, b"x")
        waiting = threading.Event()
        failed: list[Exception] = []

        def receive_later() -> None:
            waiting.set()
            try:
                wait(engine)
                wait(engine)
            except RemoteError as error:
                failed.append(error)

        thread = threading.Thread(target=receive_later)
        thread.start()
        assert waiting.wait(LONG)
        server.stop()
        thread.join(LONG)
        assert len(failed) == 1
        for call in (lambda: push(engine, b"x"), lambda: receive(engine), lambda: engine.queue("q").stats()):
            with pytest.raises(RemoteError, match=f"SQS at {server.url} does not answer, after 4 attempts"):
                call()
        server.start()
        with pytest.raises(RemoteError, match=r"there is no queue '.*-q' at SQS"):  # it kept nothing
            push(engine, b"x")
        made = boto3.session.Session().client("sqs", region_name="us-east-1", endpoint_url=server.url)
        made.create_queue(QueueName=f"{engine._prefix}q")
        [mid] = push(engine, b"x")
        assert [message.mid for message in wait(engine)] == [mid]
        engine.close()


@pytest.mark.usefixtures("_credentials")
def test_not_there_at_the_start(tmp_path: Path, server: SqsServer) -> None:
    """An engine starts without its endpoint, and knows its queues."""
    engine = sqs_engine(tmp_path, server.url)
    engine.create("q", Options())
    engine.close()
    engine = sqs_engine(tmp_path, "http://127.0.0.1:1")
    assert list(engine.queues()) == ["q"]
    with pytest.raises(RemoteError, match=r"SQS at http://127\.0\.0\.1:1 does not answer"):
        receive(engine)
    engine.close()


@pytest.mark.usefixtures("_credentials")
def test_slow(tmp_path: Path, server: SqsServer) -> None:
    """An endpoint that hangs is given up after so many attempts, each as long as an answer may take."""
    with Proxy(server.host, server.port) as proxy:
        policy = replace(HASTY, attempts=2, read_timeout=0.2)
        engine = sqs_engine(tmp_path, f"http://{proxy.host}:{proxy.port}", policy=replace(HASTY, read_timeout=LONG))
        engine.create("q", Options())
        hasty = sqs_engine(tmp_path, f"http://{proxy.host}:{proxy.port}", policy=policy, prefix=engine._prefix)
        proxy.stall()
        with pytest.raises(RemoteError, match="does not answer, after 2 attempts: Read timeout"):
            push(hasty, b"x")
        proxy.resume()
        [mid] = push(engine, b"y")
        assert mid in [message.mid for message in wait(engine)]
        engine.close()
        hasty.close()


@pytest.mark.usefixtures("_credentials")
def test_close_ends_the_attempts(tmp_path: Path) -> None:
    """Closing waits neither for the pauses between attempts nor for all attempts."""
    engine = sqs_engine(tmp_path, "http://127.0.0.1:1", policy=replace(HASTY, pause=1000, longest_pause=1000))
    failed = threading.Event()

    def create() -> None:
        with pytest.raises(RemoteError, match=r"does not answer, (at the first attempt|after 2 attempts)"):
            engine.create("q", Options())
        failed.set()

    thread = threading.Thread(target=create)
    engine._client.connect()
    thread.start()
    engine.close()
    assert failed.wait(LONG)
    thread.join()


class _Greeter(http.server.BaseHTTPRequestHandler):
    """Says hello to whatever is asked."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.usefixtures("_credentials")
def test_something_else(tmp_path: Path) -> None:
    """An endpoint that is not SQS is recognized."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Greeter) as greeter:
        thread = threading.Thread(target=greeter.serve_forever, args=(0.01,))
        thread.start()
        engine = sqs_engine(tmp_path, f"http://127.0.0.1:{greeter.server_address[1]}")
        with pytest.raises(RemoteError, match=r"does not answer as SQS does .*: check the endpoint"):
            engine.create("q", Options())
        assert not list(engine.queues())
        engine.close()
        greeter.shutdown()
        thread.join()
