"""One async connection over real sockets: answers that are late, streams that break, hosts that are not there."""

import socket
import threading
from collections.abc import Callable

import anyio
import pytest
from support.clients.every_client import both, jump, opened, run
from support.clients.scripted_server import GIVE_UP, SOON, Conversation, answer_bytes, scripted

from qs_client import (
    Delivery,
    Error,
    Message,
    NoAnswer,
    NotFound,
    Ping,
    ReceiveMessage,
    ReleaseMessage,
    ServerUnavailable,
    TooLarge,
    calls,
)
from qs_client.asking import Exchange
from qs_client.async_opening import open_async_connection
from qs_client.place import Place
from qs_schemas import Peer

LARGE = b"x" * 20_000_000  # more than the system takes of what nobody reads


@both
def test_a_late_answer(backend: str) -> None:
    """A call whose answer does not come in time raises NoAnswer. Others go on, as does the connection, on which the
    server was heard; the late answer is dropped, and what it received goes back to its queue."""
    go_on = threading.Event()
    given_back: list[Message | None] = []

    def script(conversation: Conversation) -> None:
        receive, ping = conversation.read(), conversation.read()
        conversation.answer(ping)
        push = conversation.read()
        assert go_on.wait(GIVE_UP)
        conversation.answer(receive, qid="q", messages=[Delivery(7, b"x", receives=3)])
        given_back.append(conversation.read())
        conversation.answer(push, qid="q", mid=2)
        conversation.answer(given_back[0])
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        late: list[BaseException] = []

        async def receive() -> None:
            with pytest.raises(NoAnswer, match=r"within 10 s") as raised:
                await connection.call(calls.receive("q"), 10)
            late.append(raised.value)

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await connection.call(calls.ping(), GIVE_UP)
            jump(10)
        assert isinstance(late[0], TimeoutError)
        assert connection.usable
        async with anyio.create_task_group() as group:
            group.start_soon(connection.call, calls.push("q", "x"), GIVE_UP)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        connection.close()

    with scripted(script) as server:
        run(backend, main)
    (release,) = given_back
    assert isinstance(release, ReleaseMessage)
    assert (release.qid, release.mid, release.receives) == ("q", 7, 3)


