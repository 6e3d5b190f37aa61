"""`subscribe(ack="behind")` of both queue clients over real sockets: acknowledgements that are written without waiting,
and what becomes of them when connections, subscriptions and processes end."""

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest
from support.clients.every_client import both, run
from support.clients.scripted_server import (
    GIVE_UP,
    SOON,
    Conversation,
    Parallel,
    Script,
    ScriptedServer,
    Seen,
    accept,
    client_of,
    delivering,
    noted,
    scripted,
    what,
)
from support.servers.processes import ServerProcess

from qs_client import (
    AsyncQueueClient,
    DeleteMessage,
    Error,
    Forbidden,
    Message,
    Ping,
    QueueClient,
    ServerUnavailable,
    Subscribe,
    Unsubscribe,
)
from qs_client.connection import Connection


def aclient(server: ScriptedServer) -> AsyncQueueClient:
    return AsyncQueueClient(server.host, server.port, timeout=GIVE_UP)


def read(conversation: Conversation, count: int) -> list[Message]:
    requests = [conversation.read() for _ in range(count)]
    return [request for request in requests if request is not None]


def serve(conversation: Conversation, seen: Seen) -> None:
    """Notes and answers what comes, until the client goes."""
    with contextlib.suppress(ConnectionError):  # it may go without waiting for an answer
        while (request := conversation.read()) is not None:
            seen.put(request)
            conversation.answer(request)


def list_of(seen: Seen) -> list[Message]:
    return [seen.get() for _ in range(seen.qsize())]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def late(seen: Seen, count: int, *answers: Message | None, mids: tuple[int, ...] = ()) -> Script:
    """A script that delivers messages and answers nothing before it has read `count` requests: a client that waited
    for an answer would never send them. answers: to the first ones; None for success."""

    def then(conversation: Conversation) -> None:
        requests = read(conversation, count)
        for place, request in enumerate(requests):
            seen.put(request)
            conversation.answer(request, answers[place] if place < len(answers) else None)
        serve(conversation, seen)

    return delivering(*(mids or range(1, count + 1)), then=then)


def test_no_answer_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """With "behind", neither `delete` nor `handling` waits for the answer. The end of the subscription confirms all,
    and a message that is left goes back."""
    seen: Seen = queue.SimpleQueue()
    with scripted(late(seen, 4, mids=(1, 2, 3, 4, 5))) as server, client_of(server) as client:
        messages = client.subscribe("q", prefetch=10, ack="behind")
        for message in messages:
            if message.mid == 4:
                break
            with client.handling(message):
                if message.mid == 2:
                    client.delete(message)
        client.delete(message)
        messages.close()
        assert messages.taken_away == 0
    assert what(list_of(seen)) == [("delete-message", mid) for mid in (1, 2, 3, 4)] + [("release-message", 5)]
    assert not warnings(caplog)


@both
def test_no_answer_is_waited_for_in_tasks(backend: str) -> None:
    """The async client does not wait either, and `aclose` confirms all."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> int:
        async with aclient(server) as client, client.subscribe("q", prefetch=10, ack="behind") as messages:
            for _ in range(2):
                async with client.handling(await anext(messages)):
                    pass
                await client.delete(await anext(messages))
            await messages.aclose()
            return messages.taken_away

    with scripted(late(seen, 4)) as server:
        assert run(backend, main) == 0
    assert what(list_of(seen)) == [("delete-message", mid) for mid in (1, 2, 3, 4)]


def test_at_most_as_many_as_the_prefetch_are_open() -> None:
    """The one that would be one too many waits until the server has answered, and with it all."""
    seen: Seen = queue.SimpleQueue()
    with scripted(late(seen, 3, mids=(1, 2, 3, 4))) as server, client_of(server) as client:
        messages = client.subscribe("q", prefetch=2, ack="behind")
        received = [next(messages) for _ in range(4)]  # more than the prefetch, as no server would deliver
        for message in received[:3]:
            client.delete(message)
        assert seen.qsize() == 3  # the server has noted and answered them
        client.delete(received[3])
        messages.close()
    assert what(list_of(seen)) == [("delete-message", mid) for mid in (1, 2, 3, 4)]


def test_failed_job_goes_back() -> None:
    """A message whose block of `handling` raises is released as ever, and the others are deleted."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, 2, 3, seen=seen)) as server, client_of(server) as client:
        for message in client.subscribe("q", ack="behind"):
            try:
                with client.handling(message):
                    if message.mid == 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            if message.mid == 3:
                break
    assert what(list_of(seen)) == [("delete-message", 1), ("release-message", 2), ("delete-message", 3)]


