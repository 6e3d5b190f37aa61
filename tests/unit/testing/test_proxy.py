"""The proxy: it forwards all bytes in their order, and each fault does to a connection what it says."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.clients.documents import PING, push

from qs_testing.proxy import Proxy

ANSWER = b'<qs xmlns="u" type="response"><op><push-message/></op><qid>q</qid><mid>1</mid></qs>\r\n'
PONG = b'<qs xmlns="u" type="response"><op><ping/></op></qs>\r\n'
REFUSED = b'<qs xmlns="u" type="error"><error code="507" type="full">the disk is full</error></qs>\r\n'
PUSH = push("q", "x").encode()
LONG = 3600


@dataclass
class Place:
    """A proxy, and the listening socket of its target."""

    proxy: Proxy
    target: socket.socket

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Returns the client's and the server's end of a new connection."""
        return self.knock(), self.accept()

    def knock(self) -> socket.socket:
        return socket.create_connection((self.proxy.host, self.proxy.port), 20)

    def accept(self) -> socket.socket:
        server, _ = self.target.accept()
        server.settimeout(20)
        return server


@pytest.fixture
def place() -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(20)
        with Proxy("127.0.0.1", target.getsockname()[1]) as proxy:
            yield Place(proxy, target)


@pytest.fixture
def ends(place: Place) -> Iterator[tuple[socket.socket, socket.socket]]:
    client, server = place.connect()
    with client, server:
        yield client, server


Ends = tuple[socket.socket, socket.socket]


def read(end: socket.socket, size: int) -> bytes:
    """Returns that many bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < size and (part := end.recv(size - len(data))):
        data += part
    return data


def has_nothing(end: socket.socket) -> bool:
    """Tells whether nothing has come. Whatever was sent before the proxy's last answer has come by now."""
    return not select.select([end], [], [], 0)[0]


