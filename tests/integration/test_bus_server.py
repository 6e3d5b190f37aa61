"""The real bus process in front of the real queue server, over raw sockets: who gets what, and what becomes of it."""

import base64
import itertools
import os
import re
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bus_serving import BusProcess, bus_serving
from support.documents import (
    NS,
    PING,
    code,
    delete,
    delete_list,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    receives,
    release,
    req,
    request,
    subscribe,
    text,
)
from support.serving import FAST, ServerProcess, Wire, serving
from support.stalls import stopped

from qs_schemas import (
    OPERATIONS,
    AckClaim,
    Authenticate,
    ClaimMessages,
    CopyMessage,
    DeleteQueue,
    ExtendMessage,
    GetClaim,
    GetMessage,
    ListClaims,
    ListMessages,
    Message,
    NewQueue,
    Part,
    Ping,
    PublishStaged,
    PurgeQueue,
    PushMessage,
    QueueStats,
    ReceiveMessage,
    ReleaseClaim,
    StageMessages,
    Unsubscribe,
    serialize,
)
from qs_schemas.messages import Draft

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def bus(shared_server: ServerProcess) -> Iterator[BusProcess]:
    """One bus for all tests of this file: each has its own queues."""
    with bus_serving(shared_server) as process:
        yield process


@pytest.fixture
def q(producer: Wire) -> str:
    """A queue of the test's own."""
    name = f"queue-{next(_numbers)}"
    producer.ask(new_queue(name))
    return name


@pytest.fixture
def connect(bus: BusProcess) -> Iterator[Callable[..., Wire]]:
    """Makes connections to the bus; each of the documents has been answered without an error."""
    made: list[Wire] = []

    def make(*documents: str) -> Wire:
        wire = Wire(bus)
        made.append(wire)
        for document in documents:
            answer = wire.ask(document)
            assert code(answer) == 0, answer
        return wire

    yield make
    for wire in made:
        wire.close()


Connect = Callable[..., Wire]


def push_one(producer: Wire, qid: str, payload: str = "x") -> int:
    return mids(producer.ask(push(qid, payload)))[0]


def stored(producer: Wire, qid: str, state: str = "all") -> list[int]:
    return mids(producer.ask(request("list-messages", f"<qid>{qid}</qid>", state=state)))


def gone(producer: Wire, qid: str) -> bool:
    """Waits until the queue is empty."""
    producer.server.until(lambda: stored(producer, qid) == [])
    return True


# -- who says nothing -------------------------------------------------------------------------------------------------


def test_a_client_that_only_connects(shared_server: ServerProcess, producer: Wire, q: str) -> None:
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


# -- subscribe --------------------------------------------------------------------------------------------------------


def test_the_form_of_a_delivery(connect: Connect, producer: Wire, q: str) -> None:
    """The answer comes first, of the same kind as the request; then a line for each message: a response to get-message
    with the subscription's req, the queue, the id with its attributes, the payload."""
    wire = connect()
    answer = wire.ask(subscribe(q, req="my-req"))
    start = f'<qs xmlns="{NS}" type="response" req="my-req"'
    assert re.fullmatch(f'{start} resp="[0-9a-f]{{64}}"><op><subscribe/></op><qid>{q}</qid></qs>\r\n', answer)
    mid = push_one(producer, q, "hello &amp; goodbye")
    line = wire.line()
    assert re.fullmatch(
        f"{start}><op><get-message/></op><qid>{q}</qid>"
        f"<payload>hello &amp; goodbye</payload>"
        f'<mid status="delivered" receives="1" pushed-at="[0-9]+">{mid}</mid></qs>\r\n',
        line,
    ), line
    assert gone(producer, q)


def test_payloads_of_every_kind(connect: Connect, producer: Wire, q: str) -> None:
    """Text, line breaks, base64 of text, bytes that XML cannot carry, an empty one, a large one: each is one line."""
    wire = connect(subscribe(q))
    binary = bytes(range(256))
    large = "x" * (8 * 1024 * 1024 - 1000)
    sent = ["<payload>a\nb\r\nc</payload>", "<payload/>", f"<payload>{large}</payload>"]
    sent += [f'<payload encoding="base64">{base64.b64encode(data).decode()}</payload>' for data in (b"text", binary)]
    for payload in sent:
        producer.ask(request("push-message", f"<qid>{q}</qid>{payload}"))
    lines = [wire.line() for _ in sent]
    assert [line.count("\n") for line in lines] == [1] * len(lines)
    assert "<payload>a&#10;b&#10;c</payload>" in lines[0] or "<payload>a&#10;b&#13;&#10;c</payload>" in lines[0]
    assert re.search("<payload></payload>|<payload/>", lines[1])
    assert payloads(lines[2]) == [large]
    assert payloads(lines[3]) == ["text"]
    assert f'<payload encoding="base64">{base64.b64encode(binary).decode()}</payload>' in lines[4]
    assert gone(producer, q)


