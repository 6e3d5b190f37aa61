"""Headers, priority, group and expiry of messages that the bus passes on: they come with every delivery."""

from typing import Any

import pytest
import trio
import trio.testing
from support.bus.memory import World, nothing_left

from qs_bus import feeds
from qs_schemas import GetMessage

settled = trio.testing.wait_all_tasks_blocked
HEADERS = {"traceparent": "00-1", "B": "\xe9 <"}
SAID: dict[str, Any] = {"priority": 9, "group": "acme", "expires_at": 77, "headers": HEADERS}


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


def said(message: GetMessage) -> dict[str, Any]:
    """Returns what a delivery says beside its payload."""
    return {name: getattr(message, name) for name in SAID}


@pytest.mark.parametrize("shared", [False, True])
async def test_attributes_come_with_a_delivery(world: World, shared: bool) -> None:
    """A subscriber gets headers, priority, group and expiry, also of a share; a message without them has none."""
    feed = world.share() if shared else world.fan_out()
    client = world.client()
    client.join(feed)
    world.push(feed)
    world.push(feed, **SAID)
    world.push(feed, headers={"a": ""})
    world.push(feed, group="g")
    nothing = {"priority": None, "group": None, "expires_at": None, "headers": {}}
    assert [said(each) for each in client.deliveries] == [
        nothing, SAID, {**nothing, "headers": {"a": ""}}, {**nothing, "group": "g"},
    ]  # fmt: skip


async def test_attributes_of_a_dead_letter(world: World) -> None:
    """A dead letter has what its push said beside its origin."""
    q = world.fan_out()
    client = world.client()
    client.join(q)
    world.push(q, dead_from="q", dead_mid=5, dead_reason="rejected", **SAID)
    [message] = client.deliveries
    assert (message.dead_from, message.dead_mid, said(message)) == ("q", 5, SAID)


async def test_a_message_with_headers_is_written_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document of a message is made once for all subscribers that use the same form."""
    made: list[int] = []
    document = feeds.HeldMessage.document

    def counted(message: feeds.HeldMessage, req: str | None, early: bool) -> bytes:
        made.append(message.mid)
        return document(message, req, early)

    monkeypatch.setattr(feeds.HeldMessage, "document", counted)
    q = world.fan_out()
    clients = [world.client() for _ in range(5)]
    for client in clients:
        client.join(q)
    mid = world.push(q, **SAID)
    assert made == [mid]
    assert all(said(client.deliveries[0]) == SAID for client in clients)


async def test_headers_that_wait_take_memory(nursery: trio.Nursery) -> None:
    """Headers of messages that wait for a slow subscriber count against the bound and are dropped with the payload, and
    come with it when it is fetched again."""
    world = World(nursery, outbox=1000)
    q = world.fan_out()
    slow = world.client(credit=0)
    slow.join(q)
    headers = {"a": "\xe9" * 250}
    sent = [world.push(q, headers=headers, priority=3) for _ in range(6)]
    held = [message.size for message in q.messages.values()]
    assert held == [502] * 6
    assert q._payload_bytes <= 1000
    assert sum(message.headers is not None for message in q.messages.values()) <= 2
    slow.reader.take()
    for _ in range(10):
        await settled()
        world.fetched(q, b"x", headers)
    assert slow.got == sent
    assert [(each.headers, each.priority) for each in slow.deliveries] == [(headers, 3)] * 6
    assert world.deleted(q) == sent
    assert nothing_left(q)


async def test_headers_of_a_message_that_comes_again(world: World) -> None:
    """A message that a member has released comes again with its headers, where the server counts receives."""
    q = world.fan_out(counted=True)
    client = world.client()
    client.join(q, ack=True)
    mid = world.push(q, **SAID)
    client.release(mid)
    assert world.released(q) == [mid]
    world.push(q, mid=mid, receives=2, **SAID)
    assert [(each.receives, said(each)) for each in client.deliveries if each.mid == mid] == [(1, SAID), (2, SAID)]
