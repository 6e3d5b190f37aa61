"""TLS handshakes over sockets: what is completed, what is refused, and what gives way."""

import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from support.servers.tls import authority, local

from qs_schemas.tls import TlsChannel, TlsError
from qs_serving.handshakes import Handshakes
from qs_serving.options import ServerLimits
from qs_serving.tls import ServerTls, TlsFiles

settled = trio.testing.wait_all_tasks_blocked
FILES = TlsFiles(str(local().cert), str(local().key))


class Side:
    """A client of a handshake, and the result of the handshake."""

    def __init__(
        self,
        handshakes: Handshakes,
        nursery: trio.Nursery,
        context: ssl.SSLContext | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """at_once: sends the first record before the server's side begins."""
        ours, theirs = socket.socketpair()
        self._ours = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        self.channel = TlsChannel(context or authority().trusting(), host="localhost")
        self.hello = self.channel.take()
        if at_once:
            theirs.send(self.hello)
        self.result: TlsChannel | None = None
        self.over = False
        nursery.start_soon(self._complete, handshakes)

    async def _complete(self, handshakes: Handshakes) -> None:
        self.result = await handshakes.complete(self._ours)
        self.over = True

    async def left(self) -> bytes:
        """Returns what the server's side has left in its socket."""
        with trio.fail_after(10):
            return await self._ours.receive_some()

    async def answer(self) -> bytes:
        """Returns what the server sends next, b"" if it closes."""
        try:
            with trio.fail_after(10):
                return await self.stream.receive_some()
        except trio.BrokenResourceError:  # it has closed and read nothing
            return b""

    async def shake_hands(self) -> None:
        await self.stream.send_all(self.hello)
        while not self.channel.established:
            self.channel.receive(await self.answer())
            await self.stream.send_all(self.channel.take())

    async def close(self) -> None:
        await self._ours.aclose()
        await self.stream.aclose()


def handshakes_with(**limits: float) -> Handshakes:
    return Handshakes(ServerTls(FILES), ServerLimits(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_what_follows_is_left(nursery: trio.Nursery, version: str) -> None:
    """The handshake takes its own records from the socket and no byte of what the client sends with the last one."""
    context = authority().trusting()
    context.maximum_version = ssl.TLSVersion[version]
    side = Side(handshakes_with(), nursery, context)
    side.channel.send(b"early")
    await side.shake_hands()
    await settled()
    assert side.over
    assert side.result is not None
    assert side.result.receive(await side.left()) == b"early"
    await side.close()


async def test_byte_by_byte(nursery: trio.Nursery) -> None:
    """A client may send its records in any pieces."""
    side = Side(handshakes_with(), nursery)
    for number in range(len(side.hello)):
        await side.stream.send_all(side.hello[number : number + 1])
        await trio.lowlevel.checkpoint()
    side.hello = b""
    await side.shake_hands()
    await settled()
    assert side.result is not None
    await side.close()


@pytest.mark.parametrize(
    "data", [b"<", b"G", b"\x80", b"\x16\x02", b"\x16\x03\x01\xff\xff", b"\x16<qs/>", b"\x15\x03\x03\x00\x02\x01\x00"]
)
async def test_what_is_no_handshake(nursery: trio.Nursery, data: bytes) -> None:
    """The first bytes that no handshake begins with end the connection, without a word."""
    side = Side(handshakes_with(), nursery)
    await side.stream.send_all(data)
    assert await side.answer() == b""
    await settled()
    assert (side.over, side.result) == (True, None)
    await side.close()


async def test_a_client_that_goes(nursery: trio.Nursery) -> None:
    """The handshake of a client that goes is over."""
    side = Side(handshakes_with(), nursery)
    await side.stream.send_all(side.hello[:100])
    await settled()
    assert not side.over
    await side.stream.aclose()
    await settled()
    assert (side.over, side.result) == (True, None)
    await side.close()


async def test_a_refused_client_is_told(nursery: trio.Nursery) -> None:
    """An alert says why; the connection stays until the client has had time to read it."""
    tls = ServerTls(TlsFiles(FILES.cert, FILES.key, str(authority().cert)))
    side = Side(Handshakes(tls, ServerLimits()), nursery)
    side.channel.send(b"early")  # would make the kernel drop the alert, if it were closed at once
    await side.shake_hands()
    with pytest.raises(TlsError, match="asks for a client certificate"):
        side.channel.receive(await side.answer())
    assert await side.answer() == b""
    await settled()
    assert not side.over
    await side.stream.aclose()
    await settled()
    assert (side.over, side.result) == (True, None)
    await side.close()


async def _nothing(side: Side) -> None:
    """Connects, and sends nothing."""


async def _half(side: Side) -> None:
    await side.stream.send_all(side.hello[:100])


async def _hello(side: Side) -> None:
    await side.stream.send_all(side.hello)


async def _bad(side: Side) -> None:
    """Sends bytes that are refused, and does not read why."""
    await side.stream.send_all(b"\x16\x03\x01\x00\x04AAAA")


Begin = Callable[[Side], Awaitable[None]]


@pytest.mark.parametrize("begin", [_nothing, _half, _hello])
async def test_its_time(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, begin: Begin) -> None:
    """A handshake that is not complete in time ends, whatever it is at."""
    side = Side(handshakes_with(document_time=7.0), nursery)
    await begin(side)
    while await side.stream.receive_some():
        pass
    assert trio.current_time() == pytest.approx(7)
    await side.close()


async def test_a_slow_client_in_time(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    """Time that passes in the middle of a record or a flight does no harm."""
    side = Side(handshakes_with(document_time=10.0), nursery)
    await trio.sleep(3)
    await side.stream.send_all(side.hello[:100])
    await trio.sleep(3)
    side.hello = side.hello[100:]
    await side.shake_hands()
    await settled()
    assert side.result is not None
    await side.close()


@pytest.mark.parametrize("begin", [_nothing, _half, _hello, _bad])
async def test_the_oldest_gives_way(nursery: trio.Nursery, begin: Begin) -> None:
    """An honest client gets in however many handshakes stand still; no more of the others end than necessary."""
    handshakes = handshakes_with(handshakes=10, linger=100.0)
    for_ever = []
    for _ in range(10):
        for_ever.append(side := Side(handshakes, nursery))
        await begin(side)
        await settled()  # so that it is known which is the oldest
    for _ in range(2):
        honest = Side(handshakes, nursery)
        await honest.shake_hands()
        await settled()
        assert honest.result is not None
        assert [side.over for side in for_ever] == [True] + [False] * 9
        await honest.close()
    handshakes.stop()
    await settled()
    for side in for_ever:
        assert (side.over, side.result) == (True, None)
        await side.close()


async def test_after_a_stop(nursery: trio.Nursery) -> None:
    """A connection that was accepted just before a stop begins no handshake."""
    handshakes = handshakes_with()
    handshakes.stop()
    side = Side(handshakes, nursery)
    assert await side.answer() == b""
    await side.close()


class Passes(trio.abc.Instrument):
    """Counts the passes of the loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_a_storm(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many handshakes are ready at once, one is worked on in each pass of the loop."""
    passes = Passes()
    worked_on: list[int] = []
    receive = TlsChannel.receive

    def noting(channel: TlsChannel, data: bytes) -> bytes:
        worked_on.append(passes.count)
        return receive(channel, data)

    handshakes = handshakes_with()
    monkeypatch.setattr(TlsChannel, "receive", noting)
    trio.lowlevel.add_instrument(passes)
    sides = [Side(handshakes, nursery, at_once=True) for _ in range(50)]
    await settled()
    assert len(worked_on) == len(set(worked_on)) == 50
    trio.lowlevel.remove_instrument(passes)
    handshakes.stop()
    await settled()
    for side in sides:
        await side.close()
