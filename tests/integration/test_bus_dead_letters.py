"""Dead letters and pauses through the real bus: redeliveries that count, durable names, and what clients are shown."""

import re
from pathlib import Path

import pytest
import trio
from support.bus.clients import Connect, gone, push_one, stored
from support.clients.documents import (
    code,
    delete,
    is_delivery,
    mids,
    new_queue,
    payloads,
    receive,
    receives,
    release,
    request,
    subscribe,
)
from support.servers.processes import FAST, BusProcess, Wire, bus_serving, serving

from qs_client import AsyncBusClient, BusClient, GetMessage

LONG = 60


def origin(line: str) -> dict[str, str]:
    return dict(re.findall(r' (dead-(?!at)\w+)="([^"]*)"', line))


def policy(most: int, dead: str) -> str:
    return f"<options dead-letter='{dead}' max-receives='{most}'/>"


def was(qid: str, mid: int, times: int) -> dict[str, str]:
    return {"dead-from": qid, "dead-mid": str(mid), "dead-receives": str(times), "dead-reason": "receives"}


@pytest.fixture
def dead(qid: str, producer: Wire) -> str:
    """A dead-letter queue of the test's own."""
    producer.ask(new_queue(f"{qid}-dead"))
    return f"{qid}-dead"


@pytest.fixture
def q(qid: str, dead: str, producer: Wire) -> str:
    """A queue whose messages die when they have been received twice in vain."""
    producer.ask(request("set-queue", f"<qid>{qid}</qid>{policy(2, dead)}"))
    return qid


def buried(producer: Wire, dead: str) -> str:
    """Returns the next dead letter, as a receive shows it."""
    line = producer.ask(receive(dead, wait=LONG))
    assert mids(line), line
    return line


def test_releases(connect: Connect, producer: Wire, q: str, dead: str) -> None:
    """Each release counts; after the second the message is a dead letter, and the next message comes."""
    wire = connect(subscribe(q, ack="client"))
    first, second = push_one(producer, q, "poison"), push_one(producer, q, "good")
    assert [mids(wire.line()), mids(wire.line())] == [[first], [second]]
    assert code(wire.ask(release(q, first))) == 0
    again = wire.line()
    assert (mids(again), receives(again), payloads(again)) == ([first], 2, ["poison"])
    assert code(wire.ask(release(q, first))) == 0
    assert origin(buried(producer, dead)) == was(q, first, 2)
    assert code(wire.ask(delete(q, second))) == 0
    assert gone(producer, q)


def test_the_dead_letter_is_passed_on(connect: Connect, producer: Wire, q: str, dead: str) -> None:
    """A subscriber of the dead-letter queue sees what the message was, also when it waited for room."""
    wire, watcher = connect(subscribe(q, ack="client")), connect(subscribe(dead, ack="client", prefetch=1))
    sent = []
    for _ in range(2):
        sent.append(push_one(producer, q))
        for _ in range(2):
            assert mids(wire.line()) == sent[-1:]
            assert code(wire.ask(release(q, sent[-1]))) == 0
    producer.server.until(lambda: len(stored(producer, dead, "in-flight")) == 2)
    first = watcher.line()
    watcher.send(delete(dead, mids(first)[0], req="d"))
    second = next(line for line in (watcher.line(), watcher.line()) if is_delivery(line))
    for mid, line in zip(sent, (first, second), strict=True):
        assert (origin(line), 'dead-at="' in line) == (was(q, mid, 2), True)


def test_who_leaves(connect: Connect, producer: Wire, q: str, dead: str) -> None:
    """A message that takes each of its consumers with it is a dead letter after two of them."""
    mid = push_one(producer, q)
    for times in (1, 2):
        wire = connect(subscribe(q, ack="client"))
        line = wire.line()
        assert (mids(line), receives(line)) == ([mid], times)
        wire.close()
    assert origin(buried(producer, dead)) == was(q, mid, 2)
    assert stored(producer, q) == []


