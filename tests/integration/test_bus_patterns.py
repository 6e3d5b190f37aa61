"""Subscriptions by patterns at the real bus process: queues that are there, that appear, disappear and come back."""

import signal
from pathlib import Path

import pytest
from support.bus.clients import Connect, gone, has_input, known, push_one, reload, stored
from support.clients.access import principal, write_access
from support.clients.documents import PING, code, delete_list, mids, new_queue, request, subscribe, text
from support.servers.processes import FAST, ServerProcess, Wire, bus_serving, serving

from qs_client import NotFound, QueueClient

HIGH = "/order/@priority='high'"


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own."""
    return qid


def delete_queue(qid: str) -> str:
    return request("delete-queue", f"<qid>{qid}</qid>", force="yes")


def qid_of(line: str) -> str:
    return line.split("<qid>")[1].split("</qid>", maxsplit=1)[0]


def got(wire: Wire, count: int) -> dict[int, str]:
    """Reads so many deliveries. Returns the queue of each message."""
    lines = [wire.line() for _ in range(count)]
    return {mids(line)[0]: qid_of(line) for line in lines}


def test_queues_that_match(connect: Connect, producer: Wire, q: str) -> None:
    """A subscriber gets the messages of the queues that match one of its patterns, and of no other; a pattern that
    matches nothing is no error."""
    for name in (f"{q}-a", f"{q}-b", f"{q}x"):
        producer.ask(new_queue(name))
    wire = connect(subscribe(f"{q}-*", f"{q}?", match="pattern", ack="client"))
    nothing = connect(subscribe(f"{q}-nothing-*", match="pattern"))
    push_one(producer, q)
    sent = {push_one(producer, name): name for name in (f"{q}-a", f"{q}x", f"{q}-b")}
    assert got(wire, 3) == sent
    for mid, name in sent.items():
        assert mids(wire.ask(delete_list(name, mid))) == [mid]
        assert gone(producer, name)
    assert code(nothing.ask(PING)) == 0
    assert len(stored(producer, q)) == 1


def test_queues_that_appear_and_disappear(connect: Connect, producer: Wire, q: str) -> None:
    """A queue that appears belongs to the subscription within a second, with what was pushed before. One that is
    deleted leaves without ending the subscription, and comes back."""
    wire = connect(subscribe(f"{q}-*", match="pattern"))
    for _ in range(2):
        for name in (f"{q}-a", f"{q}-b"):
            producer.ask(new_queue(name))
        assert {push_one(producer, name): name for name in (f"{q}-a", f"{q}-b")} == got(wire, 2)
        for name in (f"{q}-a", f"{q}-b"):
            assert code(producer.ask(delete_queue(name))) == 0
    assert code(wire.ask(PING)) == 0


def test_a_queue_that_another_subscriber_names(connect: Connect, producer: Wire, q: str) -> None:
    """When another subscriber makes the bus look at a queue, those by pattern, and names by pattern, get all that the
    other one gets."""
    wire = connect(subscribe(f"{q}-*", match="pattern"))
    named = connect(subscribe(f"{q}-*", match="pattern", name="n"))
    for round_ in range(3):
        name = f"{q}-{round_}"
        producer.ask(new_queue(name))
        other = connect(subscribe(name))
        mid = push_one(producer, name)
        assert got(other, 1) == got(wire, 1) == got(named, 1) == {mid: name}


def test_queues_of_the_bus_never_match(connect: Connect, producer: Wire, q: str) -> None:
    """The queues that a bus makes belong to no pattern, also if it would accept them."""
    connect(subscribe(q, name="n")).close()
    wire = connect(subscribe(f"*{q}*", match="pattern"))
    mid = push_one(producer, q)
    assert got(wire, 1) == {mid: q}
    producer.server.until(lambda: stored(producer, f"bus:{q}:n") == [mid])
    assert code(wire.ask(PING)) == 0


def test_one_connection_has_a_queue_once(connect: Connect, producer: Wire, q: str) -> None:
    """A queue that two subscriptions of a connection match is the first one's; to name it then is 400."""
    wire = connect(subscribe(f"{q}*", match="pattern", req="first"), subscribe(f"*{q}", match="pattern", req="second"))
    mid = push_one(producer, q)
    line = wire.line()
    assert (mids(line), 'req="first"' in line) == ([mid], True)
    assert code(wire.ask(subscribe(q))) == 400
    assert gone(producer, q)


