"""QueueClient over real sockets, against servers that do what they are told: when it connects, and when it gives up."""

import contextlib
import inspect
import itertools
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from scripted_server import GIVE_UP, Conversation, ScriptedServer, answer_bytes, answering, scripted

from qs_client import (
    Error,
    GetMessage,
    ListQueues,
    Message,
    NewQueue,
    NoAnswer,
    NotFound,
    Ping,
    PushMessage,
    QueueClient,
    ReceiveMessage,
    ServerUnavailable,
    ShuttingDown,
    TooLarge,
    TooMany,
    calls,
)
from qs_schemas import TABLE, ErrorCode, Peer

SOON = 0.02  # a timeout that is meant to pass


def client_of(server: ScriptedServer, timeout: float | None = GIVE_UP) -> QueueClient:
    return QueueClient(server.host, server.port, timeout=timeout)


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port of loopback where nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


# -- as bucker has it -------------------------------------------------------------------------------------------------


def test_buckers_session() -> None:
    """The session of bucker's page works with only its import line changed."""
    with scripted(answering(ListQueues(["orders"]))) as server:
        q = QueueClient(server.host, server.port)
        q.connect()
        q.send(ListQueues())
        answer = q.recv()
        q.disconnect()
    assert isinstance(answer, ListQueues)
    assert answer.queues == ["orders"]


def test_send_and_recv_from_another_thread() -> None:
    """Old code sets fields one by one, and sends and receives in another thread than the one that connected."""
    with scripted(answering(NewQueue("x"), Error(409, "conflict", "exists"))) as server:
        client = client_of(server)
        client.connect()
        answers: list[Message] = []

        def work() -> None:
            for _ in range(2):
                message = NewQueue()
                message.qid = "x"
                client.send(message)
                answers.append(client.recv())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(GIVE_UP)
        client.disconnect()
    assert [type(answer) for answer in answers] == [NewQueue, Error]


def test_recv_returns_errors() -> None:
    """recv() gives an Error as a message, and does not raise it."""
    with scripted(answering(Error(404, "not-found", "no queue"))) as server, client_of(server) as client:
        client.send(ListQueues())
        answer = client.recv()
    assert isinstance(answer, Error)
    assert (answer.code, answer.kind) == (404, "not-found")


def test_recv_times_out_and_goes_on() -> None:
    """recv() raises socket.timeout when nothing came; the connection stays, and half an answer is not lost."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        data = answer_bytes(conversation.read(), queues=["a"])
        conversation.write(data[:30])
        assert go_on.wait(GIVE_UP)
        conversation.write(data[30:])
        assert conversation.read() is None

    with scripted(script) as server, client_of(server, timeout=SOON) as client:
        client.send(ListQueues())
        for _ in range(3):
            with pytest.raises(socket.timeout) as raised:
                client.recv()
            assert type(raised.value) is TimeoutError
        go_on.set()
        answer = client.recv(GIVE_UP)
        assert isinstance(answer, ListQueues)
        assert answer.queues == ["a"]
        assert server.connections == 1


def test_recv_for_ever_and_at_once() -> None:
    """A client whose timeout is None waits for ever; recv(0) only looks."""
    with scripted(answering(Ping())) as server, client_of(server, timeout=None) as client:
        with pytest.raises(TimeoutError):
            client.recv(0)
        client.send(Ping())
        assert isinstance(client.recv(), Ping)


def test_recv_without_connection(nobody: int) -> None:
    """recv() before connect() says what is missing; disconnect() is harmless at any time."""
    client = QueueClient("127.0.0.1", nobody)
    client.disconnect()
    with pytest.raises(ServerUnavailable, match=r"connect\(\)"):
        client.recv()


def test_recv_after_the_server_has_gone() -> None:
    """recv() says that the server closed the connection, and later calls connect afresh."""
    with scripted(lambda conversation: None, answering(Ping())) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match="closed the connection"):
            client.recv()
        assert not client.connected
        client.send(Ping())
        assert isinstance(client.recv(), Ping)


def test_low_level_beside_methods() -> None:
    """An answer that is still owed to send() is kept for recv() while a method waits for its own."""
    with scripted(answering(ListQueues(["a"]), PushMessage("q", mid=5))) as server, client_of(server) as client:
        client.send(ListQueues())
        assert client.push("q", "x") == 5
        answer = client.recv()
        assert isinstance(answer, ListQueues)


def test_pipelining() -> None:
    """Many messages can be sent before the first recv(); their answers come in order."""
    with (
        scripted(answering(*[Error(404, "not-found", str(n)) for n in range(200)])) as server,
        client_of(server) as client,
    ):
        for _ in range(200):
            client.send(GetMessage("q", 1))
        texts = [answer.text for answer in (client.recv() for _ in range(200)) if isinstance(answer, Error)]
    assert texts == [str(n) for n in range(200)]


def test_bad_names_are_refused_before_anything_is_sent() -> None:
    """What XML cannot carry is a ValueError in send() and in methods; the connection is not harmed."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with scripted(answering(Ping(), seen=seen)) as server, client_of(server) as client:
        with pytest.raises(ValueError, match="U\\+0000"):
            client.send(NewQueue("a\0b"))
        with pytest.raises(ValueError, match="U\\+0000"):
            client.new_queue("a\0b")
        client.ping()
        assert server.connections == 1
    assert seen.qsize() == 1


