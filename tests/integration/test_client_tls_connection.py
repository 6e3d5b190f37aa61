"""A client's connection over TLS: records without data, ends, half-sent data, threads, cancellation."""

import contextlib
import select
import socket
import ssl
import threading
import traceback
from typing import Any

import anyio
import pytest
from support.clients.every_client import CLIENTS, answer_of, both, healthy, kinds, run, until
from support.clients.scripted_server import GIVE_UP, SOON, Conversation, scripted
from support.servers.processes import ServerProcess
from support.servers.tls import authority, serving_context

from qs_client import (
    AsyncQueueClient,
    Authenticate,
    Error,
    NoAnswer,
    Ping,
    QueueClient,
    ReceiveMessage,
    ReleaseMessage,
    ServerUnavailable,
    TooMany,
    Unauthorized,
)
from qs_schemas import Peer

CA = authority().cert


def _client(port: int, **options: Any) -> QueueClient:
    return QueueClient("127.0.0.1", port, **{"timeout": GIVE_UP, "tls": CA, **options})


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_what_comes_with_the_handshake(name: str, version: str) -> None:
    """A document that comes with the last bytes of the handshake is read."""

    def script(conversation: Conversation) -> None:
        with contextlib.suppress(OSError):
            conversation.write(Peer().send(Error(429, "too-many", "later")))
            conversation.wait_for_close()

    context = serving_context()
    context.maximum_version = ssl.TLSVersion[version]
    options: dict[str, Any] = {"reconnect": False} if "Bus" in name else {}
    with scripted(script, context=context) as server:
        assert kinds(CLIENTS[name]((GIVE_UP,), port=server.port, tls=CA, **options)) == [TooMany]


