"""A queue whose messages go to everybody: who gets what, when it is deleted, and what becomes of slow ones."""

import re

import pytest
import trio
import trio.testing
from support.bus.memory import EVERYTHING, World, nothing_left

from qs_bus.feeds import PREFETCH, DurableName, HeldMessage, Release

NAME = DurableName("q", "n")
settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


async def test_everybody_gets_it(world: World) -> None:
    """Every member gets every message, in order, with the req of its own subscription."""
    q = world.fan_out()
    clients = [world.client() for _ in range(3)]
    for number, client in enumerate(clients):
        client.join(q, req=f"r{number}")
    sent = [world.push(q, payload) for payload in ("a", "b", "c")]
    for number, client in enumerate(clients):
        assert client.got == sent
        assert client.payloads == ["a", "b", "c"]
        assert {re.findall(' req="([^"]*)"', line)[0] for line in client.lines} == {f"r{number}"}
    assert world.deleted(q) == sent
    assert nothing_left(q)


async def test_what_comes_together_is_sent_together(world: World) -> None:
    """Messages that come together go to each member in one write, in order; one with less room gets what fits, and the
    rest when it has room."""
    q = world.fan_out()
    plain, careful, slow = world.client(), world.client(), world.client(credit=10)
    plain.join(q)
    careful.join(q, ack=True, prefetch=3)
    slow.join(q)
    sent = world.push_together(q, 8)
    assert (plain.got, plain.reader.writes) == (sent, 1)
    assert (careful.got, careful.reader.writes) == (sent[:3], 1)
    await settled()
    assert slow.got == []
    careful.acknowledge(*sent[:2])
    assert careful.got == sent[:5]
    slow.reader.take()
    await settled()
    assert slow.got == sent
    assert world.deleted(q) == sent[:2]
    careful.acknowledge(*sent[2:])
    assert careful.got == sent
    assert sorted(world.deleted(q)) == sent[2:]
    assert nothing_left(q)


async def test_what_is_acknowledged_together(world: World) -> None:
    """Acknowledgements of one read are one report to each feed, and one write brings what there is room for then."""
    q, r = world.fan_out("q"), world.fan_out("r")
    client = world.client()
    client.join(q, r, ack=True, prefetch=6)
    ours, theirs = world.push_together(q, 5), world.push_together(r, 5)
    assert client.got == [*ours, *theirs[:1]]
    assert client.acknowledge_together(*ours[:4], ours[0], theirs[0]) == [0, 0, 0, 0, 404, 404]
    assert client.acknowledge_together(theirs[0], qid="r") == [0]
    assert client.got == [*ours, *theirs]
    assert client.reader.writes == 3  # the rest came with the first room
    assert (world.deleted(q), world.deleted(r)) == (ours[:4], theirs[:1])
    client.leave()
    assert (world.released(q), world.released(r)) == (ours[4:], theirs[:0:-1])
    assert nothing_left(q)
    assert nothing_left(r)


async def test_many_forms_of_a_batch(world: World) -> None:
    """Clients with more different forms than a batch keeps get their own documents, in order."""
    q = world.fan_out()
    clients = [world.client() for _ in range(40)]
    for number, client in enumerate(clients):
        client.join(q, req=f"r{number % 20}")
    sent = world.push_together(q, 3)
    for number, client in enumerate(clients):
        assert client.got == sent
        assert {re.findall(' req="([^"]*)"', line)[0] for line in client.lines} == {f"r{number % 20}"}
    assert world.deleted(q) == sent


@pytest.mark.parametrize("shared", [False, True])
async def test_a_connection_that_breaks_in_a_batch(world: World, shared: bool) -> None:
    """Messages of a batch count as handled if the socket took their last byte; the others go back, or to another member
    of a share."""
    feed = world.share() if shared else world.fan_out()
    probe = world.client()
    probe.join(feed)
    first = world.push(feed)
    length = len(probe.reader.read)
    assert world.deleted(feed) == [first]
    probe.leave()
    broken, other = world.client(credit=2 * length + length // 2), world.client()
    broken.join(feed)
    sent = world.push_together(feed, 5)
    assert broken.got == sent[:2]
    await settled()
    assert world.deleted(feed) == sent[:2]
    if shared:
        other.join(feed)
    broken.leave()
    await settled()
    if shared:
        assert world.fetched(feed) == sent[2:]
        assert other.got == sent[2:]
        assert sorted(world.deleted(feed)) == sent[2:]
    else:
        assert sorted(world.released(feed)) == sent[2:]
    assert nothing_left(feed)


@pytest.mark.parametrize("ack", [False, True])
async def test_a_connection_that_is_lost_before_a_batch(world: World, ack: bool) -> None:
    """A batch to a connection that has just been lost is handled by nobody, and goes back when the client leaves."""
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=ack)
    client.reader.hang_up()
    sent = world.push_together(q, 5)
    assert world.deleted(q) == []
    client.leave()
    assert world.deleted(q) == []
    assert sorted(world.released(q)) == sent
    assert nothing_left(q)


