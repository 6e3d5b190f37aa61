"""The hub hands out the bytes of many sockets in one pass, to the readers that want them, and wakes no one in vain."""

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest
import trio
import trio.testing
from support.servers.tls import connected

from qs_serving.hub import _SPINS, Hub
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
        self.failures: list[Exception] = []

    def start(self) -> None:
        """Begins to read; `seen` has what comes, and `failures` how it ends."""
        self.transport.start(self.seen.append, self.failures.append)


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
    """Bytes on three hundred sockets at once go to each reader once, in few turns of the hub."""
    for pair in pairs:
        pair.start()
    await settled()
    turns = hub.turns
    for number, pair in enumerate(pairs):
        pair.other.send(b"%d" % number)
    await settled()
    assert [pair.seen for pair in pairs] == [[b"%d" % number] for number in range(300)]
    assert hub.turns - turns <= 4
    assert not any(pair.failures for pair in pairs)


async def test_bytes_that_are_there_before_the_reader(hub: CountingHub, pairs: list[Pair]) -> None:
    """A reader gets the bytes of its own socket, including those that came before it."""
    for number, pair in enumerate(pairs[:150]):
        pair.other.send(b"%d" % number)
    for pair in pairs:
        pair.start()
    await settled()
    for number, pair in enumerate(pairs[150:], 150):
        pair.other.send(b"%d" % number)
    await settled()
    assert [pair.seen for pair in pairs] == [[b"%d" % number] for number in range(300)]


async def test_it_sleeps_while_nothing_comes(hub: CountingHub, pairs: list[Pair]) -> None:
    """Without traffic the hub takes no turn, even with bytes that no reader wants, or a socket that has ended."""
    for pair in pairs[:3]:
        pair.start()
    await settled()
    pairs[0].transport.hold()
    pairs[0].other.send(b"unwanted")
    pairs[1].other.shutdown(socket.SHUT_WR)
    pairs[2].transport.hold()
    pairs[2].other.close()
    await settled()
    turns = hub.turns
    await settled()  # which it does not become while a task takes turns
    assert hub.turns == turns
    assert (pairs[0].seen, pairs[1].seen, pairs[2].seen) == ([], [b""], [])


async def test_a_closed_one_is_read_no_more(pair: Pair, hub: CountingHub) -> None:
    """A closed transport reads no bytes, not even its end. A socket that gets its number is read as any."""
    pair.start()
    await settled()
    pair.transport.close()
    pair.transport.close()
    await settled()
    assert (pair.seen, pair.failures) == ([], [])
    with closing(pair.other):
        again = Pair(hub)
    again.start()
    await settled()
    again.other.send(b"x")
    await settled()
    assert again.seen == [b"x"]
    again.transport.close()
    again.other.close()


async def test_hold_and_resume_lose_nothing(pair: Pair) -> None:
    """Bytes that come while a reader holds come once it is resumed, in order, and once."""
    pair.start()
    for number in range(10):
        pair.other.send(b"%d" % number)
        for _ in range(number % 5):
            await trio.lowlevel.checkpoint()
        pair.transport.hold()
        await settled()
        pair.transport.resume()
    await settled()
    assert b"".join(pair.seen) == b"0123456789"
    assert pair.transport.look() is None


