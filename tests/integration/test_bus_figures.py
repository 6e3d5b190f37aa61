"""The figures of a real bus: each moves as it should."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import known, push_one
from support.clients.access import principal, write_access
from support.clients.documents import code, delete, mids, request, subscribe
from support.servers.figures import Figures, address, look, look_at_connections
from support.servers.processes import BusProcess, ServerProcess, Wire, bus_serving

from qs_client import Forbidden, QueueClient


@pytest.fixture
def bus(shared_server: ServerProcess) -> Iterator[BusProcess]:
    """A bus of the test's own, as it counts what a test does. Nobody may hold up more than three messages."""
    with bus_serving(shared_server, "--max-hold", "3") as process:
        yield process


@pytest.fixture
def watcher(bus: BusProcess) -> Iterator[QueueClient]:
    with QueueClient(bus.host, bus.port) as client:
        yield client


NAMES = ("subscribers", "subscriptions", "deliveries_total", "unacknowledged", "held")


def of_subscribers(found: Figures) -> list[float]:
    return [found.get(name) for name in NAMES]


def test_deliveries(bus: BusProcess, watcher: QueueClient, producer: Wire, qid: str) -> None:
    """One delivery for each subscriber of a message; those that were sent and are not handled."""
    assert of_subscribers(look(watcher)) == [0, 0, 0, 0, 0]
    with Wire(bus) as careful, Wire(bus) as quick:
        careful.ask(subscribe(qid, ack="client"))
        quick.ask(subscribe(qid))
        assert look(watcher).get("server_connected") == 1
        mid = push_one(producer, qid)
        assert mids(careful.line()) == mids(quick.line()) == [mid]
        assert of_subscribers(look(watcher)) == [2, 2, 2, 1, 0]
        assert code(careful.ask(delete(qid, mid))) == 0
        found = look(watcher)
        assert of_subscribers(found) == [2, 2, 2, 0, 0]
        assert found.requests("subscribe") == {"200": 2}
        assert found.requests("delete-message") == {"200": 1}
        assert code(careful.ask(delete(qid, mid))) == 404
        assert look(watcher).requests("delete-message") == {"200": 1, "404": 1}
        for wire in (careful, quick):
            wire.socket.shutdown(socket.SHUT_WR)
            assert wire.line() == ""
    assert of_subscribers(look(watcher)) == [0, 0, 2, 0, 0]


def test_bus_figures_of_each_connection(shared_server: ServerProcess, tmp_path: Path, qid: str) -> None:
    """Each connection's subscriptions and principal are shown on request, and only to monitors."""
    sections = [principal("monitor", monitor=True), principal("reader", read=["*"])]
    access = write_access(tmp_path / "access.toml", sections)
    with (
        bus_serving(shared_server, "--access", str(access)) as bus,
        known(bus, "reader") as subscriber,
        QueueClient(bus.host, bus.port, token="monitor-token") as monitor,
    ):
        assert code(subscriber.ask(subscribe(qid))) == 0
        first, second = look_at_connections(monitor)
        assert code(subscriber.ask(request("server-stats", connections="yes"))) == 403
        assert (first.peer, first.principal, first.subscriptions) == (address(subscriber), "reader", 1)
    assert (second.principal, second.subscriptions) == ("monitor", 0)
    assert first.started <= second.started


def test_slow_subscribers(bus: BusProcess, watcher: QueueClient, producer: Wire, qid: str) -> None:
    """Messages are held for a slow subscriber up to the bound; then it is disconnected."""
    with Wire(bus) as slow, Wire(bus) as quick:
        slow.ask(subscribe(qid, ack="client", prefetch=1))
        quick.ask(subscribe(qid))
        for _ in range(4):
            push_one(producer, qid)
            quick.line()
        assert of_subscribers(look(watcher)) == [2, 2, 5, 1, 3]
        push_one(producer, qid)
        quick.line()
        slow.line()
        assert code(slow.line()) == 429
        found = look(watcher)
        assert of_subscribers(found) == [1, 1, 6, 0, 0]
    assert found.by("disconnected_total", "reason") == {"bytes": 0, "messages": 1}
    assert found.requests("none") == {"429": 1}


def test_what_conditions_decide(bus: BusProcess, watcher: QueueClient, producer: Wire, qid: str) -> None:
    """Conditions let through and keep back, once for each subscriber and name; in total, and for those that are there
    now."""
    names = ("deliveries_let_through_total", "deliveries_kept_back_total")
    with Wire(bus) as wire, Wire(bus) as plain:
        assert code(wire.ask(subscribe(qid, where="/a"))) == 0
        assert code(plain.ask(subscribe(qid))) == 0
        with Wire(bus) as member:
            assert code(member.ask(subscribe(qid, name="n", where="/b"))) == 0
            for payload in ("&lt;a/>", "&lt;b/>", "&lt;a/>"):
                push_one(producer, qid, payload)
                plain.line()
        found = look(watcher)
        assert [found.get(name) for name in names] == [3, 3]
        of_one = ("condition_let_through_total", "condition_kept_back_total")
        assert [found.get(name, queue=qid, where="/a") for name in of_one] == [2, 1]
        assert [found.get(name, queue=qid, where="/b") for name in of_one] == [1, 2]
        wire.socket.shutdown(socket.SHUT_WR)
        plain.socket.shutdown(socket.SHUT_WR)
        assert [mids(wire.line()) != [] for _ in range(2)] == [True, True]
        assert wire.line() == plain.line() == ""
    found = look(watcher)
    assert [found.get(name) for name in names] == [3, 3]
    assert found.by(of_one[0], "where", queue=qid) == {"/b": 1}


def test_bus_figures_need_monitor_right(shared_server: ServerProcess, tmp_path: Path) -> None:
    """A monitor gets the figures, a principal with only `read` does not."""
    sections = [principal("monitor", monitor=True), principal("reader", read=["*"])]
    access = write_access(tmp_path / "access.toml", sections)
    with bus_serving(shared_server, "--access", str(access)) as bus:
        with QueueClient(bus.host, bus.port, token="reader-token") as reader, pytest.raises(Forbidden):
            reader.server_stats()
        with QueueClient(bus.host, bus.port, token="monitor-token") as monitor:
            found = look(monitor)
    assert found.by("auth_failures_total", "reason")["forbidden"] == 1
    assert found.requests("authenticate") == {"200": 2}
