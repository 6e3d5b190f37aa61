"""The real bus process and its queues: those of -q, those that are deleted, and clients that name none."""

import select

import pytest
from support.bus.clients import Connect, gone, push_one, stored
from support.clients.documents import PING, code, delete, mids, new_queue, req, request, subscribe, text
from support.servers.processes import ServerProcess, Wire, bus_serving


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own."""
    return qid


def test_silent_client_gets_every_monitored_queue(shared_server: ServerProcess, producer: Wire, q: str) -> None:
    """A client that only connects gets the messages of every queue that is monitored, from 0.25 s on; one that sends
    white space too. Their deliveries have no req."""
    other = f"{q}-other"
    with bus_serving(shared_server, "-q", f"{q},{other}") as bus, Wire(bus) as silent, Wire(bus) as blank:
        blank.send(" \r\n\r\n\t")
        producer.server.until(lambda: f"<queue>{other}</queue>" in producer.ask(request("list-queues")))
        for wire in (silent, blank):  # from when on each of them gets messages, only it knows
            while not select.select([wire.socket], [], [], 0.02)[0]:
                push_one(producer, q)
        mid = push_one(producer, other)
        for wire in (silent, blank):
            while mids(line := wire.line()) != [mid]:
                assert f"<qid>{q}</qid>" in line
                assert req(line) == ""
            assert f"<qid>{other}</qid>" in line
        assert gone(producer, q)
        assert gone(producer, other)


def test_half_a_document_in_time(connect: Connect, producer: Wire, q: str) -> None:
    """A client whose first document is begun within 0.25 s and ends later is not one that only listens."""
    wire = connect()
    document = subscribe(q, req="late", ack="client")
    wire.send(document[:40])
    assert not select.select([wire.socket], [], [], 0.4)[0]
    wire.send(document[40:])
    answer = wire.line()
    assert (code(answer), req(answer)) == (0, "late")
    mid = push_one(producer, q)
    assert mids(wire.line()) == [mid]
    assert stored(producer, q) == [mid]


def test_a_queue_that_is_not_there(connect: Connect, producer: Wire, q: str) -> None:
    """Without -q an unknown queue is 404 that names it, also beside a known one; and one that was deleted since."""
    wire = connect()
    for document in (subscribe("absent"), subscribe(q, "absent"), subscribe("absent", name="n")):
        answer = wire.ask(document)
        assert (code(answer), "'absent'" in text(answer)) == (404, True), answer
    connect(subscribe(q)).close()
    producer.ask(request("delete-queue", f"<qid>{q}</qid>", force="yes"))
    assert code(wire.ask(subscribe(q))) == 404 or code(wire.line()) == 404


def test_a_queue_of_the_bus_itself(connect: Connect) -> None:
    """The queues in which the bus keeps messages for names are not to be subscribed to."""
    answer = connect().ask(subscribe("bus:a:b"))
    assert (code(answer), "of the bus itself" in text(answer)) == (400, True)


def test_one_of_several_queues_is_deleted(connect: Connect, producer: Wire, q: str) -> None:
    """A deleted queue leaves the subscription, which goes on with the others; with the last one it ends."""
    others = [f"{q}-{letter}" for letter in "ab"]
    for name in others:
        producer.ask(new_queue(name))
    wire = connect(subscribe(*others, req="both", ack="client"))
    first = push_one(producer, others[0])
    assert mids(wire.line()) == [first]
    assert code(producer.ask(request("delete-queue", f"<qid>{others[0]}</qid>", force="yes"))) == 0
    mid = push_one(producer, others[1])
    assert mids(wire.line()) == [mid]
    assert code(wire.ask(delete(others[1], mid))) == 0
    while code(wire.ask(delete(others[0], first))) != 404:
        """What it had of the first is its own until the bus knows that the queue is gone, which it tells nobody."""
    assert code(producer.ask(request("delete-queue", f"<qid>{others[1]}</qid>", force="yes"))) == 0
    line = wire.line()
    assert (code(line), req(line)) == (404, "both")


def test_who_says_nothing_gets_what_comes_to_be_monitored(shared_server: ServerProcess, producer: Wire, q: str) -> None:
    """Without -q, a client that only connects gets the messages of queues that others name after it."""
    earlier = f"{q}-earlier"
    producer.ask(new_queue(earlier))
    with bus_serving(shared_server) as bus, Wire(bus) as silent:
        with Wire(bus) as other:
            assert code(other.ask(subscribe(earlier))) == 0
            pushed = [push_one(producer, earlier)]
            while not select.select([silent.socket], [], [], 0.05)[0]:  # until the bus knows that it says nothing
                pushed.append(push_one(producer, earlier))
        with Wire(bus) as other:
            assert code(other.ask(subscribe(q))) == 0
            mid = push_one(producer, q)
            assert mids(other.line()) == [mid]
            while (found := mids(silent.line())) != [mid]:
                assert set(found) <= set(pushed)


def test_who_says_nothing_when_nobody_subscribes_any_more(shared_server: ServerProcess, producer: Wire, q: str) -> None:
    """Without -q, a queue is monitored for as long as a client is subscribed to it: one that only connects gets nothing
    of a queue whose only subscriber has left before, even if something of it was still to be deleted then; and its
    messages stay there, new."""
    kept = f"{q}-kept"
    producer.ask(new_queue(kept))
    with bus_serving(shared_server) as bus, Wire(bus) as subscriber:
        assert code(subscriber.ask(subscribe(kept))) == 0
        with Wire(bus) as other:
            assert code(other.ask(subscribe(q, ack="client"))) == 0
            handled = push_one(producer, q)
            assert mids(other.line()) == [handled]
            with shared_server.freeze():
                assert code(other.ask(delete(q, handled))) == 0
                other.close()
                assert code(subscriber.ask(PING)) == 0  # the bus has seen that the other has gone, or does next
        producer.server.until(lambda: push_one(producer, q) in stored(producer, q, "new"))
        with Wire(bus) as silent:
            while not select.select([silent.socket], [], [], 0.05)[0]:  # until the bus knows that it says nothing
                push_one(producer, kept)
            mid, last = push_one(producer, q), push_one(producer, kept)
            while (line := silent.line()) and mids(line) != [last]:
                assert f"<qid>{kept}</qid>" in line
            assert mid in stored(producer, q, "new")


def test_q_flag_names_and_makes_queues(shared_server: ServerProcess, producer: Wire, q: str) -> None:
    """-q takes names, repeated and as comma lists, and makes the queues that are not there; others are 404, and the
    text says which there are."""
    names = [f"{q}-{letter}" for letter in "abc"]
    flags = ("-q", f"{names[0]}, {names[1]}", "--queue", names[2])
    with bus_serving(shared_server, *flags) as bus, Wire(bus) as wire:
        assert code(wire.ask(subscribe(*names))) == 0
        for name in names:
            producer.server.until(lambda name=name: f"<queue>{name}</queue>" in producer.ask(request("list-queues")))
        for name in names:
            mid = push_one(producer, name)
            assert mids(wire.line()) == [mid]
        answer = wire.ask(subscribe(q, req="x"))
        assert (code(answer), req(answer)) == (404, "x")
        assert f"it monitors {', '.join(names)}" in text(answer)


def test_two_buses(shared_server: ServerProcess, producer: Wire, q: str) -> None:
    """Two buses on one server, each for queues of its own: each client gets what its bus monitors."""
    one, two = f"{q}-1", f"{q}-2"
    with (
        bus_serving(shared_server, "-q", one) as first,
        bus_serving(shared_server, "-q", two) as second,
        Wire(first) as a,
        Wire(second) as b,
    ):
        for qid in (one, two):
            producer.server.until(lambda qid=qid: f"<queue>{qid}</queue>" in producer.ask(request("list-queues")))
        a.ask(subscribe(one))
        b.ask(subscribe(two))
        sent = push_one(producer, one), push_one(producer, two)
        assert (mids(a.line()), mids(b.line())) == ([sent[0]], [sent[1]])


def test_a_monitored_queue_while_the_server_does_not_answer(
    shared_server: ServerProcess, producer: Wire, q: str
) -> None:
    """A subscription to a queue of -q is taken while the server stands still, within some seconds, and works when the
    server goes on."""
    with bus_serving(shared_server, "-v", "-q", q) as bus, Wire(bus) as wire:
        bus.until_logged("connected to")
        with shared_server.freeze():
            assert code(wire.ask(subscribe(q))) == 0
        mid = push_one(producer, q)
        assert mids(wire.line()) == [mid]
