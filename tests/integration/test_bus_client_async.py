"""AsyncBusClient against scripted buses: loops, cancellations, outages, the end."""

import itertools
import queue
import socket
import threading

import anyio
import pytest
from support.clients.every_client import both, run, until
from support.clients.scripted_server import (
    GIVE_UP,
    OUTAGE,
    SOON,
    Conversation,
    ScriptedServer,
    Seen,
    accept,
    delivered,
    delivering,
    noted,
    refusing,
    reset,
    scripted,
    what,
)

from qs_client import AsyncBusClient, NoAnswer, ServerUnavailable, ShuttingDown, Subscribe
from qs_client.bus_session import BusSession


def abus_of(server: ScriptedServer, **options: object) -> AsyncBusClient:
    return AsyncBusClient(server.host, server.port, **{"timeout": GIVE_UP, **options})  # type: ignore[arg-type]


@both
def test_an_async_loop(backend: str) -> None:
    """A loop over the async client handles messages as one over the sync client."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> None:
        async with abus_of(server) as bus:
            async for message in bus.subscribe("q", ack=True, where="/a", match="pattern"):
                if message.mid == 2:
                    await bus.release(message)
                if message.mid == 3:
                    await bus.delete(message)
                if message.mid == 5:
                    break

    with scripted(delivering(1, 2, 3, 4, 5, seen=seen)) as server:
        run(backend, main)
    subscribe, *rest = noted(seen, 5)
    assert isinstance(subscribe, Subscribe)
    assert (subscribe.queues, subscribe.ack, subscribe.where, subscribe.match) == (["q"], "client", "/a", "pattern")
    assert what(rest) == [("delete-message", 1), ("release-message", 2), ("delete-message", 3), ("delete-message", 4)]


@both
def test_an_outage_of_an_async_loop(backend: str) -> None:
    """A loop over the async client survives an outage, and other tasks run meanwhile."""
    told: list[str] = []

    async def main() -> None:
        async with abus_of(server, on_trouble=told.append) as bus:
            async for message in bus.subscribe("q", ack=True):
                if message.mid == 3:
                    break

    with scripted(*OUTAGE, delivering(3)) as server:
        run(backend, main)
    assert len(told) == 2


@both
def test_what_an_async_loop_raises(backend: str) -> None:
    """The async client raises the errors of the sync one; open() raises whatever reconnect says."""

    async def main() -> None:
        bus = abus_of(server)
        with pytest.raises(ShuttingDown):
            await bus.subscribe("q").open()
        bus.reconnect = False
        messages = bus.subscribe("q")
        with pytest.raises(ServerUnavailable, match="bus"):
            await messages.__anext__()
        with pytest.raises(StopAsyncIteration):
            await messages.__anext__()
        bus.timeout = SOON
        with pytest.raises(NoAnswer):
            await bus.subscribe("q").__anext__()

    scripts = (refusing(503, "shutting-down"), lambda conversation: None, lambda c: c.wait_for_close())
    with scripted(*scripts) as server:
        run(backend, main)


@both
def test_close_from_another_task(backend: str) -> None:
    """`aclose()` ends a loop that waits in another task."""

    async def main() -> None:
        bus = abus_of(server)
        ended: list[bool] = []

        async def loop() -> None:
            async for _ in bus.subscribe("q", ack=True):
                pass
            ended.append(True)

        async with anyio.create_task_group() as group:
            group.start_soon(loop)
            await until(waits.is_set)
            await bus.aclose()
        assert ended == [True]

    waits = threading.Event()

    def accepting(conversation: Conversation) -> None:
        accept(conversation)
        waits.set()
        conversation.wait_for_close()

    with scripted(accepting) as server:
        run(backend, main)


@both
def test_async_bus_wait_can_be_cancelled(backend: str) -> None:
    """A wait for the next message may be cancelled at any moment, and begun again: nothing is lost."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        subscribe = conversation.read()
        assert go_on.wait(GIVE_UP)
        conversation.answer(subscribe)
        conversation.write(delivered(subscribe, 1))
        conversation.wait_for_close()

    async def main() -> None:
        async with abus_of(server) as bus:
            messages = bus.subscribe("q", ack=True)
            for _ in range(3):
                with anyio.move_on_after(SOON):
                    await messages.__anext__()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await messages.__anext__()
            go_on.set()
            assert (await messages.__anext__()).mid == 1
            assert server.connections <= 2

    with scripted(script) as server:
        run(backend, main)


def slow_to_connect(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Makes it take a while until a new connection may be used, as over a long way."""

    async def late(sock: socket.socket) -> None:
        await anyio.sleep_until(begun.setdefault(sock, anyio.current_time() + seconds))
        await wait_writable(sock)

    begun: dict[socket.socket, float] = {}
    wait_writable = anyio.wait_writable
    monkeypatch.setattr(anyio, "wait_writable", late)


@both
def test_polled_through_an_outage(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls that are shorter than a pause, and than connecting takes, do not begin either anew: after an outage the
    loop gets messages again."""
    pause = 0.15
    told: list[str] = []

    async def main() -> None:
        async with abus_of(server, on_trouble=told.append) as bus:
            messages = bus.subscribe("q", ack=True)
            messages._session._pause = itertools.repeat(pause)
            got: list[int | None] = []
            while got != [1, 2]:
                with anyio.move_on_after(pause / 5):
                    got.append((await messages.__anext__()).mid)

    slow_to_connect(monkeypatch, pause)
    monkeypatch.setattr(BusSession, "_end_outage", lambda session: None)  # which would begin with other pauses
    with scripted(delivering(1, then=lambda conversation: None), reset, delivering(2)) as server:
        run(backend, main)
        assert server.connections == 3
    assert len(told) == 1


@both
def test_polled_while_the_bus_is_late(backend: str) -> None:
    """The time within which the bus has to take the subscription is not begun anew by each poll."""

    async def main() -> None:
        async with abus_of(server, timeout=0.15, reconnect=False) as bus:
            messages = bus.subscribe("q")

            async def poll() -> None:
                while True:
                    with anyio.move_on_after(SOON):
                        await messages.__anext__()

            with pytest.raises(NoAnswer):
                await poll()

    with scripted(lambda conversation: conversation.wait_for_close()) as server:
        run(backend, main)


@both
def test_aclose_during_a_pause(backend: str) -> None:
    """`aclose()` of the iterator ends a loop that waits in another task for the next attempt to connect, at once."""
    tried = threading.Event()

    async def main() -> None:
        bus = abus_of(server, on_trouble=lambda text: tried.set())
        messages = bus.subscribe("q", ack=True)
        messages._session._pause = itertools.repeat(2 * GIVE_UP)

        async with anyio.create_task_group() as group:

            async def loop() -> None:
                assert [message async for message in messages] == []

            group.start_soon(loop)
            await until(tried.is_set)
            await anyio.wait_all_tasks_blocked()
            await messages.aclose()

    with scripted(reset) as server:
        run(backend, main)
