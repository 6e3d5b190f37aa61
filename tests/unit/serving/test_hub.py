"""The hub hands out the bytes of many sockets in one pass, to the readers that want them, and wakes no one in vain."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest
import trio
import trio.testing
from support.tls_pairs import connected

from qs_serving.hub import Hub
from qs_serving.socket_transport import SocketTransport
from qs_serving.transport import CHUNK

settled = trio.testing.wait_all_tasks_blocked
without_tls = pytest.mark.parametrize("pairs", [None], indirect=True)
"""For tests that fill a socket, or count its bytes."""


class CountingHub(Hub):
    """Counts its turns, and the sweeps in them."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.turns = 0
        self.sweeps = 0
        self.may_go_on = True

    def _take_turn(self) -> None:
        self.turns += 1
        super()._take_turn()

    def _count(self) -> bool:
        self.sweeps += 1
        return self.may_go_on


class Pair:
    """A transport that is read from by the hub, and the other side of its connection, a blocking socket."""

    def __init__(self, hub: Hub, tls: str | None = None) -> None:
        """tls: the version, None for none."""
        ours, channel, self.other = connected(tls)
        self.transport = SocketTransport(ours, hub, channel)
        self.seen: list[bytes] = []
        self.outcome: object = None

    async def feed(self) -> None:
        """Waits until it is roused; `outcome` says how it ended."""
        try:
            await self.transport.feed(self.seen.append)
            self.outcome = "roused"
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.outcome = type(error)

    async def receive(self) -> None:
        """One read; `outcome` is what it gave."""
        try:
            self.outcome = await self.transport.receive_some(CHUNK)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.outcome = type(error)


@pytest.fixture
async def hub(nursery: trio.Nursery) -> CountingHub:
    hub = CountingHub()
    nursery.start_soon(hub.serve)
    return hub


@pytest.fixture(params=[None, "TLSv1_3"])
def pairs(request: pytest.FixtureRequest, hub: CountingHub) -> Iterator[list[Pair]]:
    """Three hundred: more than the kernel is asked for at once."""
    pairs = [Pair(hub, request.param) for _ in range(300)]
    yield pairs
    for pair in pairs:
        pair.other.close()
        if pair.transport.fileno() >= 0:
            hub.drop(pair.transport)
            pair.transport._socket.close()


@pytest.fixture
def pair(pairs: list[Pair]) -> Pair:
    return pairs[0]


async def test_many_at_once(hub: CountingHub, pairs: list[Pair], nursery: trio.Nursery) -> None:
    """Bytes on three hundred sockets at once go to each reader once, in few turns, and wake no task."""
    for pair in pairs:
        nursery.start_soon(pair.feed)
    await settled()
    turns = hub.turns
    for number, pair in enumerate(pairs):
        pair.other.send(b"%d" % number)
    await settled()
    assert [pair.seen for pair in pairs] == [[b"%d" % number] for number in range(300)]
    assert [pair.outcome for pair in pairs] == [None] * 300
    assert hub.turns - turns <= 4
    for pair in pairs:
        pair.transport.rouse()
    await settled()
    assert [pair.outcome for pair in pairs] == ["roused"] * 300


async def test_tasks_that_wait(hub: CountingHub, pairs: list[Pair], nursery: trio.Nursery) -> None:
    """Tasks that wait in a read get what comes, each its own, also when it was there before."""
    for number, pair in enumerate(pairs[:150]):
        pair.other.send(b"%d" % number)
    for pair in pairs:
        nursery.start_soon(pair.receive)
    await settled()
    for number, pair in enumerate(pairs[150:], 150):
        pair.other.send(b"%d" % number)
    await settled()
    assert [pair.outcome for pair in pairs] == [b"%d" % number for number in range(300)]


