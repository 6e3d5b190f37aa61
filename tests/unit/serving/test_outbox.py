"""Tests the bytes that wait to be read by one client: sent in order, counted, reported, and dropped when the client has
gone."""

import socket

import pytest
import trio
import trio.testing
from support.servers.tls import Reading, channels

from qs_serving.hub import Hub
from qs_serving.outbox import Outbox
from qs_serving.socket_transport import SocketTransport


class Pipe:
    """A transport that takes as many bytes at once as it has capacity for, and the rest later. begun: the bytes that
    the next call has to bring again, as with TLS."""

    begun = 0

    def __init__(self) -> None:
        self.room = 0
        self.taken = b""
        self.broken = False
        self._changed = trio.Event()

    def give(self, room: int) -> None:
        self.room += room
        self._changed.set()
        self._changed = trio.Event()

    def break_off(self) -> None:
        self.broken = True
        self.give(0)

    def send_now(self, data: bytes | memoryview) -> int:
        if self.broken:
            raise trio.BrokenResourceError
        part = bytes(data[: self.room])
        self.taken += part
        self.room -= len(part)
        return len(part)

    async def send_all(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest := rest[self.send_now(rest) :]:
            await self._changed.wait()


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.fixture
def told() -> list[object]:
    """The tokens of which the outbox has said that they were written."""
    return []


@pytest.fixture
def outbox(pipe: Pipe, told: list[object], nursery: trio.Nursery) -> Outbox:
    return Outbox(pipe, nursery, told.append)


settled = trio.testing.wait_all_tasks_blocked


async def test_what_is_taken_at_once(pipe: Pipe, outbox: Outbox, told: list[object], nursery: trio.Nursery) -> None:
    """Bytes that the socket takes at once need no task, and their token is not told: the caller knows."""
    pipe.give(100)
    assert outbox.put(b"one", 1)
    assert outbox.put(b"two")
    assert outbox.put(b"three")
    await outbox.drained()
    assert (pipe.taken, outbox.unsent, told, len(nursery.child_tasks)) == (b"onetwothree", 0, [], 0)


async def test_order_and_tokens(pipe: Pipe, outbox: Outbox, told: list[object], nursery: trio.Nursery) -> None:
    """Waiting bytes are sent in the order in which they were put, in whatever pieces; each token is told when its last
    byte has gone; then the task ends."""
    pipe.give(2)
    assert not outbox.put(b"abcd", 1)
    assert not outbox.put(b"efg", 2)
    assert not outbox.put(b"hi")
    assert not outbox.put(b"jk", 4)
    assert (pipe.taken, outbox.unsent) == (b"ab", 9)
    for room, taken, tokens in (
        (1, b"abc", []), (2, b"abcde", [1]), (4, b"abcdefghi", [1, 2]), (9, b"abcdefghijk", [1, 2, 4])
    ):  # fmt: skip
        pipe.give(room)
        await settled()
        assert (pipe.taken, told) == (taken, tokens)
    assert (outbox.unsent, len(nursery.child_tasks)) == (0, 0)
    assert outbox.put(b"!")
    assert pipe.taken.endswith(b"jk!")


async def test_documents_sent_together(pipe: Pipe, outbox: Outbox, told: list[object]) -> None:
    """Documents that are put together wait one by one if the socket does not take them: those that have not begun can
    be withdrawn, and each token is told."""
    pipe.give(100)
    documents = [b"<0>", b"<1>", b"<2>", b"<3>"]
    assert outbox.put_all(documents, b"".join(documents), range(4)) == 4
    pipe.room = 4
    assert outbox.put_all(documents, b"".join(documents), range(4)) == 1
    assert outbox.put_all([b"<4>"], b"<4>", [4]) == 0
    assert outbox.unsent == 11
    await settled()
    outbox.withdraw(lambda token: token == 2)
    assert outbox.unsent == 8
    pipe.give(2)
    await settled()
    assert (pipe.taken, told) == (b"<0><1><2><3><0><1>", [1])
    pipe.give(100)
    await settled()
    assert (pipe.taken, told, outbox.unsent) == (b"<0><1><2><3><0><1><3><4>", [1, 3, 4], 0)
    outbox.close()
    assert outbox.put_all(documents, b"".join(documents), range(4)) == 0


@pytest.mark.parametrize("taken", [0, 2, 3])
async def test_documents_that_are_encrypted_together(
    taken: int, pipe: Pipe, outbox: Outbox, told: list[object]
) -> None:
    """Bytes that the transport has encrypted already are brought to it again in one piece."""
    pipe.room, pipe.begun = taken, 5
    documents = [b"<0>", b"<1>", b"<2>", b"<3>"]
    assert outbox.put_all(documents, b"".join(documents), range(4)) == taken // 3
    assert outbox.unsent == 12 - taken
    first, _ = outbox._waiting[0]  # type: ignore[index]
    assert len(first) >= pipe.begun
    pipe.give(100)
    await settled()
    assert (pipe.taken, told, outbox.unsent) == (b"<0><1><2><3>", list(range(taken // 3, 4)), 0)


async def test_drained_waits_for_everything(pipe: Pipe, outbox: Outbox, nursery: trio.Nursery) -> None:
    """`drained` returns when no bytes wait any more, including those put before the call."""
    done: list[str] = []

    async def send(what: str) -> None:
        outbox.put(what.encode())
        await outbox.drained()
        done.append(what)

    outbox.put(b"first")
    nursery.start_soon(send, "second")
    await settled()
    pipe.give(len("firstsecon"))
    await settled()
    assert done == []
    pipe.give(1)
    await settled()
    assert (done, pipe.taken) == (["second"], b"firstsecond")


async def test_more_is_put_while_it_is_sent(pipe: Pipe, outbox: Outbox, told: list[object]) -> None:
    """Bytes put while others are sent follow them, again and again."""
    for number in range(50):
        outbox.put(b"%02d" % number, number)
        pipe.give(1)
        await settled()
    pipe.give(50)
    await settled()
    assert pipe.taken == b"".join(b"%02d" % number for number in range(50))
    assert told == list(range(50))


@pytest.mark.parametrize("waiting", [True, False])
async def test_a_broken_stream(pipe: Pipe, outbox: Outbox, told: list[object], waiting: bool) -> None:
    """Once the stream is broken, nothing is sent or told, further bytes are dropped, and waiters are told so."""
    if waiting:
        outbox.put(b"one", 1)
        await settled()
    pipe.break_off()
    assert not outbox.put(b"two", 2)
    with pytest.raises(trio.BrokenResourceError):
        await outbox.drained()
    assert outbox.closed
    assert not outbox.put(b"four", 4)
    await settled()
    assert (pipe.taken, told, outbox.unsent) == (b"", [], 0)


async def test_close(pipe: Pipe, outbox: Outbox, told: list[object], nursery: trio.Nursery) -> None:
    """When the outbox is closed, the rest is not sent, and waiters for it are told so."""
    outcome: list[str] = []

    async def wait() -> None:
        try:
            await outbox.drained()
        except trio.BrokenResourceError:
            outcome.append("broken")

    outbox.put(b"one", 1)
    outbox.put(b"two", 2)
    nursery.start_soon(wait)
    await settled()
    outbox.close()
    await settled()
    assert (outcome, outbox.unsent) == (["broken"], 0)
    pipe.give(100)
    await settled()
    assert (told, len(nursery.child_tasks)) == ([], 0)
    assert b"two" not in pipe.taken


@pytest.mark.parametrize("tls", [None, "TLSv1_2", "TLSv1_3"])
async def test_over_a_real_socket(nursery: trio.Nursery, tls: str | None) -> None:
    """Far more than a socket's buffer holds arrives whole and in order at a reader that starts late; a reader that
    goes breaks it."""
    hub = Hub()
    nursery.start_soon(hub.serve)
    ours, theirs = socket.socketpair()
    client, server = channels(tls) if tls else (None, None)
    transport, reader = SocketTransport(ours, hub, server), SocketTransport(theirs, hub, client)
    told: list[object] = []
    outbox = Outbox(transport, nursery, told.append)
    parts = [bytes([number]) * 100_000 for number in range(50)]
    written = [outbox.put(part, number) for number, part in enumerate(parts)]
    assert not all(written)
    received, reading = b"", Reading(reader)
    while len(received) < 5_000_000:
        received += await reading.some()
    assert received == b"".join(parts)
    await outbox.drained()
    assert told == [number for number, at_once in enumerate(written) if not at_once]
    for part in parts:
        outbox.put(part)
    reader.close()
    with pytest.raises(trio.BrokenResourceError):
        await outbox.drained()
    transport.close()


OPTIONS = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 15,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
}


async def test_keepalive() -> None:
    """The kernel's keepalive notices within half a minute that a machine has gone without a word."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    client = await trio.open_tcp_stream(*listener.socket.getsockname())
    transport = SocketTransport.adopt(await listener.accept(), Hub())
    assert {option: transport._socket.getsockopt(*option) for option in OPTIONS} == OPTIONS
    idle, interval, count = (
        OPTIONS[socket.IPPROTO_TCP, name] for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle + interval * count <= 30
    transport.close()
    for each in (client, listener):
        await each.aclose()


async def test_two_wait_for_everything(pipe: Pipe, outbox: Outbox) -> None:
    """Any number of tasks can wait until everything is sent, also after one that has given up."""
    outbox.put(b"one")
    with trio.move_on_after(0):
        await outbox.drained()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.drained)
        nursery.start_soon(outbox.drained)
        await settled()
        pipe.give(3)
    assert pipe.taken == b"one"


async def test_what_is_withdrawn(pipe: Pipe, outbox: Outbox, told: list[object]) -> None:
    """Withdrawn bytes are neither sent nor reported; those that the socket may have begun to take are sent to their
    end."""
    pipe.give(2)
    for number in range(5):
        outbox.put(b"<%d>" % number, number)
    outbox.put(b"<no token>")
    await settled()
    outbox.withdraw(lambda token: token != 1)
    assert outbox.unsent == len("><1><no token>")
    pipe.give(100)
    await settled()
    assert (pipe.taken, told, outbox.unsent) == (b"<0><1><no token>", [0, 1], 0)


async def test_cut_off_in_the_middle(pipe: Pipe, told: list[object]) -> None:
    """When the sending task is cancelled in the middle of a piece, no bytes are put behind that half."""
    async with trio.open_nursery() as nursery:
        outbox = Outbox(pipe, nursery, told.append)
        pipe.give(2)
        outbox.put(b"one", 1)
        await settled()
        nursery.cancel_scope.cancel()
    pipe.give(100)
    assert not outbox.put(b"two", 2)
    assert (pipe.taken, told) == (b"on", [])


async def test_emptied_is_called_when_nothing_waits(pipe: Pipe, nursery: trio.Nursery) -> None:
    """The callback is called once the socket has taken the bytes that waited, and when the outbox is closed before."""
    emptied: list[int] = []
    outbox = Outbox(pipe, nursery, emptied=lambda: emptied.append(outbox.unsent))  # type: ignore[arg-type]
    pipe.give(1)
    outbox.put(b"a")
    assert emptied == []
    outbox.put(b"bc")
    outbox.put(b"d")
    await settled()
    assert emptied == []
    pipe.give(3)
    await settled()
    assert emptied == [0]
    outbox.put(b"e")
    outbox.close()
    pipe.give(1)
    await settled()
    assert emptied == [0, 0]
