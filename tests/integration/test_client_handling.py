"""Workers that last: subscriptions over lost connections, jobs longer than their window, pushes that repeat themselves.
Scripted servers on real sockets."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable

import anyio
import pytest
from support.clients.every_client import both, run
from support.clients.scripted_server import (
    GIVE_UP,
    Conversation,
    Parallel,
    Script,
    accept,
    client_of,
    delivered,
    delivering,
    noted,
    scripted,
)

from qs_client import (
    AsyncQueueClient,
    Authenticate,
    DeleteMessage,
    Delivery,
    Disconnected,
    Error,
    ExtendMessage,
    GetMessage,
    Message,
    PushMessage,
    QueueClient,
    ReceiveMessage,
    Reject,
    RejectMessage,
    ReleaseMessage,
    Retry,
    ServerUnavailable,
    Stale,
    Subscribe,
)
from qs_client.waiting import Lease

Seen = queue.SimpleQueue[Message]


def losing(*mids: int) -> Script:
    """A script that takes a subscription, delivers these, and closes the connection once it is told to."""

    def script(conversation: Conversation) -> None:
        accept(conversation, *mids)

    return script


def acknowledging(seen: Seen, *mids: int, stale: tuple[int, ...] = ()) -> Script:
    """A script that takes a subscription and delivers these; deletes of the stale ones are refused."""

    def then(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            seen.put(request)
            late = isinstance(request, DeleteMessage) and request.mid in stale
            conversation.answer(request, Error(409, "stale", "received again") if late else None)

    return delivering(*mids, then=then)


def list_of(seen: Seen) -> list[Message]:
    """Returns what has come and was not taken yet; the server has read all when it has ended."""
    return [seen.get() for _ in range(seen.qsize())]


def aclient(server: object) -> AsyncQueueClient:
    return AsyncQueueClient(server.host, server.port, timeout=GIVE_UP)  # type: ignore[attr-defined]


def test_subscription_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """After a lost connection the loop gets what the next one delivers, and a late delete of what the lost one
    delivered is not an error; that of a message that this connection delivered is one."""
    caplog.set_level(logging.INFO, "qs_client")
    seen: Seen = queue.SimpleQueue()
    with scripted(losing(1), acknowledging(seen, 1, 2, stale=(1, 2))) as server, client_of(server) as client:
        messages = client.subscribe("q", visibility=60)
        first, again, second = (next(messages) for _ in range(3))
        assert (first.mid, again.mid, second.mid) == (1, 1, 2)
        client.delete(first)
        with pytest.raises(Stale):
            client.delete(second)
        assert [type(each) for each in noted(seen, 2)] == [DeleteMessage, DeleteMessage]
        messages.close()
        assert server.connections == 2
    lines = [record.message for record in caplog.records]
    assert len(lines) == 3
    assert "subscribing to 'q' again" in lines[0]
    assert lines[1] == "subscribed to 'q' again"
    assert "message 1 of 'q' had gone back" in lines[2]


@both
def test_async_subscription_goes_on(backend: str) -> None:
    """The async client's subscription goes on by itself after an outage; messages in hand before it are stale."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client, client.subscribe("q") as messages:
            first, again, second = [await anext(messages) for _ in range(3)]
            assert (first.mid, again.mid, second.mid) == (1, 1, 2)
            await client.delete(first)
            with pytest.raises(Stale):
                await client.delete(second)

    with scripted(losing(1), acknowledging(seen, 1, 2, stale=(1, 2))) as server:
        run(backend, main)
        assert server.connections == 2


@both
def test_async_subscription_without_reconnect(backend: str) -> None:
    """`reconnect=False` raises when the connection is lost."""

    async def main() -> None:
        async with aclient(server) as client:
            messages = client.subscribe("q", reconnect=False)
            assert (await anext(messages)).mid == 1
            with pytest.raises(ServerUnavailable):
                await anext(messages)
            with pytest.raises(StopAsyncIteration):
                await anext(messages)

    with scripted(losing(1)) as server:
        run(backend, main)
        assert server.connections == 1


