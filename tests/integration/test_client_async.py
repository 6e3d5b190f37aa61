"""AsyncQueueClient over real sockets: which connection a call travels on, and when a new one is opened."""

import inspect
import math
import queue
import socket
import threading
from collections.abc import AsyncIterator

import anyio
import pytest
from support.clients.every_client import both, run, until
from support.clients.scripted_server import GIVE_UP, SOON, Conversation, Parallel, ScriptedServer, answering, scripted

from qs_client import (
    AsyncQueueClient,
    DeleteMessage,
    Delivery,
    Error,
    ListQueues,
    Message,
    NoAnswer,
    PushMessage,
    QueueClient,
    ReceiveMessage,
    ReleaseMessage,
    ServerUnavailable,
    calls,
)
from qs_schemas import Peer


def client_of(server: ScriptedServer, timeout: float | None = GIVE_UP) -> AsyncQueueClient:
    return AsyncQueueClient(server.host, server.port, timeout=timeout)


def serve(conversation: Conversation) -> None:
    """Answers every request."""
    while (request := conversation.read()) is not None:
        conversation.answer(request)


def test_the_same_methods() -> None:
    """Both clients have the same methods, with the same parameters and text."""
    for name, method in inspect.getmembers(QueueClient, inspect.isfunction):
        if name.startswith("_"):
            continue
        other = getattr(AsyncQueueClient, name)
        if hasattr(calls, name):
            assert other.__doc__ == method.__doc__ == getattr(calls, name).__doc__
            assert other.__qualname__ == f"AsyncQueueClient.{name}"
        assert list(inspect.signature(other).parameters) == list(inspect.signature(method).parameters)
        assert other.__doc__
    assert inspect.iscoroutinefunction(AsyncQueueClient.push)
    assert inspect.signature(AsyncQueueClient.push).return_annotation is int
    assert inspect.signature(AsyncQueueClient.list_messages).return_annotation == AsyncIterator[int]


@both
def test_many_tasks_open_one_connection(backend: str) -> None:
    """Tasks that all find no connection open one together."""

    async def main() -> None:
        client = client_of(server)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(client.ping)
        assert repr(client) == f"<AsyncQueueClient 127.0.0.1:{server.port}, connected>"
        await client.disconnect()

    with scripted(serve) as server:
        run(backend, main)
        assert server.connections == 1


@both
def test_a_receive_that_waits_holds_up_nobody(backend: str) -> None:
    """A waiting receive has a connection of its own, which the next one uses again; calls go on meanwhile."""
    go_on = threading.Event()

    asked = threading.Event()

    def waiting(conversation: Conversation) -> None:
        for mid in (1, 2):
            request = conversation.read()
            asked.set()
            assert go_on.wait(GIVE_UP)
            conversation.answer(request, messages=[Delivery(mid, b"x", "q")])
        assert conversation.read() is None

    async def main() -> None:
        async with client_of(server) as client:
            await client.ping()
            async with anyio.create_task_group() as group:

                async def receive() -> None:
                    assert [d.mid for d in await client.receive("q", wait=GIVE_UP)] == [1]

                group.start_soon(receive)
                await until(asked.is_set)
                await client.ping()
                go_on.set()
            delivery = await client.receive_one("q", wait=GIVE_UP)
            assert delivery is not None
            assert delivery.mid == 2

    with Parallel(serve, waiting) as server:
        run(backend, main)
        assert server.connections == 2


@both
def test_a_cancelled_wait(backend: str) -> None:
    """A receive that is cancelled while it waits closes its connection: the server ends the wait."""
    asked, closed = threading.Event(), threading.Event()

    def waiting(conversation: Conversation) -> None:
        assert isinstance(conversation.read(), ReceiveMessage)
        asked.set()
        assert conversation.read() is None
        closed.set()

    async def main() -> None:
        async with client_of(server) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.receive, "q", 1, GIVE_UP)
                await until(asked.is_set)
                group.cancel_scope.cancel()
            assert closed.wait(GIVE_UP)
            await client.ping()

    with Parallel(serve, waiting) as server:
        run(backend, main)


