"""Sockets of clients that have not said who they are, at a real server and a real bus, without TLS and with."""

import contextlib
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import until_silent
from support.clients.access import Caller, authenticate, principal, section, write_access
from support.clients.documents import code, is_delivery, mids, new_queue, push, subscribe, text
from support.servers.processes import FAST, Listening, ServerProcess, Wire, bus_serving, serving
from support.servers.tls import TlsWire, authority, half_handshake, tls_flags

PLACES = 12
TOKEN = authenticate("ops-token")
KINDS = ["server", "bus", "server-tls", "bus-tls"]


@contextlib.contextmanager
def closed(kind: str, shared_server: ServerProcess, folder: Path, *flags: str) -> Iterator[Listening]:
    """A server, or a bus, with an access file and few places."""
    access = write_access(folder / "access.toml", [principal("ops", admin=True, certificates=["ops.example"])])
    tls = tls_flags() if kind.endswith("tls") else ()
    all_flags = ("--access", str(access), "--max-connections", str(PLACES), *tls, *flags)
    if kind.startswith("server"):
        with serving(folder / "root", *FAST, *all_flags) as server:
            yield server
    else:
        with bus_serving(shared_server, *all_flags) as bus:
            yield bus


def connected(kind: str, process: Listening) -> Wire:
    return TlsWire(process) if kind.endswith("tls") else Wire(process)


@pytest.fixture(scope="module", params=KINDS)
def port(
    request: pytest.FixtureRequest, shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Listening]]:
    """Yields the kind of a process and the process, which serves several tests."""
    with closed(request.param, shared_server, tmp_path_factory.mktemp("closed")) as process:
        yield request.param, process


@pytest.mark.parametrize("piece", [10_000_000, 9999])
def test_a_token_and_a_long_document(port: tuple[str, Listening], piece: int) -> None:
    """A client may send its token and at once a document that a stranger may not send, in one go or in pieces."""
    kind, process = port
    with connected(kind, process) as client:
        qid = f"q{piece}"
        stream = (TOKEN + new_queue(qid) + push(qid, "x" * 3_000_000)).encode()
        for at in range(0, len(stream), piece):
            client.send(stream[at : at + piece])
        answers = [client.line() for _ in range(3)]
        expected = [0, 0, 0] if kind.startswith("server") else [0, 501, 501]
        assert [code(answer) for answer in answers] == expected
        assert bool(mids(answers[2])) is kind.startswith("server")


def test_a_long_document_of_a_stranger(port: tuple[str, Listening]) -> None:
    """A stranger's document of more than 64 KiB is 413, and says what to do."""
    with connected(*port) as client:
        client.send(push("q", "x" * 70_000))
        answer = client.line()
        assert code(answer) == 413
        assert "authenticate" in text(answer)
        assert client.line() == ""


@pytest.mark.parametrize("kind", KINDS)
def test_silent_strangers(kind: str, shared_server: ServerProcess, tmp_path: Path) -> None:
    """Sockets that hold all places and say nothing keep no client out, before their time is over and after it. Each is
    told why it has to go."""
    with closed(kind, shared_server, tmp_path, "--document-time", "2") as process, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(kind, process)) for _ in range(PLACES)]
        for _ in range(3):
            client = stack.enter_context(connected(kind, process))
            assert code(client.ask(TOKEN)) == 0
        for each in silent:
            assert code(each.line()) in (408, 429)
            assert each.line() == ""
        assert code(client.ask(TOKEN)) == 0
        assert process.log().count("\n") <= 2  # one says that clients gave way