def test_some_handle_it(connect: Connect, producer: Wire, q: str, dead: str) -> None:
    """A message that one subscriber handles and another does not comes again only to the other, and dies; a subscriber
    that had it in hand all the time may still acknowledge it. A redrive brings it to all."""
    good, bad, slow = (connect(subscribe(q, ack="client")) for _ in range(3))
    mid = push_one(producer, q)
    for wire in (good, bad, slow):
        assert mids(wire.line()) == [mid]
    assert code(good.ask(delete(q, mid))) == 0
    assert code(bad.ask(release(q, mid))) == 0
    assert receives(bad.line()) == 2
    assert code(bad.ask(release(q, mid))) == 0
    assert origin(buried(producer, dead)) == was(q, mid, 2)
    assert code(slow.ask(delete(q, mid))) == 0
    producer.ask(release(dead, stored(producer, dead)[0]))
    [again] = mids(producer.ask(request("redrive-messages", f"<qid>{dead}</qid>")))
    for wire in (good, bad, slow):
        line = wire.line()
        assert (mids(line), receives(line)) == ([again], 1)
        assert code(wire.ask(delete(q, again))) == 0
    assert gone(producer, q)


def test_a_delay_and_a_release_that_does_not_count(connect: Connect, producer: Wire, q: str, dead: str) -> None:
    """The server keeps the delay; a receive that is taken back does not bring the message nearer to its end."""
    wire = connect(subscribe(q, ack="client"))
    mid = push_one(producer, q)
    assert receives(wire.line()) == 1
    for _ in range(3):
        assert code(wire.ask(release(q, mid, count="no"))) == 0
        assert receives(wire.line()) == 1
    assert code(wire.ask(release(q, mid, delay=3600))) == 0
    producer.server.until(lambda: stored(producer, q, "delayed") == [mid])
    assert code(wire.ask(delete(q, mid))) == 404
    producer.ask(release(q, mid))
    assert receives(wire.line()) == 2


def test_a_name(connect: Connect, producer: Wire, q: str, dead: str) -> None:
    """The queue of a name takes over the policy. What its members release, or leave behind, dies by itself; it says
    where it comes from, and a redrive brings it back to that name alone."""
    own = f"bus:{q}:n"
    one, two = (connect(subscribe(q, name="n", ack="client", prefetch=1)) for _ in range(2))
    options = producer.ask(request("get-queue", f"<qid>{own}</qid>"))
    assert f'dead-letter="{dead}" max-receives="2"' in options
    mid = push_one(producer, q)
    assert mids(one.line()) == [mid]
    assert code(one.ask(release(q, mid))) == 0
    holder = two  # the next in turn
    line = holder.line()
    assert (mids(line), receives(line)) == ([mid], 2)
    holder.close()
    assert origin(buried(producer, dead)) == was(own, mid, 2)
    assert gone(producer, own)
    producer.ask(release(dead, stored(producer, dead)[0]))
    [again] = mids(producer.ask(request("redrive-messages", f"<qid>{dead}</qid>")))
    line = one.line()
    assert (mids(line), receives(line)) == ([again], 1)
    assert code(one.ask(delete(q, again))) == 0
    assert gone(producer, own)


def test_what_nobody_got_does_not_count(connect: Connect, producer: Wire, q: str) -> None:
    """Messages that waited in the bus for room were not received: the next client gets them as new ones."""
    for name in ({}, {"name": "n"}):
        wire = connect(subscribe(q, ack="client", prefetch=1, **name))
        sent = [push_one(producer, q) for _ in range(3)]
        own = f"bus:{q}:n" if name else q
        producer.server.until(lambda own=own: len(stored(producer, own, "in-flight")) >= (1 if ":" in own else 3))
        assert mids(wire.line()) == sent[:1]
        wire.close()
        producer.server.until(lambda own=own, sent=sent: stored(producer, own, "ready") == sent)
        wire = connect(subscribe(q, ack="client", **name))
        lines = [wire.line() for _ in sent]
        assert [(mids(line)[0], receives(line)) for line in lines] == list(zip(sent, (2, 1, 1), strict=True))
        for mid in sent:
            assert code(wire.ask(delete(q, mid))) == 0
        assert gone(producer, own)
        wire.close()


def test_a_stop_of_the_bus(tmp_path: Path) -> None:
    """A bus that is stopped gives back uncounted what no client has got, and counted what one had."""
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus, Wire(server) as producer:
        producer.ask(new_queue("q", policy(5, "dead")))
        with Wire(bus) as wire:
            assert code(wire.ask(subscribe("q", ack="client", prefetch=1))) == 0
            sent = [push_one(producer, "q") for _ in range(3)]
            assert mids(wire.line()) == sent[:1]
            server.until(lambda: stored(producer, "q", "in-flight") == sent)
            assert bus.stop() == 0
        found = producer.ask(receive("q", max=3))
        assert re.findall(r' receives="(\d)"', found) == ["2", "1", "1"]