def test_refused_patterns(connect: Connect, q: str) -> None:
    """`match` has one value, and a subscription has at most 32 patterns: more would take the bus long to compile."""
    wire = connect()
    assert code(wire.ask(subscribe(q, match="regex"))) == 400
    assert code(wire.ask(subscribe(*(f"{q}-{number}-*" for number in range(33)), match="pattern"))) == 400
    assert code(wire.ask(subscribe(*(f"{q}-{number}-*" for number in range(32)), match="pattern"))) == 0


def test_a_condition_holds_for_a_pattern(connect: Connect, producer: Wire, q: str) -> None:
    """A condition holds for all queues of a pattern."""
    wire = connect(subscribe(f"{q}*", match="pattern", where=HIGH))
    producer.ask(new_queue(f"{q}-b"))
    for name in (q, f"{q}-b"):
        push_one(producer, name, "&lt;order priority='low'/>")
        assert {push_one(producer, name, "&lt;order priority='high'/>"): name} == got(wire, 1)
        assert gone(producer, name)


def test_names_of_patterns(tmp_path: Path) -> None:
    """Each queue that matches has the name's queue, with the name's condition: also queues that appear while no member
    is connected, and while the bus is down. Without the queue that keeps the pattern, no more are made."""
    kept = "bus::match:q-*:n"
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus, Wire(server) as producer:
        producer.ask(new_queue("q-1"))
        with Wire(bus) as wire:
            assert code(wire.ask(subscribe("q-*", match="pattern", name="n", where=HIGH))) == 0
            answer = wire.ask(subscribe("q-*", match="pattern", name="n"))
            assert code(answer) == 409
            assert f"qs set '{kept}' --where" in text(answer)
        producer.ask(new_queue("q-2"))
        server.until(lambda: "bus:q-2:n" in producer.ask(request("list-queues")))
        bus.kill()
        producer.ask(new_queue("q-3"))
        bus.start()
        server.until(lambda: "bus:q-3:n" in producer.ask(request("list-queues")))
        sent = {}
        for name in ("q-1", "q-2", "q-3"):
            push_one(producer, name, "&lt;order/>")
            sent[push_one(producer, name, "&lt;order priority='high'/>")] = name
            assert gone(producer, name)
        with Wire(bus) as wire:
            assert code(wire.ask(subscribe("q-*", match="pattern", name="n", where=HIGH, ack="client"))) == 0
            assert got(wire, 3) == sent
            producer.ask(new_queue("q-4"))
            late = push_one(producer, "q-4", "&lt;order priority='high'/>")
            assert got(wire, 1) == {late: "q-4"}
        assert stored(producer, kept) == []
        assert code(producer.ask(delete_queue(kept))) == 0
        for name in ("q-1", "q-2", "q-3", "q-4"):
            assert code(producer.ask(delete_queue(f"bus:{name}:n"))) == 0
        bus.stop()
        bus.start()
        producer.ask(new_queue("q-5"))
        with Wire(bus) as wire:
            assert code(wire.ask(subscribe("q-5"))) == 0
        assert ":n<" not in producer.ask(request("list-queues"))


def test_monitored_queues(shared_server: ServerProcess, producer: Wire, q: str) -> None:
    """With -q, a pattern matches the monitored queues only."""
    for name in (f"{q}-other", f"{q}-a"):
        producer.ask(new_queue(name))
    with bus_serving(shared_server, "-q", f"{q},{q}-a") as bus, Wire(bus) as wire:
        assert code(wire.ask(subscribe(f"{q}*", match="pattern"))) == 0
        push_one(producer, f"{q}-other")
        sent = {push_one(producer, name): name for name in (q, f"{q}-a")}
        assert got(wire, 2) == sent
        producer.ask(delete_queue(q))
        producer.server.until(lambda: code(producer.ask(request("list-messages", f"<qid>{q}</qid>"))) == 0)
        assert {push_one(producer, q): q} == got(wire, 1)


