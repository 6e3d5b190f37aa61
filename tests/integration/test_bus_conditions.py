"""Conditions of subscribers at the real bus process: who gets what, what is refused, and names that keep theirs."""

from pathlib import Path

import pytest
from support.bus.clients import Connect, gone, push_one, stored
from support.clients.documents import PING, code, delete_list, mids, new_queue, request, subscribe, text
from support.servers.processes import FAST, BusProcess, ServerProcess, Wire, bus_serving, serving

from qs_client import QueueClient

HIGH, LOW = "&lt;order priority='high'/>", "&lt;order priority='low'/>"
IS_HIGH, IS_LOW = "/order/@priority='high'", "/order/@priority='low'"


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own."""
    return qid


def test_conditions(connect: Connect, producer: Wire, q: str) -> None:
    """Each subscriber gets what matches its condition. What matches nobody is deleted; with nobody there, all
    stays."""
    first = push_one(producer, q, HIGH)
    high, low = connect(subscribe(q, where=IS_HIGH)), connect(subscribe(q, where=IS_LOW, ack="client"))
    assert mids(high.line()) == [first]
    sent = [push_one(producer, q, payload) for payload in (LOW, "neither", HIGH, LOW)]
    assert mids(high.line()) == [sent[2]]
    assert [mids(low.line())[0] for _ in range(2)] == [sent[0], sent[3]]
    producer.server.until(lambda: stored(producer, q) == [sent[0], sent[3]])
    assert mids(low.ask(delete_list(q, sent[0], sent[3]))) == [sent[0], sent[3]]
    assert gone(producer, q)
    assert code(high.ask(PING)) == 0  # nothing came in between
    for wire in (high, low):
        wire.close()
    kept = push_one(producer, q, "neither")
    assert stored(producer, q) == [kept]


def test_refused_conditions(connect: Connect, q: str) -> None:
    """A text that is no condition is 400 that says the position and what is wrong. Nothing is subscribed to."""
    wire = connect()
    for where, position in (("/order[", 8), ("count(/order) > 1", 1), ("/order and", 11), ("3", 1)):
        answer = wire.ask(subscribe(q, where=where.replace(">", "&gt;")))
        assert code(answer) == 400
        assert f"column {position}:" in text(answer)
        assert "where" in text(answer)
    assert code(wire.ask(subscribe(q, where=IS_HIGH))) == 0


def test_names_keep_their_conditions(tmp_path: Path) -> None:
    """A name gets what matches its condition: while no member is there, after restarts of bus and server, and no other
    name gets that. The condition is an option of the name's queue."""
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus:
        with Wire(server) as producer, Wire(bus) as wire:
            producer.ask(new_queue("q"))
            assert code(wire.ask(subscribe("q", name="high", where=IS_HIGH))) == 0
            assert code(wire.ask(subscribe("q", req="a", name="all"))) == 400  # one subscription to a queue
        with Wire(bus) as wire:
            assert code(wire.ask(subscribe("q", name="all", ack="client"))) == 0
        with QueueClient(server.host, server.port) as client:
            assert client.queue_options("bus:q:high").where == IS_HIGH
            assert client.queue_options("bus:q:all").where is None
        with Wire(server) as producer:
            sent = [push_one(producer, "q", payload) for payload in (HIGH, LOW)]
            assert gone(producer, "q")
        bus.kill()
        with Wire(server) as producer:
            sent += [push_one(producer, "q", payload) for payload in (LOW, HIGH)]
        server.kill()
        again = ServerProcess(server.root, *FAST, port=server.port)
        try:
            bus.start()
            with Wire(again) as producer, Wire(bus) as wire:
                assert gone(producer, "q")
                assert stored(producer, "bus:q:high") == [sent[0], sent[3]]
                assert stored(producer, "bus:q:all") == sent
                assert code(wire.ask(subscribe("q", name="high", where=IS_HIGH))) == 0
                assert [mids(wire.line())[0] for _ in range(2)] == [sent[0], sent[3]]
        finally:
            again.stop()