def test_subscription_gives_up() -> None:
    """An outage that lasts longer than `reconnect` seconds raises the last error."""
    with scripted(losing(1)) as server, client_of(server) as client:
        messages = client.subscribe("q", reconnect=0.1)
        assert next(messages).mid == 1
        server.stop()
        with pytest.raises(ServerUnavailable, match="no queue server at"):
            next(messages)
        with pytest.raises(StopIteration):
            next(messages)


def test_close_ends_an_outage() -> None:
    """`close()` in another thread ends a loop that waits for the server to come back."""
    with scripted(losing(1)) as server, client_of(server) as client:
        messages = client.subscribe("q")
        assert next(messages).mid == 1
        server.stop()
        tries = threading.Event()
        ended: list[object] = []

        def loop() -> None:
            tries.set()
            ended.append(list(messages))

        thread = threading.Thread(target=loop)
        thread.start()
        assert tries.wait(GIVE_UP)
        messages.close()
        thread.join(GIVE_UP)
        assert ended == [[]]


def test_disconnect_ends_a_subscription() -> None:
    """`disconnect()` in another thread is not an outage: the loop raises."""
    reached = threading.Event()

    def then(conversation: Conversation) -> None:
        reached.set()
        conversation.wait_for_close()

    with scripted(delivering(then=then)) as server, client_of(server) as client:
        ended: list[BaseException] = []

        def loop() -> None:
            try:
                next(client.subscribe("q"))
            except ServerUnavailable as error:
                ended.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
        assert reached.wait(GIVE_UP)
        client.disconnect()
        thread.join(GIVE_UP)
        assert [type(each) for each in ended] == [Disconnected]
        assert server.connections == 1


def test_disconnect_ends_an_outage() -> None:
    """`disconnect()` while a loop waits for the server to come back ends it, though there is no connection to close."""
    with scripted(losing(1)) as server, client_of(server) as client:
        messages = client.subscribe("q")
        assert next(messages).mid == 1
        server.stop()
        waiting = threading.Event()
        messages._outages._clock = lambda: waiting.set() or 0.0  # type: ignore[func-returns-value]
        ended: list[BaseException] = []

        def loop() -> None:
            try:
                next(messages)
            except ServerUnavailable as error:
                ended.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
        assert waiting.wait(GIVE_UP)
        client.disconnect()
        thread.join(GIVE_UP)
        assert [type(each) for each in ended] == [Disconnected]


@both
def test_disconnect_ends_an_async_outage(backend: str) -> None:
    """`disconnect()` of the async client ends the wait for a server that is away."""

    async def main() -> None:
        async with aclient(server) as client:
            messages = client.subscribe("q")
            assert (await anext(messages)).mid == 1
            server.stop()
            with anyio.move_on_after(0.3):
                await anext(messages)
            await client.disconnect()
            with anyio.fail_after(GIVE_UP), pytest.raises(Disconnected):
                await anext(messages)

    with scripted(losing(1)) as server:
        run(backend, main)


def test_rest_of_a_lost_connection() -> None:
    """Messages that a lost connection had sent ahead are not handed out: the server delivers them again."""

    def lost(conversation: Conversation) -> None:
        accept(conversation, 1, 2)
        conversation.read()  # a delete, which is not answered

    with scripted(lost, acknowledging(queue.SimpleQueue(), 7, 8)) as server, client_of(server) as client:
        messages = client.subscribe("q")
        first = next(messages)
        with pytest.raises(ServerUnavailable):
            client.delete(first)
        assert [next(messages).mid, next(messages).mid] == [7, 8]
        messages.close()


def extending(seen: Seen, answer: Callable[[], Message]) -> Script:
    """A script for a connection on which messages are extended."""

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            conversation.answer(request, answer())
            seen.put(request)

    return script


