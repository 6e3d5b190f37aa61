"""Durable names of a real bus belong to the principals that use them, also after restarts."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import gone, known, push_one, reload, stored
from support.clients.access import principal, section, write_access
from support.clients.documents import code, delete, mids, payloads, request, subscribe, text
from support.servers.processes import FAST, BusProcess, ServerProcess, Wire, bus_serving, serving

SECTIONS = (
    principal("shop", read=["*"]),
    principal("other", read=["*"]),
    principal("a:b%", read=["*"]),
    principal("ops", admin=True),
)


@pytest.fixture(scope="module")
def bus(shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusProcess]:
    access = write_access(
        tmp_path_factory.mktemp("owners") / "access.toml", [*SECTIONS, section("anonymous", read=["*"])]
    )
    with bus_serving(shared_server, "--access", str(access)) as process:
        yield process


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own."""
    return qid


def queues_of(producer: Wire) -> set[str]:
    return set(re.findall("<queue>(.*?)</queue>", producer.ask(request("list-queues"))))


def test_a_name_belongs_to_its_principal(bus: BusProcess, producer: Wire, q: str) -> None:
    """The clients of a principal share its name, and an admin may use the name too. Other principals get a name of
    their own, with all messages."""
    with known(bus, "shop") as one, known(bus, "shop") as two, known(bus, "other") as other, known(bus, "ops") as ops:
        for wire in (one, two):
            assert code(wire.ask(subscribe(q, name="n", ack="client"))) == 0
        assert code(ops.ask(subscribe(q, name="n", ack="client"))) == 0
        assert code(other.ask(subscribe(q, name="n"))) == 0
        with Wire(bus) as nobody:
            assert code(nobody.ask(subscribe(q, name="n"))) == 0
        sent = [push_one(producer, q) for _ in range(3)]
        got = [mids(wire.line())[0] for wire in (one, two, ops)]
        assert sorted(got) == sent
        for wire, mid in zip((one, two, ops), got, strict=True):
            assert code(wire.ask(delete(q, mid))) == 0
        assert gone(producer, f"bus:{q}:shop:n")
        assert [mids(other.line())[0] for _ in range(3)] == sent
        assert {f"bus:{q}:other:n", f"bus:{q}:n"} <= queues_of(producer)


def test_a_name_that_others_made_first(bus: BusProcess, producer: Wire, q: str) -> None:
    """Neither another principal nor an anonymous client keeps a principal from a name, or gets messages in its
    place."""
    with Wire(bus) as anybody, known(bus, "other") as other, known(bus, "shop") as shop:
        for wire in (anybody, other, shop):
            assert code(wire.ask(subscribe(q, name="n"))) == 0
        sent = [push_one(producer, q) for _ in range(3)]
        for wire in (anybody, other, shop):
            assert [mids(wire.line())[0] for _ in range(3)] == sent
        assert gone(producer, f"bus:{q}:n")


def test_names_of_strange_principals(bus: BusProcess, producer: Wire, q: str) -> None:
    """The owner may have any characters, and the bounds of a name include it."""
    with known(bus, "a:b%") as wire:
        assert code(wire.ask(subscribe(q, name="c:d"))) == 0
        assert f"<queue>bus:{q}:a%3Ab%25:c%3Ad</queue>" in producer.ask(request("list-queues"))
    room = 200 - len(f"bus:{q}:a%3Ab%25:")
    with known(bus, "a:b%") as wire:
        answer = wire.ask(subscribe(q, name="n" * (room + 1), req="long"))
        assert (code(answer), "too long" in text(answer)) == (400, True)


def test_a_name_whose_queue_is_removed(bus: BusProcess, producer: Wire, q: str) -> None:
    """Removing the queue of a name on the server removes what it kept; its owner makes it again by subscribing."""
    with known(bus, "shop") as shop:
        assert code(shop.ask(subscribe(q, name="n"))) == 0
    producer.ask(request("delete-queue", f"<qid>bus:{q}:shop:n</qid>", force="yes"))
    with known(bus, "shop") as shop:
        assert code(shop.ask(subscribe(q, name="n"))) == 0
        mid = push_one(producer, q)
        assert mids(shop.line()) == [mid]