def was_reset(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b"never"
    except ConnectionResetError:
        return True


def test_all_bytes_pass(ends: Ends) -> None:
    """Megabytes pass in both directions at once, while each side reads slower than the other writes."""
    client, server = ends
    sent = [bytes([n]) * 4_000_000 for n in (1, 2)]
    threads = [threading.Thread(target=end.sendall, args=(data,)) for end, data in zip(ends, sent, strict=True)]
    for thread in threads:
        thread.start()
    assert read(server, len(sent[0])) == sent[0]
    assert read(client, len(sent[1])) == sent[1]
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("first", [0, 1])
def test_ends_pass(ends: Ends, first: int) -> None:
    """One side ends its half, and still gets what the other sends before that one's end; no reset."""
    one, other = ends[first], ends[1 - first]
    one.sendall(b"last words")
    one.shutdown(socket.SHUT_WR)
    assert read(other, 100) == b"last words"
    other.sendall(b"an answer")
    other.close()
    assert read(one, 100) == b"an answer"
    assert one.recv(1) == b""


@pytest.mark.parametrize("first", [0, 1])
def test_a_reset_passes(place: Place, ends: Ends, first: int) -> None:
    """A side that is killed in the middle resets the connection of the other."""
    one, other = ends[first], ends[1 - first]
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    one.close()
    assert was_reset(other)


def test_no_server(place: Place) -> None:
    """Without a server behind it, a connection is reset; with one on another port, new connections go there."""
    place.target.close()
    with pytest.raises(ConnectionResetError), place.knock() as client:  # either of them may see the reset
        client.recv(1)
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        place.proxy.target = elsewhere.getsockname()
        place.target = elsewhere
        client, server = place.connect()
        with client, server:
            client.sendall(b"x")
            assert server.recv(1) == b"x"


def test_a_delay(place: Place, ends: Ends) -> None:
    """Each direction is delayed, and keeps its order; what came before the delay ended still waits for its time."""
    client, server = ends
    place.proxy.delay(0.05)
    began = time.monotonic()
    client.sendall(b"there")
    assert read(server, 5) == b"there"
    server.sendall(b"back")
    assert read(client, 4) == b"back"
    assert time.monotonic() - began >= 0.1
    client.sendall(b"first ")
    place.proxy.delay(0)
    client.sendall(b"second")
    client.shutdown(socket.SHUT_WR)
    assert read(server, 100) == b"first second"


def test_a_long_delay(place: Place, ends: Ends) -> None:
    """No byte comes before its time, and a cut does not wait for it."""
    client, server = ends
    place.proxy.delay(LONG)
    client.sendall(b"x")
    place.proxy.cut()
    assert was_reset(server)
    assert was_reset(client)


def test_a_stall(place: Place, ends: Ends) -> None:
    """No byte passes while it stalls, no connection is made, and afterwards everything comes."""
    client, server = ends
    place.proxy.stall()
    client.sendall(b"to the server")
    server.sendall(b"to the client")
    with place.knock() as late:
        late.sendall(b"late")
        place.proxy.stall()
        assert has_nothing(server)
        assert has_nothing(client)
        assert has_nothing(place.target)
        place.proxy.resume()
        assert read(server, 13) == b"to the server"
        assert read(client, 13) == b"to the client"
        with place.accept() as accepted:
            assert read(accepted, 4) == b"late"


def test_a_cut(place: Place, ends: Ends) -> None:
    """All connections are reset on both sides when the call returns, and new ones work."""
    others = place.connect()
    place.proxy.cut()
    for end in (*ends, *others):
        assert was_reset(end)
        end.close()
    client, server = place.connect()
    with client, server:
        client.sendall(b"x")
        assert server.recv(1) == b"x"


@pytest.mark.parametrize("after", [1, 20, len(PONG) - 1, len(PONG), 10_000])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_cut_in_an_answer(place: Place, ends: Ends, after: int, pieces: int) -> None:
    """The client gets so many bytes of the answer, never all of its line, and then a reset; the request has arrived.
    The next connection has its answers."""
    client, server = ends
    place.proxy.cut_in_answer(after)
    client.sendall(PING.encode())
    assert read(server, len(PING)) == PING.encode()
    size = -(-len(PONG) // pieces)
    received = b""
    for at in range(0, len(PONG), size):
        with contextlib.suppress(ConnectionError):  # it was cut in an earlier piece
            server.sendall(PONG[at : at + size])
        while len(received) < min(at + size, after, len(PONG) - 1):
            received += client.recv(1000)
    assert PONG.startswith(received)
    assert min(after, len(PONG) - 2) <= len(received) < len(PONG)
    assert was_reset(client)
    client, server = place.connect()
    with client, server:
        server.sendall(PONG)
        assert read(client, len(PONG)) == PONG


@pytest.mark.parametrize("at", [0, 1, PUSH.index(b"push-message") + 5, len(PUSH) - 1])
def test_an_answer_is_lost(place: Place, ends: Ends, at: int) -> None:
    """The push arrives whole, however it is cut into pieces; answers to others pass, the push's does not, and the
    connection is reset. Other connections are not concerned, nor is the next push."""
    client, server = ends
    others = place.connect()
    place.proxy.lose_answer()
    client.sendall(PING.encode() + PUSH[:at])
    assert read(server, len(PING) + at) == PING.encode() + PUSH[:at]
    client.sendall(PUSH[at:])
    assert read(server, len(PUSH) - at) == PUSH[at:]
    server.sendall(PONG[:10])
    server.sendall(PONG[10:] + REFUSED + ANSWER[:30])
    assert read(client, len(PONG + REFUSED)) == PONG + REFUSED
    server.sendall(ANSWER[30:] + PONG)
    assert was_reset(client)
    assert was_reset(server)
    client, server = others
    with client, server:
        client.sendall(PUSH)
        assert read(server, len(PUSH)) == PUSH
        server.sendall(ANSWER)
        assert read(client, len(ANSWER)) == ANSWER


def test_an_answer_never_comes(place: Place, ends: Ends) -> None:
    """Without a cut, the connection stays, requests still arrive, and the client waits for the answers in vain."""
    client, server = ends
    place.proxy.lose_answer(cut=False)
    client.sendall(PUSH)
    assert read(server, len(PUSH)) == PUSH
    server.sendall(ANSWER)
    client.sendall(PING.encode())
    assert read(server, len(PING)) == PING.encode()
    server.sendall(PONG)
    server.close()
    assert client.recv(100) == b""  # the end of the connection comes, after all that would have come before


def test_it_refuses(place: Place, ends: Ends) -> None:
    """New connections are refused, and open ones stay; then the same port accepts again."""
    client, server = ends
    for _ in range(3):
        place.proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            place.knock()
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        place.proxy.admit()
        for end in place.connect():
            end.close()


def test_it_heals(place: Place, ends: Ends) -> None:
    """All faults end at once, and what was kept back comes."""
    client, server = ends
    proxy = place.proxy
    proxy.lose_answer()
    client.sendall(PUSH)
    assert read(server, len(PUSH)) == PUSH
    server.sendall(PONG + ANSWER[:30])
    assert read(client, len(PONG)) == PONG
    proxy.lose_answer()
    proxy.cut_in_answer()
    proxy.delay(LONG)
    proxy.refuse()
    proxy.stall()
    proxy.heal()
    server.sendall(ANSWER[30:])
    assert read(client, len(ANSWER)) == ANSWER
    for end in place.connect():
        end.close()


def test_it_closes(place: Place, ends: Ends) -> None:
    """Its connections are reset, its port is free, its thread has ended; closing twice does no harm."""
    place.proxy.close()
    assert was_reset(ends[0])
    with socket.create_server((place.proxy.host, place.proxy.port)):
        pass
    assert not place.proxy._thread.is_alive()
    place.proxy.close()