# -- methods ----------------------------------------------------------------------------------------------------------


def test_methods_over_one_connection() -> None:
    """Methods ask one after the other over one connection, and give plain values."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    script = answering(NewQueue("orders"), PushMessage("orders", mid=5), ListQueues(["orders"]), seen=seen)
    with scripted(script) as server, client_of(server) as client:
        assert client.connected
        assert client.new_queue("orders") is True
        assert client.push("orders", b"\x00\xff") == 5
        assert client.queues() == ["orders"]
        assert server.connections == 1
    assert not client.connected
    seen.get(timeout=GIVE_UP)
    push = seen.get(timeout=GIVE_UP)
    assert isinstance(push, PushMessage)
    assert push.payload == b"\x00\xff"


def test_list_messages_is_lazy() -> None:
    """The iterator asks for a page when the one before is used up, and not earlier."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    pages = [calls.ListMessages("q", mids=list(range(1, 1001))), calls.ListMessages("q", mids=[1001])]
    with scripted(answering(*pages, seen=seen)) as server, client_of(server) as client:
        mids = client.list_messages("q")
        assert seen.empty()
        assert list(itertools.islice(mids, 1000)) == list(range(1, 1001))
        assert seen.qsize() == 1
        assert list(mids) == [1001]
        assert seen.qsize() == 2


@pytest.mark.parametrize("name", ["push", "receive", "delete_many", "list_messages", "ping"])
def test_methods_look_like_methods(name: str) -> None:
    """help() and editors see a method's own parameters, what it returns, and its documentation."""
    method, call = getattr(QueueClient, name), getattr(calls, name)
    assert method.__doc__ == call.__doc__
    assert method.__qualname__ == f"QueueClient.{name}"
    assert list(inspect.signature(method).parameters) == ["self", *inspect.signature(call).parameters]
    returns = inspect.signature(method).return_annotation
    expected = {"push": int, "ping": None, "delete_many": list[int], "list_messages": Iterator[int]}
    assert name not in expected or returns == expected[name]
    assert method.__annotations__["return"] == returns


def test_every_call_is_a_method() -> None:
    """No public call is missing from the client, and each has documentation."""
    public = [
        name
        for name, call in inspect.getmembers(calls, inspect.isgeneratorfunction)
        if call.__module__ == calls.__name__ and not name.startswith("_")
    ]
    assert len(public) > 15
    for name in public:
        assert getattr(QueueClient, name).__doc__, name