def lost_after(count: int, *mids: int) -> Script:
    """A script that delivers, reads `count` requests, answers none of them and ends the connection."""

    def script(conversation: Conversation) -> None:
        accept(conversation, *mids)
        read(conversation, count)

    return script


def resumed(seen: Seen, *mids: int, deletes: tuple[Message | None, ...]) -> Script:
    """A script for the next connection: deletes come before the subscription, and get these answers."""

    def script(conversation: Conversation) -> None:
        for answer in deletes:
            request = conversation.read()
            assert isinstance(request, DeleteMessage)
            seen.put(request)
            conversation.answer(request, answer)
        accept(conversation, *mids)
        serve(conversation, seen)

    return script


def test_lost_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Acknowledgements that a lost connection has left open are written to the next one, before the subscription. A
    message that is gone was deleted by the first request; one that somebody has received since is logged and counted.
    The loop goes on."""
    seen: Seen = queue.SimpleQueue()
    answers = None, Error(404, "not-found", "no such message"), Error(409, "stale", "received again")
    with (
        scripted(lost_after(3, 1, 2, 3), resumed(seen, 4, deletes=answers)) as server,
        client_of(server) as client,
    ):
        messages = client.subscribe("q", ack="behind")
        for message in messages:
            with client.handling(message):
                pass
            if message.mid == 4:
                break
        messages.close()
        assert messages.taken_away == 1
    requests = list_of(seen)
    assert what(requests) == [("delete-message", mid) for mid in (1, 2, 3, 4)]
    assert all(request.receives == 1 for request in requests if isinstance(request, DeleteMessage))
    (line,) = [line for line in warnings(caplog) if "taken away" in line]
    assert "message 3 of 'q'" in line


@both
def test_lost_connection_in_a_task(backend: str) -> None:
    """The async client writes what a lost connection has left open before it subscribes again."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> int:
        async with aclient(server) as client:
            messages = client.subscribe("q", ack="behind")
            async for message in messages:
                await client.delete(message)
                if message.mid == 3:
                    break
            await messages.aclose()
            return messages.taken_away

    answers = Error(409, "stale", "received again"), Error(404, "not-found", "no such message")
    with scripted(lost_after(2, 1, 2), resumed(seen, 3, deletes=answers)) as server:
        assert run(backend, main) == 1
    assert what(list_of(seen)) == [("delete-message", mid) for mid in (1, 2, 3)]


def test_stopping_server_gets_it_again() -> None:
    """An acknowledgement that is answered with 503 is written to the server that comes back."""
    seen: Seen = queue.SimpleQueue()

    def stopping(conversation: Conversation) -> None:
        accept(conversation, 1)
        conversation.answer(conversation.read(), Error(503, "shutting-down", "the server is stopping"))

    with scripted(stopping, resumed(seen, 2, deletes=(None,))) as server, client_of(server) as client:
        messages = client.subscribe("q", ack="behind")
        client.delete(next(messages))
        assert next(messages).mid == 2
        messages.close()
        assert messages.taken_away == 0
    assert what(list_of(seen)) == [("delete-message", 1)]  # the second one was handed out, so it is not given back


