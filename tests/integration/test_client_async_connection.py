"""One async connection over real sockets: many tasks on it, cancelled in every phase, and servers that fail."""

import socket
import threading
from itertools import pairwise
from typing import Any

import anyio
import pytest
from support.clients.every_client import both, opened, run, until
from support.clients.scripted_server import GIVE_UP, Conversation, answer_bytes, delivered, scripted

from qs_client import GetMessage, Message, Ping, PushMessage, ServerUnavailable, Subscribe, calls
from qs_client.asking import Exchange
from qs_client.async_opening import open_async_connection
from qs_client.place import Place
from qs_schemas import Limits, Peer

LARGE = b"x" * 20_000_000  # more than the system takes of what nobody reads


def numbered(conversation: Conversation) -> None:
    """Answers each push with its payload as the id, everything else with what it asked."""
    while (request := conversation.read()) is not None:
        if isinstance(request, PushMessage):
            assert isinstance(request.payload, bytes)
            conversation.answer(request, qid="q", mid=int(request.payload[:9]))
        else:
            conversation.answer(request)


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
    """When the task that reads for all is cancelled, another one reads on: no answer is lost, and the answer to the
    cancelled call is dropped."""
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
def test_pump(backend: str) -> None:
    """Documents that answer no call go to the pump's function, in order, while calls are made; the pump reports the end
    of the connection."""

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
        with connection.read_from_outside(got.append):
            async with anyio.create_task_group() as group:
                group.start_soon(read, connection)
                await until(lambda: len(got) == 3)
                await connection.call(calls.ping(), GIVE_UP)
                with pytest.raises(ServerUnavailable, match="closed the connection"):
                    await connection.broken()
        assert isinstance(got[0], Subscribe)
        assert [message.mid for message in got if isinstance(message, GetMessage)] == [1, 2, 3, 4]
        assert {message.req for message in got} == {"s"}

    with scripted(script) as server:
        run(backend, main)


async def read(connection: Any) -> None:
    """Reads from outside until the connection ends."""
    while connection.usable:
        await anyio.wait_readable(connection.fileno())
        connection.read()
        connection.flush()


@both
def test_a_post_that_the_socket_does_not_take(backend: str) -> None:
    """Bytes that the socket does not take at once are sent by the task that waits for the end, also while it waits."""
    posted = threading.Event()

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read())
        assert posted.wait(GIVE_UP)  # a task that reads meanwhile frees the buffer
        for _ in range(3):
            assert isinstance(conversation.read(), PushMessage)
        conversation.answer(Ping(req="done"))
        assert conversation.read() is None

    async def main() -> None:
        connection = await opened(server)
        got: list[Message] = []
        with connection.read_from_outside(got.append):
            async with anyio.create_task_group() as group:
                group.start_soon(read, connection)
                group.start_soon(connection.broken)
                await connection.call(calls.ping(), GIVE_UP)
                await anyio.wait_all_tasks_blocked()
                for _ in range(3):
                    connection.post(PushMessage("q", LARGE[:7_000_000]))
                assert connection._wire.unsent
                posted.set()
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
            connection.session.on_unmatched = got.append
            group.start_soon(connection.call, calls.ping(), None)  # reads, and is not answered
            counts = [0]
            while counts[-1] < 100:
                await anyio.lowlevel.checkpoint()
                counts.append(len(got))
            group.cancel_scope.cancel()
        stop.set()
        connection.close()
        # It takes 4 pieces of 64 KiB in a turn, and may have two turns in a row, in two rounds of the loop.
        assert max(later - before for before, later in pairwise(counts)) <= 2 * 6

    with scripted(script) as server:
        run(backend, main)


@both
def test_a_name_with_several_addresses(backend: str) -> None:
    """`localhost` is tried at each of its addresses, until one answers; names of services' hosts are looked up."""

    async def main() -> None:
        connection = await open_async_connection("localhost", server.port, Place("localhost"), GIVE_UP)
        await connection.call(calls.ping(), GIVE_UP)
        assert connection._wire._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection._wire._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()

    with scripted(numbered) as server:
        run(backend, main)
