"""Headers, priority, expiry, groups and pace through the clients and a real server."""

import threading
from typing import Any

import pytest
from support.clients.every_client import both, run
from support.servers.processes import ServerProcess

from qs_client import AsyncQueueClient, Conflict, Delivery, Draft, GetMessage, NotFound, QueueClient

SECOND = 1_000_000  # microseconds
HEADERS = {"traceparent": "00-1", "Content-Type": "text/xml; charset=\xe9", "empty": ""}
SAID: dict[str, Any] = {"priority": 9, "group": "acme & \xe9", "headers": HEADERS}
NOTHING: dict[str, Any] = {"priority": None, "group": None, "headers": {}}


def said(message: Delivery | GetMessage) -> dict[str, Any]:
    """Returns what a message says beside its payload."""
    return {name: getattr(message, name) for name in SAID}


def test_attributes_come_back(client: QueueClient, qid: str) -> None:
    """A message has all that its push has said, however it is looked at or received; one that says nothing has empty
    headers."""
    plain = client.push(qid, "plain")
    mid = client.push(qid, "full", **SAID, expires=3600)
    for _ in range(2):  # the second time, the reader of answers knows the beginning of the document
        assert [said(each) for each in client.peek_many(qid, [mid, plain])] == [SAID, NOTHING]
        assert (said(client.peek(qid, mid)), said(client.peek(qid, plain))) == (SAID, NOTHING)
    expected = client.peek(qid, mid)
    assert expected.expires_at is not None
    assert abs(expected.expires_at - (expected.pushed_at or 0) - 3600 * SECOND) < SECOND
    first, second = client.receive(qid, 2)
    assert (first.mid, said(first), first.expires_at) == (mid, SAID, expected.expires_at)
    assert (second.mid, said(second), second.expires_at) == (plain, NOTHING, None)
    assert [said(each) for each in client.peek_many(qid, [mid, plain])] == [SAID, NOTHING]  # also in flight
    client.release(first)
    client.release(second)
    assert (said(client.get(qid, mid)), said(client.get(qid, plain))) == (SAID, NOTHING)


def test_attributes_come_with_a_subscription(client: QueueClient, qid: str) -> None:
    """Deliveries of a subscription have them too, in the order of the priorities."""
    client.push_many(qid, ["plain", Draft("full", **SAID), Draft("late", priority=1, headers={"a": "b"})])
    with client.subscribe(qid, prefetch=3) as messages:
        found = [next(messages) for _ in range(3)]
    assert [each.text for each in found] == ["full", "late", "plain"]
    assert [said(each) for each in found] == [SAID, {**NOTHING, "priority": 1, "headers": {"a": "b"}}, NOTHING]


def test_attributes_come_with_a_claim(client: QueueClient, qid: str) -> None:
    """The messages of a claim have them too, also those that were staged."""
    client.stage_messages(qid, "p", ["plain", Draft("full", **SAID)], batch=1)
    client.publish_staged(qid, "p", 1, [(0, 0)])
    assert client.claim_messages(qid, "c", 1).count == 2
    assert sorted((each.text, said(each)) for each in client.get_claim(qid, "c", 1)) == [
        ("full", SAID), ("plain", NOTHING),
    ]  # fmt: skip


def test_attributes_of_copies_and_dead_letters(client: QueueClient, qid: str) -> None:
    """A copy, a dead letter and a redriven message say what the first push has said."""
    client.new_queue(f"{qid}-copy")
    client.set_queue(qid, dead_letter=f"{qid}-dead", max_receives=1)
    mid = client.push(qid, "full", **SAID)
    client.copy(qid, mid, f"{qid}-copy")
    assert said(client.receive(f"{qid}-copy")[0]) == SAID
    client.release(client.receive(qid)[0])
    [letter] = client.receive(f"{qid}-dead")
    assert (letter.dead_mid, said(letter)) == (mid, SAID)
    client.release(letter, count=False)
    [again] = client.redrive(f"{qid}-dead")
    assert said(client.peek(qid, again)) == SAID


@both
def test_attributes_through_the_async_client(backend: str, shared_server: ServerProcess) -> None:
    """The async client pushes, receives and subscribes with them, in a pipeline too."""
    qid = f"async-{backend}"

    async def main() -> None:
        async with AsyncQueueClient(shared_server.host, shared_server.port, timeout=20) as client:
            await client.new_queue(qid, group_in_flight=2, fair=True, max_in_flight=50, rate=1000)
            options = await client.queue_options(qid)
            assert (options.group_in_flight, options.fair, options.max_in_flight, options.rate) == (2, True, 50, 1000)
            await client.push(qid, "full", **SAID)
            async with client.pipeline() as batch:
                await batch.push(qid, "second", priority=1, headers={"a": "b"})
                await batch.push_many(qid, ["plain", Draft("last", headers=HEADERS)])
            [first] = await client.receive(qid)
            assert (first.text, said(first)) == ("full", SAID)
            messages = client.subscribe(qid, prefetch=3)
            found = [await anext(messages) for _ in range(3)]
            await messages.aclose()
            assert [(each.text, each.headers) for each in found] == [
                ("second", {"a": "b"}), ("plain", {}), ("last", HEADERS),
            ]  # fmt: skip

    run(backend, main)


