"""SIGHUP to a real bus with an access file: connections stay, and have the rights of the new file."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import gone, known, push_one, reload, shows_no_token, stored, token_of, until_silent
from support.clients.access import authenticate, principal, section, write_access
from support.clients.documents import code, mids, new_queue, req, subscribe
from support.servers.processes import BusProcess, ServerProcess, Wire, bus_serving
from support.servers.tls import TlsWire, authority, tls_flags

READER = principal("reader", read=["*"], certificates=("reader.example",))
OTHER = principal("other", read=["*"])


@pytest.fixture
def access(tmp_path: Path) -> Path:
    return write_access(tmp_path / "access.toml", [READER, OTHER, section("anonymous", read=["*"])])


@pytest.fixture
def bus(shared_server: ServerProcess, access: Path) -> Iterator[BusProcess]:
    with bus_serving(shared_server, "-v", "--access", str(access)) as bus:
        yield bus
        bus.stop()
        assert shows_no_token(bus.log())


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own."""
    return qid


def test_a_right_that_is_taken_away(bus: BusProcess, access: Path, producer: Wire, q: str) -> None:
    """The subscription that named the queue ends, with all its queues, 403 and its req; another one goes on. What the
    client had not acknowledged is for others."""
    kept = f"{q}-kept"
    producer.ask(new_queue(kept))
    with known(bus, "reader") as reader, known(bus, "other") as other:
        assert code(reader.ask(subscribe(q, req="ends", ack="client"))) == 0
        assert code(reader.ask(subscribe(kept, req="stays"))) == 0
        mid = push_one(producer, q)
        assert mids(reader.line()) == [mid]
        write_access(access, [principal("reader", read=["*-kept"]), OTHER])
        reload(bus, signal.SIGHUP)
        line = reader.line()
        assert (code(line), req(line)) == (403, "ends")
        producer.server.until(lambda: stored(producer, q, "ready") == [mid])
        assert code(reader.ask(subscribe(q, req="again"))) == 403
        later = push_one(producer, kept)
        line = reader.line()
        assert (mids(line), req(line)) == ([later], "stays")
        assert code(other.ask(subscribe(q))) == 0
        assert mids(other.line()) == [mid]


def test_a_principal_that_is_gone(bus: BusProcess, access: Path, producer: Wire, q: str) -> None:
    """A client whose principal is gone has no rights, not even the anonymous ones; with a valid token it has that
    principal's."""
    with known(bus, "reader") as reader:
        assert code(reader.ask(subscribe(q, req="ends"))) == 0
        write_access(access, [OTHER, section("anonymous", read=["*"])])
        reload(bus, signal.SIGHUP)
        line = reader.line()
        assert (code(line), req(line)) == (401, "ends")
        assert code(reader.ask(subscribe(q))) == 401
        assert code(reader.ask(authenticate(token_of("other")))) == 0
        assert code(reader.ask(subscribe(q))) == 0
        mid = push_one(producer, q)
        assert mids(reader.line()) == [mid]


def test_silent_clients(bus: BusProcess, access: Path, producer: Wire, q: str) -> None:
    """A client that only connects gets what it may read now: less, and then more again."""
    other = f"{q}-other"
    producer.ask(new_queue(other))
    with known(bus, "other") as subscriber, Wire(bus) as silent:
        assert code(subscriber.ask(subscribe(q, other))) == 0
        until_silent(silent, producer, q)
        for times, (readable, denied) in enumerate(((other, q), (q, other)), 1):
            write_access(access, [READER, OTHER, section("anonymous", read=[readable])])
            reload(bus, signal.SIGHUP, times)
            secret = push_one(producer, denied)
            last = push_one(producer, readable)
            got: list[int] = []
            while last not in got:
                got += mids(silent.line())
            assert secret not in got
            for qid in (q, other):
                assert gone(producer, qid)


def test_a_file_that_cannot_be_used(bus: BusProcess, access: Path, producer: Wire, q: str) -> None:
    """Everything stays as it was; the log says why, and shows no token."""
    with known(bus, "reader") as reader:
        assert code(reader.ask(subscribe(q))) == 0
        access.write_text(READER + READER)
        bus.process.send_signal(signal.SIGHUP)
        bus.until_logged("what was read before stays in use")
        mid = push_one(producer, q)
        assert mids(reader.line()) == [mid]
        with known(bus, "other") as other:
            assert code(other.ask(subscribe(q))) == 0
        assert bus.process.poll() is None


def test_certificates_and_rights_together(shared_server: ServerProcess, access: Path, producer: Wire, q: str) -> None:
    """A client that is known by its certificate loses its rights at the same signal: no principal has its certificate
    any more."""
    public = f"{q}-public"
    producer.ask(new_queue(public))
    context = authority().trusting(authority().sign("DNS:reader.example"))
    flags = ("-v", "--access", str(access), *tls_flags(clients_of=authority()))
    with bus_serving(shared_server, *flags) as bus, TlsWire(bus, context) as reader:
        assert code(reader.ask(subscribe(q, req="ends"))) == 0
        assert code(reader.ask(subscribe(public, req="stays"))) == 0
        write_access(access, [OTHER, section("anonymous", read=["*-public"])])
        reload(bus, signal.SIGHUP)
        line = reader.line()
        assert (code(line), req(line)) == (401, "ends")
        mid = push_one(producer, public)
        line = reader.line()
        assert (mids(line), req(line)) == ([mid], "stays")
        assert code(reader.ask(subscribe(q))) == 401