def test_handling() -> None:
    """A message is deleted when the block ends well, and released, the exception going on, when it does not."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    delivery = calls.Delivery(5, b"x", "q", 1)
    script = answering(
        calls.DeleteMessage("q", 5), calls.ReleaseMessage("q", 5), Error(409, "stale", "late"), seen=seen
    )
    with scripted(script) as server, client_of(server) as client:
        with client.handling(delivery) as same:
            assert same is delivery
        for _ in range(2):  # the second time the release fails, and is not what the user gets to see
            with pytest.raises(ZeroDivisionError), client.handling(delivery):
                raise ZeroDivisionError
    assert [type(seen.get(timeout=GIVE_UP)).__name__ for _ in range(3)] == [
        "DeleteMessage",
        "ReleaseMessage",
        "ReleaseMessage",
    ]


def test_several_threads_take_turns() -> None:
    """Threads that share a client each get their own answers."""

    def script(conversation: Conversation) -> None:
        while isinstance(request := conversation.read(), PushMessage):
            assert isinstance(request.payload, bytes)
            conversation.answer(request, qid="q", mid=int(request.payload))

    with scripted(script) as server, client_of(server) as client:
        wrong: list[int] = []

        def work(first: int) -> None:
            wrong.extend(n for n in range(first, first + 50) if client.push("q", str(n)) != n)

        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1000, 2000, 3000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GIVE_UP)
        assert wrong == []
        assert server.connections == 1


def test_ipv6() -> None:
    """An IPv6 address works as host, and stands in brackets where the server is named."""
    try:
        server = ScriptedServer(answering(Ping()), host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with client_of(server) as client:
        client.ping()
        assert repr(client) == f"<QueueClient [::1]:{server.port}, connected>"
    server.stop()


# -- trouble ----------------------------------------------------------------------------------------------------------


def test_nobody_listens(nobody: int) -> None:
    """Where no server is, the error names HOST:PORT, says why, and what to do."""
    with pytest.raises(ServerUnavailable) as raised:
        QueueClient("127.0.0.1", nobody).connect()
    assert isinstance(raised.value, ConnectionError)
    assert f"127.0.0.1:{nobody} (Connection refused)" in str(raised.value)
    assert "queue-server.py" in str(raised.value)


@pytest.mark.parametrize("host", ["host.invalid", "x" * 100, "a..b"])
def test_a_host_that_does_not_exist(host: str) -> None:
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


def test_drops_of_an_answer_do_not_extend_the_time() -> None:
    """The timeout is for the whole answer: a server that sends a byte now and then does not hold a client for ever."""

    def drip(conversation: Conversation) -> None:
        conversation.read()
        with contextlib.suppress(OSError):
            while True:
                conversation.write(b" ")

    with scripted(drip) as server, client_of(server, timeout=SOON) as client, pytest.raises(NoAnswer):
        client.ping()


def test_receive_waits_beyond_the_timeout() -> None:
    """A receive may take its wait longer than the client's timeout."""
    waited = threading.Event()

    def script(conversation: Conversation) -> None:
        request = conversation.read()
        waited.wait(10 * SOON)  # longer than the timeout; nobody sets it
        conversation.answer(request, ReceiveMessage("q"))
        assert conversation.read() is None

    with scripted(script) as server, client_of(server, timeout=SOON) as client:
        assert client.receive("q", wait=GIVE_UP) == []


