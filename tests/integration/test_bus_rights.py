"""Tests what the principals of a real bus may subscribe to, and what each operation answers to each kind of client."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import gone, has_input, known, push_one, shows_no_token, stored, token_of, until_silent
from support.clients.access import authenticate, principal, section, write_access
from support.clients.documents import (
    PING,
    REQUESTS,
    code,
    delete,
    delete_list,
    document,
    mids,
    release,
    req,
    request,
    subscribe,
    text,
)
from support.servers.processes import BusProcess, ServerProcess, Wire, bus_serving
from support.servers.tls import TlsWire, authority, tls_flags

from qs_bus.operations import OPERATIONS as OF_THE_BUS

SECTIONS = (
    principal("reader", read=["test_*", "q-*"], certificates=("reader.example",)),
    principal("writer", write=["*"], configure=["*"]),
    principal("monitor", monitor=True),
    principal("none"),
    principal("ops", admin=True),
)
KINDS = ["anonymous", "nobody", "reader", "writer", "monitor", "none", "ops"]
WRONG = "wrong-token"


@pytest.fixture(scope="module")
def closed_bus(shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusProcess]:
    """A bus with principals, and nothing for clients that say nothing."""
    access = write_access(tmp_path_factory.mktemp("closed") / "access.toml", SECTIONS)
    with bus_serving(shared_server, "-vv", "--access", str(access)) as bus:
        yield bus
        bus.stop()
        assert shows_no_token(bus.log())


@pytest.fixture(scope="module")
def public_bus(shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusProcess]:
    """A bus with principals, where everybody may read the queues whose names end with `-public`."""
    path = tmp_path_factory.mktemp("public") / "access.toml"
    access = write_access(path, [*SECTIONS, section("anonymous", read=["*-public"])])
    with bus_serving(shared_server, "--access", str(access)) as bus:
        yield bus


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own, which `reader` may read."""
    return qid


@pytest.fixture
def public(qid: str, producer: Wire) -> str:
    """A queue that everybody may read."""
    producer.ask(request("new-queue", f"<qid>{qid}-public</qid>"))
    return f"{qid}-public"


def connections(bus: BusProcess, kind: str, count: int) -> Iterator[Wire]:
    """Opens so many connections. Answers to wrong tokens are late, so all these are sent first."""
    if kind != "nobody":
        yield from (Wire(bus) if kind == "anonymous" else known(bus, kind) for _ in range(count))
        return
    wires = [Wire(bus) for _ in range(count)]
    for wire in wires:
        wire.send(authenticate(WRONG))
    for wire in wires:
        assert code(wire.line()) == 401
    yield from wires


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_public", [False, True])
def test_every_operation_for_every_kind_of_client(
    closed_bus: BusProcess, public_bus: BusProcess, q: str, public: str, kind: str, with_public: bool
) -> None:
    """All operations of both, to a queue that the reader may read, one that everybody may, and one that nobody
    but an admin may."""
    bus = public_bus if with_public else closed_bus
    let_in = kind not in {"anonymous", "nobody"} or (kind == "anonymous" and with_public)
    refused = 401 if kind in {"anonymous", "nobody"} else 403
    readable = {
        "reader": [q, public],
        "ops": [q, public, "absent"],
        "anonymous": [public] if with_public else [],
    }.get(kind, [])
    asked = [(op, qid) for op in REQUESTS for qid in (q, public, "absent")]
    for (op, qid), connected in zip(asked, connections(bus, kind, len(asked)), strict=True):
        expected = 501
        if op in {"subscribe", "list-queues"}:
            expected = (404 if qid == "absent" else 0) if qid in readable else refused
        elif op in {"delete-message", "release-message"}:
            expected = 404 if let_in else 401
        elif op == "authenticate":
            expected = 401
        elif op == "server-stats":
            expected = 0 if kind in {"monitor", "ops"} else refused
        elif op == "ping":
            expected = 0
        else:
            expected = 501 if let_in else 401
        with connected as wire:
            named = request(op, f"<queues><queue>{qid}</queue></queues>")  # without, it is the server's
            answer = wire.ask(named if op == "list-queues" else document(op, qid))
            assert code(answer) == expected, (op, qid, answer)
    assert {each.op for each in OF_THE_BUS} == {
        "subscribe",
        "list-queues",
        "delete-message",
        "ping",
        "release-message",
        "authenticate",
        "server-stats",
    }


def test_refused_without_a_word_about_the_queue(closed_bus: BusProcess, q: str) -> None:
    """The answer is the same whether the queue exists or not."""
    with known(closed_bus, "none") as wire:
        there, absent = (text(wire.ask(subscribe(qid))).replace(qid, "X") for qid in (q, "absent"))
    assert there == absent
    assert "'none'" in there