def test_queues_in_the_given_order(client: QueueClient, qid: str) -> None:
    """With order="given" the first queue is emptied before the second is looked at, whatever is older."""
    other = f"{qid}-other"
    client.new_queue(other)
    for number in range(2):
        client.push(other, f"other {number}", priority=9)
        client.push(qid, f"first {number}")
    assert client.receive_one([qid, other], order="given").text == "first 0"  # type: ignore[union-attr]
    assert [each.text for each in client.receive([qid, other], 2, order="given")] == ["first 1", "other 0"]
    assert client.receive_one([qid, other]).text == "other 1"  # type: ignore[union-attr]


def test_a_unique_push(client: QueueClient, qid: str) -> None:
    """While the first message is in the queue, another push with its key stores nothing; after its delete it does."""
    first = client.push(qid, "1", key="k", unique=True)
    assert client.push(qid, "2", key="k", unique=True) == first
    [message] = client.receive(qid)
    assert client.push(qid, "2", key="k", unique=True) == first
    client.delete(message)
    assert client.push(qid, "2", key="k", unique=True) > first
    assert client.receive(qid)[0].text == "2"


def test_a_group_keeps_its_order(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """While one message of a group is out, no other one of it comes, and others do; its end brings the next one to a
    receive that waits."""
    client.push_many(qid, [Draft(f"a{number}", group="a") for number in range(2)])
    client.push(qid, "b", group="b")
    first, other = client.receive(qid, 10)
    assert (first.text, other.text) == ("a0", "b")
    assert client.stats(qid)[0].limited == "group-in-flight"
    found: list[Delivery] = []
    with QueueClient(client.host, client.port, timeout=20) as waiting:
        thread = threading.Thread(target=lambda: found.extend(waiting.receive(qid, wait=20)))
        thread.start()
        shared_server.until(lambda: client.stats(qid)[0].waiting == 1)
        assert found == []
        client.delete(first)
        thread.join(20)
    assert [each.text for each in found] == ["a1"]


def test_max_in_flight(client: QueueClient, qid: str) -> None:
    """No more messages are out than the option allows, and the figures say so; without it they come again."""
    client.set_queue(qid, max_in_flight=2)
    client.push_many(qid, ["1", "2", "3"])
    first, _ = client.receive(qid, 10)
    assert client.receive(qid) == []
    assert client.stats(qid)[0].limited == "max-in-flight"
    client.delete(first)
    assert client.stats(qid)[0].limited is None
    client.set_queue(qid, max_in_flight=1)
    assert client.receive(qid) == []
    client.set_queue(qid, max_in_flight=None)
    assert client.receive(qid)[0].text == "3"


def test_rate_of_a_queue(client: QueueClient, qid: str) -> None:
    """The messages that a second allows come at once; the others wait, and the figures say why."""
    client.set_queue(qid, rate=0.5)
    client.push_many(qid, ["1", "2"])
    assert [each.text for each in client.receive(qid, 10)] == ["1"]
    assert client.stats(qid)[0].limited == "rate"
    client.set_queue(qid, rate=None)
    assert [each.text for each in client.receive(qid, 10)] == ["2"]


def test_options_are_compared(client: QueueClient, qid: str) -> None:
    """`new_queue` with `exist_ok` accepts a queue that has these options, and no other one."""
    client.set_queue(qid, fair=True, rate=2.5)
    assert client.new_queue(qid, exist_ok=True, fair=True, rate=2.5) is False
    for other in ({"fair": False}, {"rate": 2}, {"max_in_flight": 1}, {"group_in_flight": 2}):
        with pytest.raises(Conflict):
            client.new_queue(qid, exist_ok=True, **other)


def test_a_message_that_has_expired(client: QueueClient, qid: str) -> None:
    """A message whose time is over is not received, is gone, and counts as retired."""
    mid = client.push(qid, "late", expires=0.000001)
    assert client.receive(qid) == []
    with pytest.raises(NotFound):
        client.peek(qid, mid)
    assert client.stats(qid)[0].retired == 1


def test_handling_knows_the_headers(client: QueueClient, qid: str) -> None:
    """The block of `handling` gets the message with its headers."""
    client.push(qid, "x", headers=HEADERS)
    [message] = client.receive(qid)
    with client.handling(message) as handled:
        assert handled.headers == HEADERS
    assert client.stats(qid)[0].ready == 0