async def test_a_batch_does_not_exceed_the_outbox(nursery: trio.Nursery) -> None:
    """One that does not read gets no more of a batch than its outbox holds and one message; all comes when it reads."""
    world = World(nursery, outbox=500)
    q = world.fan_out()
    slow, fast = world.client(credit=0), world.client()
    slow.join(q)
    fast.join(q)
    sent = world.push_together(q, 10, "x" * 100)
    assert fast.got == sent
    assert 500 <= slow.connection.outbox.unsent < 500 + len(fast.lines[0]) + 2
    slow.reader.take()
    await settled()
    while world.fetched(q):
        await settled()
    assert slow.got == sent
    assert sorted(world.deleted(q)) == sent
    assert nothing_left(q)


@pytest.mark.parametrize("kind", ["fan-out", "share"])
async def test_a_backlog_does_not_exceed_the_outbox(nursery: trio.Nursery, kind: str) -> None:
    """One that reads again gets no more of what has waited than its outbox holds and one message, however much longer
    than the payloads the documents are."""
    world = World(nursery, outbox=5000)
    q = world.share() if kind == "share" else world.fan_out()
    client = world.client(credit=0)
    client.join(q)
    sent = [world.push(q, "&" * 20) for _ in range(300)]
    outbox = client.connection.outbox
    longest = 0
    for _ in range(1000):
        client.reader.take(1000)
        await settled()
        longest = max(longest, outbox.unsent)
        while world.fetched(q):
            await settled()
            longest = max(longest, outbox.unsent)
        if b">%d</mid>" % sent[-1] in client.reader.read:
            break
    assert client.got == sent
    assert 5000 <= longest < 5000 + 2 * len(client.lines[0])