async def test_it_sleeps_while_nothing_comes(hub: CountingHub, pairs: list[Pair], nursery: trio.Nursery) -> None:
    """Without traffic it takes no turn, also with something that nobody wants to read, or that has ended."""
    for pair in pairs[:3]:
        nursery.start_soon(pair.feed)
    await settled()
    pairs[0].transport.hold()
    pairs[0].other.send(b"unwanted")
    pairs[1].other.shutdown(socket.SHUT_WR)
    pairs[2].transport.rouse()
    pairs[2].other.close()
    await settled()
    turns = hub.turns
    await settled()  # which it does not become while a task takes turns
    assert hub.turns == turns
    assert (pairs[0].seen, pairs[1].seen, pairs[2].seen) == ([], [b""], [])


@pytest.mark.parametrize("how", ["feed", "receive"])
async def test_closed_while_it_waits(pair: Pair, nursery: trio.Nursery, how: str, hub: CountingHub) -> None:
    """A reader whose stream is closed by another task gets an error; a socket that gets its number is read as any."""
    nursery.start_soon(getattr(pair, how))
    await settled()
    await pair.transport.aclose()
    await settled()
    assert pair.outcome is trio.ClosedResourceError
    with closing(pair.other):
        again = Pair(hub)
    nursery.start_soon(again.feed)
    await settled()
    again.other.send(b"x")
    await settled()
    assert again.seen == [b"x"]
    await again.transport.aclose()
    again.other.close()
    await settled()
    assert again.outcome is trio.ClosedResourceError


@pytest.mark.parametrize("how", ["feed", "receive"])
async def test_a_cancelled_read_loses_nothing(pair: Pair, how: str) -> None:
    """Bytes that come after a cancelled read are there for the next one, which may begin at once."""
    got = b""
    for number in range(3):
        pair.outcome = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(getattr(pair, how))
            await settled()
            nursery.cancel_scope.cancel()
        got += pair.outcome if isinstance(pair.outcome, bytes) else b""
        pair.other.send(b"%d" % number)
    assert got + b"".join(pair.seen) == b"01"
    assert await pair.transport.receive_some(CHUNK) == b"2"


async def test_cancelled_as_it_comes(pair: Pair) -> None:
    """Bytes that come in the moment in which a read is cancelled are its result, or there for the next one."""
    got = b""
    for number in range(10):
        pair.outcome = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.receive)
            await settled()
            pair.other.send(b"%d" % number)
            for _ in range(number % 5):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert isinstance(pair.outcome, bytes)
        got += pair.outcome
    pair.other.close()
    while data := await pair.transport.receive_some(CHUNK):
        got += data
    assert got == b"0123456789"


@pytest.mark.parametrize("how", ["feed", "receive"])
async def test_a_reset(nursery: trio.Nursery, hub: CountingHub, how: str) -> None:
    """A reader whose peer resets the connection gets an error."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    client = socket.create_connection(listener.socket.getsockname())
    transport = SocketTransport.adopt(await listener.accept(), hub)
    assert transport.peer == "{}:{}".format(*client.getsockname())
    pair = Pair.__new__(Pair)
    pair.transport, pair.seen, pair.outcome = transport, [], None
    ended = trio.Event()

    async def read() -> None:
        await getattr(pair, how)()
        ended.set()

    nursery.start_soon(read)
    await settled()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with trio.fail_after(10):
        await ended.wait()
    assert pair.outcome is trio.BrokenResourceError
    await transport.aclose()
    await listener.aclose()


@without_tls
async def test_back_pressure(pair: Pair, hub: CountingHub, nursery: trio.Nursery) -> None:
    """While a reader holds, nothing is taken from its socket, so that the other side cannot send on; then everything
    comes, in order, and no read takes more than its bound."""
    nursery.start_soon(pair.feed)
    await settled()
    pair.transport.hold()
    pair.other.setblocking(False)
    sent = b""
    for number in range(100_000):
        try:
            part = b"%06d" % number * 1000
            sent += part[: pair.other.send(part)]
        except BlockingIOError:
            break
        if number % 10 == 0:
            await settled()
    assert 0 < len(sent) < 100_000_000
    assert pair.seen == []
    pair.transport.resume()
    await settled()
    assert b"".join(pair.seen) == sent
    assert max(map(len, pair.seen)) <= CHUNK
    assert pair.outcome is None


@without_tls
async def test_the_bound_of_a_read(pair: Pair) -> None:
    """A read gives no more than it was asked for, whether it had to wait or not."""
    pair.other.send(b"0123456789")
    assert await pair.transport.receive_some(4) == b"0123"
    assert await pair.transport.receive_some(100) == b"456789"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_expect, pair, b"abc")
        await settled()
        pair.other.send(b"abcdef")
    assert await pair.transport.receive_some(4) == b"def"


async def _expect(pair: Pair, data: bytes) -> None:
    assert await pair.transport.receive_some(len(data)) == data


async def test_a_fault_of_a_reader(pairs: list[Pair], nursery: trio.Nursery) -> None:
    """An exception in a reader's code is raised where that reader waits; the others are served on."""
    broken, other = pairs[:2]

    def fail(data: bytes) -> None:
        raise ValueError("a bug")

    async def wait() -> None:
        with pytest.raises(ValueError, match="a bug"):
            await broken.transport.feed(fail)
        broken.outcome = "told"

    nursery.start_soon(wait)
    nursery.start_soon(other.feed)
    await settled()
    for pair in (broken, other):
        pair.other.send(b"x")
    await settled()
    assert (broken.outcome, other.outcome, other.seen) == ("told", None, [b"x"])