def test_slow_job_is_extended() -> None:
    """While a job runs, its window is extended whenever half has passed, from a connection of its own; then deleted."""
    seen: Seen = queue.SimpleQueue()
    deletes: Seen = queue.SimpleQueue()
    server = Parallel(
        acknowledging(deletes, 1), extending(seen, lambda: ExtendMessage("q", 1, visible_at=1_760_000_000_000_000))
    )
    with client_of(server) as client:
        for message in client.subscribe("q", visibility=0.2):
            with client.handling(message):
                first, second = noted(seen, 2)  # as long as two extensions take
            break
    (delete, *_) = noted(deletes, 1)
    server.stop()
    for each in (first, second):
        assert isinstance(each, ExtendMessage)
        assert (each.qid, each.mid, each.receives, each.visibility) == ("q", 1, 1, 0.2)
    assert isinstance(delete, DeleteMessage)


def test_received_message_is_extended_by_its_window() -> None:
    """A message that was received with a window of its own gets no shorter one."""
    seen: Seen = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            handed_out = ReceiveMessage(messages=[Delivery(1, b"x", "q", 1)])
            conversation.answer(request, handed_out if isinstance(request, ReceiveMessage) else None)

    server = Parallel(script, extending(seen, lambda: ExtendMessage("q", 1, visible_at=5)))
    with client_of(server) as client:
        message = client.receive_one("q", visibility=0.3)
        assert message is not None
        with client.handling(message):
            (asked,) = noted(seen, 1)
        assert isinstance(asked, ExtendMessage)
        assert asked.visibility == 0.3
    server.stop()


def test_new_token_extends_too() -> None:
    """Once the program has a new token, extensions are made with it, from another connection."""
    seen: Seen = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            conversation.answer(
                request, ExtendMessage("q", 1, visible_at=5) if "Extend" in str(type(request)) else None
            )
            seen.put(request)

    server = Parallel(script, script, script)
    with client_of(server) as client:
        message = GetMessage("q", 1, status="delivered", receives=1)
        message.lease = Lease(0.2)
        with client.handling(message):
            noted(seen, 1)
        client.token = "b" * 20
        with client.handling(message):
            while not isinstance(request := seen.get(timeout=GIVE_UP), Authenticate):
                pass
        assert request.token == "b" * 20
    server.stop()


def test_job_that_was_taken_away(caplog: pytest.LogCaptureFixture) -> None:
    """A job whose message somebody else has by now is said to be taken away, once; the loop goes on."""
    seen: Seen = queue.SimpleQueue()
    server = Parallel(
        acknowledging(queue.SimpleQueue(), 1, 2, stale=(1,)), extending(seen, lambda: Error(409, "stale", "late"))
    )
    with client_of(server) as client:
        messages = client.subscribe("q", visibility=0.2)
        with client.handling(next(messages)):
            noted(seen, 1)
        with client.handling(next(messages)) as second:
            assert second.mid == 2
        messages.close()
    server.stop()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "message 1 of 'q' was taken away" in warnings[0]
    assert seen.empty()