def test_another_condition_of_a_name(
    connect: Connect, producer: Wire, client: QueueClient, shared_bus: BusProcess, q: str
) -> None:
    """A name has one condition, or none: another one is 409 that says which, and how to change it. After the change the
    name has the new one; members that are there stay."""
    member, wire = connect(subscribe(q, name="n", where=IS_HIGH)), connect(subscribe(q, name="none"))
    for name, asked, has in (("n", IS_LOW, IS_HIGH), ("n", None, IS_HIGH), ("none", IS_LOW, "no condition")):
        answer = wire.ask(subscribe(q, name=name, **({"where": asked} if asked else {})))
        assert code(answer) in (400, 409)  # this connection has the queue already
        answer = connect().ask(subscribe(q, name=name, **({"where": asked} if asked else {})))
        assert code(answer) == 409
        assert has in text(answer).replace('"', "'").replace("\\'", "'")
        assert f"qs set 'bus:{q}:{name}' --where" in text(answer)
    client.set_queue(f"bus:{q}:n", where=IS_LOW)
    second = connect(subscribe(q, name="n", where=IS_LOW))
    push_one(producer, q, HIGH)
    low = [push_one(producer, q, LOW) for _ in range(2)]
    assert sorted(mids(member.line()) + mids(second.line())) == low


def test_a_condition_that_somebody_has_spoiled(tmp_path: Path) -> None:
    """A name whose option is no condition keeps every message, and its members are refused. The bus logs that once, and
    goes on as before when it is corrected."""
    with (
        serving(tmp_path / "root", *FAST) as server,
        bus_serving(server) as bus,
        Wire(server) as producer,
        QueueClient(server.host, server.port) as client,
    ):
        producer.ask(new_queue("q"))
        with Wire(bus) as wire:
            assert code(wire.ask(subscribe("q", name="n", where=IS_HIGH))) == 0
        client.set_queue("bus:q:n", where="/order[")
        bus.kill()
        bus.start()
        sent = [push_one(producer, "q", payload) for payload in (HIGH, LOW)]
        assert gone(producer, "q")
        assert stored(producer, "bus:q:n") == sent
        with Wire(bus) as wire:
            for where in (IS_HIGH, "/order["):
                answer = wire.ask(subscribe("q", name="n", where=where))
                assert code(answer) == (409 if where == IS_HIGH else 400)
            assert "qs set 'bus:q:n' --where" in text(wire.ask(subscribe("q", name="n", where=IS_HIGH)))
            assert bus.log().count("condition that is not valid") == 1
            client.set_queue("bus:q:n", where=IS_HIGH)
            assert code(wire.ask(subscribe("q", name="n", where=IS_HIGH, ack="client"))) == 0
            assert [mids(wire.line())[0] for _ in sent] == sent  # what is in the queue already stays
            push_one(producer, "q", LOW)
            high = push_one(producer, "q", HIGH)
            assert mids(wire.line()) == [high]


def test_large_payloads_keep_their_order(connect: Connect, producer: Wire, q: str) -> None:
    """Large payloads, which are evaluated beside, and small ones come in the order in which they were pushed."""
    wire, everything = connect(subscribe(q, where="/a[b=1]")), connect(subscribe(q))
    filler = "x" * 50_000
    payloads = [f"&lt;a>&lt;b>{at % 2}&lt;/b>{filler * (at % 3)}&lt;/a>" for at in range(12)]
    sent = [push_one(producer, q, payload) for payload in payloads]
    assert [mids(everything.line())[0] for _ in sent] == sent
    assert [mids(wire.line())[0] for _ in range(6)] == sent[1::2]
    assert gone(producer, q)


def test_not_on_the_server(producer: Wire, q: str) -> None:
    """A queue server takes no conditions: they belong on the bus."""
    assert code(producer.ask(subscribe(q, where=IS_HIGH))) == 501
    assert code(producer.ask(request("ping"))) == 0
