"""Clients at the port of another program: the bus, the queue server, the page, any HTTP server.

They say so at once, and take nothing from anybody."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator

import anyio
import pytest
from support.clients.documents import PING
from support.clients.scripted_server import Conversation, Parallel, scripted
from support.servers.processes import Address, BusProcess, ServerProcess, Wire, bus_serving
from support.servers.web import web_serving

from qs_client import (
    AsyncBusClient,
    AsyncQueueClient,
    BusClient,
    Error,
    ListQueues,
    Ping,
    ProtocolMismatch,
    PushMessage,
    QueueClient,
    WrongProgram,
)
from qs_client.command import main
from qs_client.errors import passes_by_itself

WITHIN = 5.0
"""Seconds for an answer, on a machine that does much else: a client that waits for them has not met the HTTP server."""


@pytest.fixture(scope="module")
def bus(shared_server: ServerProcess) -> Iterator[BusProcess]:
    with QueueClient(shared_server.host, shared_server.port) as client, bus_serving(shared_server, "-q", "jobs") as bus:
        client.new_queue("jobs", exist_ok=True)
        yield bus


@pytest.fixture
def producer(shared_server: ServerProcess) -> Iterator[QueueClient]:
    with QueueClient(shared_server.host, shared_server.port) as client:
        client.new_queue("jobs", exist_ok=True)
        client.purge("jobs")
        yield client


def queue_client(place: Address) -> None:
    with QueueClient(place.host, place.port, timeout=WITHIN) as client:
        client.push("jobs", "x")


def queue_subscription(place: Address) -> None:
    next(iter(QueueClient(place.host, place.port, timeout=WITHIN).subscribe("jobs")))


def bus_client(place: Address) -> None:
    with BusClient(place.host, place.port, timeout=WITHIN, reconnect=False) as bus:
        next(iter(bus.subscribe("jobs", ack=True)))


async def async_queue_client(place: Address) -> None:
    async with AsyncQueueClient(place.host, place.port, timeout=WITHIN) as client:
        await client.receive("jobs", wait=0.01)


async def async_queue_subscription(place: Address) -> None:
    async with AsyncQueueClient(place.host, place.port, timeout=WITHIN) as client:
        await anext(client.subscribe("jobs"))


async def async_bus_client(place: Address) -> None:
    async with AsyncBusClient(place.host, place.port, timeout=WITHIN, reconnect=False) as bus:
        await anext(bus.subscribe("jobs", ack=True))


def on_trio(use: Callable[[Address], Awaitable[None]]) -> Callable[[Address], None]:
    return lambda place: anyio.run(use, place, backend="trio")


OF_THE_SERVER = [queue_client, queue_subscription, on_trio(async_queue_client), on_trio(async_queue_subscription)]
OF_THE_BUS = [bus_client, on_trio(async_bus_client)]


def test_who_answers(shared_server: ServerProcess, bus: BusProcess) -> None:
    """The answer to `ping` names the program, to any client."""
    for program, name in ((shared_server, "qs-server"), (bus, "qs-bus")):
        with Wire(program) as wire:
            assert f'<op name="{name}"><ping/></op>' in wire.ask(PING)


@pytest.mark.parametrize("use", OF_THE_SERVER)
def test_a_client_of_the_server_at_the_bus(
    bus: BusProcess, producer: QueueClient, use: Callable[[Address], None]
) -> None:
    """Every kind of call says that a bus listens there, and where to go; the error does not pass by itself. No message
    is taken."""
    mid = producer.push("jobs", "work")
    with pytest.raises(WrongProgram, match=rf"{bus.port} is a bus, .*and no queue server: .* 9876") as raised:
        use(bus)
    assert not passes_by_itself(raised.value)
    assert isinstance(raised.value, ProtocolMismatch)
    assert producer.peek("jobs", mid).status == "ready"


@pytest.mark.parametrize("use", OF_THE_BUS)
def test_a_client_of_the_bus_at_the_server(
    shared_server: ServerProcess, producer: QueueClient, use: Callable[[Address], None]
) -> None:
    """A client of the bus says that a queue server listens there, instead of taking messages from the workers."""
    mid = producer.push("jobs", "work")
    with pytest.raises(WrongProgram, match=rf"{shared_server.port} is a queue server, .*and no bus: .* 9878"):
        use(shared_server)
    found = producer.peek("jobs", mid)
    assert (found.status, found.receives) == ("ready", 0)


def test_a_client_that_connects_and_waits(bus: BusProcess, producer: QueueClient) -> None:
    """A client that has connected to a bus by mistake, and asks nothing yet, is not a listener: the bus has got a
    `ping`, and keeps sending what it monitors to those that do listen."""
    with QueueClient(bus.host, bus.port) as client, bus.connect() as listener, listener.makefile("rb") as lines:
        client.connect()
        mid = producer.push("jobs", "for the listener")
        assert f'<mid status="delivered" receives="1" pushed-at="{mid}">{mid}</mid>'.encode() in lines.readline()
        assert client.server_stats()  # on the same connection: nothing has come before this answer
        with pytest.raises(WrongProgram):
            client.push("jobs", "x")


def test_figures_of_the_bus(bus: BusProcess) -> None:
    """A client asks the bus for its figures like a server for its own."""
    names = {figure.name for figure in QueueClient(bus.host, bus.port).server_stats()}
    assert "build_info" in names


def test_bucker_programs_at_the_bus(bus: BusProcess, producer: QueueClient) -> None:
    """`send` and `recv` say what they like to a bus; a recv() to which nothing could come says that it is one."""
    with QueueClient(bus.host, bus.port) as client:
        client.send(ListQueues(["jobs"]))
        assert isinstance(client.recv(), ListQueues)
        mid = producer.push("jobs", "x")
        assert client.recv().mid == mid  # type: ignore[attr-defined]
    with QueueClient(bus.host, bus.port) as client, pytest.raises(WrongProgram):
        client.recv()

    async def receive() -> None:
        async with AsyncQueueClient(bus.host, bus.port) as client:
            await client.recv()

    with pytest.raises(WrongProgram):
        anyio.run(receive, backend="trio")


@pytest.mark.parametrize("answer", ["no name", "an error"])
def test_an_earlier_version(answer: str) -> None:
    """A server that does not name itself, or does not know `ping`, is taken for what is expected."""

    def script(conversation: Conversation) -> None:
        conversation.greeting = Ping() if answer == "no name" else Error(501, "not-implemented", "no ping here")
        conversation.answer(conversation.read(), PushMessage("q", mid=1))
        conversation.wait_for_close()

    with scripted(script) as server, QueueClient(server.host, server.port) as client:
        assert client.push("q", "x") == 1


def test_a_client_of_the_bus_with_a_token_at_the_server(shared_server: ServerProcess) -> None:
    """A client of the bus says that a queue server listens there, whether or not the server accepts the token."""
    bus = BusClient(shared_server.host, shared_server.port, timeout=WITHIN, reconnect=False, token="a" * 30)
    with bus, pytest.raises(WrongProgram, match="is a queue server"):
        next(iter(bus.subscribe("jobs")))


class Slow(http.server.BaseHTTPRequestHandler):
    """A page of Python's own server."""

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def python_page() -> Iterator[Address]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.host, server.port = server.server_address[:2]  # type: ignore[attr-defined]
        try:
            yield server  # type: ignore[misc]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def late_page() -> Iterator[Address]:
    """An HTTP server that reads the whole head of a request, takes its time, and answers piece by piece."""

    def script(conversation: Conversation) -> None:
        come = b""
        while b"\r\n\r\n" not in come:
            data = conversation.sock.recv(65536)
            if not data:
                return
            come += data
        thought = threading.Event()
        thought.wait(0.3)
        with contextlib.suppress(OSError):
            for piece in (b"H", b"TTP/1", b".1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"):
                conversation.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                conversation.write(piece)
        conversation.wait_for_close()

    with Parallel(script) as server:
        yield server


@pytest.fixture(scope="module")
def page(shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with web_serving(tmp_path_factory.mktemp("page"), shared_server) as web:
        yield web


@pytest.mark.parametrize("use", [*OF_THE_SERVER, *OF_THE_BUS])
@pytest.mark.parametrize("kind", ["queue-web", "python", "late"])
def test_an_http_server(page: Address, kind: str, use: Callable[[Address], None]) -> None:
    """Whatever the client asks for, it says within a second that an HTTP server answers."""
    pages = {"queue-web": lambda: contextlib.nullcontext(page), "python": python_page, "late": late_page}
    with (
        pages[kind]() as http,
        pytest.raises(WrongProgram, match=rf"{http.port} is an HTTP server, and no (queue|bus)"),
    ):
        use(http)


def test_qs_at_wrong_program_says_so(page: Address, bus: BusProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """`qs` says so in one line."""
    for place, says in ((page, "an HTTP server"), (bus, "a bus")):
        assert main(["--server", f"{place.host}:{place.port}", "ls"]) == 1
        assert f"{place.port} is {says}" in capsys.readouterr().err
