"""Reasons and back-off through the real bus: what a subscriber says of a message that it releases, and when it comes
again."""

import html
import re

import pytest
import trio
from support.bus.clients import Connect, push_one, stored
from support.clients.documents import code, mids, receive, receives, request, subscribe, text
from support.servers.processes import BusProcess, Wire

from qs_client import AsyncBusClient, BusClient

WHY = 'ValueError: "a" & b\nsecond line'


def release(qid: str, mid: int, reason: str) -> str:
    body = f"<qid>{qid}</qid><mid>{mid}</mid><reason>{html.escape(reason)}</reason>"
    return request("release-message", body)


def reason(line: str) -> str | None:
    """Returns the reason that comes with a message, in single form or in a list."""
    found = re.search(r'<reason>(.*?)</reason>|<message [^>]* reason="([^"]*)"', line)
    return None if found is None else html.unescape(found[1] or found[2])


@pytest.mark.parametrize("options", ["", "<options dead-letter='{}-dead' max-receives='9'/>"], ids=["bus", "server"])
@pytest.mark.parametrize("name", [{}, {"name": "n"}], ids=["plain", "name"])
def test_a_reason_comes_with_the_next_delivery(
    connect: Connect, producer: Wire, qid: str, options: str, name: dict[str, str]
) -> None:
    """A reason comes with the next delivery, by the bus or by the server, which keeps it when the subscriber has
    gone. An empty reason is none, and leaves the one before."""
    if options:
        assert code(producer.ask(request("set-queue", f"<qid>{qid}</qid>{options.format(qid)}"))) == 0
    wire = connect(subscribe(qid, ack="client", **name))
    mid = push_one(producer, qid)
    first = wire.line()
    assert (mids(first), reason(first)) == ([mid], None)
    assert code(wire.ask(release(qid, mid, WHY))) == 0
    assert reason(wire.line()) == WHY
    assert code(wire.ask(release(qid, mid, ""))) == 0
    assert reason(wire.line()) == WHY
    wire.close()
    own = f"bus:{qid}:n" if name else qid
    producer.server.until(lambda: stored(producer, own, "ready") == [mid])
    assert reason(producer.ask(receive(own))) == WHY


def test_a_dead_letter_says_why(connect: Connect, producer: Wire, qid: str) -> None:
    """The last reason is at the dead letter."""
    options = f"<options dead-letter='{qid}-dead' max-receives='2'/>"
    assert code(producer.ask(request("set-queue", f"<qid>{qid}</qid>{options}"))) == 0
    wire = connect(subscribe(qid, ack="client"))
    mid = push_one(producer, qid)
    for times in (1, 2):
        assert receives(wire.line()) == times
        assert code(wire.ask(release(qid, mid, f"attempt {times}"))) == 0
    producer.server.until(lambda: f"{qid}-dead" in producer.ask(request("list-queues")))
    assert reason(producer.ask(receive(f"{qid}-dead", wait=60))) == "attempt 2"


@pytest.mark.parametrize("name", [{}, {"name": "n"}], ids=["plain", "name"])
def test_the_server_reckons_the_back_off(connect: Connect, producer: Wire, qid: str, name: dict[str, str]) -> None:
    """A message of a queue with a back-off does not come again at once, although no receives are counted out: it is
    delayed on the server."""
    assert code(producer.ask(request("set-queue", f"<qid>{qid}</qid><options backoff='3600'/>"))) == 0
    wire = connect(subscribe(qid, ack="client", **name))
    mid = push_one(producer, qid)
    assert mids(wire.line()) == [mid]
    assert code(wire.ask(release(qid, mid, WHY))) == 0
    own = f"bus:{qid}:n" if name else qid
    producer.server.until(lambda: stored(producer, own, "delayed") == [mid])
    peeked = request("get-message", f"<qid>{own}</qid><messages><mid>{mid}</mid></messages>", peek="yes")
    assert reason(producer.ask(peeked)) == WHY


def test_a_storage_without_reasons(connect: Connect, producer: Wire, qid: str) -> None:
    """A message that was released with a reason goes back to its queue also where the storage keeps no reasons."""
    options = "<options storage='dirq-simple'/>"
    assert code(producer.ask(request("new-queue", f"<qid>{qid}-simple</qid>{options}"))) == 0
    wire = connect(subscribe(f"{qid}-simple", ack="client"))
    mid = push_one(producer, f"{qid}-simple")
    assert mids(wire.line()) == [mid]
    assert code(wire.ask(release(f"{qid}-simple", mid, WHY))) == 0
    assert reason(wire.line()) == WHY
    wire.close()
    producer.server.until(lambda: stored(producer, f"{qid}-simple", "ready") == [mid])


def test_a_reason_that_is_too_long(connect: Connect, producer: Wire, qid: str) -> None:
    """More than 1 KiB of UTF-8 is 400, and the message stays in hand."""
    wire = connect(subscribe(qid, ack="client"))
    mid = push_one(producer, qid)
    assert mids(wire.line()) == [mid]
    line = wire.ask(release(qid, mid, "\N{EURO SIGN}" * 342))
    assert (code(line), "1024 bytes" in text(line)) == (400, True)
    assert code(wire.ask(release(qid, mid, "\N{EURO SIGN}" * 341))) == 0


def test_bus_clients_send_and_show_reason(shared_bus: BusProcess, producer: Wire, qid: str) -> None:
    """The sync and the async client send a reason, and show the one that came."""
    mid = push_one(producer, qid)

    async def release_again() -> list[str | None]:
        async with AsyncBusClient(shared_bus.host, shared_bus.port) as bus:
            messages = bus.subscribe(qid, ack=True)
            found = [(message := await anext(messages)).reason]
            await bus.release(message, reason="async")
            return [*found, (await anext(messages)).reason]

    with BusClient(shared_bus.host, shared_bus.port) as bus:
        messages = bus.subscribe(qid, ack=True)
        message = next(messages)
        with pytest.raises(ValueError, match="1024"):
            bus.release(message, reason="x" * 1025)
        bus.release(message, reason="sync")
        again = next(messages)
        assert (again.mid, again.reason) == (mid, "sync")
    assert trio.run(release_again) == ["sync", "async"]