async def test_a_reset(hub: CountingHub) -> None:
    """A reader whose peer resets the connection is told so, once."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    client = socket.create_connection(listener.socket.getsockname())
    transport = SocketTransport.adopt(await listener.accept(), hub)
    assert transport.peer == "{}:{}".format(*client.getsockname())
    failures: list[Exception] = []
    ended = trio.Event()

    def failed(error: Exception) -> None:
        failures.append(error)
        ended.set()

    transport.start(lambda data: None, failed)
    await settled()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with trio.fail_after(10):
        await ended.wait()
    await settled()
    assert list(map(type, failures)) == [trio.BrokenResourceError]
    with pytest.raises(trio.BrokenResourceError):
        transport.send_now(b"x")
    transport.close()
    await listener.aclose()


@without_tls
async def test_back_pressure(pair: Pair, hub: CountingHub, nursery: trio.Nursery) -> None:
    """While a reader holds, nothing is taken from its socket, so that the other side cannot send on; then everything
    comes, in order, and no read takes more than its bound."""
    pair.start()
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
    assert pair.failures == []


@without_tls
async def test_the_bound_of_a_read(pair: Pair) -> None:
    """A read gives no more than its bound; the rest comes with the next."""
    pair.transport.limit_reads(4)
    pair.start()
    pair.other.send(b"0123456789")
    await settled()
    assert pair.seen == [b"0123", b"4567", b"89"]


async def test_a_fault_of_a_reader(pairs: list[Pair]) -> None:
    """An exception in a reader's code ends that reader alone: the hub goes on reading for the others."""
    broken, other = pairs[:2]

    def fail(data: bytes) -> None:
        broken.seen.append(data)
        raise ValueError("a bug")

    broken.transport.start(fail, broken.failures.append)
    other.start()
    await settled()
    for _ in range(2):
        for pair in (broken, other):
            pair.other.send(b"x")
        await settled()
    assert (broken.seen, list(map(str, broken.failures)), other.seen) == ([b"x"], ["a bug"], [b"x", b"x"])


@without_tls
async def test_others_have_their_turn(pairs: list[Pair], hub: CountingHub, nursery: trio.Nursery) -> None:
    """The loop's tasks run in between however much there is to read, and no reader waits for the others."""
    for pair in pairs[:20]:
        pair.start()
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
        pair.start()
    await settled()
    turns, sweeps = hub.turns, hub.sweeps
    for pair in pairs:
        pair.other.send(b"x")
    await settled()
    assert [pair.seen for pair in pairs] == [[b"x"]] * 300
    assert 2 <= hub.sweeps - sweeps <= hub.turns - turns


async def test_who_comes_first(pairs: list[Pair], hub: CountingHub, nursery: trio.Nursery) -> None:
    """One reader may be the first: whenever it is ready together with others, and again at every turn in which some are
    left."""
    order: list[int] = []

    class Noting(SocketTransport):
        number = 0

        def ready(self) -> int:
            order.append(self.number)
            return super().ready()

    for number, pair in enumerate(pairs):
        pair.transport.__class__ = Noting
        pair.transport.number = number  # type: ignore[attr-defined]
        pair.start()
    await settled()
    hub.first = pairs[200].transport
    for pair in pairs:
        pair.other.send(b"x")
    await settled()
    assert order[0] == 200
    assert set(order) == set(range(300))
    assert order[1:].count(200) >= 2


async def test_after_its_end() -> None:
    """A closed hub watches no one, and does not refuse new readers."""
    hub = Hub()
    reader = SocketTransport(socket.socket(), hub)
    hub.watch(reader)
    hub.close()
    assert not reader.watched
    hub.watch(reader)
    assert not reader.watched
    reader.close()


class _CountingPolls:
    """Stands before an epoll, and counts how often it is asked."""

    def __init__(self, epoll: select.epoll) -> None:
        self.count = 0
        self._epoll = epoll

    def __getattr__(self, name: str) -> object:
        return getattr(self._epoll, name)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self.count += 1
        return self._epoll.poll(timeout, most)


@pytest.mark.parametrize("waits", [False, True])
async def test_what_another_server_answers_is_not_asked_for_again_and_again(waits: bool) -> None:
    """After a request that waits for another server, the hub asks the kernel a few times; after others, it asks again
    and again for a moment, as a client often sends the next one."""
    hub = Hub(lambda: setattr(hub, "spins", not waits) or True)
    polls = hub._epoll = _CountingPolls(hub._epoll)  # type: ignore[assignment]
    pair = Pair(hub)
    pair.start()
    pair.other.send(b"x")
    hub._take_turn()
    assert pair.seen == [b"x"]
    assert (polls.count < 10) == (waits or not _SPINS)
    pair.other.close()
    hub.drop(pair.transport)
    pair.transport._socket.close()
    hub.close()
