"""One async connection over real sockets: many tasks on it, cancelled in every phase, and servers that fail."""

import socket
import threading
from collections.abc import Callable
from itertools import pairwise

import anyio
import pytest
from support.backends import both, run, until
from support.scripted_server import GIVE_UP, SOON, Conversation, ScriptedServer, answer_bytes, scripted

from qs_client import (
    Delivery,
    Error,
    GetMessage,
    Message,
    NoAnswer,
    NotFound,
    Ping,
    PushMessage,
    ReceiveMessage,
    ReleaseMessage,
    ServerUnavailable,
    Subscribe,
    TooLarge,
    calls,
)
from qs_client.asking import Exchange
from qs_client.async_connection import AsyncConnection, open_async_connection
from qs_client.place import Place
from qs_schemas import Limits, Peer

LARGE = b"x" * 20_000_000  # more than the system takes of what nobody reads


async def opened(server: ScriptedServer, timeout: float = GIVE_UP) -> AsyncConnection:
    return await open_async_connection(server.host, server.port, Place(f"{server.host}:{server.port}"), timeout)


def numbered(conversation: Conversation) -> None:
    """Answers each push with its payload as the id, everything else with what it asked."""
    while (request := conversation.read()) is not None:
        if isinstance(request, PushMessage):
            assert isinstance(request.payload, bytes)
            conversation.answer(request, qid="q", mid=int(request.payload[:9]))
        else:
            conversation.answer(request)


def delivered(request: Message | None, mid: int) -> bytes:
    assert request is not None
    message = GetMessage("q", mid, payload=b"%d" % mid, status="delivered", receives=1, type="response")
    message.req = request.req
    return Peer().send(message)


@both
def test_many_tasks_on_one_connection(backend: str) -> None:
    """Calls of many tasks travel side by side on one connection, and each gets its own answer."""

    async def main() -> None:
        connection = await opened(server)
        got: list[int] = []

        async def work(first: int) -> None:
            for n in range(first, first + 20):
                assert await connection.call(calls.push("q", str(n)), GIVE_UP) == n
                got.append(n)

        async with anyio.create_task_group() as group:
            for task in range(50):
                group.start_soon(work, 1 + 1000 * task)
        assert len(got) == 1000
        connection.close()

    with scripted(numbered) as server:
        run(backend, main)
        assert server.connections == 1


@both
def test_pipelined_not_one_by_one(backend: str) -> None:
    """A request is sent while others wait for their answers."""

    def script(conversation: Conversation) -> None:
        requests = [conversation.read() for _ in range(10)]
        for request in reversed(requests):
            conversation.answer(request)
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(connection.call, calls.ping(), GIVE_UP)
        connection.close()

    with scripted(script) as server:
        run(backend, main)


