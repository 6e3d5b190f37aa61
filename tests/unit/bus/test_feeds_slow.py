"""Clients that are slow, of a queue whose messages go to everybody: what is held, and when one is sent away."""

import pytest
import trio
import trio.testing
from support.bus.memory import World, nothing_left

from qs_bus.feeds import PREFETCH
from qs_bus.options import Policy
from qs_bus.session import _Group

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


async def test_held_by_the_outbox(nursery: trio.Nursery) -> None:
    """More than the bytes of an outbox is kept until the client reads; others get everything at once; order is kept."""
    world = World(nursery, outbox=1000)
    q = world.fan_out()
    slow, fast = world.client(credit=0), world.client()
    held = slow.join(q)
    fast.join(q)
    sent = [world.push(q, "x" * 100) for _ in range(20)]
    assert fast.got == sent
    assert held.blocked
    assert held.waiting_bytes == 100 * len(held.waiting or ())
    assert q._payload_bytes <= 1000
    slow.reader.take()
    for _ in range(30):
        await settled()
        world.fetched(q, b"x" * 100)
    assert slow.got == sent
    assert world.deleted(q) == sent
    assert nothing_left(q)


async def test_held_by_the_prefetch(world: World) -> None:
    """A client that acknowledges has no more than `prefetch` messages unacknowledged; each one frees a place."""
    q = world.fan_out()
    client = world.client()
    held = client.join(q, ack=True, prefetch=3)
    sent = [world.push(q) for _ in range(10)]
    assert client.got == sent[:3]
    assert held.blocked
    for count in range(10):
        client.acknowledge(sent[count])
        assert client.got == sent[: min(count + 4, 10)]
    assert world.deleted(q) == sent
    assert nothing_left(q)


async def test_a_hundred_by_default(world: World) -> None:
    """A client that acknowledges and does not say how many gets 100 ahead; one that does not gets all."""
    q = world.fan_out()
    careful, plain = world.client(), world.client()
    careful.join(q, ack=True)
    plain.join(q)
    sent = [world.push(q) for _ in range(150)]
    assert careful.got == sent[:100]
    assert plain.got == sent


async def test_payloads_in_memory_are_bounded(nursery: trio.Nursery) -> None:
    """Payloads for clients without room are kept up to a number of bytes; the rest is fetched again when there is
    room."""
    world = World(nursery, outbox=1000)
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True, prefetch=1)
    sent = [world.push(q, f"{number:0300}") for number in range(8)]
    assert q._payload_bytes == 900
    assert world.upstream.fetches == []  # nothing is fetched before there is room for it
    client.acknowledge(*sent[:4])
    assert client.got == sent[:4]
    fetching = [record.mid for record in world.upstream.fetches.of(q)]
    assert fetching == [sent[4]]
    client.acknowledge(sent[3])
    assert world.upstream.fetches == []  # nor twice
    for number, mid in enumerate(sent[4:], 4):
        q.fetched(q.messages[mid], f"{number:0300}".encode())
        assert client.got == sent[: number + 1]
        client.acknowledge(mid)
        world.upstream.fetches.clear()
    assert client.payloads == [f"{number:0300}" for number in range(8)]
    assert world.deleted(q) == sent
    assert nothing_left(q)


async def test_one_payload_for_many(nursery: trio.Nursery) -> None:
    """A payload that several wait for is kept once, and forgotten when the last has got it."""
    world = World(nursery)
    q = world.fan_out()
    clients = [world.client() for _ in range(4)]
    for client in clients:
        client.join(q, ack=True, prefetch=1)
    first, second = world.push(q, "a"), world.push(q, "b" * 100)
    assert q._payload_bytes == 100
    for client in clients[:-1]:
        client.acknowledge(first)
        assert client.got == [first, second]
        assert q._payload_bytes == 100
    clients[-1].leave()
    assert q._payload_bytes == 0


async def test_what_was_to_be_fetched_is_gone(nursery: trio.Nursery) -> None:
    """A message that somebody else has taken or deleted meanwhile is passed over; what is behind it goes on."""
    world = World(nursery, outbox=100)
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True, prefetch=1)
    sent = [world.push(q, "x" * 150) for _ in range(3)]
    client.acknowledge(sent[0])
    assert world.fetched(q, None) == [sent[1]]
    assert world.fetched(q, b"third") == [sent[2]]
    assert client.got == [sent[0], sent[2]]
    assert world.released(q) == [sent[1]]
    client.acknowledge(sent[2])
    assert world.deleted(q) == [sent[0], sent[2]]
    assert nothing_left(q)


async def test_who_leaves_before_it_was_fetched(nursery: trio.Nursery) -> None:
    """A payload that comes for a member that has left is not kept."""
    world = World(nursery, outbox=100)
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True, prefetch=1)
    sent = [world.push(q, "x" * 150) for _ in range(2)]
    client.acknowledge(sent[0])
    client.leave()
    world.fetched(q, b"late")
    assert world.deleted(q) == [sent[0]]
    assert world.released(q) == [sent[1]]
    assert nothing_left(q)