@both
def test_async_idle_connection_closed_by_server_is_replaced(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that the server ended between two calls is replaced, and no call fails for it; so is one that
    waits for the next receive."""
    monkeypatch.setattr("qs_client.async_connection.FRESH", 0)  # as if a second had passed since
    closed = threading.Barrier(2, timeout=GIVE_UP)

    def once(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        conversation.write(Peer().send(Error(503, "shutting-down", "restart")))
        conversation.sock.shutdown(socket.SHUT_WR)
        closed.wait()

    async def main() -> None:
        async with client_of(server) as client:
            await client.ping()
            closed.wait()
            await client.receive("q", wait=1)
            closed.wait()
            await client.ping()
            await client.receive("q", wait=1)

    with Parallel(once, once, serve, serve) as server:
        run(backend, main)
        assert server.connections == 4


@both
def test_async_connection_closed_right_after_an_answer(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call soon after an answer does not look whether the server has ended the connection: it fails, and the next one
    connects."""
    monkeypatch.setattr("qs_client.async_connection.FRESH", math.inf)
    closed = threading.Event()

    def once(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        conversation.sock.shutdown(socket.SHUT_WR)
        closed.set()

    async def main() -> None:
        async with client_of(server) as client:
            await client.ping()
            assert closed.wait(GIVE_UP)
            with pytest.raises(ServerUnavailable, match="whether the request was carried out is not known"):
                await client.ping()
            await client.ping()

    with Parallel(once, serve) as server:
        run(backend, main)
        assert server.connections == 2


@both
def test_send_and_recv(backend: str) -> None:
    """`send` and recv are bucker's, as coroutines; they go beside the methods."""

    async def main() -> None:
        client = client_of(server)
        with pytest.raises(ServerUnavailable, match=r"connect\(\)"):
            await client.recv()
        async with client:
            with pytest.raises(TimeoutError):
                await client.recv(0)
            await client.send(ListQueues())
            with pytest.raises(ValueError, match="U\\+0000"):
                await client.send(PushMessage("\0", b""))
            assert await client.push("q", "x") == 5
            answer = await client.recv()
            assert isinstance(answer, ListQueues)
            assert answer.queues == ["a"]

    with scripted(answering(ListQueues(["a"]), PushMessage("q", mid=5))) as server:
        run(backend, main)


@both
def test_send_to_a_server_that_does_not_read(backend: str) -> None:
    """`send()` does not wait for ever until the system takes it, and says when the connection broke."""
    done = threading.Event()

    def stuck(conversation: Conversation) -> None:
        assert done.wait(GIVE_UP)

    def reset(conversation: Conversation) -> None:
        conversation.sock.recv(1000)
        conversation.reset()

    async def main() -> None:
        client = client_of(server, timeout=SOON)
        try:
            with pytest.raises(NoAnswer):
                await client.send(PushMessage("q", b"x" * 20_000_000))
            assert not client.connected
        finally:
            done.set()
        client.timeout = GIVE_UP
        with pytest.raises(ServerUnavailable, match="broke"):
            await client.send(PushMessage("q", b"x" * 20_000_000))

    with scripted(stuck, reset) as server:
        run(backend, main)


@both
def test_disconnect_ends_calls(backend: str) -> None:
    """`disconnect()` ends calls of other tasks, waiting receives too."""

    async def main() -> None:
        client = client_of(server)
        caught: list[BaseException] = []

        async def fails(wait: float) -> None:
            with pytest.raises(ServerUnavailable) as raised:
                await client.receive("q", wait=wait)
            caught.append(raised.value)

        async with anyio.create_task_group() as group:
            group.start_soon(fails, 0)
            group.start_soon(fails, GIVE_UP)
            await asked.wait()
            await client.disconnect()
        assert len(caught) == 2

    class Asked:
        """Waits until both requests have come to the server."""

        def __init__(self) -> None:
            self.barrier = threading.Barrier(3, timeout=GIVE_UP)

        async def wait(self) -> None:
            await anyio.to_thread.run_sync(self.barrier.wait)

    asked = Asked()

    def script(conversation: Conversation) -> None:
        conversation.read()
        asked.barrier.wait()
        assert conversation.read() is None

    with Parallel(script) as server:
        run(backend, main)


@both
def test_async_handling_deletes_or_releases(backend: str) -> None:
    """A message is deleted when the block ends well, and released when it raises or is cancelled."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    delivery = Delivery(5, b"x", "q", 1)

    async def main() -> None:
        async with client_of(server) as client:
            async with client.handling(delivery) as same:
                assert same is delivery
            with pytest.raises(ZeroDivisionError):
                async with client.handling(delivery):
                    raise ZeroDivisionError
            with anyio.CancelScope() as scope:
                async with client.handling(delivery):
                    scope.cancel()
                    await anyio.sleep_forever()

    answers = (DeleteMessage("q", 5), Error(409, "stale", "late"), ReleaseMessage("q", 5))
    with scripted(answering(*answers, seen=seen)) as server:
        run(backend, main)
    kinds = [type(seen.get(timeout=GIVE_UP)) for _ in range(3)]
    assert kinds == [DeleteMessage, ReleaseMessage, ReleaseMessage]


def test_a_bound_that_is_none() -> None:
    """`max_document` is a number of bytes."""
    with pytest.raises(ValueError, match="max_document"):
        AsyncQueueClient(max_document=0)
