"""The bus as a client of the queue server: what it makes of the answers, without a connection."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from support.bus_memory import answered

from qs_bus.fanout import FanOut
from qs_bus.feeds import Feed
from qs_bus.records import Record, Release
from qs_bus.upstream import Upstream
from qs_client import Error, Message, ServerUnavailable, ShuttingDown, calls
from qs_client.asking import Call
from qs_schemas import CopyMessage, DeleteMessage, GetMessage, GetQueue, QueueOptions, ReleaseMessage, Subscribe

NO_QUEUE = Error(code=404, kind="not-found", text="there is no queue 'q'")
STALE = Error(code=409, kind="stale", text="it has been received again")
settled = trio.testing.wait_all_tasks_blocked


FULL = Error(code=507, kind="full", text="the queue is full")


class FakeConnection:
    """Notes what is posted, but for questions after options."""

    def __init__(self) -> None:
        self.posted: list[Message] = []

    def post(self, message: Message) -> None:
        if not isinstance(message, GetQueue):
            self.posted.append(message)


class Scripted(Upstream):
    """A server that answers as `answers` says, or else with the request itself. asked: every request."""

    def __init__(self) -> None:
        async def prepare(upstream: Upstream) -> None:
            self.prepared += 1

        super().__init__(("127.0.0.1", 1), prepare, lambda feed: None, lambda feed: None)
        self.prepared = 0
        self.asked: list[Message] = []
        self.answers: Callable[[Message], Message] = lambda request: request

    async def call(self, call: Call[Any]) -> Any:
        return await answered(call, self.asked, self.answers)


@pytest.fixture
async def upstream(nursery: trio.Nursery) -> Scripted:
    """Connected, and at work."""
    upstream = Scripted()
    nursery.start_soon(upstream._work)
    return upstream


def waiting(feed: FanOut, mid: int) -> Record:
    """A message whose payload somebody waits for."""
    record = feed.records[mid] = Record(feed, mid, 1, mid, None, 1, waiting=1, keepers=1)
    return record


async def test_what_is_in_other_hands_is_asked_for_again(
    upstream: Scripted, autojump_clock: trio.testing.MockClock
) -> None:
    """A message to fetch that is in other hands is asked for a second later; what else is to be fetched does not wait
    for that."""
    q, other = FanOut("q", upstream, 100, 100), FanOut("other", upstream, 100, 100)
    mine, next_one, others = waiting(q, 1), waiting(q, 2), waiting(other, 3)
    in_other_hands = {1}

    def answers(request: Message) -> Message:
        assert isinstance(request, GetMessage)
        taken = request.mid in in_other_hands
        return GetMessage(request.qid, request.mid, payload=None if taken else "x", status="in-flight")

    upstream.answers = answers
    for record in (mine, next_one, others):
        upstream.fetches.add(record.feed, record)  # type: ignore[arg-type]
    began = trio.current_time()
    while others.payload is None or next_one.payload is None:
        await trio.lowlevel.checkpoint()
    assert trio.current_time() == began
    assert mine.payload is None
    in_other_hands.clear()
    await trio.sleep(1.1)
    assert mine.payload == b"x"


async def test_what_is_asked_for_again_survives_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """A message that was to be asked for again when the connection ended is asked for on the next one."""
    upstream = Scripted()
    q = FanOut("q", upstream, 100, 100)
    record = waiting(q, 1)
    upstream.answers = lambda request: GetMessage("q", 1, status="in-flight")
    upstream.fetches.add(q, record)
    with trio.move_on_after(0.5):
        await upstream._work()
    upstream.answers = lambda request: GetMessage("q", 1, payload="x", status="ready")
    with trio.move_on_after(0.5):
        await upstream._work()
    assert record.payload == b"x"


async def test_what_is_gone(upstream: Scripted) -> None:
    """Deleting from a queue that is gone is done, and giving back what is not in hand any more is too."""
    q = FanOut("q", upstream, 100, 100)
    q.records[1] = Record(q, 1, 1, 1, None, 1, done=True)
    upstream.answers = lambda request: NO_QUEUE if isinstance(request, DeleteMessage) else STALE
    upstream.deletes.add(q, 1)
    upstream.releases.add(q, Release(2, 1))
    upstream.releases.add(q, Release(3, None))
    await settled()
    assert q.records == {}
    assert [(each.mid, each.receives) for each in upstream.asked if isinstance(each, ReleaseMessage)] in (
        [(2, 1), (3, None)],
        [(3, None), (2, 1)],
    )
    await upstream.emptied()


async def test_a_name_that_is_gone(upstream: Scripted, autojump_clock: trio.testing.MockClock) -> None:
    """When the queue of a name is gone, the names are looked at again; what only they were to get is given back."""
    q = FanOut("q", upstream, 100, 100)
    q.names["n"] = FanOut("bus:q:n", upstream, 100, 100)  # type: ignore[assignment]
    record = q.records[1] = Record(q, 1, 1, 1, None, 1, waiting=1)
    upstream.answers = lambda request: NO_QUEUE if isinstance(request, CopyMessage) else request
    upstream.copies.add(q, 1)
    await settled()
    assert upstream.prepared == 2  # the first was for the connection
    assert not record.handled
    q.names.clear()
    await trio.sleep(1.1)
    assert record.done
    assert [each for each in upstream.asked if isinstance(each, DeleteMessage)] == []
    assert [each.mid for each in upstream.asked if isinstance(each, ReleaseMessage)] == [1]


async def test_a_name_that_ends_meanwhile(upstream: Scripted, autojump_clock: trio.testing.MockClock) -> None:
    """A copy that fails because the queue of one of two names is gone is made at once for the other alone."""
    await settled()
    q = FanOut("q", upstream, 100, 100)
    q.names["n"] = FanOut("bus:q:n", upstream, 100, 100)  # type: ignore[assignment]
    q.names["m"] = FanOut("bus:q:m", upstream, 100, 100)  # type: ignore[assignment]
    record = q.records[1] = Record(q, 1, 1, 1, None, 1, waiting=1)

    async def prepare(upstream: Upstream) -> None:
        del q.names["n"]

    upstream._prepare = prepare
    upstream.answers = lambda request: (
        NO_QUEUE if isinstance(request, CopyMessage) and "bus:q:n" in request.queues else request
    )
    upstream.copies.add(q, 1)
    began = trio.current_time()
    await settled()
    assert (record.handled, trio.current_time()) == (True, began)


async def test_a_name_whose_queue_is_full(upstream: Scripted, autojump_clock: trio.testing.MockClock) -> None:
    """Copies that succeeded are not repeated; the rest is tried until it works, and other queues do not wait for
    that."""
    full, other = FanOut("full", upstream, 100, 100), FanOut("other", upstream, 100, 100)
    room = [1, 2]

    def answers(request: Message) -> Message:
        if not isinstance(request, CopyMessage) or request.qid == "other":
            return request
        return request if request.mid in room else FULL

    upstream.answers = answers
    for feed in (full, other):
        feed.names["n"] = FanOut(f"bus:{feed.qid}:n", upstream, 100, 100)  # type: ignore[assignment]
        for mid in (1, 2, 3):
            feed.records[mid] = Record(feed, mid, 1, mid, None, 1, waiting=1)
    began = trio.current_time()
    for mid in (1, 2, 3):
        upstream.copies.add(full, mid)
    await settled()
    for mid in (1, 2, 3):
        upstream.copies.add(other, mid)
    await settled()
    assert trio.current_time() == began
    assert (sorted(full.records), sorted(other.records)) == ([3], [])
    asked = len(upstream.asked)
    room.append(3)
    await trio.sleep(1.1)
    assert full.records == {}
    again = [each for each in upstream.asked[asked:] if isinstance(each, CopyMessage)]
    assert {mid for each in again for mid in (each.mids or [each.mid])} == {3}


class Stopping(FakeConnection):
    """A server that has begun to stop: it refuses every call, and closes the connection a little later."""

    async def call(self, call: Call[Any], timeout: float) -> Any:
        raise ShuttingDown(503, "shutting-down", "the server is stopping")


async def test_a_server_that_is_stopping(nursery: trio.Nursery) -> None:
    """Requests that a stopping server refuses count as lost with the connection: they are sent again."""

    async def prepare(upstream: Upstream) -> None: ...

    upstream = Upstream(("127.0.0.1", 1), prepare, lambda feed: None, lambda feed: None)
    upstream._connection, upstream._lost = Stopping(), trio.Event()  # type: ignore[assignment]
    raised: list[Exception] = []

    async def ask() -> None:
        try:
            await upstream.call(calls.queues())
        except ServerUnavailable as error:
            raised.append(error)

    nursery.start_soon(ask)
    await settled()
    assert not raised
    upstream._lost.set()
    await settled()
    assert "shutting-down" in str(raised[0])


@pytest.mark.parametrize(("code", "gone"), [(404, True), (500, False), (503, False)])
async def test_a_subscription_that_is_refused(autojump_clock: trio.testing.MockClock, code: int, gone: bool) -> None:
    """Only 404 means that the queue is deleted. After a fault of the server it is asked again; a server that is
    stopping ends the connection, and the next one is asked."""
    told: list[Feed] = []

    async def prepare(upstream: Upstream) -> None:
        upstream.connected.set()

    upstream = Upstream(("127.0.0.1", 1), prepare, told.append, lambda feed: None)
    connection = FakeConnection()
    upstream._connection = connection  # type: ignore[assignment]
    feed = FanOut("q", upstream, 100, 100)
    feed.names["n"] = feed  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstream._work)
        await settled()
        upstream.sync(feed)
        (request,) = connection.posted
        upstream._take(Error(code, "some-error", "no", req=request.req))
        assert (told == [feed]) is gone
        await trio.sleep(1.5)
        assert len(connection.posted) == (2 if code == 500 else 1)
        nursery.cancel_scope.cancel()


async def test_the_policy_of_a_queue() -> None:
    """The policy of a queue is asked for before the subscription, so that it is known before the first message; an
    error means no."""

    async def prepare(upstream: Upstream) -> None: ...

    upstream = Upstream(("127.0.0.1", 1), prepare, lambda feed: None, lambda feed: None)
    posted: list[Message] = []
    upstream._connection = SimpleNamespace(post=posted.append)  # type: ignore[assignment]
    upstream.connected.set()
    feed = FanOut("q", upstream, 100, 100)
    feed.names["n"] = feed  # type: ignore[index]
    upstream.sync(feed)
    asked, subscribed = posted
    assert (type(asked), type(subscribed)) == (GetQueue, Subscribe)
    upstream._take(GetQueue("q", QueueOptions(max_receives=3), req=asked.req, type="response"))
    assert feed.counted
    for answer in (GetQueue("q", QueueOptions(), type="response"), Error(403, "forbidden", "no")):
        feed.counted = True
        upstream.ask_policy(feed)
        answer.req = posted[-1].req
        upstream._take(answer)
        assert not feed.counted


@pytest.mark.parametrize(("delayed", "ahead"), [(False, 0), (True, 0), (True, 3600), (True, -3600)])
async def test_whether_a_released_message_comes_again(
    upstream: Scripted, autojump_clock: trio.testing.MockClock, *, delayed: bool, ahead: int
) -> None:
    """The bus looks after the release, and again later as long as somebody waits: when the delay is over, also if the
    server's clock is an hour ahead of the bus's, or behind. A message that is not there any more is given up."""
    feed = FanOut("q", upstream, 100, 100)
    feed.records[1] = Record(feed, 1, 1, 1, None, 1, waiting=1)
    feed._awaited[1] = {None: None}  # type: ignore[dict-item]
    visible_at = round((time.time() + ahead + 1000) * 1_000_000) if delayed else None
    upstream.answers = lambda request: (
        GetMessage("q", 1, visible_at=visible_at) if isinstance(request, GetMessage) else request
    )
    began = trio.current_time()
    upstream.releases.add(feed, Release(1, 1, 1000 if delayed else None, awaited=True))
    while len(upstream.asked) < 3:
        await trio.sleep(0.5)
    assert (trio.current_time() - began > 990) is delayed
    assert trio.current_time() - began < 1010
    assert feed.awaits(1)
    upstream.answers = lambda request: NO_QUEUE
    await trio.sleep(1100)
    assert not feed.awaits(1)
    assert feed.records == {}
    assert {type(request) for request in upstream.asked[1:]} == {GetMessage}


class IdleConnection(FakeConnection):
    """A connection on which nothing comes."""

    async def pump(self, take: Callable[[Message], None]) -> None:
        await trio.sleep_forever()

    def close(self) -> None:
        """There is nothing to close."""


async def test_who_waits_for_a_connection_is_told_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A connection that ends before it was prepared wakes those that wait for the next one: a subscriber that came
    meanwhile waited for ever."""
    cuts = [ServerUnavailable("cut"), ServerUnavailable("cut again")]

    async def prepare(upstream: Upstream) -> None:
        await trio.sleep(0.1)
        if cuts:
            raise cuts.pop()

    async def open_connection(upstream: Upstream) -> IdleConnection:
        return IdleConnection()

    monkeypatch.setattr(Upstream, "_open", open_connection)
    upstream = Upstream(("127.0.0.1", 1), prepare, lambda feed: None, lambda feed: None)
    nursery.start_soon(upstream.run)
    with trio.fail_after(60):
        await upstream.connected.wait()
    assert not cuts