def test_records_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Session tickets come unasked, and are no reason to take another connection; the end of the session is one."""
    monkeypatch.setattr("qs_client.connection.FRESH", 0)  # as if a second had passed since
    ended = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        assert isinstance(conversation.sock, ssl.SSLSocket)
        with contextlib.suppress(OSError):
            conversation.sock.settimeout(0)
            conversation.sock.unwrap()  # says that no more is sent, and waits for the client to say the same
        ended.set()
        conversation.sock.settimeout(GIVE_UP)
        with contextlib.suppress(OSError):
            conversation.wait_for_close()

    with scripted(script, healthy, context=serving_context()) as server, _client(server.port) as client:
        connection = client._connection
        assert connection is not None
        assert select.select([connection._wire._sock], [], [], GIVE_UP)[0], "the tickets"
        client.ping()
        assert client._connection is connection
        assert ended.wait(GIVE_UP)
        client.ping()
        assert server.connections == 2


@both
def test_records_without_data_async(backend: str) -> None:
    """Async clients too keep their connection when session tickets come, and take another one after the end of the
    session."""

    async def main() -> None:
        with scripted(healthy, context=serving_context()) as server:
            client = AsyncQueueClient("127.0.0.1", server.port, tls=CA)
            await client.connect()
            connection = client._connection
            assert connection is not None
            await anyio.wait_readable(connection._wire._sock)
            await client.ping()
            await client.ping()
            assert client._connection is connection
            await client.disconnect()

    run(backend, main)


def test_an_interrupted_receive() -> None:
    """Messages that the server hands out while a receive is interrupted go back: TLS can be ended on one side only."""
    released = threading.Event()
    interrupt = threading.Event()

    def script(conversation: Conversation) -> None:
        request = conversation.read()
        assert isinstance(request, ReceiveMessage)
        interrupt.set()
        assert conversation.read() is None  # the client has ended its side
        conversation.write(answer_of(request))

    def then(conversation: Conversation) -> None:
        request = conversation.read()
        assert isinstance(request, ReleaseMessage)
        assert request.mid == 1
        conversation.answer(request)
        released.set()
        conversation.wait_for_close()

    with scripted(script, then, context=serving_context()) as server:
        client = _client(server.port)
        client.connect()
        connection = client._connection
        assert connection is not None
        fill = connection.fill

        def interrupted(deadline: float) -> None:
            if not interrupt.is_set():
                connection.send(deadline)
                assert interrupt.wait(GIVE_UP)
                raise KeyboardInterrupt
            fill(deadline)

        connection.fill = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            client.receive("q")
        assert released.wait(GIVE_UP)
        client.disconnect()


@pytest.mark.parametrize("name", ["QueueClient", "AsyncQueueClient-trio", "AsyncQueueClient-asyncio"])
def test_half_a_request(name: str) -> None:
    """A request that the server does not read is given up in time, in the middle of a record, and nothing is sent
    after it: the server sees a cut, not an end."""
    ends: list[Exception | None] = []
    given_up = threading.Event()

    def script(conversation: Conversation) -> None:
        assert isinstance(conversation.sock, ssl.SSLSocket)
        conversation.sock.suppress_ragged_eofs = False
        assert given_up.wait(GIVE_UP)
        try:
            while conversation.sock.recv(65536):
                pass
            ends.append(None)
        except OSError as error:
            ends.append(error)

    async def push() -> None:
        client = AsyncQueueClient("127.0.0.1", server.port, timeout=GIVE_UP, tls=CA)
        await client.connect()
        client.timeout = SOON
        with pytest.raises(NoAnswer):
            await client.push("q", b"x" * 20_000_000)
        assert not client.connected

    with scripted(script, context=serving_context()) as server:
        if name == "QueueClient":
            client = _client(server.port)
            client.connect()
            client.timeout = SOON
            with pytest.raises(NoAnswer):
                client.push("q", b"x" * 20_000_000)
            assert not client.connected
        else:
            anyio.run(push, backend=name.rpartition("-")[2])
        given_up.set()
    assert isinstance(ends[0], ssl.SSLEOFError | ConnectionError), ends


@both
def test_the_handshake_goes_on_after_a_cancellation(backend: str) -> None:
    """A call that is cancelled during the handshake leaves it to the next call."""
    begun, go_on = threading.Event(), threading.Event()

    def script(conversation: Conversation) -> None:
        assert conversation.sock.recv(1, socket.MSG_PEEK)
        begun.set()
        assert go_on.wait(GIVE_UP)
        with serving_context().wrap_socket(conversation.sock, server_side=True) as sock:
            healthy(Conversation(sock))

    async def main() -> None:
        with scripted(script) as server:
            client = AsyncQueueClient("127.0.0.1", server.port, tls=CA)
            async with anyio.create_task_group() as group:
                group.start_soon(client.ping)
                await until(begun.is_set)
                group.cancel_scope.cancel()
            go_on.set()
            await client.ping()
            assert server.connections == 1
            await client.disconnect()

    run(backend, main)


def test_threads_share_a_client(tls_server: ServerProcess) -> None:
    """Threads push over one connection while another reads a subscription: every message arrives whole, once."""
    client = _client(tls_server.port)
    client.new_queue("threads")
    failed: list[BaseException] = []

    def push(number: int) -> None:
        try:
            for n in range(20):
                client.push("threads", f"{number}-{n} " + "x" * 40_000)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=push, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GIVE_UP)
    assert not failed
    seen = []
    with client.subscribe("threads") as messages:
        for message in messages:
            assert message.text is not None
            seen.append(message.text.split()[0])
            client.delete(message)
            if len(seen) == 80:
                break
    assert sorted(seen) == sorted(f"{number}-{n}" for number in range(4) for n in range(20))
    client.disconnect()


@both
def test_tasks_share_a_client(backend: str, tls_server: ServerProcess) -> None:
    """Tasks push long messages and receive over one connection, and others wait on their own."""

    async def main() -> None:
        async with AsyncQueueClient("127.0.0.1", tls_server.port, tls=CA) as client:
            qid = f"tasks-{backend}"
            await client.new_queue(qid)
            async with anyio.create_task_group() as group:
                for n in range(10):
                    group.start_soon(client.push, qid, bytes([65 + n]) * 1_000_000)
            texts = []
            while (message := await client.receive_one(qid, wait=0.01)) is not None:
                assert message.text is not None
                assert len(set(message.text)) == 1
                assert len(message.text) == 1_000_000
                texts.append(message.text[0])
                await client.delete(message)
            assert sorted(texts) == list("ABCDEFGHIJ")

    run(backend, main)


def _close(conversation: Conversation) -> None:
    conversation.read()


def _refuse(conversation: Conversation) -> None:
    conversation.answer(conversation.read(), Error(401, "unauthorized", "no"))
    conversation.wait_for_close()


def _deaf(conversation: Conversation) -> None:
    conversation.wait_for_close()


def _later(conversation: Conversation) -> None:
    request = conversation.read()
    assert isinstance(request, Authenticate)
    conversation.answer(request)
    assert isinstance(conversation.read(), Ping)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("script", "raises"),
    [(_close, ServerUnavailable), (_refuse, Unauthorized), (_deaf, NoAnswer), (_later, ServerUnavailable)],
)
def test_a_traceback_shows_no_token(tls: bool, script: Any, raises: type[Exception]) -> None:
    """A traceback that shows the variables of each frame does not show the token."""
    options: dict[str, Any] = {"tls": CA} if tls else {}
    timeout = 0.5 if script is _deaf else GIVE_UP
    with scripted(script, context=serving_context() if tls else None) as server:
        client = QueueClient("127.0.0.1", server.port, timeout=timeout, token="qs_MARKED", **options)
        with pytest.raises(raises) as raised:
            client.ping()
        shown = "".join(traceback.TracebackException.from_exception(raised.value, capture_locals=True).format())
        assert "connection = " in shown
        assert "qs_MARKED" not in shown.replace('token="qs_MARKED"', "")
        client.disconnect()