def test_one_of_several_queues(public_bus: BusProcess, producer: Wire, q: str, public: str) -> None:
    """A request that names several queues needs the right to each, or subscribes to none."""
    with Wire(public_bus) as wire:
        for document in (
            subscribe(public, q),
            request("list-queues", f"<queues><queue>{public}</queue><queue>{q}</queue></queues>"),
        ):
            assert code(wire.ask(document)) == 401
        push_one(producer, public)
        assert code(wire.ask(PING)) == 0
        assert code(wire.ask(subscribe(public))) == 0
        assert len(mids(wire.line())) == 1


def test_q_flag_error_shows_only_readable_queues(shared_server: ServerProcess, tmp_path: Path) -> None:
    """The error about a queue that -q does not name shows only those of -q that the client may read."""
    access = write_access(tmp_path / "access.toml", [principal("p", read=["seen-*", "x"])])
    with bus_serving(shared_server, "--access", str(access), "-q", "seen-1,secret") as bus, known(bus, "p") as wire:
        assert code(wire.ask(subscribe("secret"))) == 403
        answer = wire.ask(subscribe("x"))
        assert code(answer) == 404
        assert "it monitors seen-1" in text(answer)
        assert "secret" not in text(answer)


def test_other_tokens_on_one_connection(closed_bus: BusProcess, producer: Wire, q: str) -> None:
    """A client that authenticates again is somebody else from then on: what that principal may not have ends, with an
    error that has its req, and what was not acknowledged is for others. A wrong token leaves nobody."""
    with known(closed_bus, "reader") as wire:
        assert code(wire.ask(subscribe(q, req="mine", ack="client"))) == 0
        mid = push_one(producer, q)
        assert mids(wire.line()) == [mid]
        assert code(wire.ask(authenticate(token_of("ops")))) == 0
        assert code(wire.ask(delete(q, mid))) == 0  # an admin may have all of it
        kept = push_one(producer, q)
        assert mids(wire.line()) == [kept]
        wire.send(authenticate(token_of("none"), req="again"))
        ended, answer = sorted((wire.line(), wire.line()), key=code, reverse=True)
        assert (code(ended), req(ended)) == (403, "mine")
        assert req(answer) == "again"
        assert code(wire.ask(delete(q, kept))) == 404
        producer.server.until(lambda: stored(producer, q, "ready") == [kept])
        assert code(wire.ask(authenticate(token_of("reader")))) == 0
        assert code(wire.ask(subscribe(q, req="mine", ack="client"))) == 0
        assert mids(wire.line()) == [kept]
        wire.send(authenticate(WRONG, req="wrong"))
        lines = {req(line): code(line) for line in (wire.line(), wire.line())}
        assert lines == {"mine": 401, "wrong": 401}
        assert code(wire.ask(subscribe(q))) == 401
        producer.server.until(lambda: stored(producer, q, "ready") == [kept])


def test_in_order(closed_bus: BusProcess, q: str) -> None:
    """Requests behind an authenticate in the same packet are those of the new principal, and are answered behind it."""
    with Wire(closed_bus) as wire:
        wire.send(
            subscribe(q, req="1"),
            authenticate(token_of("reader"), req="2"),
            subscribe(q, req="3"),
            authenticate(WRONG, req="4"),
            subscribe(q, req="5"),
        )
        lines = [wire.line() for _ in range(6)]
        assert [(req(line), code(line)) for line in lines if req(line) != "3"] == [
            ("1", 401),
            ("2", 0),
            ("4", 401),
            ("5", 401),
        ]
        assert [code(line) for line in lines if req(line) == "3"] == [0, 401]


def test_ten_wrong_tokens(closed_bus: BusProcess) -> None:
    """The tenth wrong token closes the connection, with 429."""
    with Wire(closed_bus) as wire:
        codes = [code(wire.ask(authenticate(f"{WRONG}-{number}"))) for number in range(10)]
        assert codes[:9] == [401] * 9
        lines = [code for code in [codes[9], code(wire.line())] if code]
        assert lines[-1] == 429
        assert wire.line() == ""


def test_authenticate_without_access_file_is_an_error(shared_bus: BusProcess) -> None:
    """Without an access file, `authenticate` gets an error that says so."""
    with Wire(shared_bus) as wire:
        answer = wire.ask(authenticate("x"))
        assert (code(answer), "access file" in text(answer)) == (501, True)


def test_silent_client_gets_queues_of_everybody(public_bus: BusProcess, producer: Wire, q: str, public: str) -> None:
    """A client that only connects gets the messages of the queues that everybody may read, also of later ones, and
    nothing else."""
    later = f"{q}-later-public"
    producer.ask(request("new-queue", f"<qid>{later}</qid>"))
    with known(public_bus, "ops") as other, Wire(public_bus) as silent:
        assert code(other.ask(subscribe(q, public))) == 0
        until_silent(silent, producer, public)
        assert code(other.ask(subscribe(later, req="later"))) == 0
        push_one(producer, q, "secret")
        push_one(producer, later, "later")
        last = push_one(producer, public, "last")
        lines = []
        while not lines or mids(lines[-1]) != [last]:
            lines.append(silent.line())
        assert not any("secret" in line for line in lines)
        assert not has_input(silent, 0) or "later" in silent.line() or any("later" in line for line in lines)
        for qid in (q, public, later):
            assert gone(producer, qid)


