"""A queue server whose database hangs, ends, or refuses: its other queues are not delayed, and it goes on by itself."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.documents import (
    PING,
    code,
    delete,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    receive,
    request,
    subscribe,
    text,
)
from support.faults import pass_time
from support.servers.processes import ServerProcess, Wire, serving
from support.storage.postgres import Database, Postgres, needs_postgres

pytestmark = needs_postgres
SOON = 0.05
"""Seconds within which a ping is answered, whatever the database does. The median of several is compared: this machine
may do something else for a moment."""


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A database server that tests freeze and kill."""
    with Postgres() as server:
        yield server


@pytest.fixture
def own(mortal: Postgres) -> Iterator[Database]:
    with mortal.database() as database:
        yield database


@pytest.fixture
def server(own: Database, tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path / "root", "--postgres", own.dsn, "--durability", "none") as server:
        with Wire(server) as wire:
            assert code(wire.ask(new_queue("local", "<options storage='journal'/>"))) == 0
            assert code(wire.ask(new_queue("q", "<options storage='postgres'/>"))) == 0
        yield server


def quick(wire: Wire) -> bool:
    """Tells whether pings, and pushes to and receives from a queue of the journal, are answered at once."""
    took = []
    for number in range(20):
        begun = time.monotonic()
        wire.ask(PING)
        took.append(time.monotonic() - begun)
        assert mids(wire.ask(push("local", str(number))))
        answer = wire.ask(receive("local"))
        assert payloads(answer) == [str(number)]
        wire.ask(delete("local", *mids(answer)))
    return sorted(took)[len(took) // 2] < SOON


def test_a_database_that_hangs(mortal: Postgres, server: ServerProcess) -> None:
    """Many requests wait for a database that stands still: all others are answered at once. When it goes on, each is
    answered, and what was pushed is there once."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(server)) for _ in range(30)]
        other = stack.enter_context(Wire(server))
        with mortal.frozen():
            for number, wire in enumerate(wires):
                wire.send(push("q", str(number), key=str(number)))
            assert quick(other)
        answers = [wire.line() for wire in wires]
        assert [code(answer) for answer in answers] == [0] * 30
        found = other.ask(receive("q", max=100))
        assert sorted(payloads(found), key=int) == [str(number) for number in range(30)]


def test_a_database_that_ends(mortal: Postgres, server: ServerProcess) -> None:
    """While there is no database its queues answer 503 `unavailable`, the connection stays, and the rest goes on; a
    subscriber gets what comes afterwards."""
    with Wire(server) as wire, Wire(server) as other, Wire(server) as subscriber:
        subscriber.ask(subscribe("q"))
        mortal.kill()
        try:
            wire.send(push("q", "lost"))
            assert quick(other)
            answer = wire.line()
            assert code(answer) == 503, answer
            assert "unavailable" in answer
            assert str(mortal.port) in text(answer)
            begun = time.monotonic()
            assert 'storage="journal"' in wire.ask(request("queue-stats"))  # the figures of the others do not wait
            assert "postgres_oldest_snapshot" not in wire.ask(request("server-stats"))
            assert time.monotonic() - begun < 2
        finally:
            mortal.start()
        assert mids(wire.ask(push("q", "found")))
        assert payloads(subscriber.line()) == ["found"]


def test_no_database_at_the_start(mortal: Postgres, own: Database, tmp_path: Path) -> None:
    """A server starts without its database: its other queues work, and those of the database when it has come."""
    root = tmp_path / "root"
    with serving(root, "--postgres", own.dsn) as first, Wire(first) as wire:
        assert code(wire.ask(new_queue("q", "<options storage='postgres'/>"))) == 0
        assert code(wire.ask(new_queue("local", "<options storage='journal'/>"))) == 0
        assert mids(wire.ask(push("q", "x")))
    with contextlib.ExitStack() as stack:
        mortal.kill()
        try:
            again = stack.enter_context(serving(root, "--postgres", own.dsn))
            wire = stack.enter_context(Wire(again))
            assert quick(wire)
            answer = wire.ask(receive("q"))
            assert code(answer) == 503, answer
        finally:
            mortal.start()
        # Until the database has answered once, nobody knows whether there is a queue of that name.
        again.until_logged("PostgreSQL answers again")
        assert payloads(wire.ask(receive("q", wait=10))) == ["x"]


def test_a_stop_while_the_database_hangs(mortal: Postgres, server: ServerProcess) -> None:
    """SIGTERM ends the server although requests wait for the database."""
    with Wire(server) as wire, mortal.frozen():
        wire.send(push("q", "x"), PING)
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 20


def test_a_stop_gives_back(own: Database, server: ServerProcess, tmp_path: Path) -> None:
    """Messages that a subscriber held are visible to another server as soon as this one has stopped."""
    with serving(tmp_path / "other", "--postgres", own.dsn) as second, Wire(second) as other:
        with Wire(server) as wire:
            wire.ask(push("q", "x"))
            wire.ask(subscribe("q", visibility=3600))
            assert is_delivery(wire.line())
            server.stop()
        assert payloads(other.ask(receive("q", wait=5))) == ["x"]


@pytest.mark.slow
def test_what_a_dead_server_held(own: Database, server: ServerProcess, tmp_path: Path) -> None:
    """Messages that the subscribers of a killed server held come back at another one within 10 s. Some 10 s."""
    with serving(tmp_path / "other", "--postgres", own.dsn) as second, Wire(second) as other:
        with Wire(server) as wire:
            wire.ask(push("q", "x"))
            wire.ask(subscribe("q", visibility=3600))
            assert is_delivery(wire.line())
            server.kill()
        begun = time.monotonic()
        assert payloads(other.ask(receive("q", wait=20))) == ["x"]
        assert time.monotonic() - begun < 12


@pytest.mark.long
@pytest.mark.parametrize("how", ["hangs", "ends"])
def test_after_an_outage_nobody_is_dead(
    mortal: Postgres, own: Database, server: ServerProcess, tmp_path: Path, how: str
) -> None:
    """No server could give a sign of life for 12 s: what their subscribers hold stays theirs. Takes 30 s."""
    with (
        serving(tmp_path / "other", "--postgres", own.dsn) as second,
        Wire(server) as one,
        Wire(second) as two,
        Wire(server) as third,
    ):
        third.ask(request("push-message", "<qid>q</qid><messages>" + 2 * ENTRY + "</messages>"))
        for wire in (one, two):
            wire.ask(subscribe("q", prefetch=1, visibility=3600))
            assert is_delivery(wire.line())
        with mortal.frozen() if how == "hangs" else killed(mortal):
            pass_time(12)
        third.send(receive("q", wait=12), PING)
        assert payloads(third.line()) == []


ENTRY = "<message><payload>held</payload></message>"


@contextlib.contextmanager
def killed(server: Postgres) -> Iterator[None]:
    """Kills a server for the length of a with block."""
    server.kill()
    try:
        yield
    finally:
        server.start()


def test_another_server_is_told(own: Database, server: ServerProcess, tmp_path: Path) -> None:
    """A waiting receive is answered soon after a push at another server."""
    with serving(tmp_path / "other", "--postgres", own.dsn) as second, Wire(second) as other, Wire(server) as wire:
        took = []
        for number in range(10):
            other.send(receive("q", wait=20), PING)
            wire.ask(request("queue-stats", "<qid>q</qid>"))
            begun = time.monotonic()
            wire.ask(push("q", str(number)))
            assert payloads(other.line()) == [str(number)]
            took.append(time.monotonic() - begun)
            assert "<ping/>" in other.line()
        assert sorted(took)[5] < 0.2