def test_error_is_raised_with_the_next_message() -> None:
    """An answer that is no sign of a message taken away ends the iteration: the next call for a message raises it."""
    seen: Seen = queue.SimpleQueue()
    error = Error(403, "forbidden", "not yours")
    with scripted(late(seen, 1, error, mids=(1, 2, 3))) as server, client_of(server) as client:
        messages = client.subscribe("q", ack="behind")
        client.delete(next(messages))
        client.ping()  # its answer comes after that of the delete
        with pytest.raises(Forbidden, match="not yours"):
            next(messages)
        with pytest.raises(StopIteration):
            next(messages)
    requests = list_of(seen)
    assert any(isinstance(request, Unsubscribe) for request in requests)
    assert what(requests) == [("delete-message", 1), ("release-message", 2), ("release-message", 3)]


@both
def test_error_is_raised_with_the_next_message_in_a_task(backend: str) -> None:
    """So it is with the async client."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client:
            messages = client.subscribe("q", ack="behind")
            await client.delete(await anext(messages))
            await client.ping()
            with pytest.raises(Forbidden, match="not yours"):
                await anext(messages)
            with pytest.raises(StopAsyncIteration):
                await anext(messages)

    with scripted(late(seen, 1, Error(403, "forbidden", "not yours"), mids=(1, 2))) as server:
        run(backend, main)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_close_after_a_lost_connection(caplog: pytest.LogCaptureFixture) -> None:
    """`close` confirms on a new connection what a lost one has left open."""
    seen: Seen = queue.SimpleQueue()

    def again(conversation: Conversation) -> None:
        serve(conversation, seen)

    with scripted(lost_after(2, 1, 2), again) as server, client_of(server) as client:
        messages = client.subscribe("q", ack="behind", reconnect=False)
        for _ in range(2):
            client.delete(next(messages))
        with pytest.raises(ServerUnavailable):
            next(messages)
    assert what(list_of(seen)) == [("delete-message", 1), ("delete-message", 2)]
    assert not warnings(caplog)


@both
def test_aclose_after_a_lost_connection(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """So does the async client, when the iteration ends with the error."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client:
            messages = client.subscribe("q", ack="behind", reconnect=False)
            await client.delete(await anext(messages))
            with pytest.raises(ServerUnavailable):
                await anext(messages)

    with scripted(lost_after(1, 1), lambda conversation: serve(conversation, seen)) as server:
        run(backend, main)
    assert what(list_of(seen)) == [("delete-message", 1)]
    assert not warnings(caplog)


def test_close_without_a_server(caplog: pytest.LogCaptureFixture) -> None:
    """When the server cannot be reached at the end, the log says for how many messages that is not known."""
    gone = threading.Event()

    def script(conversation: Conversation) -> None:
        accept(conversation, 1, 2)
        read(conversation, 2)
        gone.set()

    server = ScriptedServer(script)
    with client_of(server) as client:
        messages = client.subscribe("q", ack="behind")
        for _ in range(2):
            client.delete(next(messages))
        assert gone.wait(GIVE_UP)
        server.stop()
        client.disconnect()
        messages.close()
        messages.close()
    assert [line for line in warnings(caplog) if "confirmed" in line] == [
        "2 messages were handled, and the server has not confirmed the deletion: each may come again"
    ]


@pytest.mark.parametrize("ended", ["disconnect", "with"])
def test_disconnect_confirms(ended: str) -> None:
    """`disconnect`, also at the end of a with block, waits for the answers: the messages are deleted when it returns,
    even if nobody ended the subscription."""
    seen: Seen = queue.SimpleQueue()
    with scripted(late(seen, 2)) as server:
        client = client_of(server)
        with client:
            messages = client.subscribe("q", ack="behind")
            for _ in range(2):
                client.delete(next(messages))
            if ended == "disconnect":
                client.disconnect()
                assert seen.qsize() == 2
        assert seen.qsize() == 2
        messages.close()


