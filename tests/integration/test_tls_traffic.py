"""Tests what clients do with a server and a bus over TLS: much at once, too much, slowly, and the end."""

import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.documents import PING, code, mids, new_queue, push, receive, request, subscribe
from support.servers.processes import FAST, ServerProcess, Wire, bus_serving, serving
from support.servers.tls import TlsEnd, TlsWire, half_handshake, speak_raw, tls_flags


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with TLS, for all tests of this file: each has its own queues."""
    flags = (*FAST, *tls_flags(), "--max-document", "3000000")
    with serving(tmp_path_factory.mktemp("secure") / "root", *flags) as process:
        yield process


def test_many_requests_at_once(secure: ServerProcess) -> None:
    """Requests that come together are answered in order, also when their answers fill many records."""
    with TlsWire(secure) as wire:
        wire.ask(new_queue("many"))
        for start in range(0, 3000, 500):
            wire.send(*(push("many", "x" * (number % 1000), req=str(number)) for number in range(start, start + 500)))
            answers = [wire.line() for _ in range(500)]
            assert [f'req="{number}"' in answer for number, answer in enumerate(answers, start)] == [True] * 500


def test_large_messages(secure: ServerProcess) -> None:
    """A document of two million bytes arrives whole, in both directions."""
    with TlsWire(secure) as wire:
        wire.ask(new_queue("large"))
        payload = "0123456789" * 200_000
        assert mids(wire.ask(push("large", payload)))
        assert payload in wire.ask(receive("large"))


def test_a_wait(secure: ServerProcess) -> None:
    """A receive that waits gets what another client pushes."""
    with TlsWire(secure) as one, TlsWire(secure) as two:
        one.ask(new_queue("wait"))
        one.send(receive("wait", wait=20))
        (mid,) = mids(two.ask(push("wait", "x")))
        assert mids(one.line()) == [mid]


def test_who_is_refused_can_read_why(secure: ServerProcess) -> None:
    """A client that sends too much gets 413 and the end of the session, though it goes on sending."""
    with TlsWire(secure) as wire:
        with contextlib.suppress(ssl.SSLError, OSError):
            wire.send(PING, push("q", "x" * 3_500_000))
        assert code(wire.line()) == 0
        assert code(wire.line()) == 413
        assert wire.line() == ""


def test_who_ends_its_side(secure: ServerProcess) -> None:
    """A client that says in TLS that it has nothing more to ask gets its answers, and the same word back, though its
    socket stays open."""
    with contextlib.closing(TlsEnd.connect(secure)) as end:
        end.send((new_queue("ending") + receive("ending", wait=600)).encode())
        end.shutdown(socket.SHUT_WR)
        answers = b""
        while data := end.recv(65536):
            answers += data
        assert [code(line) for line in answers.decode().splitlines()] == [0, 0]


def test_a_slow_reader(secure: ServerProcess) -> None:
    """Far more than sockets hold waits for a client that does not read, and arrives whole; others are served."""
    with TlsWire(secure) as slow, TlsWire(secure) as other:
        slow.ask(new_queue("slow"))
        (mid,) = mids(slow.ask(push("slow", "x" * 1_000_000)))
        slow.send(*[request("get-message", f"<qid>slow</qid><mid>{mid}</mid>", peek="yes")] * 30)
        assert code(other.ask(PING)) == 0
        for _ in range(30):
            assert "x" * 1_000_000 in slow.line()


def test_incomplete_handshakes_take_no_place(tmp_path: Path) -> None:
    """Incomplete handshakes take no client's place; one client too many gets 429."""
    flags = (*FAST, *tls_flags(), "--max-connections", "2")
    with serving(tmp_path / "root", *flags) as server, contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(half_handshake(server))
        one, two = (stack.enter_context(TlsWire(server)) for _ in range(2))
        assert [code(wire.ask(PING)) for wire in (one, two)] == [0, 0]
        with TlsWire(server) as three:
            assert code(three.ask(PING)) == 429
            assert three.line() == ""
        assert code(one.ask(PING)) == 0


def test_handshakes_that_take_too_long(tmp_path: Path) -> None:
    """Handshakes end with --document-time, whether any bytes have come or not."""
    with serving(tmp_path / "root", *FAST, *tls_flags(), "--document-time", "0.2") as server:
        with half_handshake(server) as half:
            assert half.recv(100) == b""
        assert speak_raw(server, b"") == b""
        assert speak_raw(server, b"\x16\x03\x01") == b""
        with TlsWire(server) as wire:
            assert code(wire.ask(PING)) == 0


def test_a_stop(tmp_path: Path) -> None:
    """Clients are told 503 and the end of the session; handshakes that are under way do not keep the server."""
    with serving(tmp_path / "root", *FAST, *tls_flags(), "--grace", "60", "--document-time", "60") as server:
        with half_handshake(server) as half, TlsWire(server) as wire:
            assert code(wire.ask(PING)) == 0
            server.process.send_signal(signal.SIGTERM)
            assert code(wire.line()) == 503
            assert wire.line() == ""
            wire.close()
            with contextlib.suppress(ConnectionResetError):
                assert half.recv(100) == b""
        assert server.wait() == 0


def test_deliveries_of_the_bus(shared_server: ServerProcess) -> None:
    """Subscribers get their messages over TLS, many and large ones too, and acknowledge them."""
    flags = ("-q", "news", *tls_flags())
    with bus_serving(shared_server, *flags) as bus, Wire(shared_server) as producer, TlsWire(bus) as wire:
        assert code(wire.ask(subscribe("news"))) == 0
        pushed = [mids(producer.ask(push("news", "x" * size)))[0] for size in (0, 10, 20_000, 500_000) * 20]
        assert [mids(wire.line())[0] for _ in pushed] == pushed


def test_a_silent_client_of_the_bus(shared_server: ServerProcess) -> None:
    """A client that completes the handshake and says nothing gets the messages of every queue, as without TLS."""
    flags = ("-q", "silent", *tls_flags())
    with bus_serving(shared_server, *flags) as bus, Wire(shared_server) as producer, TlsWire(bus) as wire:
        pushed = mids(producer.ask(push("silent", "x")))
        assert mids(wire.line()) == pushed
