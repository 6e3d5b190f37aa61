"""BusClient and AsyncBusClient against scripted buses: loops, acknowledgements, outages, the end."""

import logging
import queue
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from support.clients.scripted_server import (
    GIVE_UP,
    OUTAGE,
    SOON,
    Conversation,
    ScriptedServer,
    Seen,
    accept,
    delivering,
    noted,
    refusing,
    scripted,
    what,
)

from qs_client import (
    AsyncBusClient,
    AsyncQueueClient,
    BadRequest,
    BusClient,
    Conflict,
    Error,
    GetMessage,
    NoAnswer,
    NotFound,
    QueueClient,
    ReleaseMessage,
    ServerUnavailable,
    ShuttingDown,
    Subscribe,
)


def bus_of(server: ScriptedServer, **options: object) -> BusClient:
    return BusClient(server.host, server.port, **{"timeout": GIVE_UP, **options})  # type: ignore[arg-type]


def test_a_loop() -> None:
    """Messages come in order; each is acknowledged when the next is asked for; a break does not acknowledge."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, 2, 3, 4, 5, seen=seen)) as server, bus_of(server) as bus:
        assert repr(bus) == f"<BusClient 127.0.0.1:{server.port}>"
        for message in bus.subscribe(["q", "r"], ack=True, prefetch=9, name="n", where="/a", match="pattern"):
            assert message.text == str(message.mid)
            if message.mid == 2:
                bus.release(message, delay=5)
            if message.mid == 3:
                bus.delete(message)
            if message.mid == 5:
                break
        assert server.connections == 1
    subscribe, *rest = noted(seen, 5)
    assert isinstance(subscribe, Subscribe)
    assert (subscribe.queues, subscribe.ack, subscribe.prefetch, subscribe.name) == (["q", "r"], "client", 9, "n")
    assert (subscribe.where, subscribe.match) == ("/a", "pattern")
    assert what(rest) == [("delete-message", 1), ("release-message", 2), ("delete-message", 3), ("delete-message", 4)]
    assert isinstance(rest[1], ReleaseMessage)
    assert rest[1].delay == 5
    assert seen.empty()


def test_without_ack() -> None:
    """Without ack nothing is sent for a message; deleting it by hand raises an error."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, 2, seen=seen)) as server, bus_of(server) as bus:
        messages = bus.subscribe("q")
        first = next(messages)
        with pytest.raises(ValueError, match="ack=True"):
            bus.delete(first)
        assert next(messages).mid == 2
        messages.close()
        with pytest.raises(StopIteration):
            next(messages)
    (subscribe,) = noted(seen, 1)
    assert isinstance(subscribe, Subscribe)
    assert subscribe.ack is None
    assert seen.empty()


@pytest.mark.parametrize(
    ("code", "kind", "text", "error"),
    [
        (400, "bad-request", "where: '/a >' is no condition: character 5", BadRequest),
        (409, "conflict", "the name 'n' has the condition '/b'", Conflict),
    ],
)
def test_conditions_that_the_bus_refuses(code: int, kind: str, text: str, error: type[Exception]) -> None:
    """The error of the bus about a condition is raised, and no further attempt is made."""

    def refusing(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(code, kind, text))
        conversation.wait_for_close()

    with scripted(refusing) as server, bus_of(server) as bus, pytest.raises(error, match=re.escape(text)):
        next(bus.subscribe("q", where="/a >", name="n"))
    assert server.connections == 1


def test_no_queues() -> None:
    """Every client refuses at once to subscribe to no queue."""
    for client in (BusClient(), AsyncBusClient(), QueueClient(), AsyncQueueClient()):
        with pytest.raises(ValueError, match="the queues to subscribe to are missing"):
            client.subscribe([])


def test_an_exception_in_the_loop() -> None:
    """An exception does not acknowledge the message in hand; what went before is confirmed by the bus at the end."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, 2, 3, seen=seen)) as server, bus_of(server) as bus:

        def fails_at_the_second() -> None:
            for message in bus.subscribe("q", ack=True):
                1 / (2 - (message.mid or 0))

        with pytest.raises(ZeroDivisionError):
            fails_at_the_second()
        bus.close()
        assert what(noted(seen, 2)) == [("delete-message", 1)]


def test_each_subscription_has_a_connection() -> None:
    """Two subscriptions have a connection each, and a message is acknowledged on its own."""
    seen: tuple[Seen, Seen] = (queue.SimpleQueue(), queue.SimpleQueue())
    scripts = [delivering(mid, seen=notes) for mid, notes in enumerate(seen)]
    servers = [ScriptedServer(script) for script in scripts]
    buses = [bus_of(server) for server in servers]
    streams = [bus.subscribe("q", ack=True) for bus in buses]
    held = [next(stream) for stream in streams]
    for bus, message in zip(buses, held, strict=True):
        bus.delete(message)
        bus.delete(held[0])  # is not in hand any more, or never was here
    for n, bus in enumerate(buses):
        bus.close()
        assert what(noted(seen[n], 2)) == [("delete-message", n)]
    for server in servers:
        server.stop()
        assert server.failed is None


def test_subscription_goes_on_after_bus_outage() -> None:
    """The loop goes on by itself when the bus is back, whatever ended it or was in its place; the message in hand is
    not acknowledged any more. The log says once that the bus is gone, and once that it is back."""
    seen: Seen = queue.SimpleQueue()
    told: list[str] = []
    with scripted(*OUTAGE, delivering(3, seen=seen)) as server, bus_of(server, on_trouble=told.append) as bus:
        got: list[int | None] = []
        for message in bus.subscribe("q", ack=True):
            got.append(message.mid)
            if message.mid == 3:
                break
        assert got[0] == 1
        assert got[-1] == 3
        assert server.connections == 5
    assert what(noted(seen, 1)) == []
    assert len(told) == 2
    assert told[1] == f"the bus at 127.0.0.1:{server.port} is there again"


def test_a_bus_that_is_not_there_yet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bus the loop waits for one; the log says so."""
    emit = caplog.handler.handle
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with caplog.at_level(logging.INFO, "qs_client.bus"), BusClient(port=port, timeout=GIVE_UP) as bus:
        taken: list[GetMessage] = []
        tried = threading.Event()
        monkeypatch.setattr(caplog.handler, "handle", lambda record: (emit(record), tried.set()))
        thread = threading.Thread(target=lambda: taken.append(next(bus.subscribe("q"))))
        thread.start()
        assert tried.wait(GIVE_UP)
        listener = socket.create_server(("127.0.0.1", port))
        sock, _ = listener.accept()
        with listener, sock:
            accept(Conversation(sock), 1)
            thread.join(GIVE_UP)
    assert [message.mid for message in taken] == [1]
    assert f"no bus at 127.0.0.1:{port} (Connection refused): start one with ./scripts/run" in caplog.text
    assert "is there again" in caplog.text