@both
def test_async_disconnect_confirms(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """The end of the async client waits for the answers, also for an iterator that was collected after a break."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> None:
        async with aclient(server) as client:
            async for message in client.subscribe("q", ack="behind"):
                await client.delete(message)
                if message.mid == 2:
                    break
        assert seen.qsize() >= 2

    with scripted(late(seen, 2)) as server:
        run(backend, main)
    assert not warnings(caplog)


@both
def test_cancelled_task_confirms(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """A task that is cancelled in its loop has its acknowledgements confirmed by the end of the with block."""
    seen: Seen = queue.SimpleQueue()

    async def main() -> int:
        async with aclient(server) as client, anyio.create_task_group() as tasks:
            messages = client.subscribe("q", ack="behind")

            async def loop() -> None:
                async with messages:
                    async for message in messages:
                        async with client.handling(message):
                            pass
                        if message.mid == 2:
                            tasks.cancel_scope.cancel()

            tasks.start_soon(loop)
        return messages.taken_away

    # The second one is refused: the program is told that only if somebody waits for the answer.
    with scripted(late(seen, 2, None, Error(409, "stale", "received again"))) as server:
        assert run(backend, main) == 1
    assert len(warnings(caplog)) == 1


def test_close_in_another_thread_while_a_job_runs() -> None:
    """After `close()` in another thread, the message in hand is deleted, and its answer waited for: the loop ends with
    all confirmed."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, 2, seen=seen)) as server, client_of(server) as client:
        messages = client.subscribe("q", ack="behind")
        for message in messages:
            with client.handling(message):
                closing = threading.Thread(target=messages.close)
                closing.start()
                closing.join(GIVE_UP)
        assert what(list_of(seen)) == [("release-message", 2), ("delete-message", 1)]


def busy(seen: Seen, received: threading.Event, go_on: threading.Event, *mids: int) -> Script:
    """A script that delivers, and leaves the client's next request without an answer until it may go on."""

    def then(conversation: Conversation) -> None:
        request = conversation.read()
        received.set()
        assert go_on.wait(GIVE_UP)
        conversation.answer(request)
        serve(conversation, seen)

    return delivering(*mids, then=then)


def test_close_while_another_thread_uses_the_client(caplog: pytest.LogCaptureFixture) -> None:
    """`close` waits for the thread that waits for another answer, and then until all are confirmed."""
    seen: Seen = queue.SimpleQueue()
    received, go_on = threading.Event(), threading.Event()
    with scripted(busy(seen, received, go_on, 1, 2)) as server, client_of(server) as client:
        messages = client.subscribe("q", ack="behind")
        handled = [next(messages), next(messages)]
        other = threading.Thread(target=client.ping)
        other.start()
        assert received.wait(GIVE_UP)
        for message in handled:
            client.delete(message)
        closing = threading.Thread(target=messages.close)
        closing.start()
        go_on.set()
        closing.join(GIVE_UP)
        assert what(list_of(seen)) == [("delete-message", 1), ("delete-message", 2)]
        other.join(GIVE_UP)
    assert not warnings(caplog)


@pytest.mark.parametrize("end", ["close", "disconnect"])
def test_end_while_another_thread_waits_too_long(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """When the other thread does not come to an end in time, a new connection is tried, and then the log says what is
    not known."""
    received, go_on = threading.Event(), threading.Event()

    def refuse(conversation: Conversation) -> None:
        conversation.reset()

    seen: Seen = queue.SimpleQueue()
    with Parallel(busy(seen, received, go_on, 1, 2), refuse) as server:
        client = client_of(server)
        messages = client.subscribe("q", ack="behind")
        handled = [next(messages), next(messages)]

        def ping() -> None:
            with contextlib.suppress(ServerUnavailable):
                client.ping()

        other = threading.Thread(target=ping)
        other.start()
        assert received.wait(GIVE_UP)
        for message in handled:
            client.delete(message)
        client.timeout = SOON
        if end == "close":
            messages.close()
        else:
            client.disconnect()
        assert [line for line in warnings(caplog) if "confirmed" in line] == [
            "2 messages were handled, and the server has not confirmed the deletion: each may come again"
        ]
        client.disconnect()
        go_on.set()
        other.join(GIVE_UP)
        messages.close()


def test_nothing_is_left_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acknowledgement that is written while another thread has its answer already, and reads no more, is sent by
    that thread."""
    seen: Seen = queue.SimpleQueue()
    answered, go_on = threading.Event(), threading.Event()
    with scripted(delivering(1, 2, seen=seen)) as server, client_of(server) as client:
        messages = client.subscribe("q", ack="behind")
        message = next(messages)
        answer = Connection.answer

        def late_answer(connection: Connection, *arguments: Any) -> Message:
            found = answer(connection, *arguments)
            answered.set()
            assert go_on.wait(GIVE_UP)
            return found

        monkeypatch.setattr(Connection, "answer", late_answer)
        other = threading.Thread(target=client.ping)
        other.start()
        assert answered.wait(GIVE_UP)
        client.delete(message)
        go_on.set()
        other.join(GIVE_UP)
        assert [type(each) for each in noted(seen, 3)] == [Subscribe, Ping, DeleteMessage]
        monkeypatch.undo()
        messages.close()


_STOPPED = """
import signal, sys
from qs_client import QueueClient
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it would begin ignored
with QueueClient("127.0.0.1", int(sys.argv[1])) as client:
    messages = client.subscribe("q", ack="behind")
    signal.signal(signal.SIGTERM, lambda *_: messages.close())
    for message in messages:
        with client.handling(message):
            print(message.text, flush=True)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, -signal.SIGINT)])