def test_everybody_gets_everything_in_order(connect: Connect, producer: Wire, q: str) -> None:
    """Each message goes to every subscriber, in order, and is deleted on the server."""
    wires = [connect(subscribe(q, req=str(number))) for number in range(3)]
    producer.ask(push_list(q, *map(str, range(200))))
    for number, wire in enumerate(wires):
        lines = [wire.line() for _ in range(200)]
        assert [payloads(line)[0] for line in lines] == [str(value) for value in range(200)]
        assert {req(line) for line in lines} == {str(number)}
    assert gone(producer, q)


def test_several_queues(connect: Connect, producer: Wire, q: str) -> None:
    """One subscription to several queues, and several subscriptions on one connection, each with its own req."""
    second, third = f"{q}-2", f"{q}-3"
    producer.ask(new_queue(second), new_queue(third))
    wire = connect(subscribe(q, second, req="two"), subscribe(third, req="one"))
    for qid, expected in ((q, "two"), (second, "two"), (third, "one")):
        mid = push_one(producer, qid)
        line = wire.line()
        assert (req(line), mids(line)) == (expected, [mid])
        assert f"<qid>{qid}</qid>" in line


def test_what_was_there_before(connect: Connect, producer: Wire, q: str) -> None:
    """With nobody subscribed messages stay in their queue; who comes gets them, oldest first, and then the new ones."""
    sent = [push_one(producer, q, str(number)) for number in range(5)]
    assert stored(producer, q, "new") == sent
    wire = connect(subscribe(q))
    sent.append(push_one(producer, q))
    assert [mids(wire.line())[0] for _ in sent] == sent
    assert gone(producer, q)
    wire.close()
    producer.server.until(lambda: push_one(producer, q) in stored(producer, q, "new"))


def test_a_file_that_is_moved_in(connect: Connect, producer: Wire, shared_server: ServerProcess, q: str) -> None:
    """A message that another program renames into the queue's directory comes to subscribers like any other."""
    wire = connect(subscribe(q))
    directory = shared_server.root / q
    mid = 1_760_000_000_000_000
    made = directory.parent / f"{q}.tmp"
    made.write_text("by hand")
    os.rename(made, directory / str(mid))
    line = wire.line()
    assert (payloads(line), mids(line)) == (["by hand"], [mid])
    assert gone(producer, q)


def test_overlapping_subscriptions(connect: Connect, producer: Wire, q: str) -> None:
    """A second subscription to the same queue on the same connection is 400, says so, and changes nothing."""
    wire = connect(subscribe(q, req="1"))
    for document in (subscribe(q, req="2"), subscribe(q, req="2", name="n"), subscribe(q, req="1")):
        answer = wire.ask(document)
        assert (code(answer), "already" in text(answer)) == (400, True), answer
        assert q in text(answer)
    push_one(producer, q)
    assert req(wire.line()) == "1"
    push_one(producer, q)
    assert req(wire.line()) == "1"


def test_a_queue_named_twice(connect: Connect, producer: Wire, q: str) -> None:
    """A queue that a subscription names twice is one."""
    wire = connect(subscribe(q, q))
    first, second = push_one(producer, q), push_one(producer, q)
    assert [mids(wire.line()), mids(wire.line())] == [[first], [second]]


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


def test_a_queue_that_is_deleted(connect: Connect, producer: Wire, q: str) -> None:
    """Who is subscribed to a queue that is deleted is told, with the req of the subscription; the connection stays."""
    wire = connect(subscribe(q, req="over"))
    assert code(producer.ask(request("delete-queue", f"<qid>{q}</qid>"))) == 0
    line = wire.line()
    assert (code(line), req(line)) == (404, "over")
    assert code(wire.ask(PING)) == 501
    producer.ask(new_queue(q))
    assert code(wire.ask(subscribe(q, req="again"))) == 0
    mid = push_one(producer, q)
    assert mids(wire.line()) == [mid]


