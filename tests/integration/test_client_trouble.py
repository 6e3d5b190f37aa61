"""QueueClient against servers that fail in every way: what is raised, and when a connection is given up."""

import contextlib
import math
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.scripted_server import GIVE_UP, SOON, Conversation, answering, client_of, scripted

from qs_client import (
    Disconnected,
    Error,
    NoAnswer,
    NotFound,
    Ping,
    PushMessage,
    QueueClient,
    ReceiveMessage,
    ServerUnavailable,
    TooLarge,
    asking,
)
from qs_client.connection import Connection
from qs_client.place import Place
from qs_client.wire import Wire
from qs_schemas import Peer


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port of loopback where nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def test_nobody_listens(nobody: int) -> None:
    """If no server listens, the error names HOST:PORT, the reason, and what to do."""
    with pytest.raises(ServerUnavailable) as raised:
        QueueClient("127.0.0.1", nobody).connect()
    assert isinstance(raised.value, ConnectionError)
    assert f"127.0.0.1:{nobody} (Connection refused)" in str(raised.value)
    assert "queue-server.py" in str(raised.value)


@pytest.mark.parametrize("host", ["host.invalid", "x" * 100, "a..b"])
def test_connect_to_missing_host(host: str) -> None:
    """A name that cannot be found, or is none, is the same kind of error."""
    with pytest.raises(ServerUnavailable, match=host):
        QueueClient(host, timeout=GIVE_UP).connect()


def test_an_answer_in_time_or_none() -> None:
    """Without an answer a method raises NoAnswer, a TimeoutError and a ConnectionError; the connection is not used
    again, so the late answer is never taken for the next request's."""
    asked = threading.Event()

    def late(conversation: Conversation) -> None:
        request = conversation.read()
        asked.set()
        conversation.wait_for_close()
        with contextlib.suppress(OSError):
            conversation.answer(request, qid="q", mid=1)

    with scripted(late, answering(PushMessage("q", mid=2))) as server, client_of(server, timeout=SOON) as client:
        with pytest.raises(NoAnswer, match=f"{server.port} within 0.02 s") as raised:
            client.push("q", "first")
        assert isinstance(raised.value, TimeoutError)
        assert isinstance(raised.value, ConnectionError)
        assert not client.connected
        client.timeout = GIVE_UP
        assert client.push("q", "second") == 2
        assert asked.is_set()
        assert server.connections == 2


def test_receive_waits_beyond_the_timeout() -> None:
    """A receive may take its wait longer than the client's timeout, and no longer."""
    times = iter([0.0, 21.0, 21.0])  # the deadline is set, and then it is late
    near, far = socket.socketpair()
    with near, far:
        connection = Connection(Wire(near), Place("server"), clock=lambda: next(times))
        exchange = asking.Exchange(ReceiveMessage("q"), patience=20)
        with pytest.raises(NoAnswer, match="no answer from server within 21 s"):
            connection.answer(connection.session.ask(exchange.request), exchange.within(1))
    assert next(times, None) is None


def test_idle_connection_closed_by_server_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that the server ended between two calls is replaced, and no call fails for it."""
    monkeypatch.setattr("qs_client.connection.FRESH", 0)  # as if a second had passed since
    closed = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        conversation.write(Peer().send(Error(503, "shutting-down", "restart")))
        conversation.sock.shutdown(socket.SHUT_WR)
        closed.set()

    with scripted(script, answering(Ping())) as server, client_of(server) as client:
        client.ping()
        assert closed.wait(GIVE_UP)
        client.ping()
        assert server.connections == 2


def test_a_connection_closed_right_after_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call soon after an answer does not look whether the server has ended the connection: it fails, and the next one
    connects."""
    monkeypatch.setattr("qs_client.connection.FRESH", math.inf)
    closed = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        conversation.sock.shutdown(socket.SHUT_WR)
        closed.set()

    with scripted(script, answering(Ping())) as server, client_of(server) as client:
        client.ping()
        assert closed.wait(GIVE_UP)
        with pytest.raises(ServerUnavailable, match="whether the request was carried out is not known"):
            client.ping()
        client.ping()
        assert server.connections == 2