def test_signal_ends_the_loop(number: int, code: int) -> None:
    """A signal's handler that closes the subscription, or raises as Ctrl-C does, leaves nothing unconfirmed."""
    seen: Seen = queue.SimpleQueue()
    with (
        scripted(delivering(1, 2, seen=seen), lambda conversation: serve(conversation, seen)) as server,
        subprocess.Popen(
            [sys.executable, "-c", _STOPPED, str(server.port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline() + child.stdout.readline() == b"1\n2\n"
        noted(seen, 3)  # the subscription and both deletes
        child.send_signal(number)
        _, errors = child.communicate(timeout=GIVE_UP)
    assert child.returncode == code
    assert b"confirmed" not in errors


def test_child_of_a_fork_leaves_them_alone() -> None:
    """In a child, the acknowledgements are the parent's: it neither waits for them nor writes them again."""
    seen: Seen = queue.SimpleQueue()
    with Parallel(late(seen, 2)) as server, client_of(server) as client:
        messages = client.subscribe("q", ack="behind")
        for _ in range(2):
            client.delete(next(messages))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                messages.close()
                client.disconnect()
                code = 0 if messages.taken_away == 0 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        messages.close()
        assert server.connections == 1
    assert what(list_of(seen)) == [("delete-message", 1), ("delete-message", 2)]


def test_threads_share_a_subscription(shared_server: ServerProcess, qid: str) -> None:
    """While a thread waits for the next message, another one acknowledges the last, without waiting for the first."""
    with (
        QueueClient(shared_server.host, shared_server.port) as client,
        QueueClient(shared_server.host, shared_server.port) as other,
    ):
        other.push(qid, "one")
        messages = client.subscribe(qid, ack="behind")
        message = next(messages)
        waiting = threading.Thread(target=lambda: next(messages, None))
        waiting.start()
        client.delete(message)
        while other.stats(qid)[0].deleted == 0:
            pass
        messages.close()
        waiting.join(GIVE_UP)


def test_bad_ack() -> None:
    """Any other value is a ValueError before anything is sent."""
    with pytest.raises(ValueError, match="ack is 'never'"):
        QueueClient().subscribe("q", ack="never")  # type: ignore[arg-type]