def test_one_of_several_queues_is_deleted(connect: Connect, producer: Wire, q: str) -> None:
    """It leaves the subscription, which goes on with the others; with the last one it is over."""
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
            with stopped(shared_server):
                assert code(other.ask(delete(q, handled))) == 0
                other.close()
                assert code(subscriber.ask(PING)) == 501  # the bus has seen that the other has gone, or does next
        producer.server.until(lambda: push_one(producer, q) in stored(producer, q, "new"))
        with Wire(bus) as silent:
            while not select.select([silent.socket], [], [], 0.05)[0]:  # until the bus knows that it says nothing
                push_one(producer, kept)
            mid, last = push_one(producer, q), push_one(producer, kept)
            while (line := silent.line()) and mids(line) != [last]:
                assert f"<qid>{kept}</qid>" in line
            assert mid in stored(producer, q, "new")


# -- the queues of -q -------------------------------------------------------------------------------------------------


def test_queues_of_the_command(shared_server: ServerProcess, producer: Wire, q: str) -> None:
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


def test_a_monitored_queue_that_is_deleted(shared_server: ServerProcess, producer: Wire, q: str) -> None:
    """A queue of -q that somebody deletes is made again, and its subscribers stay."""
    with bus_serving(shared_server, "-q", q) as bus, Wire(bus) as wire:
        assert code(wire.ask(subscribe(q))) == 0
        producer.ask(request("delete-queue", f"<qid>{q}</qid>", force="yes"))
        producer.server.until(lambda: f"<queue>{q}</queue>" in producer.ask(request("list-queues")))
        mid = push_one(producer, q)
        assert mids(wire.line()) == [mid]


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


# -- early clients ----------------------------------------------------------------------------------------------------


def as_on_the_page(qid: str) -> str:
    return f'<qs xmlns="{NS}" type="request"><op><list-queues /></op><queues><queue>{qid}</queue></queues></qs>\r\n\r\n'


def op_last(qid: str) -> str:
    xsi = "http://www.w3.org/2001/XMLSchema-instance"
    return (
        f'\ufeff<?xml version="1.0" encoding="UTF-8"?>\n<qs xmlns="{NS}" xmlns:xsi="{xsi}" type="request">'
        f"<queues><queue>{qid}</queue></queues><op><list-queues/></op></qs>\r\n\r\n"
    )


def with_prefix(qid: str) -> str:
    return (
        f'<ns0:qs xmlns:ns0="{NS}"><ns0:op><ns0:list-queues></ns0:list-queues></ns0:op>'
        f"<ns0:queues><ns0:queue>\n  {qid}\n</ns0:queue></ns0:queues></ns0:qs>"
    )


@pytest.mark.parametrize("style", [as_on_the_page, op_last, with_prefix])
def test_list_queues_of_early_clients(style: Callable[[str], str], connect: Connect, producer: Wire, q: str) -> None:
    """`list-queues` with queues subscribes to them, however it is written: the answer lists them, then messages come,
    and are handled when they are written."""
    wire = connect()
    empty_line = style(q).endswith("\r\n\r\n")
    answer = wire.ask(style(q))
    assert not empty_line or wire.line() == "\r\n"
    assert "<op><list-queues/></op>" in answer
    assert f"<queues><queue>{q}</queue></queues>" in answer
    mid = push_one(producer, q, "for an early client")
    line = wire.line()
    assert not empty_line or wire.line() == "\r\n"
    assert (mids(line), payloads(line)) == ([mid], ["for an early client"])
    assert gone(producer, q)


def test_list_queues_without_queues(connect: Connect, shared_server: ServerProcess) -> None:
    """`list-queues` without queues is for the queue server: 501 that says where that is."""
    for body in ("", "<queues/>"):
        answer = connect().ask(request("list-queues", body, req="l"))
        assert (code(answer), req(answer)) == (501, "l")
        assert f"127.0.0.1:{shared_server.port}" in text(answer)


# -- acknowledgements -------------------------------------------------------------------------------------------------


def test_ack_client(connect: Connect, producer: Wire, q: str) -> None:
    """With ack="client" a message is in flight on the server until it is acknowledged, and then gone."""
    wire = connect(subscribe(q, ack="client"))
    mid = push_one(producer, q)
    assert mids(wire.line()) == [mid]
    assert stored(producer, q, "in-flight") == [mid]
    answer = wire.ask(delete(q, mid, req="d"))
    assert (code(answer), req(answer), mids(answer)) == (0, "d", [mid])
    assert "<op><delete-message/></op>" in answer
    assert gone(producer, q)