def test_nobody_gets_nothing(closed_bus: BusProcess, producer: Wire, q: str) -> None:
    """Where nobody may read without a token, a client that only connects gets nothing, and no message waits for it."""
    with known(closed_bus, "reader") as other, Wire(closed_bus) as silent:
        assert code(other.ask(subscribe(q))) == 0
        assert not has_input(silent, 0.5)  # until it is known to say nothing
        mid = push_one(producer, q)
        assert mids(other.line()) == [mid]
        assert gone(producer, q)
        assert code(silent.ask(PING)) == 0


def test_a_client_that_only_authenticates(closed_bus: BusProcess, producer: Wire, q: str) -> None:
    """A client that only authenticates has sent something, so it is subscribed to nothing."""
    with known(closed_bus, "reader") as other, known(closed_bus, "reader") as quiet:
        assert code(other.ask(subscribe(q))) == 0
        assert not has_input(quiet, 0.5)  # longer than a client that has sent nothing is waited for
        mid = push_one(producer, q)
        assert mids(other.line()) == [mid]
        assert gone(producer, q)
        assert code(quiet.ask(PING)) == 0


def test_a_client_with_a_certificate(
    shared_server: ServerProcess, producer: Wire, tmp_path: Path, q: str, public: str
) -> None:
    """A client with a certificate need not authenticate, and if it only connects it gets what it may read. A
    certificate of no principal is that of an anonymous client."""
    access = write_access(tmp_path / "access.toml", [*SECTIONS, section("anonymous", read=["*-public"])])
    flags = ("--access", str(access), *tls_flags(clients_of=authority()))
    reader, stranger = (
        authority().trusting(authority().sign(f"DNS:{name}.example")) for name in ("reader", "stranger")
    )
    names = f"{q},{public}"
    with bus_serving(shared_server, "-q", names, *flags) as bus:
        with TlsWire(bus, reader) as one, TlsWire(bus, stranger) as two:
            assert [code(wire.ask(subscribe(q))) for wire in (one, two)] == [0, 401]
            assert code(two.ask(subscribe(public))) == 0
        with TlsWire(bus, reader) as one, TlsWire(bus, stranger) as two:
            until_silent(one, producer, q)
            until_silent(two, producer, public)
            secret, last = push_one(producer, q, "secret"), push_one(producer, public)
            for wire, expected in ((one, True), (two, False)):
                lines = []
                while not lines or mids(lines[-1]) != [last]:
                    lines.append(wire.line())
                if expected and not any(mids(line) == [secret] for line in lines):
                    lines.append(wire.line())
                assert any(f"<qid>{q}</qid>" in line for line in lines) is expected
            assert gone(producer, q)
            assert gone(producer, public)


def test_what_is_not_held(closed_bus: BusProcess, producer: Wire, q: str) -> None:
    """Acknowledging and releasing concern only what the connection itself has got, whatever its principal may read."""
    with known(closed_bus, "reader") as holder, known(closed_bus, "ops") as other:
        assert code(holder.ask(subscribe(q, ack="client"))) == 0
        mid = push_one(producer, q)
        assert mids(holder.line()) == [mid]
        assert code(other.ask(delete(q, mid))) == 404
        assert code(other.ask(release(q, mid))) == 404
        assert mids(other.ask(delete_list(q, mid))) == []
        assert code(holder.ask(delete(q, mid))) == 0
        assert gone(producer, q)


PATTERNS = [
    ("a*c", "a-c", True),
    ("a*c", "ac", True),
    ("a*c", "a-c-", False),
    ("a?c", "abc", True),
    ("a?c", "ac", False),
    ("a[b]c", "abc", False),
    ("a[b]c", "a[b]c", True),
    ("a.c", "abc", False),
    ("a.c", "a.c", True),
    ("a\\*", "a\\x", True),
    ("a\\*", "ax", False),
    ("\N{GRINNING FACE}?", "\N{GRINNING FACE}\N{LATIN SMALL LETTER E WITH ACUTE}", True),
    ("bus:*", "bus:q:n", True),
    ("b*", "bus:q:n", True),
    ("a", "bus:a:n", False),
]


def test_patterns(shared_server: ServerProcess, tmp_path: Path) -> None:
    """A pattern may match missing queues and the bus's own; a match of any other queue is refused."""
    sections = [principal(f"p{number}", read=[pattern]) for number, (pattern, _, _) in enumerate(PATTERNS)]
    access = write_access(tmp_path / "access.toml", sections)
    with bus_serving(shared_server, "--access", str(access)) as bus:
        for number, (pattern, qid, readable) in enumerate(PATTERNS):
            with known(bus, f"p{number}") as wire:
                allowed = 400 if qid.startswith("bus:") else 404
                assert code(wire.ask(subscribe(qid))) == (allowed if readable else 403), (pattern, qid)
