"""The bus's feeds against a model of the server: whatever clients do, and however often the connection is lost, nothing
is deleted too early, nothing is sent twice or to somebody who did not ask for it, and nothing stays for ever."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bus.memory import EVERYTHING, Asked, Client, World, nothing_left
from support.examples import examples

from qs_bus import filtering
from qs_bus.conditions import Condition
from qs_bus.fanout import FanOut
from qs_bus.feeds import DurableName, Feed, HeldMessage, Release
from qs_bus.subscription import Subscription
from qs_schemas import GetMessage

NAME = DurableName("q", "n")
Op = tuple[Any, ...]
number = st.integers(0, 5)
WHERE = {"/a": b"<a>", "/b": b"<b>", "/c": b"<c>"}
"""Conditions, and how the payloads begin that match them."""
LARGE = 100
"""Bytes of a message from which on it is evaluated in a thread."""
JOIN = st.tuples(
    st.just("join"),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, 5]),
    st.booleans(),
    st.sampled_from([None, None, "/a", "/b"]),
)
OPS = st.one_of(
    JOIN,
    st.tuples(st.just("push"), st.sampled_from([0, 10, 150, 400]), st.sampled_from(["", "a", "b"])),
    st.tuples(st.just("evaluate")),
    st.tuples(st.just("leave"), number),
    st.tuples(st.just("deny"), number),
    st.tuples(st.just("acknowledge"), number, number),
    st.tuples(st.just("release"), number, number, st.sampled_from([None, 1.0, 5.0]), st.booleans()),
    st.tuples(st.just("block"), number),
    st.tuples(st.just("read"), number, st.sampled_from([1, 200, EVERYTHING])),
    st.tuples(st.just("wait"), st.sampled_from([0, 2])),
    st.tuples(st.just("lose")),
    st.tuples(st.just("connect")),
    st.tuples(st.just("steal"), number),
    st.tuples(st.just("serve"), st.sampled_from(["deletes", "releases", "copies", "fetches", "looks"])),
)


@dataclass(eq=False)
class Stored:
    """A message on the server."""

    payload: bytes
    receives: int = 0
    out: bool = False


@dataclass(eq=False)
class Member:
    """A client with its one subscription. handled: what it has acknowledged; released: what it gave back."""

    client: Client
    subscription: Subscription
    feed: Feed
    where: str | None
    handled: set[int] = field(default_factory=set)
    released: Counter[int] = field(default_factory=Counter)

    def asked_for(self, payload: bytes) -> bool:
        return matches(self.where, payload)

    def has_handled(self, mid: int) -> bool:
        return mid in (self.handled if self.subscription.ack else self.client.got)


def matches(where: str | None, payload: bytes) -> bool:
    return where is None or payload.startswith(WHERE[where])


class Model:
    """The server, which keeps what the bus has not deleted, and all clients so far."""

    def __init__(self, world: World, *, named: bool, where: str | None, most: int | None) -> None:
        """where: the condition of the name; most: the max-receives of the queues, None for none."""
        self.world = world
        self.most = most
        world.upstream.looks = Asked()
        self.q: FanOut = world.fan_out("q")
        self.share = world.share("q", "n")
        self.q.counted = self.share.counted = most is not None
        if named:
            self.q.add_name(NAME, self.share, None if where is None else Condition(where))
        self.named = named
        self.where = where
        self.payloads: dict[int, bytes] = {}
        self.offered: set[tuple[Client, int]] = set()
        self.stored: dict[Feed, dict[int, Stored]] = {self.q: {}, self.share: {}}
        self.recipients: dict[tuple[Feed, int], list[Member]] = {}
        self.copied: set[int] = set()
        self.members: list[Member] = []
        self.here: list[Member] = []
        self.connected = True
        self.mid = 0

    # -- what happens

    def push(self, size: int, name: str) -> None:
        self.mid += 1
        payload = f"<{name}>{'x' * size}</{name}>".encode() if name else b"x" * size
        self.payloads[self.mid] = payload
        self.stored[self.q][self.mid] = Stored(payload)

    def evaluate(self) -> None:
        self.world.evaluator.finish()

    def join(self, to_name: bool, ack: bool, prefetch: int, reads: bool, where: str | None) -> None:
        client = self.world.client(EVERYTHING if reads else 0)
        feed = self.share if to_name and self.named else self.q
        where = self.where if feed is self.share else where
        condition = None if where is None else Condition(where)
        member = Member(client, client.join(ack=ack, prefetch=prefetch, condition=condition), feed, where)
        self.members.append(member)
        self.here.append(member)
        feed.join(member.subscription)

    def leave(self, which: int) -> None:
        if self.here:
            member = self.here.pop(which % len(self.here))
            member.client.leave()

    def deny(self, which: int) -> None:
        """A client loses its right to the queue, and stays connected."""
        if self.here:
            self.here.pop(which % len(self.here)).subscription.leave(denied=True)

    def _in_hand(self, which: int, what: int) -> tuple[Member, int] | None:
        for member in self.here[which:] + self.here[:which]:
            if member.subscription.ack and member.subscription.pending:
                mids = [mid for _, mid in member.subscription.pending]
                return member, mids[what % len(mids)]
        return None

    def acknowledge(self, which: int, what: int) -> bool:
        found = self._in_hand(which, what)
        if found is not None:
            member, mid = found
            member.handled.add(mid)
            assert member.client.acknowledge(mid) == [0]
        return found is not None

    def release(self, which: int, what: int, delay: float | None, counts: bool) -> None:
        found = self._in_hand(which, what)
        if found is not None:
            member, mid = found
            member.released[mid] += 1
            assert member.client.release(mid, delay, counts=counts) == 0

    def block(self, which: int) -> None:
        if self.here:
            self.here[which % len(self.here)].client.reader.stop_reading()

    def read(self, which: int, count: int) -> None:
        if self.here:
            self.here[which % len(self.here)].client.reader.take(count)

    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def lose(self) -> None:
        """The connection of bus and server ends: what is in flight is visible again."""
        self.connected = False
        for feed, messages in self.stored.items():
            for mid, message in list(messages.items()):
                if message.out:
                    self._give_back(feed, mid)

    def _give_back(self, feed: Feed, mid: int) -> None:
        """A message in flight is visible again, or dies."""
        message = self.stored[feed][mid]
        message.out = False
        if self.most is not None and message.receives >= self.most:
            del self.stored[feed][mid]

    def connect(self) -> None:
        self.connected = True

    def steal(self, which: int) -> None:
        """Takes a visible message from the queue and deletes it, as another consumer."""
        visible = [mid for mid, message in self.stored[self.q].items() if not message.out]
        if visible:
            del self.stored[self.q][visible[which % len(visible)]]

    # -- the server

    def serve(self, what: str) -> bool:
        """Does one kind of what the bus has asked for. Whether there was something."""
        pile = getattr(self.world.upstream, what)
        things = list(pile)
        if not self.connected or not things:
            return False
        pile.clear()
        for feed, thing in things:
            getattr(self, f"_{what}")(feed, thing)
        return True

    def _deletes(self, feed: Feed, mid: int) -> None:
        if self.stored[feed].pop(mid, None) is not None:
            payload, all_there = self.payloads[mid], self.recipients[feed, mid]
            recipients = [member for member in all_there if member.asked_for(payload)]
            copied = feed is self.q and mid in self.copied
            assert copied or not (feed is self.q and self.named and matches(self.where, payload))
            # If nobody has handled it, it matches nobody who is still there, and somebody has not asked for it.
            unasked = feed is self.q and (len(recipients) < len(all_there) or self.named)
            assert copied or unasked or any(member.has_handled(mid) for member in recipients)
            if feed is self.q:
                assert all(member.has_handled(mid) for member in recipients if member in self.here)
        feed.deleted([mid])

    def _releases(self, feed: Feed, release: Release) -> None:
        message = self.stored[feed].get(release.mid)
        if message is not None and message.out and message.receives == release.receives:
            message.receives -= not release.counts
            self._give_back(feed, release.mid)
        if release.awaited:
            self.world.upstream.looks.add(feed, release.mid)

    def _looks(self, feed: Feed, mid: int) -> None:
        if mid not in self.stored[feed]:
            feed.missing(mid)
        elif feed.awaits(mid):
            self.world.upstream.looks.add(feed, mid)

    def _copies(self, feed: FanOut, mid: int) -> None:
        message = self.stored[feed].get(mid)
        assert matches(self.where, self.payloads[mid])
        if message is not None and mid not in self.copied:
            self.stored[self.share][mid] = Stored(message.payload)
            self.copied.add(mid)
        feed.copied([mid], [NAME])

    def _fetches(self, feed: Feed, record: HeldMessage) -> None:
        message = self.stored[feed].get(record.mid)
        feed.fetched(record, None if message is None else message.payload)

    def deliver(self) -> bool:
        """The server sends what it may. Whether there was something."""
        sent = False
        for feed, messages in self.stored.items():
            together: list[GetMessage] = []
            for mid, message in list(messages.items()):
                out = sum(each.out for each in messages.values())
                if not self.connected or message.out or out >= self.world.upstream.synced.get(feed, 0):
                    continue
                message.out = sent = True
                message.receives += 1
                if mid not in feed.messages:
                    there = [member for member in self.here if member.feed is feed]
                    self.recipients[feed, mid] = self.members if feed is self.share else there
                    self.offered.update((member.client, mid) for member in there)
                together.append(GetMessage(feed.qid, mid, payload=message.payload, receives=message.receives))
            if together:
                feed.take(together)
        return sent

    # -- what always holds

    def check(self) -> None:
        for member in self.members:
            for mid, times in Counter(member.client.got).items():
                assert times <= 1 + member.released[mid]
                assert member.asked_for(self.payloads[mid])
                assert member.feed is self.share or (member.client, mid) in self.offered
        holders = Counter(
            mid for member in self.here if member.feed is self.share for _, mid in member.subscription.pending
        )
        assert all(times == 1 for times in holders.values())
        for feed in (self.q, self.share):
            kept = [record for record in feed.messages.values() if record.payload is not None]
            assert feed._payload_bytes == sum(record.size for record in kept)
            assert all(record.awaiting_room > 0 and not record.done for record in kept)
        for member in self.here:
            held = member.subscription.waiting or ()
            assert member.subscription.waiting_bytes == sum(record.size for record in held)
            assert member.client.refusal is None

    async def finish(self) -> None:
        """Everybody reads and acknowledges, and the server is there, until nothing moves any more."""
        self.connected = True
        moved, rounds = True, 0
        while moved:
            rounds += 1
            assert rounds < 1000
            for member in self.here:
                member.client.reader.take()
            await trio.sleep(10)
            served = [self.serve(what) for what in ("deletes", "releases", "copies", "fetches", "looks")]
            moved = self.deliver() or any(served)
            moved = self.world.evaluator.finish() or moved
            while self.acknowledge(0, 0):
                moved = True
            self.check()
        for feed in (self.q, self.share):
            assert nothing_left(feed)
            if feed.wanted:
                assert not self.stored[feed]
            assert not any(message.out for message in self.stored[feed].values())


async def run(named: bool, where: str | None, most: int | None, ops: list[Op]) -> None:
    async with trio.open_nursery() as nursery:
        model = Model(World(nursery, outbox=300), named=named, where=where, most=most)
        model.world.upstream.sync(model.q)
        for name, *arguments in ops:
            result = getattr(model, name)(*arguments)
            if name == "wait":
                await result
            await trio.testing.wait_all_tasks_blocked()
            model.deliver()
            await trio.testing.wait_all_tasks_blocked()
            model.check()
        await model.finish()
        nursery.cancel_scope.cancel()


@settings(deadline=None, max_examples=examples(200))
@given(
    st.booleans(),
    st.sampled_from([None, "/a", "/c"]),
    st.sampled_from([None, 1, 2, 3]),
    st.lists(JOIN, min_size=1, max_size=4),
    st.lists(OPS, min_size=5, max_size=60),
)
def test_whatever_happens(named: bool, where: str | None, most: int | None, joins: list[Op], ops: list[Op]) -> None:
    """Random joins, leaves, lost rights, acknowledgements, releases, slow readers, evaluations that take long and lost
    connections, with queues that count receives and others: a message is deleted only when somebody, if it matches
    anybody, and everybody who asked for it and stays has handled it; in the end nothing is left anywhere."""
    pushes = [("push", 10, name) for name in ("a", "b", "", "a")]
    clock = trio.testing.MockClock(autojump_threshold=0)
    with mock.patch.object(filtering, "LARGE", LARGE):
        trio.run(run, named, where, most, [*joins, *pushes, *ops], clock=clock)
