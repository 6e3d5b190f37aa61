"""A transport with TLS, beyond what test_hub.py and test_outbox.py say of every transport."""

import random
import socket

import pytest
import trio
import trio.testing
from support.servers.tls import Reading, TlsEnd, connected

from qs_schemas.tls import TlsChannel, TlsError
from qs_serving.hub import Hub
from qs_serving.socket_transport import SocketTransport
from qs_serving.transport import CHUNK

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
async def hub(nursery: trio.Nursery) -> Hub:
    hub = Hub()
    nursery.start_soon(hub.serve)
    return hub


@pytest.fixture(params=["TLSv1_2", "TLSv1_3"])
def ends(request: pytest.FixtureRequest, hub: Hub) -> tuple[SocketTransport, TlsEnd]:
    """A transport and the client that is connected to it."""
    ours, channel, other = connected(request.param)
    assert isinstance(other, TlsEnd)
    return SocketTransport(ours, hub, channel), other


Ends = tuple[SocketTransport, TlsEnd]


async def test_a_record_in_pieces(ends: Ends, nursery: trio.Nursery) -> None:
    """An incomplete record gives no bytes; a read gives all records that it completes."""
    transport, other = ends
    seen: list[bytes] = []
    transport.start(seen.append, pytest.fail)
    other.channel.send(b"one")
    other.channel.send(b"two")
    data = other.channel.take()
    for part in (data[:3], data[3:10]):
        other.socket.sendall(part)
        await settled()
        assert seen == []
    other.socket.sendall(data[10:])
    await settled()
    assert seen == [b"onetwo"]
    transport.close()
    other.close()


async def test_nothing_waits_for_the_next_bytes(ends: Ends) -> None:
    """Everything that a full read completes is there, even beyond the read's bound."""
    transport, other = ends
    other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
    sent = random.Random(1).randbytes(300_000)
    other.send(sent)
    got, reading = b"", Reading(transport)
    while len(got) < len(sent):
        with trio.fail_after(10):
            data = await reading.some()
        assert 0 < len(data) <= CHUNK + 16 * 1024
        got += data
    assert got == sent
    transport.close()
    other.close()


async def test_many_small_records(ends: Ends, nursery: trio.Nursery) -> None:
    """A read counts as many bytes as the socket gave, also where nearly all of them are TLS's own, or no record is
    complete: the hub bounds its turns by that number."""
    transport, other = ends
    seen: list[bytes] = []
    transport.start(seen.append, pytest.fail)
    await settled()
    for _ in range(100):
        other.channel.send(b"x")
    data = other.channel.take()
    assert len(data) > 2000
    for part in (data[:-1], data[-1:]):
        other.socket.sendall(part)
        assert transport.ready() == len(part)
    assert b"".join(seen) == b"x" * 100
    other.channel.send(b"x" * 1000)
    other.socket.sendall(other.channel.take()[:900])
    assert transport.ready() == 900
    transport.close()
    other.close()


async def test_the_end_of_a_client_that_does_not_close(ends: Ends, nursery: trio.Nursery) -> None:
    """Bytes that come with the end are received first. Then every read finds the end, and answers can be sent."""
    transport, other = ends
    other.channel.send(b"last")
    other.channel.close()
    other.socket.sendall(other.channel.take())
    seen: list[bytes] = []
    transport.start(seen.append, pytest.fail)
    await settled()
    assert seen == [b"last", b""]
    await settled()
    for _ in range(2):
        assert transport.look() == b""
    await transport.send_all(b"answer")
    assert other.recv(100) == b"answer"
    await transport.send_eof()
    assert other.recv(100) == b""
    transport.close()
    other.close()


@pytest.mark.parametrize("how", ["close", "eof"])
async def test_how_it_ends(ends: Ends, how: str) -> None:
    """The client gets TLS's own end, so that it can tell the end from a cut."""
    transport, other = ends
    transport.send_now(b"bye")
    if how == "eof":
        await transport.send_eof()
    else:
        transport.close()
    data = b""
    while part := other.socket.recv(65536):
        data += part
    assert other.channel.receive(data) == b"bye"
    assert other.channel.ended
    transport.close()
    other.close()


async def test_damage(ends: Ends) -> None:
    """A record that was changed breaks the connection; the client gets an alert."""
    transport, other = ends
    other.channel.send(b"x" * 100)
    data = bytearray(other.channel.take())
    data[60] ^= 1
    other.socket.sendall(data)
    with pytest.raises(trio.BrokenResourceError) as caught:
        await Reading(transport).some()
    assert "bad record mac" in str(caught.value.__cause__)
    with pytest.raises(TlsError):
        other.recv(100)
    transport.close()
    other.close()


async def test_a_client_that_does_not_read(ends: Ends, nursery: trio.Nursery) -> None:
    """Bytes count as sent once the socket has taken their ciphertext; what was not sent is offered again, in parts of
    any size, and arrives once and in order."""
    transport, other = ends
    data = random.Random(2).randbytes(3_000_000)
    view = memoryview(data)
    sent = 0
    while count := transport.send_now(view[sent:]):
        sent += count
    assert transport.send_now(view[sent:]) == 0
    assert sent < len(data)
    assert transport.backlog() > 0
    got = b""
    other.setblocking(False)
    while sent < len(data):
        try:
            got += other.recv(CHUNK)
        except BlockingIOError:
            sent += transport.send_now(view[sent:])
    other.setblocking(True)
    while len(got) < len(data):
        got += other.recv(CHUNK)
    assert got == data
    assert transport.send_now(b"more") == 4
    assert other.recv(100) == b"more"
    transport.close()
    other.close()


async def test_what_is_sent_together_is_one_record(ends: Ends) -> None:
    """Bytes that are sent by one call are one record, up to TLS's bound."""
    transport, other = ends
    assert transport.send_now(b"x" * 16_000) == 16_000
    data = other.socket.recv(65536)
    assert int.from_bytes(data[3:5], "big") == len(data) - 5
    transport.close()
    other.close()


async def receive_all(transport: SocketTransport) -> None:
    reading = Reading(transport)
    while await reading.some():
        pass


class Talkative(TlsChannel):
    """A session that has something to send for all bytes that come, and finds no plaintext."""

    __slots__ = ()

    def receive(self, data: object) -> bytes:
        self.send(b"x" * 100)
        return b""


class TalkativeWithData(Talkative):
    """A session like `Talkative` that finds plaintext too."""

    __slots__ = ()

    def receive(self, data: object) -> bytes:
        return super().receive(data) or b" "


@pytest.mark.parametrize("kind", [Talkative, TalkativeWithData])
async def test_what_tls_says_and_nobody_reads(hub: Hub, nursery: trio.Nursery, kind: type[Talkative]) -> None:
    """A client that makes TLS itself answer, again and again, and reads no answer, is disconnected, whether it sends
    data in between or not: no other bound limits the bytes that TLS sends."""
    ours, channel, other = connected("TLSv1_3")
    assert channel is not None
    assert isinstance(other, TlsEnd)
    channel.__class__ = kind
    transport = SocketTransport(ours, hub, channel)
    other.setblocking(False)

    async def provoke() -> None:
        while True:
            try:
                other.socket.send(b"?")
            except BlockingIOError:
                pass
            except OSError:
                return
            await trio.lowlevel.checkpoint()

    with trio.fail_after(20):
        nursery.start_soon(provoke)
        with pytest.raises(trio.BrokenResourceError) as caught:
            await receive_all(transport)
        assert "does not read" in str(caught.value.__cause__)
        transport.close()
    other.close()
