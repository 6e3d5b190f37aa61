"""The real bus process and what a client can send wrong: the error it gets, that nothing changes, and others go on."""

import contextlib
import select
import socket
from collections.abc import Iterator

import pytest
from support.clients.documents import (
    BAD,
    PING,
    code,
    delete,
    is_delivery,
    mids,
    new_queue,
    push,
    request,
    state,
    subscribe,
    text,
)
from support.servers.processes import BusProcess, ServerProcess, Wire, bus_serving


@pytest.fixture
def bus(server: ServerProcess) -> Iterator[BusProcess]:
    """A bus of the test's own, on a server of its own."""
    with bus_serving(server) as process:
        yield process


@contextlib.contextmanager
def subscribed(server: ServerProcess, wire: Wire, bus: BusProcess, qid: str) -> Iterator[Wire]:
    """Another client, subscribed to the queue, which is made if missing, with two messages in hand."""
    wire.ask(new_queue(qid))
    wire.ask(push(qid, "precious"), push(qid, "also"))
    with Wire(bus) as subscriber:
        assert code(subscriber.ask(subscribe(qid, ack="client", name="n"))) == 0
        assert all(is_delivery(subscriber.line()) for _ in range(2))
        server.until(lambda: is_empty(wire, qid))
        yield subscriber


@pytest.fixture
def subscriber(server: ServerProcess, wire: Wire, bus: BusProcess) -> Iterator[Wire]:
    """One of the queue `q` on the test's own server."""
    with subscribed(server, wire, bus, "q") as subscriber:
        yield subscriber


def is_empty(wire: Wire, qid: str) -> bool:
    return mids(wire.ask(request("list-messages", f"<qid>{qid}</qid>", state="all"))) == []


def goes_on(wire: Wire, subscriber: Wire, qid: str = "q") -> bool:
    """Tells whether a well-behaved client is served."""
    pushed = mids(wire.ask(push(qid, "new")))
    assert mids(subscriber.line()) == pushed
    return code(subscriber.ask(delete(qid, pushed[0]))) == 0


def test_bus_answers_bad_input(server: ServerProcess, wire: Wire, bus: BusProcess, subscriber: Wire) -> None:
    """Everything that a client can send wrong has its documented error, in a line, and changes nothing."""
    before = state(wire, server.root)
    for name, (sent, expected, says, closes) in BAD.items():
        with Wire(bus) as bad:
            bad.send(sent)
            answer = bad.line()
            assert (name, code(answer)) == (name, expected), answer
            assert says in text(answer), name
            assert len(answer.splitlines()) == 1
            if closes:
                assert bad.line() == "", name
            else:
                assert code(bad.ask(PING)) == 0, name
        assert state(wire, server.root) == before, name
    assert goes_on(wire, subscriber)
    assert "Traceback" not in bus.log()


WRONG = {
    "no queue": (request("subscribe"), "qid"),
    "an empty list": (request("subscribe", "<queues/>"), "qid"),
    "an empty name of a queue": (request("subscribe", "<qid> </qid>"), "qid"),
    "both forms": (request("subscribe", "<qid>q</qid><queues><queue>q</queue></queues>"), "either 'qid' or 'queues'"),
    "another ack": (subscribe("q", ack="server"), "ack"),
    "no prefetch": (subscribe("q", prefetch=0), "prefetch"),
    "a huge prefetch": (subscribe("q", prefetch="9" * 40), "18 digits"),
    "an empty name": (subscribe("q", name=""), "name"),
    "a negative delay": (
        request("release-message", "<qid>q</qid><mid>1</mid>", delay=-1), "delay"
    ),
    "both forms of an acknowledgement": (
        request("delete-message", "<qid>q</qid><mid>1</mid><messages><mid>2</mid></messages>"),
        "either 'mid' or 'messages'",
    ),
}  # fmt: skip


def test_bad_requests_of_the_bus(shared_server: ServerProcess, producer: Wire, shared_bus: BusProcess) -> None:
    """A faulty bus operation gets 400 with the fault; the connection stays open and is not subscribed."""
    with subscribed(shared_server, producer, shared_bus, "q") as subscriber, Wire(shared_bus) as bad:
        for name, (sent, says) in WRONG.items():
            answer = bad.ask(sent)
            assert (name, code(answer)) == (name, 400), answer
            assert says in text(answer), name
        assert goes_on(producer, subscriber)
        assert code(bad.ask(PING)) == 0