def test_acknowledged_as_a_list(connect: Connect, producer: Wire, q: str) -> None:
    """The list form acknowledges those that are in the client's hands, and names them."""
    wire = connect(subscribe(q, ack="client"))
    sent = [push_one(producer, q) for _ in range(4)]
    for _ in sent:
        wire.line()
    assert mids(wire.ask(delete_list(q, sent[0], 1, sent[2], sent[0]))) == [sent[0], sent[2]]
    assert mids(wire.ask(delete_list(q, *sent))) == [sent[1], sent[3]]
    assert mids(wire.ask(delete_list(q, *sent))) == []
    assert gone(producer, q)


def test_not_in_its_hands(connect: Connect, producer: Wire, q: str) -> None:
    """Acknowledging or giving back what the client does not hold is 404, says why, and changes nothing."""
    wire, other = connect(subscribe(q, ack="client")), connect(subscribe(q))
    mid = push_one(producer, q)
    assert mids(wire.line()) == mids(other.line()) == [mid]
    for client, which in ((other, mid), (wire, mid + 1), (connect(), mid)):
        for document in (delete(q, which, req="no"), release(q, which, req="no")):
            answer = client.ask(document)
            assert (code(answer), req(answer)) == (404, "no")
            assert "not in this client's hands" in text(answer)
    assert stored(producer, q) == [mid]
    assert code(wire.ask(delete(q, mid))) == 0
    assert code(wire.ask(delete(q, mid))) == 404


def test_deleted_when_all_have_acknowledged(connect: Connect, producer: Wire, q: str) -> None:
    """A message is deleted when everybody has handled it; who leaves without is not waited for."""
    one, two, three = (connect(subscribe(q, ack="client")) for _ in range(3))
    mid = push_one(producer, q)
    for wire in (one, two, three):
        wire.line()
    one.ask(delete(q, mid))
    assert stored(producer, q) == [mid]
    two.ask(delete(q, mid))
    assert stored(producer, q) == [mid]
    three.close()
    assert gone(producer, q)


def test_all_leave_without_acknowledging(connect: Connect, producer: Wire, q: str) -> None:
    """What nobody has acknowledged is visible again when the last one leaves, and goes to who comes next."""
    wire = connect(subscribe(q, ack="client"))
    mid = push_one(producer, q)
    wire.line()
    wire.close()
    producer.server.until(lambda: stored(producer, q, "ready") == [mid])
    line = connect(subscribe(q)).line()
    assert (mids(line), receives(line)) == ([mid], 2)
    assert gone(producer, q)


def test_prefetch(connect: Connect, producer: Wire, q: str) -> None:
    """At most `prefetch` messages are unacknowledged; each acknowledgement brings another. Others are not held up."""
    slow, fast = connect(subscribe(q, ack="client", prefetch=2)), connect(subscribe(q))
    sent = [push_one(producer, q) for _ in range(6)]
    assert [mids(fast.line())[0] for _ in sent] == sent
    assert [mids(slow.line())[0] for _ in range(2)] == sent[:2]
    for number in range(6):
        slow.send(delete(q, sent[number], req="d"))
        lines = [slow.line() for _ in range(2 if number < 4 else 1)]
        assert mids(next(line for line in lines if req(line) == "d")) == [sent[number]]
        assert [mids(line)[0] for line in lines if is_delivery(line)] == sent[number + 2 : number + 3]
    assert gone(producer, q)


def test_release_now(connect: Connect, producer: Wire, q: str) -> None:
    """What a client gives back comes to it again, with its payload; not to the others."""
    wire, other = connect(subscribe(q, ack="client")), connect(subscribe(q))
    mid = push_one(producer, q, "again")
    wire.line()
    answer = wire.ask(release(q, mid, req="r"))
    assert (code(answer), req(answer), mids(answer)) == (0, "r", [mid])
    line = wire.line()
    assert (mids(line), payloads(line), req(line)) == ([mid], ["again"], "s")
    wire.ask(delete(q, mid))
    assert gone(producer, q)
    assert mids(other.line()) == [mid]
    later = push_one(producer, q)
    assert mids(other.line()) == [later]


