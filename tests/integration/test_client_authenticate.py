"""Clients with a token: each connection says it first, and again after every outage; a refusal is raised."""

import contextlib
import queue
import socket
import threading

import anyio
import pytest
from support.clients.every_client import CLIENTS, both, healthy, kinds, run, until
from support.clients.scripted_server import GIVE_UP, Conversation, Script, accept, delivered, scripted

from qs_client import (
    AsyncQueueClient,
    Authenticate,
    BusClient,
    Error,
    Forbidden,
    NoAnswer,
    NotImplementedByServer,
    Ping,
    QueueClient,
    ShuttingDown,
    Subscribe,
    TooMany,
    Unauthorized,
)

TOKEN = "qs_the-token-of-the-tests"
BUSES = [name for name in CLIENTS if "Bus" in name]


def authenticated(conversation: Conversation) -> Authenticate:
    """Reads the first request, which has to be the token, and accepts it."""
    request = conversation.read()
    assert isinstance(request, Authenticate), request
    assert request.token == TOKEN
    conversation.answer(request, principal="tests")
    return request


def guarded(conversation: Conversation) -> None:
    """A healthy server that wants the token first."""
    authenticated(conversation)
    healthy(conversation)


def refusing(error: Error) -> Script:
    """Refuses the token. Nothing else may have been sent, or come."""

    def script(conversation: Conversation) -> None:
        request = conversation.read()
        assert isinstance(request, Authenticate)
        conversation.answer(request, error)
        with contextlib.suppress(ConnectionError):
            assert conversation.read() is None

    return script


@pytest.mark.parametrize("name", CLIENTS)
def test_the_token_comes_first(name: str) -> None:
    """The first request of each connection is the token; calls follow when the server has accepted it."""
    with scripted(guarded) as server:
        assert CLIENTS[name]((GIVE_UP,), port=server.port, token=TOKEN) == ["x"]


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    ("error", "raises"),
    [
        (Error(401, "unauthorized", "no such token"), Unauthorized),
        (Error(403, "forbidden", "not you"), Forbidden),
        (Error(501, "not-implemented", "this server has no access file"), NotImplementedByServer),
    ],
    ids=["401", "403", "501"],
)
def test_a_token_that_is_refused(name: str, error: Error, raises: type[Exception]) -> None:
    """The server's error to the token is raised, also by bus clients that reconnect, and nothing else is sent. The next
    call tries again."""
    with scripted(refusing(error), guarded) as server:
        assert kinds(CLIENTS[name]((GIVE_UP, GIVE_UP), port=server.port, token=TOKEN)) == [raises, "x"]
        assert server.connections == 2


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    ("error", "raises"),
    [(Error(429, "too-many", "later"), TooMany), (Error(503, "shutting-down", "later"), ShuttingDown)],
)
def test_a_server_that_is_busy(name: str, error: Error, raises: type[Exception]) -> None:
    """An error that another attempt may not meet is raised by clients of a server; a bus client goes on."""
    quiet = {"on_trouble": lambda text: None} if name in BUSES else {}
    expected = ["x"] if name in BUSES else [raises, "x"]
    with scripted(refusing(error), guarded) as server:
        assert kinds(CLIENTS[name]((GIVE_UP,) * len(expected), port=server.port, token=TOKEN, **quiet)) == expected


@pytest.mark.parametrize("name", CLIENTS)
def test_no_answer_to_the_token(name: str) -> None:
    """The answer to the token has to come within the timeout."""

    def deaf(conversation: Conversation) -> None:
        conversation.wait_for_close()

    options = {"reconnect": False} if name in BUSES else {}
    with scripted(deaf) as server:
        assert kinds(CLIENTS[name]((0.02,), port=server.port, token=TOKEN, **options)) == [NoAnswer]


def test_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reconnects says its token again; a new one from the next connection on."""
    monkeypatch.setattr("qs_client.connection.FRESH", 0)  # as if a second had passed since
    closed = threading.Event()

    def once(conversation: Conversation) -> None:
        authenticated(conversation)
        conversation.answer(conversation.read())
        conversation.sock.shutdown(socket.SHUT_WR)
        closed.set()

    seen: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def another(conversation: Conversation) -> None:
        request = conversation.read()
        assert isinstance(request, Authenticate)
        seen.put(request.token)
        conversation.answer(request)
        healthy(conversation)

    with scripted(once, guarded, another) as server, QueueClient(server.host, server.port, token=TOKEN) as client:
        client.ping()
        assert closed.wait(GIVE_UP)
        client.ping()
        assert server.connections == 2
        client.disconnect()
        client.token = "another"
        client.ping()
        assert seen.get(timeout=GIVE_UP) == "another"


def test_a_bus_after_an_outage() -> None:
    """A bus client says its token on each connection, before it subscribes again."""

    def once(conversation: Conversation) -> None:
        authenticated(conversation)
        accept(conversation, 1)

    def then(conversation: Conversation) -> None:
        authenticated(conversation)
        accept(conversation, 2)
        conversation.wait_for_close()

    with scripted(once, then) as server:
        bus = BusClient(server.host, server.port, token=TOKEN, on_trouble=lambda text: None)
        with bus.subscribe("q") as messages:
            assert [next(messages).mid, next(messages).mid] == [1, 2]


def test_a_bus_client_that_is_far_away() -> None:
    """A bus takes a client for one that says nothing when its token is late: what it delivers is handed out."""

    def script(conversation: Conversation) -> None:
        conversation.write(delivered(Subscribe(), 7))
        authenticated(conversation)
        accept(conversation, 8)
        conversation.wait_for_close()

    with scripted(script) as server, BusClient(server.host, server.port, token=TOKEN).subscribe("q") as messages:
        assert [next(messages).mid, next(messages).mid] == [7, 8]


@both
def test_connecting_goes_on_after_a_cancellation(backend: str) -> None:
    """A call that is cancelled while the token is under way leaves the attempt to the next call."""
    asked, answer = threading.Event(), threading.Event()

    def script(conversation: Conversation) -> None:
        request = conversation.read()
        asked.set()
        assert answer.wait(GIVE_UP)
        conversation.answer(request)
        conversation.answer(conversation.read())
        conversation.wait_for_close()

    async def main() -> None:
        with scripted(script) as server:
            async with anyio.create_task_group() as group:
                client = AsyncQueueClient(server.host, server.port, token=TOKEN)
                group.start_soon(client.ping)
                await until(asked.is_set)
                group.cancel_scope.cancel()
            answer.set()
            await client.ping()
            assert server.connections == 1
            await client.disconnect()

    run(backend, main)


@both
def test_each_connection_of_an_async_client(backend: str) -> None:
    """A receive that waits has a connection of its own, and says the token on it."""

    async def main() -> None:
        with scripted(guarded) as server:
            client = AsyncQueueClient(server.host, server.port, token=TOKEN)
            await client.ping()
            await client.disconnect()
            assert [each.text for each in await client.receive("q", wait=1)] == ["x"]
            assert server.connections == 2
            await client.disconnect()

    run(backend, main)


def test_without_a_token_nothing_is_said() -> None:
    """A client without a token sends no authenticate."""

    def script(conversation: Conversation) -> None:
        request = conversation.read()
        assert isinstance(request, Ping)
        conversation.answer(request)
        conversation.wait_for_close()

    with scripted(script) as server, QueueClient(server.host, server.port) as client:
        client.ping()
        assert client.token is None