def test_bus_ends_half_a_document_in_time(shared_server: ServerProcess, producer: Wire) -> None:
    """--document-time: a document that has begun and does not end is 408, also one byte at a time, also of a
    subscriber; a silent client stays."""
    producer.ask(new_queue("half"))
    with bus_serving(shared_server, "--document-time", "0.2") as bus, Wire(bus) as subscriber:
        assert code(subscriber.ask(subscribe("half", ack="client", name="n"))) == 0
        half_a_document(producer, bus, subscriber)


def half_a_document(wire: Wire, bus: BusProcess, subscriber: Wire) -> None:
    with Wire(bus) as half:
        half.send(PING[:30])
        line = half.line()
        assert (code(line), "0.2 s" in text(line)) == (408, True)
        assert half.line() == ""
    with Wire(bus) as slow:
        assert code(slow.ask(subscribe("half"))) == 0
        for byte in PING[:-1]:
            try:
                slow.send(byte)
            except OSError:
                break
            if select.select([slow.socket], [], [], 0.02)[0]:
                break
        assert code(slow.line()) == 408
    assert not select.select([subscriber.socket], [], [], 0.3)[0]
    assert goes_on(wire, subscriber, "half")


def test_bus_forgets_half_a_document(server: ServerProcess, wire: Wire, bus: BusProcess, subscriber: Wire) -> None:
    """A client that goes in the middle of a document, or resets, leaves nothing behind."""
    before = state(wire, server.root)
    for reset in (False, True):
        with Wire(bus) as half:
            half.send(subscribe("q")[:-20])
            if reset:
                half.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
    with Wire(bus) as half:
        half.send(subscribe("q")[:-20])
        half.socket.shutdown(socket.SHUT_WR)
        assert code(half.line()) == 400
        assert half.line() == ""
    assert state(wire, server.root) == before
    assert goes_on(wire, subscriber)


def test_too_many_connections(shared_server: ServerProcess, producer: Wire) -> None:
    """--max-connections: one client too many gets 429 and the end; when another one goes there is room again."""
    with (
        bus_serving(shared_server, "--max-connections", "4") as bus,
        subscribed(shared_server, producer, bus, "few") as subscriber,
    ):
        one_too_many(bus)
        assert goes_on(producer, subscriber, "few")


def one_too_many(bus: BusProcess) -> None:
    others = [Wire(bus) for _ in range(3)]
    for other in others:
        assert code(other.ask(PING)) == 0
    with Wire(bus) as refused:
        answer = refused.line()
        assert (code(answer), "4 connections" in text(answer)) == (429, True)
        assert "try again later" in text(answer)
        assert refused.line() == ""
    others.pop().close()
    while True:
        with Wire(bus) as again:
            again.send(PING)
            if code(again.line()) == 0:
                break
    for other in others:
        other.close()


def test_a_subscriber_that_sends_garbage(shared_server: ServerProcess, producer: Wire, shared_bus: BusProcess) -> None:
    """A subscriber whose bytes become unreadable gets an error and is closed; its messages go to another."""
    with subscribed(shared_server, producer, shared_bus, "read") as subscriber, Wire(shared_bus) as other:
        assert code(other.ask(subscribe("read", ack="client", name="n"))) == 0
        subscriber.send(b"\0garbage")
        assert code(subscriber.line()) == 400
        assert subscriber.line() == ""
        assert all(is_delivery(other.line()) for _ in range(2))
        assert goes_on(producer, other, "read")


def test_a_queue_with_a_difficult_name(producer: Wire, shared_bus: BusProcess) -> None:
    """Names with spaces inside, quotes, markup, slashes and other alphabets work, for queues and for names."""
    for name in ("a b", "&lt;&amp;&gt;", "'&quot;", "../x", "\N{GREEK SMALL LETTER ALPHA}", "a:b%"):
        assert code(producer.ask(new_queue(name))) == 0
        with Wire(shared_bus) as plain, Wire(shared_bus) as named:
            assert code(plain.ask(subscribe(name))) == 0
            assert code(named.ask(subscribe(name, name=name.replace("'", "&apos;")))) == 0
            pushed = mids(producer.ask(push(name, "x")))
            assert mids(plain.line()) == mids(named.line()) == pushed
