"""A durable name: each message goes to one of its members, and to another when that one goes."""

import pytest
import trio
import trio.testing
from support.bus.memory import World, nothing_left

from qs_bus.feeds import PREFETCH

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


async def test_in_turn(world: World) -> None:
    """Members get messages in turn, each message one of them, under the name of the queue that they know."""
    share = world.share("q", "n")
    clients = [world.client() for _ in range(3)]
    for client in clients:
        client.join(share, name="n", ack=True)
    sent = [world.push(share) for _ in range(9)]
    assert [client.got for client in clients] == [sent[0::3], sent[1::3], sent[2::3]]
    assert "<qid>q</qid>" in clients[0].lines[0]
    for client in clients:
        client.acknowledge(*client.got)
    assert sorted(world.deleted(share)) == sent
    assert nothing_left(share)


async def test_what_comes_together_is_shared(world: World) -> None:
    """Each member gets its turns of messages that come together, in one write; those that nobody can take wait."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True, prefetch=2)
    two.join(share, ack=True, prefetch=3)
    sent = world.push_together(share, 7)
    assert one.got == [sent[0], sent[2]]
    assert two.got == [sent[1], sent[3], sent[4]]
    assert one.reader.writes == two.reader.writes == 1
    one.acknowledge(sent[0])
    assert one.got[2:] == [sent[5]]
    two.acknowledge(*two.got)
    assert two.got[3:] == [sent[6]]
    one.acknowledge(*one.got[1:])
    two.acknowledge(sent[6])
    assert sorted(world.deleted(share)) == sent
    assert nothing_left(share)


async def test_who_has_no_room_is_passed_over(world: World) -> None:
    """A member with its prefetch in hand gets nothing; the others get new messages."""
    share = world.share()
    slow, fast = world.client(), world.client()
    slow.join(share, ack=True, prefetch=1)
    fast.join(share)
    sent = [world.push(share) for _ in range(5)]
    assert slow.got == sent[:1]
    assert fast.got == sent[1:]


async def test_nobody_has_room(world: World) -> None:
    """While all members have their hands full, messages wait, and go in order to the first with room."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True, prefetch=1)
    two.join(share, ack=True, prefetch=1)
    sent = [world.push(share) for _ in range(6)]
    assert (one.got, two.got) == (sent[:1], sent[1:2])
    one.acknowledge(sent[0])
    one.acknowledge(sent[2])
    two.acknowledge(sent[1])
    assert (one.got, two.got) == ([sent[0], sent[2], sent[3]], [sent[1], sent[4]])
    one.acknowledge(sent[3])
    assert one.got[-1] == sent[5]
    one.acknowledge(sent[5])
    two.acknowledge(sent[4])
    assert sorted(world.deleted(share)) == sent
    assert nothing_left(share)


async def test_one_that_does_not_read(nursery: trio.Nursery) -> None:
    """One that does not read gets what its outbox holds; the rest goes to others, and to it again when it reads."""
    world = World(nursery, outbox=500)
    share = world.share()
    slow, fast = world.client(credit=0), world.client()
    slow.join(share)
    fast.join(share)
    sent = [world.push(share, "x" * 100) for _ in range(10)]
    slow.reader.take()
    await settled()
    assert sorted(slow.got + fast.got) == sent
    assert 0 < len(slow.got) < 5
    sent += [world.push(share), world.push(share)]
    assert sorted(slow.got + fast.got) == sent
    assert {slow.got[-1], fast.got[-1]} == set(sent[-2:])
    assert sorted(world.deleted(share)) == sent
    assert nothing_left(share)


async def test_who_comes_when_all_are_full(world: World) -> None:
    """A member that joins gets the messages that waited."""
    share = world.share()
    full, new = world.client(), world.client()
    full.join(share, ack=True, prefetch=1)
    sent = [world.push(share) for _ in range(4)]
    new.join(share)
    assert (full.got, new.got) == (sent[:1], sent[1:])


async def test_a_member_leaves(world: World) -> None:
    """Messages in the hands of a member that leaves go to another, in order, fetched anew."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True)
    sent = [world.push(share, "p") for _ in range(5)]
    two.join(share, ack=True)
    one.acknowledge(sent[0])
    one.leave()
    while world.fetched(share, b"p"):
        pass
    assert two.got == sent[1:]
    assert two.payloads == ["p"] * 4
    assert world.released(share) == []
    two.acknowledge(*two.got)
    assert sorted(world.deleted(share)) == sent
    assert nothing_left(share)


async def test_the_last_member_leaves(world: World) -> None:
    """When the last member leaves, its messages and those that waited are given back; the server sends nothing more."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True, prefetch=1)
    two.join(share, ack=True, prefetch=1)
    sent = [world.push(share) for _ in range(5)]
    one.leave()
    assert world.released(share) == []
    two.leave()
    assert sorted(world.released(share)) == sent
    assert world.upstream.deletes == []
    assert world.upstream.synced[share] == 0
    world.fetched(share)  # comes too late
    assert nothing_left(share)