@both
def test_slow_async_job_is_extended(backend: str) -> None:
    """A task extends the message of a slow job; what the block raises is raised as it was."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client:
            delivery = Delivery(5, b"x", "q", 1, visible_at=1)
            extended = GetMessage("q", 1, status="delivered", receives=1)
            extended.lease = Lease(0.2)
            async with client.handling(extended):
                await anyio.to_thread.run_sync(noted, seen, 2)
            with pytest.raises(ZeroDivisionError):
                async with client.handling(delivery):
                    raise ZeroDivisionError

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            if isinstance(request, ExtendMessage):
                conversation.answer(request, ExtendMessage("q", 1, visible_at=5))
            else:
                conversation.answer(request)
            seen.put(request)

    with scripted(script) as server:
        run(backend, main)
    assert type(seen.get(timeout=GIVE_UP)).__name__ == "DeleteMessage"
    assert type(seen.get(timeout=GIVE_UP)).__name__ == "ReleaseMessage"


def test_job_that_raises() -> None:
    """The message of a job that raises is released with the reason, and the exception goes on; Reject makes the message
    a dead letter, Retry releases it with a delay, and the loop goes on. What the job has released itself is left
    alone."""
    seen: Seen = queue.SimpleQueue()
    with scripted(acknowledging(seen, 1, 2, 3, 4)) as server, client_of(server) as client:
        messages = client.subscribe("q")
        with pytest.raises(ValueError, match="no number"), client.handling(next(messages)):
            raise ValueError("no number")
        with client.handling(next(messages)):
            raise Reject("no such fruit")
        with client.handling(next(messages)):
            raise Retry("no quota", delay=60)
        with client.handling(next(messages)) as message:
            client.release(message, delay=5)
        messages.close()
    release, reject, retry, own = noted(seen, 4)
    assert isinstance(retry, ReleaseMessage)
    assert (retry.mid, retry.reason, retry.delay) == (3, "no quota", 60)
    assert isinstance(own, ReleaseMessage)
    assert (own.mid, own.delay) == (4, 5)
    assert all(not isinstance(each, DeleteMessage) for each in list_of(seen))
    assert isinstance(release, ReleaseMessage)
    assert (release.mid, release.reason, release.uncounted) == (1, "ValueError: no number", False)
    assert isinstance(reject, RejectMessage)
    assert (reject.mid, reject.reason) == (2, "no such fruit")


@both
def test_async_job_that_raises(backend: str) -> None:
    """An async job that raises releases its message with the reason, on both backends."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client, client.subscribe("q") as messages:
            with pytest.raises(ValueError, match="no number"):
                async with client.handling(await anext(messages)):
                    raise ValueError("no number")
            async with client.handling(await anext(messages)):
                raise Reject("no such fruit")
            async with client.handling(await anext(messages)):
                raise Retry("no quota", delay=60)
            async with client.handling(await anext(messages)) as message:
                await client.release(message, delay=5)

    with scripted(acknowledging(seen, 1, 2, 3, 4)) as server:
        run(backend, main)
    release, reject, retry, own = noted(seen, 4)
    assert isinstance(retry, ReleaseMessage)
    assert (retry.mid, retry.reason, retry.delay) == (3, "no quota", 60)
    assert isinstance(own, ReleaseMessage)
    assert (own.mid, own.delay) == (4, 5)
    assert all(not isinstance(each, DeleteMessage) for each in list_of(seen))
    assert isinstance(release, ReleaseMessage)
    assert (release.mid, release.reason) == (1, "ValueError: no number")
    assert isinstance(reject, RejectMessage)
    assert (reject.mid, reject.reason) == (2, "no such fruit")


@both
def test_async_job_that_raises_in_its_task_group(backend: str) -> None:
    """Reject makes a dead letter also when a task of the block raises it, and the loop goes on."""
    seen: Seen = queue.SimpleQueue()

    async def refuse() -> None:
        raise Reject("no such fruit")

    async def main() -> None:
        async with aclient(server) as client, client.subscribe("q") as messages:
            message = await anext(messages)
            async with client.handling(message), anyio.create_task_group() as tasks:
                tasks.start_soon(refuse)

    with scripted(acknowledging(seen, 1)) as server:
        run(backend, main)
    [reject] = noted(seen, 1)
    assert isinstance(reject, RejectMessage)
    assert reject.reason == "no such fruit"


def test_cancellation_while_a_message_is_rejected() -> None:
    """A cancellation that comes while the message becomes a dead letter is not lost: the task ends."""
    ended: list[str] = []

    async def main() -> None:
        async with aclient(server) as client, client.subscribe("q") as messages:
            message = await anext(messages)

            async def job() -> None:
                async with client.handling(message):
                    asyncio.get_running_loop().call_soon(task.cancel)
                    raise Reject("no such fruit")
                ended.append("went on")

            task = asyncio.create_task(job())
            with pytest.raises(asyncio.CancelledError):
                await task

    with scripted(acknowledging(queue.SimpleQueue(), 1)) as server:
        run("asyncio", main)
    assert not ended