@both
def test_the_reader_is_cancelled_while_others_wait(backend: str) -> None:
    """When the task that reads for all is cancelled, another one reads on: nobody's answer is lost, and the answer to
    the cancelled call is dropped."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        requests = [conversation.read() for _ in range(4)]
        assert go_on.wait(GIVE_UP)
        for mid, request in enumerate(requests):
            conversation.answer(request, qid="q", mid=mid)
        conversation.answer(conversation.read())
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        got: list[int] = []

        async def push() -> None:
            got.append(await connection.call(calls.push("q", "x"), GIVE_UP))

        async with anyio.create_task_group() as group:
            first = anyio.CancelScope()

            async def leader() -> None:
                with first:
                    await push()

            group.start_soon(leader)
            await anyio.wait_all_tasks_blocked()
            for _ in range(3):
                group.start_soon(push)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        assert sorted(got) == [1, 2, 3]
        await connection.call(calls.ping(), GIVE_UP)
        connection.close()

    with scripted(script) as server:
        run(backend, main)


@both
def test_a_follower_is_cancelled_as_it_is_to_read(backend: str) -> None:
    """When the reader has its answer, and the task that is to read next is cancelled at that moment, a third reads."""

    def script(conversation: Conversation) -> None:
        requests = [conversation.read() for _ in range(3)]
        for request in requests:
            conversation.answer(request)
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        scopes = [anyio.CancelScope() for _ in range(2)]
        done: list[int] = []

        async def ping(n: int) -> None:
            with scopes[n]:
                await connection.call(calls.ping(), GIVE_UP)

        async def last() -> None:
            await connection.call(calls.ping(), GIVE_UP)
            done.append(1)

        async with anyio.create_task_group() as group:
            for n in range(2):
                group.start_soon(ping, n)
                await anyio.wait_all_tasks_blocked()
            for scope in scopes:  # the second is woken to read by the end of the first, and cancelled before it does
                scope.cancel()
            group.start_soon(last)
        assert done == [1]
        connection.close()

    with scripted(script) as server:
        run(backend, main)


@both
def test_cancelled_while_a_large_document_is_sent(backend: str) -> None:
    """A cancelled caller leaves no half document behind: the rest goes out before the next request, and both are read
    and answered in step."""
    go_on = threading.Event()

    def script(conversation: Conversation) -> None:
        assert go_on.wait(GIVE_UP)
        large, small = conversation.read(), conversation.read()
        assert isinstance(large, PushMessage)
        assert large.payload == LARGE[:7_000_000]
        conversation.answer(large, qid="q", mid=1)
        conversation.answer(small, qid="q", mid=2)
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        connection._wire._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
        async with anyio.create_task_group() as group:
            group.start_soon(connection.call, calls.push("q", LARGE[:7_000_000]), GIVE_UP)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert connection.usable
        go_on.set()
        assert await connection.call(calls.push("q", "x"), GIVE_UP) == 2
        connection.close()

    with scripted(script) as server:
        run(backend, main)


@both
def test_cancelled_before_it_began(backend: str) -> None:
    """A call in a scope that is cancelled already sends nothing."""
    seen: list[Message | None] = []

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        seen.append(conversation.read())

    async def main() -> None:
        connection = await opened(server)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await connection.call(calls.push("q", "x"), GIVE_UP)
        assert scope.cancelled_caught
        await connection.call(calls.ping(), GIVE_UP)
        connection.close()

    with scripted(script) as server:
        run(backend, main)
    assert seen == [None]


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
            # Long enough for the ping to be answered meanwhile: else it is a silent server, which is another test.
            with pytest.raises(NoAnswer, match=r"within 1 s") as raised:
                await connection.call(calls.receive("q"), 1)
            late.append(raised.value)

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await connection.call(calls.ping(), GIVE_UP)
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
@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_calls_time_out(backend: str, count: int) -> None:
    """However many calls a silent server leaves without answer, each raises NoAnswer."""
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
def test_drops_of_an_answer_do_not_extend_the_time(backend: str) -> None:
    """The timeout is for the whole answer: a server that sends a byte now and then does not hold a task for ever."""

    def drip(conversation: Conversation) -> None:
        conversation.read()
        try:
            while True:
                conversation.write(b" ")
        except OSError:
            pass

    async def main() -> None:
        connection = await opened(server)
        with pytest.raises(NoAnswer):
            await connection.call(calls.ping(), SOON)
        connection.close()

    with scripted(drip) as server:
        run(backend, main)


@both
def test_large_documents_both_ways(backend: str) -> None:
    """A large request and large answers get through side by side, whatever the system takes at a time."""

    def script(conversation: Conversation) -> None:
        conversation._peer = Peer(Limits(document=100_000_000))
        requests = [conversation.read() for _ in range(2)]
        for request in requests:
            conversation.answer(request, qid="q", payload=LARGE, mid=1)
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(connection.exchange, Exchange(PushMessage("q", LARGE)), GIVE_UP)
        connection.close()

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
    """When the stream ends or cannot be read, everybody who waits gets ServerUnavailable, each one of its own."""

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
    """close() ends every call that waits, the reader's too."""

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
def test_a_reason_that_was_given_before_hanging_up(backend: str) -> None:
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
def test_pump(backend: str) -> None:
    """What answers no call goes to the pump's function, in order, be it posted for or not, while calls are made beside
    it; when the connection ends, the pump says so."""

    def script(conversation: Conversation) -> None:
        subscribe = conversation.read()
        conversation.answer(subscribe)
        for mid in (1, 2):
            conversation.write(delivered(subscribe, mid))
        ping = conversation.read()
        conversation.write(delivered(subscribe, 3) + answer_bytes(ping) + delivered(subscribe, 4))

    async def main() -> None:
        connection = await opened(server)
        got: list[Message] = []
        connection.post(Subscribe("q", req="s"))
        async with anyio.create_task_group() as group:

            async def pump() -> None:
                with pytest.raises(ServerUnavailable, match="closed the connection"):
                    await connection.pump(got.append)

            group.start_soon(pump)
            await until(lambda: len(got) == 3)
            await connection.call(calls.ping(), GIVE_UP)
        assert isinstance(got[0], Subscribe)
        assert [message.mid for message in got if isinstance(message, GetMessage)] == [1, 2, 3, 4]
        assert {message.req for message in got} == {"s"}

    with scripted(script) as server:
        run(backend, main)