def test_rights(shared_server: ServerProcess, producer: Wire, tmp_path: Path, q: str) -> None:
    """A client gets the messages of those queues that match and that it may read: rights that are given or taken later
    hold at once, and end nothing. A name by pattern takes nothing from queues that its owner may not read."""
    mine, other = f"{q}-mine", f"{q}-other"
    for name in (mine, other):
        producer.ask(new_queue(name))
    both = principal("both", read=[f"{q}-*"])
    writer = principal("writer", write=["*"])
    access = write_access(tmp_path / "access.toml", [principal("a", read=[mine]), both, writer])
    with (
        bus_serving(shared_server, "-v", "--access", str(access)) as bus,
        known(bus, "a") as plain,
        known(bus, "a") as named,
        known(bus, "both") as everything,
        known(bus, "writer") as writing,
    ):
        assert code(writing.ask(subscribe(f"{q}*", match="pattern"))) == 0
        assert code(writing.ask(subscribe(f"{q}*", match="pattern", name="n"))) == 403
        assert code(plain.ask(subscribe("*", match="pattern"))) == 0
        assert code(named.ask(subscribe(f"{q}*", match="pattern", name="n"))) == 0
        assert code(everything.ask(subscribe(f"{q}*", match="pattern"))) == 0
        hidden, sent = push_one(producer, other), push_one(producer, mine)
        assert got(plain, 1) == got(named, 1) == {sent: mine}
        assert got(everything, 2) == {hidden: other, sent: mine}
        assert f"bus:{other}" not in producer.ask(request("list-queues"))
        write_access(access, [principal("a", read=[other]), both, writer])
        reload(bus, signal.SIGHUP)
        stats = request("queue-stats", f"<qid>bus:{other}:a:n</qid>")
        shared_server.until(lambda: 'subscribers="1"' in producer.ask(stats))  # the bus has it, for the member
        push_one(producer, mine)
        sent = push_one(producer, other)
        assert got(plain, 1) == got(named, 1) == {sent: other}
        assert code(plain.ask(PING)) == 0


def test_a_bus_that_may_not_read_a_queue(tmp_path: Path) -> None:
    """A queue that the server does not let the bus read belongs to no pattern until the bus may: the subscription does
    not end, and the log does not fill."""
    rights = {"write": ["*"], "configure": ["*"]}
    admin = principal("ops", admin=True)
    access = write_access(tmp_path / "access.toml", [principal("bus", read=["q-1", "bus:*"], **rights), admin])
    token = tmp_path / "token"
    token.write_text("bus-token")
    token.chmod(0o600)
    flags = ("--server-token-file", str(token))
    with (
        serving(tmp_path / "root", *FAST, "-v", "--access", str(access)) as server,
        bus_serving(server, *flags) as bus,
        known(server, "ops") as producer,
        Wire(bus) as wire,
    ):
        for name in ("q-1", "q-2"):
            producer.ask(new_queue(name))
        assert code(wire.ask(subscribe("q-*", match="pattern"))) == 0
        push_one(producer, "q-2")
        assert {push_one(producer, "q-1"): "q-1"} == got(wire, 1)
        assert not has_input(wire, 0.1)
        assert code(wire.ask(PING)) == 0
        assert "may not read" not in bus.log()


def test_subscribers_by_pattern_are_expected_back(tmp_path: Path) -> None:
    """After a kill, the bus waits for as many acknowledging subscribers by pattern as each queue had, also of a queue
    that appeared while they were there: the first one does not get the messages alone."""
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server, "--settle", "30") as bus:
        client = QueueClient(server.host, server.port)
        with client, Wire(server) as producer:
            producer.ask(new_queue("q-1"))
            with Wire(bus) as one, Wire(bus) as two:
                for wire in (one, two):
                    assert code(wire.ask(subscribe("q-*", match="pattern", ack="client"))) == 0
                producer.ask(new_queue("q-2"))
                counts = f"bus::127.0.0.1:{bus.port}"

                def noted() -> str:
                    try:
                        return "".join(client.peek(counts, mid).text for mid in client.list_messages(counts))
                    except NotFound:  # newer counts have just taken its place
                        return ""

                server.until(lambda: "2 q-1\n2 q-2\n" in noted())
                bus.kill()
            sent = {push_one(producer, name): name for name in ("q-1", "q-2")}
            bus.start()
            with Wire(bus) as one, Wire(bus) as two:
                for wire in (one, two):
                    assert not has_input(wire, 0.1)
                    assert code(wire.ask(subscribe("q-*", match="pattern", ack="client"))) == 0
                assert got(one, 2) == got(two, 2) == sent