async def test_what_cannot_be_read_concerns_one_queue(caplog: pytest.LogCaptureFixture) -> None:
    """Options that cannot be read count as none. A delivery that cannot be read is logged once and stays on the server;
    the subscription goes on, and nothing is asked of the server."""

    async def prepare(upstream: Upstream) -> None: ...

    upstream = Upstream(("127.0.0.1", 1), prepare, lambda feed: None, lambda feed: None)
    posted: list[Message] = []
    upstream._connection = SimpleNamespace(post=posted.append)  # type: ignore[assignment]
    upstream.connected.set()
    feed = FanOut("q", upstream, 100, 100)
    feed.names["n"] = feed  # type: ignore[index]
    upstream.sync(feed)
    asked, subscribed = posted
    feed.counted = True
    upstream._take(Error(500, "unreadable", "the answer cannot be read", req=asked.req))
    assert not feed.counted
    taken: list[GetMessage] = []
    feed.take = taken.append  # type: ignore[method-assign]
    for _ in range(2):
        upstream._take(Error(500, "unreadable", "the answer cannot be read", req=subscribed.req))
    upstream._take(GetMessage("q", 8, payload=b"x", req=subscribed.req, type="response"))
    assert [message.mid for message in taken] == [8]
    assert posted == [asked, subscribed]
    assert caplog.text.count("a message of 'q' cannot be read and stays on the queue server") == 1