@both
def test_a_silent_server(backend: str) -> None:
    """After a call without answer, on a connection on which nothing at all was heard, no further call is made there;
    one that still waits on it is not disturbed."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.greeting = None
        slow, lost = conversation.read(), conversation.read()
        assert isinstance(lost, Ping)
        assert go_on.wait(GIVE_UP)
        conversation.answer(slow, qid="q", mid=1)
        conversation.wait_for_close()

    async def main() -> None:
        connection = await opened(server)
        got: list[int] = []

        async def slow() -> None:
            got.append(await connection.call(calls.push("q", "x"), GIVE_UP))

        async with anyio.create_task_group() as group:
            group.start_soon(slow)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(NoAnswer):
                await connection.call(calls.ping(), SOON)
            assert not connection.usable
            go_on.set()
        assert got == [1]

    with scripted(script) as server:
        run(backend, main)


@both
@pytest.mark.parametrize("count", [1, 5])
def test_all_calls_time_out(backend: str, count: int) -> None:
    """Every call that a silent server leaves without answer raises NoAnswer."""
    raised: list[type[BaseException]] = []

    async def main() -> None:
        connection = await opened(server)

        async def ping() -> None:
            try:
                await connection.call(calls.ping(), SOON)
            except OSError as error:
                raised.append(type(error))

        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(ping)

    with scripted(lambda conversation: conversation.wait_for_close()) as server:
        run(backend, main)
    assert raised == [NoAnswer] * count


@both
def test_a_server_that_does_not_read(backend: str) -> None:
    """Sending has its time too: a server that reads nothing holds nobody longer than the timeout."""
    done = threading.Event()

    def script(conversation: Conversation) -> None:
        assert done.wait(GIVE_UP)

    async def main() -> None:
        connection = await opened(server)
        try:
            with pytest.raises(NoAnswer):
                await connection.call(calls.push("q", LARGE), SOON)
            assert not connection.usable
        finally:
            done.set()

    with scripted(script) as server:
        run(backend, main)


@both
@pytest.mark.parametrize(
    ("how", "text"),
    [
        (lambda conversation, data: None, "closed the connection before it answered"),
        (lambda conversation, data: conversation.write(data[:40]), "in the middle of an answer"),
        (lambda conversation, data: conversation.reset(), "broke the connection"),
        (lambda conversation, data: conversation.write(b"HTTP/1.1 400\r\n\r\n"), "is it a queue server"),
    ],
)
def test_the_stream_breaks(backend: str, how: Callable[[Conversation, bytes], None], text: str) -> None:
    """When the stream ends or cannot be read, every waiting call raises a ServerUnavailable of its own."""

    def script(conversation: Conversation) -> None:
        requests = [conversation.read() for _ in range(3)]
        how(conversation, answer_bytes(requests[-1]))

    async def main() -> None:
        connection = await opened(server)
        caught: list[BaseException] = []

        async def ping() -> None:
            with pytest.raises(ServerUnavailable, match=text) as raised:
                await connection.call(calls.ping(), GIVE_UP)
            caught.append(raised.value)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ping)
        assert len({id(error) for error in caught}) == 3
        assert not connection.usable
        with pytest.raises(ServerUnavailable, match=text):
            await connection.call(calls.ping(), GIVE_UP)

    with scripted(script) as server:
        run(backend, main)


@both
def test_close_while_tasks_wait(backend: str) -> None:
    """`close()` ends every call that waits, the reader's too."""

    async def main() -> None:
        connection = await opened(server)
        caught: list[BaseException] = []

        async def ping() -> None:
            with pytest.raises(ServerUnavailable, match="closed") as raised:
                await connection.call(calls.ping(), GIVE_UP)
            caught.append(raised.value)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ping)
            await anyio.wait_all_tasks_blocked()
            connection.close()
        assert len(caught) == 3
        assert connection._wire._sock.fileno() == -1

    with scripted(lambda conversation: conversation.wait_for_close()) as server:
        run(backend, main)


@both
def test_async_push_raises_reason_given_before_hanging_up(backend: str) -> None:
    """A server that refuses a large document hangs up while that is being sent: its reason is raised."""

    def script(conversation: Conversation) -> None:
        conversation.sock.recv(1000)
        conversation.write(Peer().send(Error(413, "too-large", "over 8 MiB")))
        conversation.sock.shutdown(socket.SHUT_WR)
        conversation.wait_for_close()

    async def main() -> None:
        connection = await opened(server)
        with pytest.raises(TooLarge):
            await connection.call(calls.push("q", LARGE), GIVE_UP)
        assert not connection.usable

    with scripted(script) as server:
        run(backend, main)


@both
def test_errors_of_calls(backend: str) -> None:
    """A call raises the server's error, and the connection stays."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(404, "not-found", "no queue"))
        conversation.answer(conversation.read())
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        with pytest.raises(NotFound):
            await connection.call(calls.purge("q"), GIVE_UP)
        with pytest.raises(ValueError, match="U\\+0000"):
            await connection.call(calls.purge("\0"), GIVE_UP)
        await connection.call(calls.ping(), GIVE_UP)
        connection.close()

    with scripted(script) as server:
        run(backend, main)


@both
def test_patience(backend: str) -> None:
    """A receive may take its wait longer than the timeout."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), messages=[Delivery(1, b"x", "q")])
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        exchange = Exchange(ReceiveMessage("q"), patience=GIVE_UP)
        assert isinstance(await connection.exchange(exchange, 0), ReceiveMessage)
        connection.close()

    with scripted(script) as server:
        run(backend, main)


@both
@pytest.mark.parametrize("host", ["host.invalid", "x" * 100, "a..b"])
def test_async_connect_to_missing_host(backend: str, host: str) -> None:
    """A name that cannot be found, or is none, is ServerUnavailable."""

    async def main() -> None:
        with pytest.raises(ServerUnavailable, match=host):
            await open_async_connection(host, 1, Place(host), GIVE_UP)

    run(backend, main)
