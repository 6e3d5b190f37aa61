"""The real bus process in front of the real queue server, over raw sockets: who gets what, and what becomes of it."""

import base64
import re

import pytest
from support.bus.clients import Connect, gone, push_one, stored
from support.clients.documents import (
    NS,
    code,
    delete,
    delete_list,
    mids,
    new_queue,
    payloads,
    push_list,
    receive,
    release,
    req,
    request,
    subscribe,
    text,
)
from support.servers.processes import ServerProcess, Wire

from qs_schemas import (
    OPERATIONS,
    AckClaim,
    ClaimMessages,
    CopyMessage,
    DeleteQueue,
    ExtendMessage,
    GetClaim,
    GetMessage,
    GetQueue,
    ListClaims,
    ListMessages,
    Message,
    NewQueue,
    Part,
    PauseQueue,
    PublishStaged,
    PurgeQueue,
    PushMessage,
    QueueOptions,
    QueueStats,
    ReceiveMessage,
    RedriveMessages,
    RejectMessage,
    ReleaseClaim,
    ResumeQueue,
    SetQueue,
    StageMessages,
    Unsubscribe,
    serialize,
)
from qs_schemas.messages import Draft


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own."""
    return qid


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
    """Without subscribers messages stay in their queue; the next subscriber gets them, oldest first, and then the new
    ones."""
    sent = [push_one(producer, q, str(number)) for number in range(5)]
    assert stored(producer, q, "new") == sent
    wire = connect(subscribe(q))
    sent.append(push_one(producer, q))
    assert [mids(wire.line())[0] for _ in sent] == sent
    assert gone(producer, q)
    wire.close()
    producer.server.until(lambda: push_one(producer, q) in stored(producer, q, "new"))


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


def test_list_queues_without_queues(connect: Connect, shared_server: ServerProcess) -> None:
    """`list-queues` without queues is for the queue server: 501 that says where that is."""
    for body in ("", "<queues/>"):
        answer = connect().ask(request("list-queues", body, req="l"))
        assert (code(answer), req(answer)) == (501, "l")
        assert f"127.0.0.1:{shared_server.port}" in text(answer)


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
            assert "not held by this client" in text(answer)
    assert stored(producer, q) == [mid]
    assert code(wire.ask(delete(q, mid))) == 0
    assert code(wire.ask(delete(q, mid))) == 404


def test_release_now(connect: Connect, producer: Wire, q: str) -> None:
    """A released message comes again to the client that released it, with its payload, and not to the others."""
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


OF_THE_SERVER: list[Message] = [
    NewQueue("q"), DeleteQueue("q"), ListMessages("q"), PushMessage("q", "x"), GetMessage("q", 1), ReceiveMessage("q"),
    RejectMessage("q", 1), ExtendMessage("q", 1, visibility=1), CopyMessage("q", 1, queues=["r"]), PurgeQueue("q"),
    QueueStats("q"),
    Unsubscribe("s"), ClaimMessages("q", "c", 1), GetClaim("q", "c", 1),
    AckClaim("q", "c", 1), ReleaseClaim("q", "c", 1), ListClaims("q"),
    StageMessages("q", "p", 1, 1, 1, messages=[Draft("x")]),
    PublishStaged("q", "p", 1, [Part(1, 1)]),
    SetQueue("q", QueueOptions()), GetQueue("q"), PauseQueue("q"), ResumeQueue("q"), RedriveMessages("q"),
]  # fmt: skip
OF_THE_BUS = {"subscribe", "list-queues", "delete-message", "release-message", "authenticate", "server-stats", "ping"}


def test_operations_of_the_server(connect: Connect, shared_server: ServerProcess) -> None:
    """Every operation of the queue server's is 501, which names it and says where the server is; the connection stays,
    and nothing is done."""
    assert {message.op for message in OF_THE_SERVER} == set(OPERATIONS) - OF_THE_BUS
    wire = connect()
    for message in OF_THE_SERVER:
        message.req = message.op
        answer = wire.ask(serialize(message))
        assert (code(answer), req(answer)) == (501, message.op), answer
        assert text(answer).startswith(f"the bus does not know {message.op}")
        assert ("close the connection" if message.op == "unsubscribe" else f":{shared_server.port}") in text(answer)


def test_answers_in_order(connect: Connect, producer: Wire, q: str) -> None:
    """Many requests in one piece are answered in order, deliveries between them."""
    wire = connect()
    wire.send(request("ping", req="1"), subscribe(q, req="2"), request("ping", req="3"), subscribe("absent", req="4"))
    assert [req(wire.line()) for _ in range(4)] == ["1", "2", "3", "4"]
    push_one(producer, q)
    assert req(wire.line()) == "2"
    assert mids(producer.ask(receive(q))) == []