def test_release_with_delay(connect: Connect, producer: Wire, q: str) -> None:
    """With a delay it comes when that is over, and what is pushed meanwhile comes before it."""
    wire = connect(subscribe(q, ack="client"))
    mid = push_one(producer, q, "later")
    wire.line()
    assert code(wire.ask(release(q, mid, delay=0.3))) == 0
    assert code(wire.ask(delete(q, mid))) == 404
    between = push_one(producer, q)
    assert mids(wire.line()) == [between]
    assert mids(wire.line()) == [mid]
    assert mids(wire.ask(delete_list(q, mid, between))) == [mid, between]
    assert gone(producer, q)


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_is_kept_over_restarts(tmp_path: Path) -> None:
    """A name gets what was pushed while no member was there, the bus or the server was restarted, or both were down."""
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus:
        with Wire(server) as producer, Wire(bus) as wire:
            producer.ask(new_queue("q"))
            assert code(wire.ask(subscribe("q", name="audit", ack="client"))) == 0
            sent = [push_one(producer, "q", "1")]
            assert mids(wire.line()) == sent  # and not acknowledged
        with Wire(server) as producer:
            sent.append(push_one(producer, "q", "nobody is there"))
            assert gone(producer, "q")
            assert stored(producer, "bus:q:audit") == sent
            bus.stop()
            sent.append(push_one(producer, "q", "the bus is down"))
        server.stop()
        again = ServerProcess(server.root, *FAST, port=server.port)
        try:
            bus.start()
            with Wire(again) as producer, Wire(bus) as wire:
                assert gone(producer, "q")
                assert code(wire.ask(subscribe("q", name="audit", ack="client"))) == 0
                sent.append(push_one(producer, "q", "all are there"))
                got = [mids(wire.line())[0] for _ in sent]
                assert sorted(got) == sent
                assert mids(wire.ask(delete_list("q", *sent))) == sent
                assert gone(producer, "bus:q:audit")
        finally:
            again.stop()


def test_a_name_is_shared(connect: Connect, producer: Wire, q: str) -> None:
    """Each message goes to one of the members of a name, in turn."""
    one, two = (connect(subscribe(q, name="n", ack="client")) for _ in range(2))
    sent = [push_one(producer, q) for _ in range(10)]
    first, second = [mids(one.line())[0] for _ in range(5)], [mids(two.line())[0] for _ in range(5)]
    assert sorted(first + second) == sent
    one.ask(delete_list(q, *first))
    two.ask(delete_list(q, *second))
    assert gone(producer, f"bus:{q}:n")
    assert gone(producer, q)


def test_two_names_and_plain_ones(connect: Connect, producer: Wire, q: str) -> None:
    """Each name gets every message once, and so does every plain subscriber; all know it by the same queue and id."""
    plain = [connect(subscribe(q)), connect(subscribe(q, ack="client"))]
    named = [connect(subscribe(q, name="one")), connect(subscribe(q, name="two:%"))]
    sent = [push_one(producer, q, str(number)) for number in range(20)]
    for wire in (*plain, *named):
        lines = [wire.line() for _ in sent]
        assert [mids(line)[0] for line in lines] == sent
        assert all(f"<qid>{q}</qid>" in line for line in lines)
    plain[1].ask(delete_list(q, *sent))
    for qid in (q, f"bus:{q}:one", f"bus:{q}:two%3A%25"):
        assert gone(producer, qid)


def test_a_member_leaves_with_messages_in_hand(connect: Connect, producer: Wire, q: str) -> None:
    """What a member has not acknowledged when it leaves goes to another one."""
    one = connect(subscribe(q, name="n", ack="client"))
    sent = [push_one(producer, q, str(number)) for number in range(5)]
    for _ in sent:
        one.line()
    two = connect(subscribe(q, name="n", ack="client"))
    one.ask(delete(q, sent[0]))
    one.close()
    lines = [two.line() for _ in sent[1:]]
    assert [mids(line)[0] for line in lines] == sent[1:]
    assert [payloads(line)[0] for line in lines] == ["1", "2", "3", "4"]
    two.ask(delete_list(q, *sent))
    assert gone(producer, f"bus:{q}:n")


def test_a_name_gives_back(connect: Connect, producer: Wire, q: str) -> None:
    """What a member of a name gives back goes to a member again."""
    one = connect(subscribe(q, name="n", ack="client"))
    mid = push_one(producer, q, "again")
    one.line()
    assert code(one.ask(release(q, mid))) == 0
    line = one.line()
    assert (mids(line), payloads(line)) == ([mid], ["again"])


