"""Every client, sync and async, as one function; and faults that all of them have to report alike.

docs/clients.md has the same table of faults, for people; tests/docs compares the two.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import pytest
import sniffio
import trio.testing

from qs_client import (
    AsyncBusClient,
    AsyncQueueClient,
    BusClient,
    Delivery,
    Error,
    InternalError,
    Message,
    NoAnswer,
    NotKnown,
    ProtocolMismatch,
    QueueClient,
    ReceiveMessage,
    RequestTimeout,
    ServerUnavailable,
    ShuttingDown,
    Subscribe,
    TooLarge,
    TooMany,
    Unavailable,
    WrongProgram,
)
from qs_client.async_connection import AsyncConnection
from qs_client.async_opening import open_async_connection
from qs_client.place import Place
from qs_schemas import Peer, Ping
from support.clients.scripted_server import GIVE_UP, Conversation, Script, ScriptedServer, answer_bytes, delivered

T = TypeVar("T")

both = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def run(backend: str, main: Callable[[], Awaitable[T]]) -> T:
    """Runs `main`, for as long as tests have patience."""

    async def bounded() -> T:
        with anyio.fail_after(GIVE_UP):
            return await main()

    options = {"clock": trio.testing.MockClock(rate=1)} if backend == "trio" else {}
    return anyio.run(bounded, backend=backend, backend_options=options)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the other tasks run until it is true."""
    while not condition():
        await anyio.lowlevel.checkpoint()


def jump(seconds: float) -> None:
    """Moves the loop's clock forward at once: everything with a deadline before the new time is late."""
    if sniffio.current_async_library() == "trio":
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(seconds)
    else:
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + seconds  # type: ignore[method-assign]


async def opened(server: ScriptedServer, timeout: float = GIVE_UP) -> AsyncConnection:
    """Yields a connection to a scripted server."""
    return await open_async_connection(server.host, server.port, Place(f"{server.host}:{server.port}"), timeout)


Outcome = str | Exception | None
"""The text of the message that a client took, or what it raised."""


def _queue(client: QueueClient) -> str | None:
    return client.receive("q")[0].text


def _bus(client: BusClient) -> str | None:
    with client.subscribe("q") as messages:
        return next(messages).text


async def _async_queue(client: AsyncQueueClient) -> str | None:
    return (await client.receive("q"))[0].text


async def _async_queue_wait(client: AsyncQueueClient) -> str | None:
    return (await client.receive("q", wait=0.01))[0].text


async def _async_bus(client: AsyncBusClient) -> str | None:
    async with client.subscribe("q") as messages:
        return (await messages.__anext__()).text


def _sync(make: Callable[..., Any], take: Callable[[Any], str | None]) -> Callable[..., list[Outcome]]:
    def play(timeouts: tuple[float, ...], **options: Any) -> list[Outcome]:
        client, outcomes = make(**options), list[Outcome]()
        for timeout in timeouts:
            client.timeout = timeout
            try:
                outcomes.append(take(client))
            except Exception as error:
                outcomes.append(error)
        if isinstance(client, QueueClient):
            client.disconnect()
        return outcomes

    return play


def _async(
    backend: str, make: Callable[..., Any], take: Callable[[Any], Awaitable[str | None]]
) -> Callable[..., list[Outcome]]:
    def play(timeouts: tuple[float, ...], **options: Any) -> list[Outcome]:
        client, outcomes = make(**options), list[Outcome]()

        async def main() -> None:
            for timeout in timeouts:
                client.timeout = timeout
                try:
                    outcomes.append(await take(client))
                except Exception as error:
                    outcomes.append(error)
            if isinstance(client, AsyncQueueClient):
                await client.disconnect()

        anyio.run(main, backend=backend)
        return outcomes

    return play


CLIENTS: dict[str, Callable[..., list[Outcome]]] = {
    "QueueClient": _sync(QueueClient, _queue),
    "BusClient": _sync(BusClient, _bus),
}
for _backend in ("trio", "asyncio"):
    CLIENTS |= {
        f"AsyncQueueClient-{_backend}": _async(_backend, AsyncQueueClient, _async_queue),
        f"AsyncQueueClient-wait-{_backend}": _async(_backend, AsyncQueueClient, _async_queue_wait),
        f"AsyncBusClient-{_backend}": _async(_backend, AsyncBusClient, _async_bus),
    }
"""Each is made with the options and takes one message with each of the timeouts."""


def kinds(outcomes: list[Outcome]) -> list[str | type[Exception] | None]:
    """Returns the outcomes, with the types of raised exceptions in place of the exceptions."""
    return [type(outcome) if isinstance(outcome, Exception) else outcome for outcome in outcomes]


TIMEOUT = 1.0  # of the clients; a handshake of TLS fits in it on a busy machine too
LATE = 0.05  # less than that
BOUND = 100_000  # max_document of the clients


@dataclass(frozen=True)
class Scenario:
    """A fault and how clients report it. what: what happens, in words of the page; script: plays the other side, None
    when nobody listens; raises: the exact type of the exception that every client raises, the bus clients under
    reconnect=False; None if no client raises."""

    what: str
    script: Script | None
    raises: type[Exception] | None


