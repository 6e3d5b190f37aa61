"""`subscribe()` of both queue clients over real sockets: deliveries between answers, and how a subscription ends."""

import gc
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import anyio
import pytest
from support.clients.every_client import both, run, until
from support.clients.scripted_server import (
    GIVE_UP,
    SOON,
    Conversation,
    ScriptedServer,
    answer_bytes,
    client_of,
    delivered,
    noted,
    scripted,
)
from support.servers.processes import settled

from qs_client import (
    AsyncQueueClient,
    DeleteMessage,
    Deliveries,
    Error,
    Message,
    NotFound,
    Ping,
    QueueClient,
    ReleaseMessage,
    ServerUnavailable,
    Subscribe,
    Unsubscribe,
)


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


def aclient(server: ScriptedServer) -> AsyncQueueClient:
    return AsyncQueueClient(server.host, server.port, timeout=GIVE_UP)


def check_end(end: list[Message], *left: int) -> None:
    """Checks that the subscription was ended first, and messages that were not taken were given back then."""
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
    """With the async client too, in an `async with`, messages come in order, and a break gives back the rest."""
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


def test_a_client_that_nobody_refers_to_any_more() -> None:
    """A client whose subscription is left with a break, and that is dropped without disconnect(), leaves no socket
    open, also before the garbage collector has run."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    gc.collect()
    gc.disable()
    try:
        with scripted(subscription(seen, 1)) as server:
            before = len(os.listdir("/proc/self/fd"))
            for _ in client_of(server).subscribe("q"):
                break
            noted(seen, 2)
        # The script has ended, so the client has closed its side; the listener is closed by now, too.
        assert len(os.listdir("/proc/self/fd")) <= before - 1
    finally:
        gc.enable()


def test_a_queue_that_does_not_exist() -> None:
    """An error in answer to subscribe is raised at the first message, and the client works on."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(404, "not-found", "no queue 'q'"))
        conversation.answer(conversation.read())
        assert conversation.read() is None

    with scripted(script) as server, client_of(server) as client:
        with pytest.raises(NotFound, match="no queue 'q'"):
            next(client.subscribe("q", reconnect=False))
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
    """With the async client too, an error with the subscription's req ends the loop, and the client works on."""

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
    """When the connection breaks, a loop without reconnect raises, and the next call connects afresh."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())

    def working(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        assert conversation.read() is None

    with scripted(script, working) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match="closed the connection"):
            next(client.subscribe("q", reconnect=False))
        client.ping()


@both
def test_calls_of_others_while_a_subscription_waits(backend: str) -> None:
    """A task that waits for a delivery reads for the others, and is cancelled without harm: what comes then is the
    next one's."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
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
            await client.ping()  # the server has said what it is: so the next request is to subscribe
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
def test_a_subscription_that_is_polled_as_it_begins(backend: str) -> None:
    """A poll that ends before the server has answered leaves the subscription begun: the next one goes on with it."""
    go_on = threading.Event()
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        assert go_on.wait(GIVE_UP)
        subscription(seen, 1)(conversation)

    async def main() -> None:
        async with aclient(server) as client, client.subscribe("q") as messages:
            for _ in range(3):
                with anyio.move_on_after(SOON):
                    await messages.__anext__()
            go_on.set()
            assert (await messages.__anext__()).mid == 1

    with scripted(script) as server:
        run(backend, main)
        assert server.connections == 1
    assert [type(message) for message in noted(seen, 2)] == [Subscribe, Unsubscribe]
    assert seen.empty()


@both
def test_a_subscription_that_nobody_polls_any_more(backend: str) -> None:
    """Cancelled before the server's answer to subscribe and then closed, it is ended, and its messages go back."""
    go_on = threading.Event()
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        assert go_on.wait(GIVE_UP)
        subscription(seen, 1)(conversation)

    async def main() -> None:
        async with aclient(server) as client:
            await client.ping()  # the server has said what it is: so the next request is to subscribe
            async with client.subscribe("q") as messages:
                with anyio.move_on_after(SOON):
                    await messages.__anext__()
                go_on.set()
            await client.ping()

    with scripted(script) as server:
        run(backend, main)
    assert [type(message) for message in noted(seen, 3)] == [Subscribe, Unsubscribe, ReleaseMessage]