def test_system_calls_of_a_round_trip() -> None:
    """A request whose answer comes soon takes two system calls, and none before it when an answer has just come."""
    operations = ("recv", "select", "poll", "register", "send", "sendall", "setsockopt", "settimeout")
    called: list[str] = []

    def note(_frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in operations:
            called.append(function.__name__)

    near, far = socket.socketpair()
    with near, far:
        connection = Connection(Wire(near), Place("server"), clock=lambda: 0.0)
        for _ in range(2):  # the answer to the first makes the connection fresh
            pending = connection.session.ask(Ping())
            answer = Ping()
            answer.answers("1", pending.request.req)
            far.sendall(Peer().send(answer))
            called.clear()
            sys.setprofile(note)
            try:
                connection.answer(pending, 30)
                assert not connection.is_stale()
            finally:
                sys.setprofile(None)
        assert called == ["send", "recv"]


def test_an_error_that_does_not_close() -> None:
    """After any other error the connection is used on."""
    with scripted(answering(Error(404, "not-found", "no queue"), Ping())) as server, client_of(server) as client:
        with pytest.raises(NotFound):
            client.receive("q")
        client.ping()
        assert server.connections == 1


def test_push_raises_reason_given_before_hanging_up() -> None:
    """A server that refuses a large document hangs up while that is being sent: its reason is raised."""

    def script(conversation: Conversation) -> None:
        conversation.sock.recv(1000)
        conversation.write(Peer().send(Error(413, "too-large", "over 8 MiB")))
        conversation.sock.shutdown(socket.SHUT_WR)
        conversation.wait_for_close()

    with scripted(script) as server, client_of(server) as client, pytest.raises(TooLarge):
        client.push("q", b"x" * 20_000_000)


def test_a_reset_while_sending() -> None:
    """A connection that breaks while a large document is sent is reported as broken, not left as a bare OSError."""

    def script(conversation: Conversation) -> None:
        conversation.sock.recv(1000)
        conversation.reset()

    with scripted(script) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match=str(server.port)):
            client.push("q", b"x" * 20_000_000)
        client.connect()
        with pytest.raises(ServerUnavailable, match=str(server.port)):
            client.send(PushMessage("q", b"x" * 20_000_000))
        assert not client.connected


def test_sending_has_its_time_too() -> None:
    """A server that does not read holds neither a method nor send() longer than the timeout."""
    done = threading.Event()

    def script(conversation: Conversation) -> None:
        assert done.wait(GIVE_UP)

    with scripted(script) as server, client_of(server, timeout=SOON) as client:
        with pytest.raises(NoAnswer):
            client.push("q", b"x" * 50_000_000)
        with pytest.raises(socket.timeout):
            client.send(PushMessage("q", b"x" * 50_000_000))
        assert not client.connected
        done.set()


@pytest.mark.parametrize(
    "garbage",
    [b"220 mail.example ESMTP\r\n", b"<body><p/></body>", b'<qs xmlns="http://purl.oclc.org/DEFUZE/qs"/>'],
)
def test_not_a_queue_server(garbage: bytes) -> None:
    """If something else answers, the error asks whether it is a queue server, and the connection is given up."""

    def script(conversation: Conversation) -> None:
        conversation.read()
        conversation.write(garbage)
        conversation.wait_for_close()

    with scripted(script) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match="is it a queue server"):
            client.ping()
        assert not client.connected
        client.send(Ping())
        with pytest.raises(ServerUnavailable, match="is it a queue server"):
            client.recv()
        assert not client.connected


def test_an_answer_to_something_else() -> None:
    """An answer out of step is never returned; the connection is given up."""

    def script(conversation: Conversation) -> None:
        conversation.read()
        conversation.answer(PushMessage(req="another"), qid="q", mid=1)
        conversation.wait_for_close()

    with scripted(script, answering(PushMessage("q", mid=2))) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable):
            client.push("q", "x")
        assert client.push("q", "x") == 2


def test_disconnect_from_another_thread() -> None:
    """`disconnect()` ends a call that waits in another thread."""
    asked = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.read()
        asked.set()
        conversation.wait_for_close()

    with scripted(script) as server:
        client = client_of(server, timeout=None)
        caught: list[BaseException] = []

        def work() -> None:
            try:
                client.receive("q", wait=3600)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert asked.wait(GIVE_UP)
        client.disconnect()
        thread.join(GIVE_UP)
        assert [type(error) for error in caught] == [Disconnected]
