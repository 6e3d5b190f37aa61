"""Queues whose receives the server counts: what is released goes back to the server, which sends it again or not."""

import pytest
import trio
from support.bus.memory import World, nothing_left

from qs_bus.feeds import Release
from qs_schemas import ReleaseMessage


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


async def test_a_queue_that_does_not_count(world: World) -> None:
    """If a queue does not count receives, the bus itself sends a released message again, and asks whether the queue
    counts by now."""
    share = world.share()
    client = world.client()
    client.join(share, ack=True)
    mid = world.push(share)
    client.release(mid)
    assert world.fetched(share) == [mid]
    assert client.got == [mid, mid]
    assert (world.upstream.asked, world.upstream.releases) == ([share], [])


async def test_a_fan_out(world: World) -> None:
    """Several members that release a message are one release; both get what comes again, with its new count, and a
    third one, which has it in hand, does not."""
    feed = world.fan_out(counted=True)
    one, two, three = (world.client() for _ in range(3))
    for client in (one, two, three):
        client.join(feed, ack=True)
    mid = world.push(feed)
    one.release(mid, delay=5)
    two.release(mid)
    assert world.upstream.releases.of(feed) == [Release(mid, 1, 5, counts=True, awaited=True)]
    assert feed.awaits(mid)
    assert (one.acknowledge(mid), three.acknowledge(mid)) == ([404], [0])
    world.push(feed, mid=mid, receives=2)
    assert [client.got for client in (one, two, three)] == [[mid, mid], [mid, mid], [mid]]
    assert 'receives="2"' in one.lines[-1]
    assert not feed.awaits(mid)
    assert (one.acknowledge(mid), two.acknowledge(mid)) == ([0], [0])
    assert world.deleted(feed) == [mid]
    assert nothing_left(feed)


async def test_a_dead_letter(world: World) -> None:
    """A message that became a dead letter is forgotten; a client that has it in hand may still acknowledge it."""
    feed = world.fan_out(counted=True)
    one, two = world.client(), world.client()
    for client in (one, two):
        client.join(feed, ack=True)
    first, second = world.push(feed), world.push(feed)
    one.release(first)
    one.release(second)
    two.release(second)
    feed.missing(first)
    feed.missing(second)
    assert list(feed.messages) == [first]
    assert two.acknowledge(first, second) == [0, 404]
    assert world.deleted(feed) == [first]
    assert [release.mid for release in world.upstream.releases.of(feed)] == [first, second]
    assert nothing_left(feed)


async def test_who_waits_for_it_leaves(world: World) -> None:
    """A member that waits for a message to come again and goes is not waited for; the last one that goes has nothing
    to give back, as the server has the message."""
    feed = world.fan_out(counted=True)
    one, two = world.client(), world.client()
    for client in (one, two):
        client.join(feed, ack=True)
    first, second = world.push(feed), world.push(feed)
    one.release(first)
    one.release(second)
    assert len(world.released(feed)) == 2
    two.acknowledge(first)
    one.leave()
    assert world.deleted(feed) == [first]
    two.release(second)
    assert world.released(feed) == [second]
    two.leave()
    assert world.released(feed) == []
    assert nothing_left(feed)


async def test_one_that_has_no_room_when_it_comes_again(nursery: trio.Nursery) -> None:
    """A message that comes again without room for it waits, and its payload with it."""
    world = World(nursery, outbox=100)
    feed = world.fan_out(counted=True)
    client = world.client()
    client.join(feed, ack=True, prefetch=1)
    first, second = world.push(feed), world.push(feed, "later")
    client.release(first)
    assert client.got == [first, second]
    world.push(feed, "again", mid=first, receives=2)
    assert client.got == [first, second]
    client.acknowledge(second)
    assert client.payloads == ["x", "later", "again"]
    client.acknowledge(first)
    assert world.deleted(feed) == [second, first]
    assert nothing_left(feed)


async def test_a_name(world: World) -> None:
    """Each release, and what a member leaves behind, is counted; what no member had is given back uncounted."""
    share = world.share()
    share.counted = True
    one, two = world.client(), world.client()
    for client in (one, two):
        client.join(share, ack=True, prefetch=1)
    sent = [world.push(share) for _ in range(4)]
    assert (one.got, two.got) == (sent[:1], sent[1:2])
    one.session.answer_to(ReleaseMessage("q", sent[0], delay=3, uncounted=True))
    assert one.got == [sent[0], sent[2]]
    assert world.upstream.releases.of(share) == [Release(sent[0], 1, 3, counts=False)]
    one.leave()
    assert world.upstream.releases.of(share) == [Release(sent[2], 1)]
    two.leave()
    assert world.upstream.releases.of(share) == [Release(sent[3], 1, counts=False), Release(sent[1], 1)]
    assert nothing_left(share)


@pytest.mark.parametrize("counted", [False, True])
async def test_the_end_of_the_bus(world: World, *, counted: bool) -> None:
    """At the end, messages that no member got are given back uncounted; the server sends nothing more."""
    feed = world.fan_out(counted=counted)
    world.client().join(feed, ack=True, prefetch=1)
    sent = [world.push(feed) for _ in range(3)]
    feed.stop()
    expected = [Release(mid, 1, counts=False) for mid in sent[1:]] if counted else []
    assert world.upstream.releases.of(feed) == expected
    assert world.upstream.synced[feed] == 0


async def test_a_client_that_was_only_slow(world: World) -> None:
    """Messages that a slow client got unasked, before its first document, do not count as received."""
    feed = world.fan_out(counted=True)
    slow = world.client().join(feed, asked=False)
    mid = world.push(feed)
    slow.leave()
    assert world.upstream.releases.of(feed) == [Release(mid, 1, counts=False)]
    assert nothing_left(feed)