async def test_release_goes_to_member_before_later_ones(world: World) -> None:
    """A released message goes to a member before later ones."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True, prefetch=1)
    two.join(share, ack=True, prefetch=1)
    first, second, third = world.push(share), world.push(share), world.push(share)
    assert one.release(first) == 0
    assert world.fetched(share) == [first]
    assert (one.got, two.got) == ([first, first], [second])
    two.acknowledge(second)
    assert two.got == [second, third]


async def test_release_with_delay_goes_to_any_member(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """A message released with a delay goes to any member with room when that is over."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True)
    mid = world.push(share)
    assert one.release(mid, delay=5) == 0
    two.join(share, ack=True)
    await trio.sleep(4.9)
    assert world.fetched(share) == []
    await trio.sleep(0.2)
    assert world.fetched(share) == [mid]
    assert sorted(one.got + two.got) == [mid, mid]


async def test_delayed_message_makes_room_for_one_more(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """The server may send one more for each that waits until it is later, also when its member has left."""
    share = world.share()
    client = world.client()
    client.join(share, ack=True, prefetch=1)
    mid = world.push(share)
    assert share.prefetch == 1
    client.release(mid, delay=5)
    assert share.prefetch == 2
    await trio.sleep(5.1)
    assert share.prefetch == 1
    assert world.fetched(share) == [mid]
    client.release(mid, delay=5)
    client.leave()
    assert share.prefetch == 1
    assert world.released(share) == [mid]


async def test_member_leaves_with_delayed_message(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """A message that is delayed for a leaving member goes to another one at once, or is given back."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True)
    two.join(share, ack=True)
    first, second = world.push(share), world.push(share)
    one.release(first, delay=5)
    two.release(second, delay=5)
    one.leave()
    assert world.fetched(share) == [first]
    assert two.got == [second, first]
    two.leave()
    assert sorted(world.released(share)) == [first, second]
    await trio.sleep(10)
    assert world.upstream.fetches == []
    assert nothing_left(share)


async def test_prefetch_is_what_the_members_take(world: World) -> None:
    """The server sends ahead what the members together take, within bounds."""
    share = world.share()
    one, two, three = world.client(), world.client(), world.client()
    one.join(share, ack=True, prefetch=3)
    assert world.upstream.synced[share] == 3
    two.join(share, ack=True, prefetch=4)
    assert world.upstream.synced[share] == 7
    three.join(share, ack=True, prefetch=10**6)
    assert world.upstream.synced[share] == PREFETCH
    three.leave()
    assert world.upstream.synced[share] == 7
    one.leave()
    assert world.upstream.synced[share] == 4
    two.leave()
    assert world.upstream.synced[share] == 0


async def test_gone_while_it_waited(nursery: trio.Nursery) -> None:
    """A message that was deleted while it waited for room is skipped."""
    world = World(nursery, outbox=100)
    share = world.share()
    client = world.client()
    client.join(share, ack=True, prefetch=1)
    sent = [world.push(share, "x" * 150) for _ in range(3)]
    client.acknowledge(sent[0])
    assert world.fetched(share, None) == [sent[1]]
    assert world.fetched(share, b"third") == [sent[2]]
    assert client.got == [sent[0], sent[2]]


async def test_redelivered(world: World) -> None:
    """A redelivered message that is in a member's hands is not sent to another."""
    share = world.share()
    one, two = world.client(), world.client()
    one.join(share, ack=True)
    two.join(share, ack=True)
    mid = world.push(share)
    world.push(share, mid=mid, receives=2)
    assert (one.got, two.got) == ([mid], [])


async def test_it_comes_after_the_last_has_left(world: World) -> None:
    """A message that was on its way when the last member left is given back."""
    share = world.share()
    client = world.client()
    client.join(share)
    client.leave()
    mid = world.push(share)
    assert world.released(share) == [mid]
    assert nothing_left(share)


async def test_a_name_beside_a_plain_subscription(world: World) -> None:
    """One connection may be a plain subscriber of one queue and a member of a name of another."""
    q, share = world.fan_out("q"), world.share("other", "n")
    client = world.client()
    client.join(q, req="1")
    client.join(share, req="2", name="n", ack=True)
    plain, named = world.push(q), world.push(share)
    assert client.got == [plain, named]
    assert client.acknowledge(plain) == [404]
    assert client.acknowledge(named, qid="other") == [0]