def answer_of(request: Message | None, payload: bytes = b"x") -> bytes:
    """Returns the answer of a server, or of a bus, to a client that wants a message."""
    if isinstance(request, Subscribe):
        return answer_bytes(request) + delivered(request, 1, payload)
    return answer_bytes(request, messages=[Delivery(1, payload, "q", 1)])


def healthy(conversation: Conversation) -> None:
    """Answers every request, a receive with a message."""
    with contextlib.suppress(ConnectionError):
        while (request := conversation.read()) is not None:
            if isinstance(request, Subscribe | ReceiveMessage):
                conversation.write(answer_of(request))
            else:
                conversation.answer(request)


def _late(conversation: Conversation) -> None:
    request = conversation.read()
    threading.Event().wait(LATE)
    conversation.write(answer_of(request))
    conversation.wait_for_close()


def _silent(conversation: Conversation) -> None:
    conversation.read()
    conversation.wait_for_close()


def _in_pieces(conversation: Conversation) -> None:
    conversation.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = answer_of(conversation.read())
    for at in range(0, len(data), 7):
        conversation.write(data[at : at + 7])
    conversation.wait_for_close()


def _dripping(conversation: Conversation) -> None:
    conversation.read()
    with contextlib.suppress(OSError):
        while True:
            conversation.write(b" ")
            threading.Event().wait(0.001)


def _closing(conversation: Conversation) -> None:
    conversation.read()


def _closing_inside(conversation: Conversation) -> None:
    conversation.write(answer_of(conversation.read())[:40])


def _resetting(conversation: Conversation) -> None:
    conversation.read()
    conversation.reset()


def _half_closing(conversation: Conversation) -> None:
    conversation.read()
    conversation.sock.shutdown(socket.SHUT_WR)
    conversation.wait_for_close()


def _saying(data: bytes) -> Script:
    def script(conversation: Conversation) -> None:
        conversation.read()
        with contextlib.suppress(ConnectionError):
            conversation.write(data)
            conversation.wait_for_close()

    return script


def _too_long(conversation: Conversation) -> None:
    data = answer_of(conversation.read(), b"x" * (BOUND + 1))
    with contextlib.suppress(ConnectionError):
        conversation.write(data)
        conversation.wait_for_close()


def _invalid(conversation: Conversation) -> None:
    conversation.write(answer_bytes(conversation.read()).replace(b"</op>", b"</op><colour/>"))
    healthy(conversation)  # on this very connection


def _refusing(code: int, kind: str) -> Script:
    return _saying(Peer().send(Error(code, kind, "why")))


def _refusing_once(kind: str) -> Script:
    def script(conversation: Conversation) -> None:
        request = conversation.read()
        if request is not None:
            conversation.answer(request, Error(503, kind, "the database is away"))
            healthy(conversation)  # on this very connection

    return script


def _another(conversation: Conversation) -> None:
    conversation.greeting = Ping("qs-another")
    request = conversation.read()
    if request is not None:  # else the client has gone when it knew the name
        conversation.answer(request, Error(501, "not-implemented", "the bus does not know that"))
        conversation.wait_for_close()


def _speaking_http(conversation: Conversation) -> None:
    conversation.sock.recv(65536)
    with contextlib.suppress(ConnectionError):
        conversation.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        conversation.wait_for_close()


SCENARIOS = (
    Scenario("nobody listens at host and port", None, ServerUnavailable),
    Scenario("an answer comes late, within the timeout", _late, None),
    Scenario("an answer comes in small pieces, within the timeout", _in_pieces, None),
    Scenario("no answer comes: the server, or the network to it, is frozen", _silent, NoAnswer),
    Scenario("bytes come, and never a whole answer", _dripping, NoAnswer),
    Scenario("the connection is closed before the answer", _closing, ServerUnavailable),
    Scenario("the connection is closed inside the answer", _closing_inside, ServerUnavailable),
    Scenario("the connection is reset", _resetting, ServerUnavailable),
    Scenario("the other side half-closes the connection before the answer", _half_closing, ServerUnavailable),
    Scenario("the network cuts a request off and half-closes", _refusing(400, "bad-request"), ServerUnavailable),
    Scenario("something else answers there", _saying(b"220 mail.example ESMTP\r\n"), ProtocolMismatch),
    Scenario("an HTTP server answers there", _speaking_http, WrongProgram),
    Scenario("the bus answers a client of the server, or the server one of the bus", _another, WrongProgram),
    Scenario("an answer is over max_document", _too_long, ProtocolMismatch),
    Scenario("an answer is XML and not valid; the connection goes on", _invalid, InternalError),
    Scenario("a request takes longer than the server's --document-time", _refusing(408, "timeout"), RequestTimeout),
    Scenario("a request is over the server's --max-document", _refusing(413, "too-large"), TooLarge),
    Scenario("the server has as many connections as it takes", _refusing(429, "too-many"), TooMany),
    Scenario("the server is stopping", _refusing(503, "shutting-down"), ShuttingDown),
    Scenario(
        "another server, which keeps the queue, cannot be asked; the connection goes on",
        _refusing_once("unavailable"),
        Unavailable,
    ),
    Scenario(
        "another server, which keeps the queue, has not said whether it was done; the connection goes on",
        _refusing_once("not-known"),
        NotKnown,
    ),
)