def test_a_certificate_that_names_nobody(tmp_path: Path) -> None:
    """A client with a certificate of the CA is a stranger if no principal has its name; one whose name is listed is
    not, and needs no token to stay."""
    access = write_access(tmp_path / "access.toml", [principal("ops", admin=True, certificates=["ops.example"])])
    flags = (*tls_flags(clients_of=authority()), "--access", str(access), "--document-time", "1")
    with serving(tmp_path / "root", *FAST, *flags) as server:
        listed, other = (authority().sign(f"DNS:{name}") for name in ("ops.example", "who.example"))
        contexts = [authority().trusting(certificate) for certificate in (listed, other)]
        with TlsWire(server, contexts[0]) as known, TlsWire(server, contexts[1]) as who:
            assert code(who.line()) == 408
            assert who.line() == ""
            assert code(known.ask(new_queue("q"))) == 0


def test_half_handshakes_and_strangers(shared_server: ServerProcess, tmp_path: Path) -> None:
    """Half handshakes and complete ones of strangers, both as many as there may be, keep no client out."""
    flags = ("--max-handshakes", "8")
    with closed("server-tls", shared_server, tmp_path, *flags) as server, contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(half_handshake(server))
        for _ in range(PLACES + 3):
            stack.enter_context(TlsWire(server))
        with TlsWire(server) as client:
            assert code(client.ask(TOKEN)) == 0


def test_a_flood_of_connections(shared_server: ServerProcess, tmp_path: Path) -> None:
    """Sockets that come and stay, whatever they are told, are closed by the server once they are too many."""
    with closed("server", shared_server, tmp_path, "--linger", "60") as server, Caller(server, "ops-token") as client:
        held = []
        for _ in range(PLACES + 300):
            held.append(server.connect())
            if len(held) % 50 == 0:
                assert code(client.ask(new_queue(str(len(held))))) == 0
        ended = select.poll()
        ended.register(held[0], select.POLLHUP)
        held[0].shutdown(socket.SHUT_WR)  # its side of the end is given; the other's has come
        assert ended.poll(20_000)
        assert code(client.ask(push("50", "x"))) == 0
        for each in held:
            each.close()


def test_a_silent_subscriber_of_the_bus(shared_server: ServerProcess, tmp_path: Path) -> None:
    """A client of the bus that subscribes in time stays when its time is over, and gets messages."""
    with (
        closed("bus", shared_server, tmp_path, "--document-time", "1") as bus,
        Caller(bus, "ops-token") as subscriber,
        Wire(bus) as stranger,
        Wire(shared_server) as producer,
    ):
        producer.ask(new_queue("silent"))
        assert code(subscriber.ask(subscribe("silent"))) == 0
        assert code(stranger.line()) == 408
        sent = mids(producer.ask(push("silent", "x")))
        assert mids(subscriber.line()) == sent


def test_a_listener_with_rights(shared_server: ServerProcess, tmp_path: Path) -> None:
    """A client of the bus that has said nothing and may read a queue stays when the time of others is over. It gives
    its place to the next client when all are taken; then the messages that it has not acknowledged come to others."""
    sections = [principal("ops", admin=True), section("anonymous", read=["heard"])]
    access = write_access(tmp_path / "access.toml", sections)
    flags = ("-q", "heard", "--access", str(access), "--document-time", "0.5", "--max-connections", "3")
    with (
        bus_serving(shared_server, *flags, log=tmp_path / "log") as bus,
        Wire(bus) as silent,
        Wire(bus) as listener,
        Caller(bus, "wrong") as wrong,
        Wire(shared_server) as producer,
    ):
        assert code(listener.ask(subscribe("heard", ack="client"))) == 0
        assert code(wrong.line()) == 408
        assert wrong.line() == ""
        until_silent(silent, producer, "heard")
        sent = mids(listener.line())
        clients = [Caller(bus, "ops-token") for _ in range(3)]
        while is_delivery(line := silent.line()):
            pass
        assert code(line) == 429
        while is_delivery(line := listener.line()):
            pass
        assert code(line) == 429
        assert code(clients[0].ask(subscribe("heard"))) == 0
        assert mids(clients[0].line()) == sent
        for client in clients:
            client.close()