async def test_documents_are_made_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for members that have room for a part of a batch only."""
    q = world.fan_out()
    made: list[int] = []
    document = HeldMessage.document

    def counted(message: HeldMessage, req: str | None, early: bool) -> bytes:
        made.append(message.mid)
        return document(message, req, early)

    monkeypatch.setattr(HeldMessage, "document", counted)
    for _ in range(3):
        world.client().join(q, ack=True, prefetch=6)
    assert made == [*world.push_together(q, 10)]


async def test_who_comes_later_gets_what_comes_later(world: World) -> None:
    """A message goes to the members that are there when it comes."""
    q = world.fan_out()
    early, late = world.client(), world.client()
    early.join(q)
    first = world.push(q)
    late.join(q)
    second = world.push(q)
    assert (early.got, late.got) == ([first, second], [second])


async def test_deleted_once_all_have_handled_it(world: World) -> None:
    """A message is deleted when the last member that got it has acknowledged it, and not before."""
    q = world.fan_out()
    clients = [world.client() for _ in range(3)]
    for client in clients:
        client.join(q, ack=True)
    mid = world.push(q)
    for client in clients:
        assert world.upstream.deletes == []
        assert client.acknowledge(mid) == [0]
    assert world.deleted(q) == [mid]
    assert nothing_left(q)


async def test_one_that_acknowledges_and_one_that_does_not(world: World) -> None:
    """A written message is handled only for a member without ack="client"."""
    q = world.fan_out()
    plain, careful = world.client(), world.client()
    plain.join(q)
    careful.join(q, ack=True)
    mid = world.push(q)
    assert plain.acknowledge(mid) == [404]
    assert world.upstream.deletes == []
    careful.acknowledge(mid)
    assert world.deleted(q) == [mid]


async def test_written_is_when_the_socket_has_taken_the_last_byte(world: World) -> None:
    """A plain client has handled a message when its socket has taken the last byte."""
    q = world.fan_out()
    client = world.client(credit=10)
    client.join(q)
    mid = world.push(q)
    await settled()
    assert world.upstream.deletes == []
    client.reader.take()
    await settled()
    assert client.got == [mid]
    assert world.deleted(q) == [mid]
    assert nothing_left(q)


async def test_all_leave_and_nobody_has_handled_it(world: World) -> None:
    """A message that nobody has handled when the last one has left is given back, with its count of receives."""
    q = world.fan_out()
    one, two = world.client(), world.client()
    one.join(q, ack=True)
    two.join(q, ack=True)
    mid = world.push(q, receives=7)
    one.leave()
    assert world.upstream.releases == []
    two.leave()
    assert world.upstream.releases == [(q, Release(mid, 7))]
    assert world.upstream.deletes == []
    assert nothing_left(q)


async def test_one_has_handled_it_and_the_rest_leave(world: World) -> None:
    """A message that one client has handled is deleted when the others leave, in any order."""
    for leaves_first in (True, False):
        q = world.fan_out()
        one, two = world.client(), world.client()
        one.join(q, ack=True)
        two.join(q, ack=True)
        mid = world.push(q)
        if leaves_first:
            two.leave()
            one.acknowledge(mid)
        else:
            one.acknowledge(mid)
            two.leave()
        assert world.deleted(q) == [mid]
        assert world.released(q) == []


async def test_what_was_half_written_is_given_back(world: World) -> None:
    """A message of which a plain client got half is not handled."""
    q = world.fan_out()
    client = world.client(credit=50)
    client.join(q)
    mid = world.push(q)
    client.leave()
    assert world.released(q) == [mid]
    assert nothing_left(q)


async def test_one_that_was_silent_speaks(world: World) -> None:
    """When a silent client sends its first document, all messages that it got are given back: written, begun, unsent or
    held. Unsent ones are not sent any more."""
    q = world.fan_out()
    client = world.client()
    subscription = client.join(q, asked=False)
    sent = [world.push(q) for _ in range(2)]
    client.reader.credit = 10
    sent += [world.push(q, "x" * 3000) for _ in range(6)]
    await settled()
    assert subscription.waiting
    subscription.leave()
    client.reader.take()
    await settled()
    assert client.got == sent[:3]
    assert sorted(world.released(q)) == sent
    assert world.deleted(q) == []
    assert nothing_left(q)


async def test_one_that_was_silent_stays_so(world: World) -> None:
    """Messages written to a silent client are handled once it is sure that it only listens; from then on at once."""
    q = world.fan_out()
    client = world.client()
    subscription = client.join(q, asked=False)
    first = world.push(q)
    assert (client.got, world.deleted(q)) == ([first], [])
    client.reader.stop_reading()
    second = world.push(q)
    subscription.confirm_silent()
    assert world.deleted(q) == [first]
    client.reader.take()
    await settled()
    assert world.deleted(q) == [second]
    third = world.push(q)
    assert world.deleted(q) == [third]
    assert nothing_left(q)


@pytest.mark.parametrize("speaks", [True, False])
@pytest.mark.parametrize("first", [True, False])
async def test_one_that_was_silent_beside_another(world: World, speaks: bool, first: bool) -> None:
    """When another client has handled the message, before or after, nobody waits for the doubt about a silent client,
    and its end changes nothing."""
    q = world.fan_out()
    silent, other = world.client(credit=EVERYTHING if first else 0), world.client()
    subscription = silent.join(q, asked=False)
    other.join(q, ack=True)
    mid = world.push(q)
    assert world.deleted(q) == []
    other.acknowledge(mid)
    silent.reader.take()
    await settled()
    assert world.deleted(q) == [mid]
    subscription.leave() if speaks else subscription.confirm_silent()
    assert (world.deleted(q), world.released(q)) == ([], [])
    assert nothing_left(q)


async def test_with_nobody_there(world: World) -> None:
    """Without subscribers the feed asks the server for no messages, and gives back those that still come."""
    q = world.fan_out()
    client = world.client()
    client.join(q)
    assert world.upstream.synced[q] == PREFETCH
    client.leave()
    assert world.upstream.synced[q] == 0
    assert world.released(q) == [] == world.released(q)
    mid = world.push(q)
    assert world.released(q) == [mid]
    assert nothing_left(q)


async def test_redelivered_is_not_sent_twice(world: World) -> None:
    """A redelivered message that is still in a client's hands is not sent again; it is deleted once it is
    acknowledged."""
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True)
    mid = world.push(q)
    world.push(q, mid=mid, receives=2)
    assert client.got == [mid]
    client.acknowledge(mid)
    assert world.deleted(q) == [mid]
    assert nothing_left(q)


async def test_redelivered_and_handled_before(world: World) -> None:
    """A message that was handled, and whose deletion was lost with the connection, is deleted again and sent to
    nobody."""
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True)
    mid = world.push(q)
    client.acknowledge(mid)
    assert world.upstream.deletes.of(q) == [mid]  # lost
    world.push(q, mid=mid, receives=2)
    assert client.got == [mid]
    assert world.deleted(q) == [mid]
    assert nothing_left(q)


async def test_given_back_with_the_last_count(world: World) -> None:
    """A redelivered message is given back with its latest count."""
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True)
    mid = world.push(q)
    world.push(q, mid=mid, receives=4)
    client.leave()
    assert world.upstream.releases == [(q, Release(mid, 4))]


async def test_release_fetches_message_anew(world: World) -> None:
    """A released message is fetched anew and sent to the same client, not to others; it is deleted when all have
    handled it."""
    q = world.fan_out()
    one, two = world.client(), world.client()
    one.join(q, ack=True)
    two.join(q, ack=True)
    mid = world.push(q, "payload")
    assert one.release(mid) == 0
    assert world.fetched(q, b"payload") == [mid]
    assert (one.got, two.got) == ([mid, mid], [mid])
    assert one.payloads == ["payload"] * 2
    two.acknowledge(mid)
    assert world.upstream.deletes == []
    one.acknowledge(mid)
    assert world.deleted(q) == [mid]
    assert nothing_left(q)


async def test_release_with_delay_comes_again_later(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """A message released with a delay comes again when that is over; until then it cannot be acknowledged."""
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True)
    mid = world.push(q)
    assert client.release(mid, delay=7.5) == 0
    assert client.acknowledge(mid) == [404]
    await trio.sleep(7.4)
    assert world.fetched(q) == []
    await trio.sleep(0.2)
    assert world.fetched(q) == [mid]
    assert client.got == [mid, mid]
    assert client.acknowledge(mid) == [0]
    assert world.deleted(q) == [mid]
    assert nothing_left(q)


async def test_delayed_message_makes_room_in_prefetch(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """A message that is given back for later does not count against the prefetch meanwhile, but against the bound."""
    q = world.fan_out()
    client = world.client()
    subscription = client.join(q, ack=True, prefetch=1)
    first, second = world.push(q), world.push(q)
    client.release(first, delay=60)
    assert world.fetched(q) in ([], [second])
    assert client.got == [first, second]
    assert subscription.delayed is not None
    assert list(subscription.delayed) == [q.messages[first]]


async def test_client_leaves_with_delayed_message(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """A client that leaves while a message is delayed for it lets that go too; nothing is left running."""
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True)
    delayed, held = world.push(q), world.push(q)
    client.release(delayed, delay=3600)
    await settled()
    client.leave()
    assert sorted(world.released(q)) == [delayed, held]
    await settled()
    assert not world.bus.timers._due
    assert nothing_left(q)


async def test_acknowledged_twice(world: World) -> None:
    """A second acknowledgement is 404, and so is one of a message that was never sent, and of another queue."""
    q = world.fan_out()
    client = world.client()
    client.join(q, ack=True)
    mid = world.push(q)
    assert client.acknowledge(mid, mid, mid + 1) == [0, 404, 404]
    assert client.acknowledge(mid, qid="other") == [404]
    assert client.release(mid) == 404


async def test_a_name_counts_as_one(world: World) -> None:
    """With names, a message is stored for all of them at once, and is deleted when that is done and all members have
    handled it."""
    q = world.fan_out()
    for name in ("n", "m"):
        q.add_name(DurableName("q", name), world.share("q", name))
    client = world.client()
    client.join(q, ack=True)
    one, two = world.push(q), world.push(q)
    assert world.upstream.copies.of(q) == [one, two]
    client.acknowledge(one)
    assert world.upstream.deletes == []
    q.copied([one, two], q.names)
    assert world.deleted(q) == [one]
    client.acknowledge(two)
    assert world.deleted(q) == [two]
    assert nothing_left(q)


async def test_a_name_without_members(world: World) -> None:
    """A name's messages are taken from the queue though nobody is connected."""
    q = world.fan_out()
    q.add_name(NAME, world.share())
    assert q.wanted
    mid = world.push(q)
    q.copied(world.upstream.copies.of(q), [NAME])
    assert world.deleted(q) == [mid]


async def test_stored_for_a_name_and_the_members_leave(world: World) -> None:
    """A message that is stored for a name is deleted in the queue, though every plain member left without handling
    it."""
    for copied_first in (True, False):
        q = world.fan_out()
        q.add_name(NAME, world.share())
        client = world.client()
        client.join(q, ack=True)
        mid = world.push(q)
        if copied_first:
            q.copied([mid], [NAME])
            client.leave()
        else:
            client.leave()
            q.copied([mid], [NAME])
        assert world.deleted(q) == [mid]
        assert world.released(q) == []
        q.copied([mid], [NAME])  # a repetition, after a lost connection
        assert world.upstream.deletes == []
