"""subscribe() of both queue clients over real sockets: deliveries between answers, and how a subscription ends."""

import gc
import queue
import threading
from collections.abc import Callable

import anyio
import pytest
from backends import both, run, until
from scripted_server import GIVE_UP, Conversation, ScriptedServer, answer_bytes, client_of, scripted

from qs_client import (
    AsyncQueueClient,
    DeleteMessage,
    Error,
    GetMessage,
    Message,
    NotFound,
    Ping,
    ReleaseMessage,
    ServerUnavailable,
    Subscribe,
    Unsubscribe,
)
from qs_schemas import Peer


def delivered(request: Message | None, mid: int) -> bytes:
    assert request is not None
    message = GetMessage("q", mid, payload=b"%d" % mid, status="delivered", receives=1, type="response")
    message.req = request.req
    return Peer().send(message)


def subscription(seen: "queue.SimpleQueue[Message]", *mids: int) -> Callable[[Conversation], None]:
    """A script that takes a subscription, delivers these at once, answers everything, and notes what was asked."""

    def script(conversation: Conversation) -> None:
        subscribe = conversation.read()
        assert isinstance(subscribe, Subscribe)
        seen.put(subscribe)
        conversation.write(answer_bytes(subscribe) + b"".join(delivered(subscribe, mid) for mid in mids))
        while (request := conversation.read()) is not None:
            conversation.answer(request)
            seen.put(request)

    return script


def noted(seen: "queue.SimpleQueue[Message]", count: int) -> list[Message]:
    return [seen.get(timeout=GIVE_UP) for _ in range(count)]


def aclient(server: ScriptedServer) -> AsyncQueueClient:
    return AsyncQueueClient(server.host, server.port, timeout=GIVE_UP)


def check_end(end: list[Message], *left: int) -> None:
    """It was ended first, and what was not taken given back then."""
    unsubscribe, *releases = end
    assert isinstance(unsubscribe, Unsubscribe)
    assert [message.mid for message in releases if isinstance(message, ReleaseMessage)] == list(left)


def test_calls_inside_the_loop() -> None:
    """Messages come in order, and may be deleted in the loop on the same connection; a break gives back the rest."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with scripted(subscription(seen, 1, 2, 3, 4)) as server, client_of(server) as client:
        texts = []
        for message in client.subscribe("q", prefetch=7, visibility=5):
            texts.append(message.text)
            if message.mid == 2:
                break
            client.delete(message)
        assert texts == ["1", "2"]
        subscribe, delete, *end = noted(seen, 5)
        assert isinstance(subscribe, Subscribe)
        assert (subscribe.qid, subscribe.prefetch, subscribe.visibility) == ("q", 7, 5)
        assert isinstance(delete, DeleteMessage)
        assert (delete.mid, delete.receives) == (1, 1)
        check_end(end, 3, 4)
        client.ping()
        assert server.connections == 1


@both
def test_calls_inside_the_async_loop(backend: str) -> None:
    """The same with the async client, in an `async with`."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client:
            async with client.subscribe(["q", "r"]) as messages:
                async for message in messages:
                    if message.mid == 2:
                        break
                    await client.delete(message)
            await client.ping()

    with scripted(subscription(seen, 1, 2, 3, 4)) as server:
        run(backend, main)
        assert server.connections == 1
    subscribe, delete, *end = noted(seen, 5)
    assert isinstance(subscribe, Subscribe)
    assert (subscribe.queues, subscribe.prefetch) == (["q", "r"], 100)
    assert isinstance(delete, DeleteMessage)
    check_end(end, 3, 4)


@both
def test_a_break_ends_an_async_subscription(backend: str) -> None:
    """Without `async with`, a break is enough: nobody refers to the iterator any more."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client:
            async for _ in client.subscribe("q"):
                break
            gc.collect()
            await client.ping()

    with scripted(subscription(seen, 1, 2)) as server:
        run(backend, main)
    check_end(noted(seen, 3)[1:], 2)


def test_a_queue_that_does_not_exist() -> None:
    """An error in answer to subscribe is raised at the first message, and the client works on."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(404, "not-found", "no queue 'q'"))
        conversation.answer(conversation.read())
        assert conversation.read() is None

    with scripted(script) as server, client_of(server) as client:
        with pytest.raises(NotFound, match="no queue 'q'"):
            next(client.subscribe("q"))
        client.ping()


def ended(conversation: Conversation) -> None:
    subscribe = conversation.read()
    conversation.write(answer_bytes(subscribe) + delivered(subscribe, 1))
    conversation.answer(subscribe, Error(404, "not-found", "its queues are gone"))
    conversation.answer(conversation.read())
    assert conversation.read() is None


def test_the_server_ends_a_subscription() -> None:
    """An error with the subscription's req ends the loop, after what was delivered; the client works on."""
    with scripted(ended) as server, client_of(server) as client:
        messages = client.subscribe("q")
        assert next(messages).mid == 1
        with pytest.raises(NotFound, match="gone"):
            next(messages)
        with pytest.raises(StopIteration):
            next(messages)
        client.ping()


@both
def test_the_server_ends_an_async_subscription(backend: str) -> None:
    """The same with the async client."""

    async def main() -> None:
        async with aclient(server) as client:
            messages = client.subscribe("q")
            assert (await messages.__anext__()).mid == 1
            with pytest.raises(NotFound, match="gone"):
                await messages.__anext__()
            with pytest.raises(StopAsyncIteration):
                await messages.__anext__()
            await client.ping()

    with scripted(ended) as server:
        run(backend, main)


def test_the_connection_ends() -> None:
    """When the connection breaks, the loop is told, and the next call connects afresh."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())

    def working(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        assert conversation.read() is None

    with scripted(script, working) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match="closed the connection"):
            next(client.subscribe("q"))
        client.ping()


@both
def test_calls_of_others_while_a_subscription_waits(backend: str) -> None:
    """A task that waits for a delivery reads for the others, and is cancelled without harm: what comes then is the
    next one's."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        subscribe = conversation.read()
        conversation.answer(subscribe)
        for _ in range(2):
            ping = conversation.read()
            assert isinstance(ping, Ping)
            conversation.answer(ping)
        conversation.write(delivered(subscribe, 5))
        while (request := conversation.read()) is not None:
            conversation.answer(request)

    async def main() -> None:
        async with aclient(server) as client:
            messages = client.subscribe("q")
            async with anyio.create_task_group() as group:
                group.start_soon(messages.__anext__)
                await anyio.wait_all_tasks_blocked()
                await client.ping()
                group.cancel_scope.cancel()
            await client.ping()
            assert (await messages.__anext__()).mid == 5
            await messages.aclose()
            with pytest.raises(StopAsyncIteration):
                await messages.__anext__()

    with scripted(script) as server:
        run(backend, main)
    go_on.set()


@both
def test_a_subscription_that_is_cancelled_as_it_begins(backend: str) -> None:
    """Cancelled before the server's answer to subscribe, it is ended when that comes, and its messages go back."""
    go_on = threading.Event()
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        assert go_on.wait(GIVE_UP)
        subscription(seen, 1)(conversation)

    async def main() -> None:
        async with aclient(server) as client:
            messages = client.subscribe("q")
            async with anyio.create_task_group() as group:
                group.start_soon(messages.__anext__)
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            go_on.set()
            while seen.qsize() < 3:
                await client.ping()
        await until(lambda: True)

    with scripted(script) as server:
        run(backend, main)
    kinds = [type(message) for message in noted(seen, seen.qsize()) if not isinstance(message, Ping)]
    assert kinds == [Subscribe, Unsubscribe, ReleaseMessage]