def test_names_that_cannot_be(connect: Connect, q: str) -> None:
    """A name that is empty, or too long for a queue's name, is 400 that says so."""
    wire = connect()
    for name in ("", "n" * 201, "n" * 199, "&#10;", "\N{GRINNING FACE}" * 80):
        answer = wire.ask(subscribe(q, name=name))
        assert code(answer) == 400, answer
        assert "name" in text(answer)
    assert code(wire.ask(subscribe(q, name="n"))) == 0


def test_the_queue_of_a_name_is_deleted(connect: Connect, producer: Wire, q: str) -> None:
    """Deleting the queue of a name on the server ends the name: its members are told, and plain ones go on."""
    member, plain = connect(subscribe(q, name="n", req="m")), connect(subscribe(q))
    producer.ask(request("delete-queue", f"<qid>bus:{q}:n</qid>", force="yes"))
    line = member.line()
    assert (code(line), req(line)) == (404, "m")
    assert "'n'" in text(line)
    mid = push_one(producer, q)
    assert mids(plain.line()) == [mid]
    assert gone(producer, q)


def test_the_queue_behind_a_name_is_deleted(connect: Connect, producer: Wire, q: str) -> None:
    """Deleting the queue itself ends the subscriptions of names too; what the name has stays, for who comes when
    the queue is there again. Deleting both does no harm to others."""
    member = connect(subscribe(q, name="n", req="m", ack="client"))
    mid = push_one(producer, q, "kept")
    assert mids(member.line()) == [mid]
    assert gone(producer, q)
    producer.ask(request("delete-queue", f"<qid>{q}</qid>", force="yes"))
    line = member.line()
    assert (code(line), req(line)) == (404, "m")
    producer.server.until(lambda: stored(producer, f"bus:{q}:n", "ready") == [mid])
    producer.ask(new_queue(q))
    assert code(member.ask(subscribe(q, name="n", ack="client"))) == 0
    assert mids(member.line()) == [mid]
    later = push_one(producer, q)
    assert mids(member.line()) == [later]
    for qid in (q, f"bus:{q}:n"):
        producer.ask(request("delete-queue", f"<qid>{qid}</qid>", force="yes"))
    assert code(member.line()) == 404
    assert code(member.ask(PING)) == 501


# -- what is not for the bus ------------------------------------------------------------------------------------------

OF_THE_SERVER: list[Message] = [
    NewQueue("q"), DeleteQueue("q"), ListMessages("q"), PushMessage("q", "x"), GetMessage("q", 1), ReceiveMessage("q"),
    ExtendMessage("q", 1, visibility=1), CopyMessage("q", 1, queues=["r"]), PurgeQueue("q"), QueueStats("q"),
    Unsubscribe("s"), Authenticate("t"), Ping(), ClaimMessages("q", "c", 1), GetClaim("q", "c", 1),
    AckClaim("q", "c", 1), ReleaseClaim("q", "c", 1), ListClaims("q"),
    StageMessages("q", "p", 1, 1, 1, messages=[Draft("x")]),
    PublishStaged("q", "p", 1, [Part(1, 1)]),
]  # fmt: skip
OF_THE_BUS = {"subscribe", "list-queues", "delete-message", "release-message"}


def test_operations_of_the_server(connect: Connect, shared_server: ServerProcess) -> None:
    """Every operation of the queue server's is 501, which names it and says where the server is; the connection stays,
    and nothing is done."""
    assert {message.op for message in OF_THE_SERVER} == set(OPERATIONS) - OF_THE_BUS
    wire = connect()
    for message in OF_THE_SERVER:
        message.req = message.op
        answer = wire.ask(serialize(message))
        assert (code(answer), req(answer)) == (501, message.op), answer
        assert text(answer).startswith(f"{message.op} is not for the bus")
        assert ("close the connection" if message.op == "unsubscribe" else f":{shared_server.port}") in text(answer)


def test_answers_in_order(connect: Connect, producer: Wire, q: str) -> None:
    """Many requests in one piece are answered in order, deliveries between them."""
    wire = connect()
    wire.send(request("ping", req="1"), subscribe(q, req="2"), request("ping", req="3"), subscribe("absent", req="4"))
    assert [req(wire.line()) for _ in range(4)] == ["1", "2", "3", "4"]
    push_one(producer, q)
    assert req(wire.line()) == "2"
    assert mids(producer.ask(receive(q))) == []
