"""Subscriptions that a client may no longer have, and those of silent clients that change."""

import pytest
import trio
from support.bus.memory import World, nothing_left


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    return World(nursery)


async def test_what_waits_is_not_sent(world: World) -> None:
    """A client that reads slowly gets nothing any more of what waits to be written to it, although it acknowledges; all
    of it goes back to the queue."""
    q, other = world.fan_out(), world.fan_out("other")
    client = world.client(credit=20)
    denied = client.join(q, ack=True)
    kept = client.join(other, ack=True)
    first, second = world.push(q), world.push(q)
    third = world.push(other)
    denied.leave(denied=True)
    client.reader.take()
    await trio.testing.wait_all_tasks_blocked()
    assert client.got == [first, third]  # a line that has begun is completed
    assert world.released(q) == [second, first] or world.released(q) == [first, second]
    assert list(kept.pending) == [("other", third)]
    assert nothing_left(q)


async def test_a_silent_client_that_may_read_nothing_for_a_while(world: World) -> None:
    """A silent client that may read nothing for a while goes on when it may read something again, also if messages have
    to wait for it."""
    q = world.fan_out()
    client = world.client(credit=0)
    silent = client.join(q, asked=False)
    silent.leave(q, denied=True)
    q.join(silent)
    sent = [world.push(q, "x" * 6000) for _ in range(4)]
    await trio.testing.wait_all_tasks_blocked()
    assert silent.blocked
    client.reader.take()
    while len(client.got) < len(sent):
        await trio.testing.wait_all_tasks_blocked()
        world.fetched(q, b"x" * 6000)
    assert client.got == sent
