"""Headers, priority and groups through the real bus: deliveries and durable names have them; order and pace hold."""

from typing import Any

import pytest
import trio
from support.bus.clients import Connect, gone
from support.clients.documents import code, delete, mids, payloads, request, subscribe
from support.servers.processes import BusProcess, Wire

from qs_client import AsyncBusClient, BusClient, Draft, GetMessage, QueueClient

HEADERS = {"traceparent": "00-1", "empty": ""}
SAID: dict[str, Any] = {"priority": 9, "group": "acme", "headers": HEADERS}
NOTHING: dict[str, Any] = {"priority": None, "group": None, "headers": {}}


def said(message: GetMessage) -> dict[str, Any]:
    """Returns what a delivery says beside its payload."""
    return {name: getattr(message, name) for name in SAID}


@pytest.mark.parametrize("name", [None, "audit"])
def test_deliveries_have_attributes(shared_bus: BusProcess, client: QueueClient, qid: str, name: str | None) -> None:
    """A subscriber gets what the push has said, of the queue itself and of a durable name."""
    with BusClient(shared_bus.host, shared_bus.port, timeout=20) as bus:
        messages = bus.subscribe(qid, ack=True, name=name)
        messages.open()
        plain = client.push(qid, "plain")
        full = client.push(qid, "full", **SAID)
        found = {message.mid: message for message in (next(messages) for _ in range(2))}
        assert (said(found[plain]), said(found[full])) == (NOTHING, SAID)


def test_deliveries_say_when_they_expire(shared_bus: BusProcess, client: QueueClient, qid: str) -> None:
    """A subscriber gets the time from which a message is not handed out any more."""
    with BusClient(shared_bus.host, shared_bus.port, timeout=20) as bus:
        messages = bus.subscribe(qid)
        messages.open()
        client.push(qid, "soon", expires=3600)
        message = next(messages)
        assert message.expires_at is not None
        assert abs(message.expires_at - (message.pushed_at or 0) - 3600 * 1_000_000) < 1_000_000


def test_deliveries_to_an_async_client(shared_bus: BusProcess, client: QueueClient, qid: str) -> None:
    """The async client of the bus has them too, and gets a released message again with them."""

    async def main() -> None:
        async with AsyncBusClient(shared_bus.host, shared_bus.port, timeout=20) as bus:
            messages = bus.subscribe(qid, ack=True)
            await messages.open()
            client.push(qid, "full", **SAID)
            first = await anext(messages)
            await bus.release(first)
            second = await anext(messages)
            assert (said(first), said(second), second.mid) == (SAID, SAID, first.mid)

    trio.run(main)


def test_a_name_keeps_attributes_and_order(connect: Connect, client: QueueClient, producer: Wire, qid: str) -> None:
    """While no member of a name is connected, its queue keeps the messages with all that they say: the next member gets
    the highest priority first."""
    connect(subscribe(qid, name="n", ack="client")).close()
    client.push_many(qid, ["plain", Draft("low", priority=1), Draft("full", **SAID)])
    producer.server.until(lambda: gone(producer, qid))
    assert [said(each) for each in client.peek_many(f"bus:{qid}:n", client.list_messages(f"bus:{qid}:n"))] == [
        NOTHING, {**NOTHING, "priority": 1}, SAID,
    ]  # fmt: skip
    wire = connect(subscribe(qid, name="n", ack="client"))
    lines = [wire.line() for _ in range(3)]
    assert [payloads(line)[0] for line in lines] == ["full", "low", "plain"]
    assert '<header name="traceparent">00-1</header>' in lines[0]
    assert "<headers>" not in lines[1]


def test_a_name_has_the_order_and_the_pace_of_its_queue(
    connect: Connect, client: QueueClient, producer: Wire, qid: str
) -> None:
    """The queue of a new name has these options of its queue: one message of a group is with a member at a time."""
    client.set_queue(qid, fair=True, max_in_flight=2, rate=1000)
    wire = connect(subscribe(qid, name="n", ack="client"))
    options = client.queue_options(f"bus:{qid}:n")
    assert (options.fair, options.max_in_flight, options.rate) == (True, 2, 1000)
    client.push_many(qid, [Draft("a0", group="a"), Draft("a1", group="a"), Draft("b0", group="b")])
    first, second = wire.line(), wire.line()
    assert [payloads(line)[0] for line in (first, second)] == ["a0", "b0"]
    producer.server.until(lambda: client.stats(f"bus:{qid}:n")[0].ready == 1)
    assert code(wire.ask(delete(qid, mids(first)[0]))) == 0
    assert payloads(wire.line()) == ["a1"]


def test_a_group_in_the_queue_itself(connect: Connect, client: QueueClient, qid: str) -> None:
    """The next message of a group comes when all plain subscribers have handled the one before."""
    one, two = (connect(subscribe(qid, ack="client")) for _ in range(2))
    client.push_many(qid, [Draft(f"a{number}", group="a") for number in range(2)])
    first = [mids(wire.line())[0] for wire in (one, two)]
    assert first[0] == first[1]
    assert code(one.ask(delete(qid, first[0]))) == 0
    assert client.stats(qid)[0].limited == "group-in-flight"
    assert code(two.ask(delete(qid, first[1]))) == 0
    assert [payloads(wire.line()) for wire in (one, two)] == [["a1"], ["a1"]]


def test_headers_of_messages_that_wait(shared_bus: BusProcess, client: QueueClient, qid: str) -> None:
    """A subscriber that takes one message at a time gets the headers of those that waited."""
    with BusClient(shared_bus.host, shared_bus.port, timeout=20) as bus:
        messages = bus.subscribe(qid, ack=True, prefetch=1)
        messages.open()
        client.push_many(qid, [Draft("x" * number, headers={"n": str(number)}) for number in range(20)])
        assert [next(messages).headers for _ in range(20)] == [{"n": str(number)} for number in range(20)]


def test_a_push_with_headers_belongs_on_the_server(connect: Connect, qid: str) -> None:
    """The bus takes no pushes, and says so also of those with headers."""
    wire = connect(subscribe(qid))
    headers = "<headers><header name='a'>b</header></headers>"
    assert code(wire.ask(request("push-message", f"<qid>{qid}</qid>{headers}<payload>x</payload>"))) == 501