def told(letter: GetMessage) -> tuple[str | None, int | None, int | None, str | None]:
    return letter.dead_from, letter.dead_mid, letter.dead_receives, letter.dead_reason


def test_bus_client_shows_origin(shared_bus: BusProcess, producer: Wire, q: str, dead: str) -> None:
    """The sync client takes a receive back, and shows the origin of a dead letter."""
    for_sync = push_one(producer, q)
    with BusClient(shared_bus.host, shared_bus.port) as bus:
        messages = bus.subscribe(q, ack=True)
        seen = []
        for counts in (False, True, True):
            message = next(messages)
            seen.append((message.mid, message.receives, message.dead_from))
            bus.release(message, count=counts)
        letter = next(bus.subscribe(dead, ack=True))
    assert seen == [(for_sync, 1, None), (for_sync, 1, None), (for_sync, 2, None)]
    assert told(letter) == (q, for_sync, 2, "receives")


def test_async_bus_client_shows_origin(shared_bus: BusProcess, producer: Wire, q: str, dead: str) -> None:
    """The async client does the same."""
    for_async = push_one(producer, q)

    async def release_all() -> GetMessage:
        async with AsyncBusClient(shared_bus.host, shared_bus.port) as bus:
            messages = bus.subscribe(q, ack=True)
            for counts, times in ((False, 1), (True, 1), (True, 2)):
                message = await anext(messages)
                assert (message.mid, message.receives) == (for_async, times)
                await bus.release(message, count=counts)
            return await anext(bus.subscribe(dead, ack=True))

    letter = trio.run(release_all)
    assert (letter.dead_from, letter.dead_mid, letter.dead_receives, letter.dead_reason) == (
        q,
        for_async,
        2,
        "receives",
    )


def test_a_policy_that_comes_later(connect: Connect, producer: Wire, qid: str, dead: str) -> None:
    """A policy that is set while a client is subscribed holds from the second release on: the first makes the bus
    look."""
    wire = connect(subscribe(qid, ack="client"))
    mid = push_one(producer, qid)
    assert receives(wire.line()) == 1
    producer.ask(request("set-queue", f"<qid>{qid}</qid>{policy(1, dead)}"))
    assert code(wire.ask(release(qid, mid))) == 0
    assert receives(wire.line()) == 1
    connect(subscribe(qid, ack="client"))  # which takes an answer of the server that comes after that of the bus's look
    assert code(wire.ask(release(qid, mid))) == 0
    assert origin(buried(producer, dead)) == was(qid, mid, 1)


def test_a_pause(connect: Connect, producer: Wire, qid: str) -> None:
    """A paused queue gives nothing to plain subscribers and names, until it is resumed. What the queue of a name has
    already goes on to its members: it is a queue of its own, with its own pause."""
    own = f"bus:{qid}:n"
    plain, member = connect(subscribe(qid, ack="client")), connect(subscribe(qid, name="n", ack="client", prefetch=1))
    first, second = push_one(producer, qid), push_one(producer, qid)
    assert [mids(plain.line()) for _ in range(2)] == [[first], [second]]
    producer.server.until(lambda: stored(producer, own) == [first, second])
    assert mids(member.line()) == [first]
    assert code(producer.ask(request("pause-queue", f"<qid>{qid}</qid>"))) == 0
    assert 'paused="yes" subscribers="1"' in producer.ask(request("queue-stats", f"<qid>{qid}</qid>"))
    later = push_one(producer, qid, "later")
    assert code(member.ask(delete(qid, first))) == 0
    assert mids(member.line()) == [second]
    assert code(producer.ask(request("pause-queue", f"<qid>{own}</qid>"))) == 0
    assert code(member.ask(delete(qid, second))) == 0
    assert stored(producer, qid, "ready") == [later]
    assert code(producer.ask(request("resume-queue", f"<qid>{qid}</qid>"))) == 0
    assert payloads(plain.line()) == ["later"]
    producer.server.until(lambda: stored(producer, own, "ready") == [later])
    assert code(producer.ask(request("resume-queue", f"<qid>{own}</qid>"))) == 0
    assert payloads(member.line()) == ["later"]