def test_opened_subscription() -> None:
    """`open()` subscribes before the first message is asked for, once."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, seen=seen)) as server, client_of(server) as client:
        messages = client.subscribe("q")
        messages.open()
        assert isinstance(noted(seen, 1)[0], Subscribe)
        messages.open()
        assert next(messages).mid == 1
        messages.close()
        assert server.connections == 1


@both
def test_async_job_that_is_done_when_it_is_cancelled(backend: str) -> None:
    """A cancellation after the block is over still deletes the message."""

    async def main() -> None:
        async with aclient(server) as client:
            with anyio.CancelScope() as scope:
                async with client.handling(GetMessage("q", 1, status="delivered", receives=1)):
                    scope.cancel()
            assert scope.cancelled_caught
            assert isinstance(await anyio.to_thread.run_sync(lambda: noted(seen, 1)[0]), DeleteMessage)

    seen: Seen = queue.SimpleQueue()
    with scripted(extending(seen, lambda: DeleteMessage("q", 1))) as server:
        run(backend, main)


def test_delete_of_a_job_survives_a_restart() -> None:
    """A job that ends while the server restarts is deleted when the server is there again, and the loop goes on."""
    deletes: Seen = queue.SimpleQueue()

    def stopping(conversation: Conversation) -> None:
        accept(conversation, 1)
        deletes.put(conversation.read())  # type: ignore[arg-type]

    def restarted(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            conversation.answer(request)
            if isinstance(request, DeleteMessage):
                deletes.put(request)
            if isinstance(request, Subscribe):
                conversation.write(delivered(request, 2))

    with scripted(stopping, restarted) as server, client_of(server) as client:
        messages = client.subscribe("q")
        with client.handling(next(messages)):
            pass
        assert next(messages).mid == 2
        messages.close()
    for each in noted(deletes, 2):
        assert isinstance(each, DeleteMessage)
        assert (each.qid, each.mid, each.receives) == ("q", 1, 1)


@pytest.mark.parametrize("key", ["order-17", None])
def test_push_repeats_itself_with_a_key(key: str | None) -> None:
    """A push whose connection is lost is repeated if it has a key, and raises if it has none."""
    seen: Seen = queue.SimpleQueue()

    def losing_push(conversation: Conversation) -> None:
        seen.put(conversation.read())  # type: ignore[arg-type]

    def stopping(conversation: Conversation) -> None:
        push = conversation.read()
        seen.put(push)  # type: ignore[arg-type]
        conversation.answer(push, Error(503, "shutting-down", "bye"))

    def working(conversation: Conversation) -> None:
        push = conversation.read()
        seen.put(push)  # type: ignore[arg-type]
        conversation.answer(push, PushMessage("q", mid=7))

    with scripted(losing_push, stopping, working) as server:
        client = QueueClient(server.host, server.port, timeout=GIVE_UP)
        if key is None:
            with pytest.raises(ServerUnavailable):
                client.push("q", "x")
            assert server.connections == 1
        else:
            assert client.push("q", "x", key=key) == 7
            assert [(push.key, push.payload) for push in noted(seen, 3)] == [(key, b"x")] * 3  # type: ignore[attr-defined]
        client.disconnect()


def test_subscribe_asks_the_same_again() -> None:
    """The second subscription names the same queues, window and prefetch as the first."""
    seen: Seen = queue.SimpleQueue()

    def first(conversation: Conversation) -> None:
        seen.put(accept(conversation))

    with scripted(first, delivering(5, seen=seen)) as server, client_of(server) as client:
        messages = client.subscribe(["q", "r"], prefetch=3, visibility=7)
        assert next(messages).mid == 5
        messages.close()
    one, two = noted(seen, 2)
    for each in (one, two):
        assert isinstance(each, Subscribe)
        assert (each.queues, each.prefetch, each.visibility) == (["q", "r"], 3, 7)