def test_what_is_raised() -> None:
    """A queue that the bus does not know is raised; with reconnect=False, everything is."""

    def unknown(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(404, "not-found", "the bus does not monitor 'q'"))
        conversation.wait_for_close()

    with scripted(unknown) as server, bus_of(server) as bus, pytest.raises(NotFound, match="does not monitor"):
        next(bus.subscribe("q"))
    scripts = (refusing(503, "shutting-down"), lambda conversation: None, lambda c: c.wait_for_close())
    with scripted(*scripts) as server, bus_of(server, reconnect=False) as bus:
        with pytest.raises(ShuttingDown):
            next(bus.subscribe("q"))
        with pytest.raises(ServerUnavailable, match="bus"):
            next(bus.subscribe("q"))
        bus.timeout = SOON
        with pytest.raises(NoAnswer, match=r"within 0\.02 s"):
            next(bus.subscribe("q"))


def test_open_subscribes_at_once() -> None:
    """`open()` subscribes before the first message is asked for, and raises what goes wrong then; a later outage is
    waited for."""
    scripts = (
        refusing(503, "shutting-down"),
        delivering(then=lambda conversation: None),
        delivering(7),
    )
    with scripted(*scripts) as server, bus_of(server, on_trouble=lambda text: None) as bus:
        with pytest.raises(ShuttingDown):
            bus.subscribe("q").open()
        messages = bus.subscribe("q", ack=True)
        messages.open()
        messages.open()
        assert server.connections == 2
        assert next(messages).mid == 7


def test_close_from_another_thread_ends_bus_loop() -> None:
    """`close()` ends a loop that waits in another thread, be it for a message or for the bus to come back."""
    waits = threading.Event()

    def accepting(conversation: Conversation) -> None:
        accept(conversation)
        waits.set()
        conversation.wait_for_close()

    with scripted(accepting) as server:
        bus = bus_of(server)
        thread = threading.Thread(target=lambda: list(bus.subscribe("q", ack=True)))
        thread.start()
        assert waits.wait(GIVE_UP)
        bus.close()
        thread.join(GIVE_UP)
        assert not thread.is_alive()
    tried = threading.Event()
    bus = BusClient(port=server.port, on_trouble=lambda text: tried.set())
    thread = threading.Thread(target=lambda: list(bus.subscribe("q")))
    thread.start()
    assert tried.wait(GIVE_UP)
    bus.close()
    thread.join(GIVE_UP)
    assert not thread.is_alive()


def test_ctrl_c_ends_bus_loop() -> None:
    """Ctrl-C ends a loop at once, in the middle of its wait."""
    code = """
import signal, sys
from qs_client import BusClient
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    for message in BusClient("127.0.0.1", int(sys.argv[1])).subscribe("q", ack=True):
        print(message.text, flush=True)
except KeyboardInterrupt:
    print("interrupted")
"""
    seen: Seen = queue.SimpleQueue()
    with (
        scripted(delivering(1, seen=seen)) as server,
        subprocess.Popen([sys.executable, "-c", code, str(server.port)], stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        assert what(noted(seen, 2)) == [("delete-message", 1)]  # so it waits for the next one
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=GIVE_UP)
        assert child.returncode == 0
    assert output == b"interrupted\n"


def test_many_messages() -> None:
    """A fast bus is kept up with, and every message is acknowledged once, in order."""
    seen: Seen = queue.SimpleQueue()
    count = 3000
    with scripted(delivering(*range(1, count + 1), seen=seen)) as server, bus_of(server) as bus:
        for message in bus.subscribe("q", ack=True):
            if message.mid == count:
                bus.delete(message)
                break
    noted(seen, 1)
    assert what(noted(seen, count)) == [("delete-message", mid) for mid in range(1, count + 1)]