@pytest.mark.parametrize("piece", [1, 7])
def test_an_answer_in_pieces(piece: int) -> None:
    """An answer may come in any number of pieces."""

    def script(conversation: Conversation) -> None:
        data = answer_bytes(conversation.read(), queues=["a", "b"])
        conversation.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), piece):
            conversation.write(data[at : at + piece])
        assert conversation.read() is None

    with scripted(script) as server, client_of(server) as client:
        assert client.queues() == ["a", "b"]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (lambda conversation, data: None, "closed the connection before it answered"),
        (lambda conversation, data: conversation.write(data[:40]), "in the middle of an answer"),
        (lambda conversation, data: conversation.reset(), "broke the connection"),
    ],
)
def test_the_server_goes_before_it_answered(how: Callable[[Conversation, bytes], None], text: str) -> None:
    """A server that goes away says nothing about the request; the next call connects afresh and works."""

    def script(conversation: Conversation) -> None:
        how(conversation, answer_bytes(conversation.read()))

    with scripted(script, answering(Ping())) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match=text) as raised:
            client.ping()
        assert f"{server.host}:{server.port}" in str(raised.value)
        client.ping()
        assert server.connections == 2


def test_an_idle_connection_that_the_server_closed() -> None:
    """A connection that the server ended between two calls is replaced, and no call fails for it."""
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


@pytest.mark.parametrize("row", [row for row in TABLE if row.closes], ids=lambda row: f"{row.code}-{row.kind}")
def test_an_error_that_closes(row: ErrorCode) -> None:
    """After an error that ends the connection, the next call connects afresh, also before the server has hung up."""

    def script(conversation: Conversation) -> None:
        conversation.read()
        conversation.write(Peer().send(Error(row.code, row.kind, "why")))
        conversation.wait_for_close()

    with scripted(script, answering(Ping())) as server, client_of(server) as client:
        with pytest.raises(calls.ServerError) as raised:
            client.ping()
        assert raised.value.code == row.code
        client.ping()
        assert server.connections == 2


def test_an_error_that_does_not_close() -> None:
    """After any other error the connection is used on."""
    with scripted(answering(Error(404, "not-found", "no queue"), Ping())) as server, client_of(server) as client:
        with pytest.raises(NotFound):
            client.receive("q")
        client.ping()
        assert server.connections == 1


def test_refused_at_the_door() -> None:
    """A server that has too many connections says so before anything is asked; the method raises that."""

    def script(conversation: Conversation) -> None:
        conversation.read()  # so that the refusal comes to a waiting client, whichever connection it is on
        conversation.write(Peer().send(Error(429, "too-many", "10000 connections")))

    with scripted(script) as server, client_of(server) as client, pytest.raises(TooMany):
        client.ping()


def test_a_reason_that_was_given_before_hanging_up() -> None:
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
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<html><body/></html>", b'<qs xmlns="http://purl.oclc.org/DEFUZE/qs"/>'],
)
def test_not_a_queue_server(garbage: bytes) -> None:
    """Where something else answers, the error asks whether it is a queue server, and the connection is given up."""

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
    """disconnect() ends a call that waits in another thread."""
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
        assert [type(error) for error in caught] == [ServerUnavailable]


def test_interrupted() -> None:
    """Ctrl-C inside a call closes the connection: what comes later is not taken for the next call's answer."""
    code = """
import signal, sys
from qs_client import QueueClient
signal.signal(signal.SIGINT, signal.default_int_handler)
client = QueueClient("127.0.0.1", int(sys.argv[1]))
try:
    client.receive("q", wait=3600)
except KeyboardInterrupt:
    print("interrupted", client.connected, client.push("q", "x"))
"""
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        conversation.read()
        asked.put(None)
        conversation.wait_for_close()

    with (
        scripted(script, answering(PushMessage("q", mid=7))) as server,
        subprocess.Popen([sys.executable, "-c", code, str(server.port)], stdout=subprocess.PIPE) as child,
    ):
        asked.get(timeout=GIVE_UP)
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=GIVE_UP)
    assert output == b"interrupted False 7\n"


def test_shutting_down_is_said() -> None:
    """A request that meets a stopping server raises ShuttingDown."""
    with scripted(answering(Error(503, "shutting-down", "bye"))) as server, client_of(server) as client:
        with pytest.raises(ShuttingDown):
            client.ping()
        assert not client.connected