@both
def test_a_post_that_the_socket_does_not_take(backend: str) -> None:
    """What the socket does not take at once is sent by whoever reads, also when that task waits already."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        for _ in range(3):
            assert isinstance(conversation.read(), PushMessage)
        conversation.answer(Ping(req="done"))
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        got: list[Message] = []
        async with anyio.create_task_group() as group:
            group.start_soon(connection.pump, got.append)
            await connection.call(calls.ping(), GIVE_UP)
            await anyio.wait_all_tasks_blocked()
            for _ in range(3):
                connection.post(PushMessage("q", LARGE[:7_000_000]))
            assert connection._wire.unsent
            await connection.sent(GIVE_UP)
            assert not connection._wire.unsent
            await until(lambda: bool(got))
            group.cancel_scope.cancel()
        connection.close()

    with scripted(script) as server:
        run(backend, main)


@both
def test_a_busy_connection_lets_others_run(backend: str) -> None:
    """While a server floods the connection, other tasks get their turn."""
    stop = threading.Event()

    def script(conversation: Conversation) -> None:
        flood = Peer().send(GetMessage("q", 1, payload=b"x" * 50_000, req="s", type="response"))
        try:
            while not stop.is_set():
                conversation.write(flood)
        except OSError:
            pass

    async def main() -> None:
        connection = await opened(server)
        got: list[Message] = []
        async with anyio.create_task_group() as group:
            group.start_soon(connection.pump, got.append)
            counts = [0]
            while counts[-1] < 100:
                await anyio.lowlevel.checkpoint()
                counts.append(len(got))
            group.cancel_scope.cancel()
        stop.set()
        connection.close()
        # The pump takes 4 pieces of 64 KiB in a turn, and may have two turns in a row, in two rounds of the loop.
        assert max(later - before for before, later in pairwise(counts)) <= 2 * 6

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
def test_a_host_that_does_not_exist(backend: str, host: str) -> None:
    """A name that cannot be found, or is none, is ServerUnavailable."""

    async def main() -> None:
        with pytest.raises(ServerUnavailable, match=host):
            await open_async_connection(host, 1, Place(host), GIVE_UP)

    run(backend, main)


@both
def test_nobody_listens(backend: str) -> None:
    """Where no server is, the error names HOST:PORT, says why, and what to do."""

    async def main(port: int) -> None:
        with pytest.raises(ServerUnavailable, match=r"no queue server at h:1 \(Connection refused\).*queue-server\.py"):
            await open_async_connection("127.0.0.1", port, Place("h:1"), GIVE_UP)

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        run(backend, lambda: main(sock.getsockname()[1]))


@both
def test_a_name_with_several_addresses(backend: str) -> None:
    """localhost is tried at each of its addresses, until one answers; names of services' hosts are looked up."""

    async def main() -> None:
        connection = await open_async_connection("localhost", server.port, Place("localhost"), GIVE_UP)
        await connection.call(calls.ping(), GIVE_UP)
        assert connection._wire._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection._wire._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()

    with scripted(numbered) as server:
        run(backend, main)