def test_over_restarts(tmp_path: Path) -> None:
    """After a restart of the bus and of the server the name is still its owner's, and what came meanwhile too."""
    access = write_access(tmp_path / "access.toml", SECTIONS)
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server, "--access", str(access)) as bus:
        with Wire(server) as producer, known(bus, "shop") as shop:
            producer.ask(request("new-queue", "<qid>q</qid>"))
            assert code(shop.ask(subscribe("q", name="n", ack="client"))) == 0
        bus.stop()
        with Wire(server) as producer:
            push_one(producer, "q", "kept")
        server.stop()
        again = ServerProcess(server.root, *FAST, port=server.port)
        try:
            bus.start()
            with known(bus, "other") as other, known(bus, "shop") as shop, Wire(again) as producer:
                assert code(other.ask(subscribe("q", name="n"))) == 0
                producer.server.until(lambda: len(stored(producer, "bus:q:shop:n")) == 1)
                assert code(shop.ask(subscribe("q", name="n"))) == 0
                assert payloads(shop.line()) == ["kept"]
        finally:
            again.stop()


def test_with_and_without_an_access_file(tmp_path: Path) -> None:
    """Names from before there was an access file are an admin's and those of clients without a principal. A bus without
    one keeps the messages of all names, and lets everybody use them."""
    access = write_access(tmp_path / "access.toml", SECTIONS)
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as producer:
        producer.ask(request("new-queue", "<qid>q</qid>"))
        with bus_serving(server) as bus, Wire(bus) as wire:
            assert code(wire.ask(subscribe("q", name="old"))) == 0
        with bus_serving(server, "--access", str(access)) as bus:
            kept = push_one(producer, "q")
            producer.server.until(lambda: stored(producer, "bus:q:old") == [kept])
            for name in ("old", "new"):
                with known(bus, "shop") as shop:
                    assert code(shop.ask(subscribe("q", name=name))) == 0
            with known(bus, "ops") as ops:
                assert code(ops.ask(subscribe("q", name="old"))) == 0
                assert mids(ops.line()) == [kept]
            producer.server.until(lambda: gone(producer, "bus:q:old"))
        with bus_serving(server) as bus, Wire(bus) as wire:
            mid = push_one(producer, "q")
            for name in ("old", "shop:old", "shop:new"):
                producer.server.until(lambda name=name: stored(producer, f"bus:q:{name}") == [mid])
            assert code(wire.ask(subscribe("q", name="new"))) == 0
            assert mids(wire.line()) == [mid]


def test_reload_without_principal_ends_its_subscriptions(
    shared_server: ServerProcess, producer: Wire, tmp_path: Path, q: str
) -> None:
    """When a principal is removed, its subscriptions end; its names keep their messages for its return."""
    access = write_access(tmp_path / "access.toml", SECTIONS)
    with bus_serving(shared_server, "-v", "--access", str(access)) as bus:
        with known(bus, "shop") as shop, known(bus, "other") as other:
            assert code(shop.ask(subscribe(q, req="s", name="n", ack="client"))) == 0
            mid = push_one(producer, q)
            assert mids(shop.line()) == [mid]
            write_access(access, [*SECTIONS[1:]])
            reload(bus, signal.SIGHUP)
            assert code(shop.line()) == 401
            assert code(shop.ask(delete(q, mid))) == 401
            assert code(other.ask(subscribe(q, name="n"))) == 0
            later = push_one(producer, q)
            producer.server.until(lambda: stored(producer, f"bus:{q}:shop:n", "ready") == [mid, later])
        write_access(access, SECTIONS)
        reload(bus, signal.SIGHUP, 2)
        with known(bus, "shop") as shop:
            assert code(shop.ask(subscribe(q, name="n"))) == 0
            assert [mids(shop.line())[0] for _ in range(2)] == [mid, later]