@without_tls
async def test_others_have_their_turn(pairs: list[Pair], hub: CountingHub, nursery: trio.Nursery) -> None:
    """The loop's tasks run in between however much there is to read, and no reader waits for the others."""
    for pair in pairs[:20]:
        nursery.start_soon(pair.feed)
    await settled()
    for pair in pairs[:20]:
        pair.other.setblocking(False)
        pair.other.send(bytes(150_000))
    total, steps = 0, 0
    while total < 20 * 150_000:
        await trio.lowlevel.checkpoint()
        read = sum(len(data) for pair in pairs[:20] for data in pair.seen)
        assert read - total <= 2 * (128 * 1024 + CHUNK)  # the loop may run two turns in a row, in two rounds
        counts = [len(pair.seen) for pair in pairs[:20]]
        assert max(counts) - min(counts) <= 1
        total, steps = read, steps + 1
    assert steps >= 10


async def test_a_turn_ends_when_something_is_to_be_done(
    pairs: list[Pair], hub: CountingHub, nursery: trio.Nursery
) -> None:
    """After each pass, the hub asks whether to go on; if not, a turn has one pass."""
    hub.may_go_on = False
    for pair in pairs:
        nursery.start_soon(pair.feed)
    await settled()
    turns, sweeps = hub.turns, hub.sweeps
    for pair in pairs:
        pair.other.send(b"x")
    await settled()
    assert [pair.seen for pair in pairs] == [[b"x"]] * 300
    assert 2 <= hub.sweeps - sweeps <= hub.turns - turns


async def test_who_comes_first(pairs: list[Pair], hub: CountingHub, nursery: trio.Nursery) -> None:
    """One reader may be the first: whenever it is ready with others, and again at every turn in which some are left."""
    order: list[int] = []

    class Noting(SocketTransport):
        number = 0

        def ready(self) -> int:
            order.append(self.number)
            return super().ready()

    for number, pair in enumerate(pairs):
        pair.transport.__class__ = Noting
        pair.transport.number = number  # type: ignore[attr-defined]
        nursery.start_soon(pair.feed)
    await settled()
    hub.first = pairs[200].transport
    for pair in pairs:
        pair.other.send(b"x")
    await settled()
    assert order[0] == 200
    assert set(order) == set(range(300))
    assert order[1:].count(200) >= 2


async def test_one_task_reads(pair: Pair, nursery: trio.Nursery) -> None:
    """A second task that wants to read a socket on which another one waits gets an error."""
    nursery.start_soon(pair.feed)
    await settled()
    with pytest.raises(trio.BusyResourceError):
        await pair.transport.receive_some(1)


async def test_after_its_end() -> None:
    """A closed hub watches no one, and does not refuse new readers."""
    hub = Hub()
    reader = SocketTransport(socket.socket(), hub)
    hub.watch(reader)
    hub.close()
    assert not reader.watched
    hub.watch(reader)
    assert not reader.watched
    await reader.aclose()