async def test_two_subscriptions_share_an_outbox(nursery: trio.Nursery) -> None:
    """A subscription gets its messages although another one of the same connection has filled the outbox."""
    world = World(nursery, outbox=500)
    q, other = world.fan_out("q"), world.fan_out("other")
    client = world.client(credit=0)
    client.join(q, req="1")
    client.join(other, req="2")
    first = world.push(q, "x" * 1000)
    second = world.push(other, "y" * 10)
    assert client.got == []
    client.reader.take()
    await settled()
    assert client.got == [first, second]
    assert (world.deleted(q), world.deleted(other)) == ([first], [second])
    assert nothing_left(other)


async def test_answers_fill_the_outbox(nursery: trio.Nursery) -> None:
    """Messages that wait because answers have filled the outbox are sent once these are read."""
    world = World(nursery, outbox=500)
    q = world.fan_out()
    client = world.client(credit=0)
    client.join(q)
    client.session._send(_Group([b"x" * 600 + b"\r\n"]))
    mid = world.push(q)
    client.reader.take()
    await settled()
    assert client.got == [mid]
    assert world.deleted(q) == [mid]


async def test_slow_ones_are_not_in_the_way(world: World) -> None:
    """While one holds messages up and another goes on, the server is let send more; less again when that is over."""
    q = world.fan_out()
    slow, fast = world.client(), world.client()
    slow.join(q, ack=True, prefetch=1)
    fast.join(q)
    sent = [world.push(q) for _ in range(PREFETCH)]
    assert world.upstream.synced[q] == 2 * PREFETCH
    sent += [world.push(q) for _ in range(PREFETCH)]
    assert world.upstream.synced[q] == 4 * PREFETCH
    assert fast.got == sent
    slow.leave()
    world.deleted(q)
    for _ in range(3):
        world.push(q)
        world.deleted(q)
    assert world.upstream.synced[q] == PREFETCH
    assert nothing_left(q)


async def test_not_more_than_may_be_held(nursery: trio.Nursery) -> None:
    """The server is not let send more than may be held for one, and who holds more up is sent away."""
    world = World(nursery, hold=3000)
    q = world.fan_out()
    slow, fast = world.client(), world.client()
    slow.join(q, ack=True, prefetch=1)
    fast.join(q)
    for number in range(3002):
        assert (number, slow.refusal) == (number, None)
        world.push(q)
    assert world.upstream.synced[q] <= 3000 + PREFETCH
    assert slow.refusal is not None
    assert slow.refusal[0] == 429
    assert "more than 3000 messages" in slow.refusal[1]
    assert len(world.bus.slow) == 1


async def test_all_are_slow(world: World) -> None:
    """When all hold messages up, the server sends no more than usual."""
    q = world.fan_out()
    for _ in range(3):
        world.client().join(q, ack=True, prefetch=1)
    for _ in range(PREFETCH):
        world.push(q)
    assert world.upstream.synced[q] == PREFETCH


async def test_one_of_the_slow_ones_catches_up(world: World) -> None:
    """When all were slow and one is not any more, the server is let send more for it."""
    q = world.fan_out()
    slow, other = world.client(), world.client()
    slow.join(q, ack=True, prefetch=1)
    other.join(q, ack=True, prefetch=1)
    sent = [world.push(q, "") for _ in range(PREFETCH)]
    other.acknowledge(*sent)
    assert other.got == sent
    assert world.upstream.synced[q] > PREFETCH


async def test_one_comes_when_all_are_slow(world: World) -> None:
    """A member that joins while all others hold messages up gets new messages too."""
    q = world.fan_out()
    world.client().join(q, ack=True, prefetch=1)
    for _ in range(PREFETCH):
        world.push(q)
    world.client().join(q)
    assert world.upstream.synced[q] > PREFETCH


async def test_policy_disconnect(nursery: trio.Nursery) -> None:
    """Under 'disconnect' a client for which more waits than its outbox holds is sent away, and told why; the log has
    one line."""
    world = World(nursery, outbox=1000, policy=Policy.DISCONNECT)
    q = world.fan_out()
    slow, fast = world.client(credit=0), world.client()
    slow.join(q)
    fast.join(q)
    while slow.refusal is None:
        world.push(q, "x" * 100)
        assert len(q.messages) < 100
    assert slow.refusal[0] == 429
    assert "too slow: more than 1000 bytes" in slow.refusal[1]
    for _ in range(10):
        world.push(q, "x" * 100)
    assert len(world.bus.slow) == 1
    assert fast.refusal is None
    slow.leave()
    assert sorted(world.deleted(q)) == fast.got
    assert world.released(q) == []
    assert nothing_left(q)


async def test_policy_hold(nursery: trio.Nursery) -> None:
    """With the policy 'hold', a slow subscriber stays, however many bytes wait for it."""
    world = World(nursery, outbox=1000)
    q = world.fan_out()
    slow = world.client(credit=0)
    slow.join(q)
    for _ in range(500):
        world.push(q, "x" * 100)
    assert slow.refusal is None
    slow.leave()
    assert len(world.released(q)) == 500
    assert nothing_left(q)