class Silence:
    """A server that answers `count` requests, and nothing after them; known to have read one that it leaves so."""

    def __init__(self, count: int) -> None:
        self.reached = threading.Event()
        self._count = count

    def __call__(self, conversation: Conversation) -> None:
        for _ in range(self._count):
            conversation.answer(conversation.read())
        if not self._count:
            conversation.read()
        self.reached.set()
        conversation.wait_for_close()


def waiting_loop(client: QueueClient, silence: Silence) -> tuple[Deliveries, threading.Thread, list[object]]:
    """A loop in a thread, which waits where the server has fallen silent; how it ended will stand in the list."""
    messages, ended = client.subscribe("q"), []

    def loop() -> None:
        try:
            ended.append(list(messages))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    assert silence.reached.wait(GIVE_UP)
    return messages, thread, ended


def test_close_from_another_thread_ends_subscription() -> None:
    """`close()` ends a loop that waits in another thread for a delivery; the messages on their way go back, and the
    client works on, on the same connection."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    reached = threading.Event()

    def script(conversation: Conversation) -> None:
        subscribe = conversation.read()
        conversation.answer(subscribe)
        reached.set()
        unsubscribe = conversation.read()
        assert unsubscribe is not None
        conversation.write(delivered(subscribe, 7))
        conversation.answer(unsubscribe)
        while (request := conversation.read()) is not None:
            conversation.answer(request)
            seen.put(request)

    with scripted(script) as server, client_of(server) as client:
        silence = Silence(1)
        silence.reached = reached
        messages, thread, ended = waiting_loop(client, silence)
        messages.close()
        thread.join(GIVE_UP)
        assert ended == [[]]
        with pytest.raises(StopIteration):
            next(messages)
        client.ping()
        assert server.connections == 1
    release, ping = noted(seen, 2)
    assert isinstance(release, ReleaseMessage)
    assert release.mid == 7
    assert isinstance(ping, Ping)


@pytest.mark.parametrize("answered", [0, 1])
def test_close_while_the_server_is_silent(answered: int) -> None:
    """`close()` ends the loop of another thread also when the server does not answer any more, within the timeout."""
    silence = Silence(answered)
    with scripted(silence) as server, client_of(server, timeout=0.2) as client:
        messages, thread, ended = waiting_loop(client, silence)
        messages.close()
        thread.join(GIVE_UP)
        assert ended == [[]]


def test_close_in_the_handler_of_a_signal() -> None:
    """`close()` may be called by a signal's handler, in the thread that waits: the loop ends."""
    code = """
import signal, sys
from qs_client import QueueClient
messages = QueueClient("127.0.0.1", int(sys.argv[1])).subscribe("q")
signal.signal(signal.SIGTERM, lambda *_: messages.close())
for message in messages:
    print(message.text, flush=True)
"""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with (
        scripted(subscription(seen, 1)) as server,
        subprocess.Popen([sys.executable, "-c", code, str(server.port)], stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        settled(child.pid)  # it waits for the next one
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=GIVE_UP)
    assert (child.returncode, output) == (0, b"")


@both
@pytest.mark.parametrize("answered", [0, 1])
def test_aclose_from_another_task(backend: str, answered: int) -> None:
    """`aclose()` ends a loop that waits in another task, at once: for the subscription or for a delivery, and also when
    the server does not answer any more."""
    silence = Silence(answered)
    ended: list[object] = []

    async def main() -> None:
        client = aclient(server)
        messages = client.subscribe("q")

        async def loop() -> None:
            ended.append([message async for message in messages])

        async with anyio.create_task_group() as group:
            group.start_soon(loop)
            await until(silence.reached.is_set)
            client.timeout = SOON
            await messages.aclose()
        with pytest.raises(StopAsyncIteration):
            await messages.__anext__()
        await client.disconnect()

    with scripted(silence) as server:
        run(backend, main)
    assert ended == [[]]
