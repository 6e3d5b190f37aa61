"""The bus as a client of the queue server: what it makes of the answers, without a connection."""

import time
from collections.abc import Callable

import pytest
import trio
import trio.testing
from support.bus.memory import FakeHub, FakeServer

from qs_bus.fanout import FanOut
from qs_bus.feeds import DurableName, Feed, HeldMessage, Release
from qs_bus.filtering import Evaluator
from qs_bus.upstream import Upstream
from qs_client import Error, Message, ServerError, ServerUnavailable, calls
from qs_schemas import CopyMessage, DeleteMessage, GetMessage, GetQueue, QueueOptions, ReleaseMessage, Subscribe
from qs_serving.timers import Timers

N, M, P = (DurableName("q", name) for name in "nmp")
NO_QUEUE = Error(code=404, kind="not-found", text="there is no queue 'q'")
STALE = Error(code=409, kind="stale", text="it has been received again")
settled = trio.testing.wait_all_tasks_blocked


STOPPING = Error(503, "shutting-down", "the server is stopping")
FULL = Error(code=507, kind="full", text="the queue is full")


class Scripted(Upstream):
    """An upstream whose connections are `fake`, which answers as `answers` says, or else with the request itself.
    told: the feeds whose queues are said to be gone."""

    def __init__(self, nursery: trio.Nursery) -> None:
        async def prepare(upstream: Upstream) -> None:
            self.prepared += 1
            self.connected.set()

        self.told: list[Feed] = []
        timers = Timers()
        super().__init__(
            ("127.0.0.1", 1), prepare, self.told.append, lambda feed: None, hub=FakeHub(), timers=timers  # type: ignore[arg-type]
        )  # fmt: skip
        nursery.start_soon(timers.serve)
        self.prepared = 0
        self.fake = FakeServer(self._answer)
        self.asked, self.posted = self.fake.asked, self.fake.posted
        self.answers: Callable[[Message], Message | None] = lambda request: request

    def _answer(self, request: Message) -> Message | None:
        return self.answers(request)

    async def work(self) -> str:
        """Works until the connection ends. Returns why."""
        self.fake.closed = trio.Event()
        try:
            return await self._use(self.fake)  # type: ignore[arg-type]
        finally:
            self._forget(self.fake)  # type: ignore[arg-type]


@pytest.fixture
async def upstream(nursery: trio.Nursery) -> Scripted:
    """Makes an upstream that is connected and at work."""
    upstream = Scripted(nursery)
    nursery.start_soon(upstream.work)
    await settled()
    return upstream


def subscribed(upstream: Scripted) -> FanOut:
    """A feed of `q` that wants messages."""
    feed = FanOut("q", upstream, 100, 100, Evaluator())
    feed.add_name(N, feed)
    upstream.sync(feed)
    return feed


def waiting(feed: FanOut, mid: int) -> HeldMessage:
    """Makes a message whose payload a subscriber waits for."""
    record = feed.messages[mid] = HeldMessage(feed, mid, 1, mid, None, 1, unhandled=1, awaiting_room=1)
    return record


async def test_what_is_in_other_hands_is_asked_for_again(
    upstream: Scripted, autojump_clock: trio.testing.MockClock
) -> None:
    """A message to fetch that is in other hands is asked for a second later; what else is to be fetched does not wait
    for that."""
    q, other = FanOut("q", upstream, 100, 100, Evaluator()), FanOut("other", upstream, 100, 100, Evaluator())
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


async def test_what_is_asked_for_again_survives_the_connection(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A message that was to be asked for again when the connection ended is asked for on the next one."""
    upstream = Scripted(nursery)
    q = FanOut("q", upstream, 100, 100, Evaluator())
    record = waiting(q, 1)
    upstream.answers = lambda request: GetMessage("q", 1, status="in-flight")
    upstream.fetches.add(q, record)
    with trio.move_on_after(0.5):
        await upstream.work()
    upstream.answers = lambda request: GetMessage("q", 1, payload="x", status="ready")
    with trio.move_on_after(0.6):
        await upstream.work()
    assert record.payload == b"x"


async def test_what_is_gone(upstream: Scripted) -> None:
    """Deleting from a queue that is gone is done, and giving back what is not in hand any more is too."""
    q = FanOut("q", upstream, 100, 100, Evaluator())
    q.messages[1] = HeldMessage(q, 1, 1, 1, None, 1, done=True)
    upstream.answers = lambda request: NO_QUEUE if isinstance(request, DeleteMessage) else STALE
    upstream.deletes.add(q, 1)
    upstream.releases.add(q, Release(2, 1))
    upstream.releases.add(q, Release(3, None))
    await settled()
    assert q.messages == {}
    assert [(each.mid, each.receives) for each in upstream.asked if isinstance(each, ReleaseMessage)] in (
        [(2, 1), (3, None)],
        [(3, None), (2, 1)],
    )
    await upstream.emptied()


async def test_a_name_that_is_gone(upstream: Scripted, autojump_clock: trio.testing.MockClock) -> None:
    """When the queue of a name is gone, the names are looked at again; what only they were to get is given back."""
    q = FanOut("q", upstream, 100, 100, Evaluator())
    q.add_name(N, FanOut("bus:q:n", upstream, 100, 100, Evaluator()))
    record = q.messages[1] = HeldMessage(q, 1, 1, 1, None, 1, unhandled=1, names=frozenset({N}))
    upstream.answers = lambda request: NO_QUEUE if isinstance(request, CopyMessage) else request
    upstream.copies.add(q, 1)
    await settled()
    assert upstream.prepared == 2  # the first was for the connection
    assert not record.handled
    q.remove_name(N)
    await trio.sleep(1.1)
    assert record.done
    assert [each for each in upstream.asked if isinstance(each, DeleteMessage)] == []
    assert [each.mid for each in upstream.asked if isinstance(each, ReleaseMessage)] == [1]


async def test_a_name_that_ends_meanwhile(upstream: Scripted, autojump_clock: trio.testing.MockClock) -> None:
    """A copy that fails because the queue of one of two names is gone is made at once for the other alone."""
    await settled()
    q = FanOut("q", upstream, 100, 100, Evaluator())
    q.add_name(N, FanOut("bus:q:n", upstream, 100, 100, Evaluator()))
    q.add_name(M, FanOut("bus:q:m", upstream, 100, 100, Evaluator()))
    record = q.messages[1] = HeldMessage(q, 1, 1, 1, None, 1, unhandled=1, names=frozenset({N, M}))

    async def prepare(upstream: Upstream) -> None:
        q.remove_name(N)

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
    full, other = FanOut("full", upstream, 100, 100, Evaluator()), FanOut("other", upstream, 100, 100, Evaluator())
    room = [1, 2]

    def answers(request: Message) -> Message:
        if not isinstance(request, CopyMessage) or request.qid == "other":
            return request
        return request if request.mid in room else FULL

    upstream.answers = answers
    for feed in (full, other):
        feed.add_name(N, FanOut(f"bus:{feed.qid}:n", upstream, 100, 100, Evaluator()))
        for mid in (1, 2, 3):
            feed.messages[mid] = HeldMessage(feed, mid, 1, mid, None, 1, unhandled=1, names=frozenset({N}))
    began = trio.current_time()
    for mid in (1, 2, 3):
        upstream.copies.add(full, mid)
    await settled()
    for mid in (1, 2, 3):
        upstream.copies.add(other, mid)
    await settled()
    assert trio.current_time() == began
    assert (sorted(full.messages), sorted(other.messages)) == ([3], [])
    asked = len(upstream.asked)
    room.append(3)
    await trio.sleep(1.1)
    assert full.messages == {}
    again = [each for each in upstream.asked[asked:] if isinstance(each, CopyMessage)]
    assert {mid for each in again for mid in (each.mids or [each.mid])} == {3}


async def test_names_that_get_different_messages(upstream: Scripted, autojump_clock: trio.testing.MockClock) -> None:
    """Each name gets copies of its messages in order, with as few requests as there are different lists. One whose
    queue is full holds up no other, and no copy that was made is asked for again."""
    q = FanOut("q", upstream, 100, 100, Evaluator())
    for name in (N, M, P):
        q.add_name(name, FanOut(f"bus:q:{name.name}", upstream, 100, 100, Evaluator()))
    for mid, names in ((1, {N, P}), (2, {N, M, P}), (3, {M}), (4, {N, P})):
        q.messages[mid] = HeldMessage(q, mid, 1, mid, None, 1, unhandled=1, names=frozenset(names))
    full = True
    upstream.answers = lambda request: (
        FULL if full and isinstance(request, CopyMessage) and "bus:q:m" in request.queues else request
    )
    upstream.copies.add(q, 1, 2, 3, 4)
    await settled()
    copies = [each for each in upstream.asked if isinstance(each, CopyMessage)]
    assert sorted((sorted(each.queues), each.mids or [each.mid]) for each in copies) == [
        (["bus:q:m"], [2]),
        (["bus:q:m"], [2, 3]),
        (["bus:q:n", "bus:q:p"], [1, 2, 4]),
    ]
    assert sorted(q.messages) == [2, 3]
    full = False
    asked = len(upstream.asked)
    await trio.sleep(1.1)
    copies = [each for each in upstream.asked[asked:] if isinstance(each, CopyMessage)]
    assert [(each.queues, each.mids) for each in copies] == [(["bus:q:m"], [2, 3])]
    assert q.messages == {}


async def test_call_that_a_stopping_server_refuses(upstream: Scripted) -> None:
    """A call that a stopping server refuses counts as lost with the connection, once that ends."""
    upstream.answers = lambda request: STOPPING
    raised: list[Exception] = []

    async def ask() -> None:
        try:
            await upstream.call(calls.queues())
        except ServerUnavailable as error:
            raised.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await settled()
        assert not raised
        upstream.fake.close()
    assert "shutting-down" in str(raised[0])


@pytest.mark.parametrize("kind", ["unavailable", "not-known"])
async def test_call_about_a_queue_whose_server_is_away(upstream: Scripted, kind: str) -> None:
    """A call that fails because another server is away is refused as any other: the connection goes on."""
    upstream.answers = lambda request: Error(503, kind, "the database is away")
    with pytest.raises(ServerError) as raised:
        await upstream.call(calls.queues())
    assert not isinstance(raised.value, ServerUnavailable)
    assert not upstream.fake.closed.is_set()
    assert upstream.connected.is_set()


async def test_request_that_a_stopping_server_refuses(upstream: Scripted, nursery: trio.Nursery) -> None:
    """A request of a feed that a stopping server refuses is sent again on the next connection."""
    feed = FanOut("q", upstream, 100, 100, Evaluator())
    upstream.answers = lambda request: STOPPING
    upstream.deletes.add(feed, 1)
    await settled()
    upstream.fake.close()
    await settled()
    assert not upstream.deletes.is_empty
    upstream.answers = lambda request: request
    nursery.start_soon(upstream.work)
    await upstream.deletes.emptied()
    assert [each.mids for each in upstream.asked if isinstance(each, DeleteMessage)] == [[1], [1]]


async def test_request_that_is_never_answered(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """A request without an answer ends the connection after a minute, also if later ones are answered; it is sent again
    on the next connection."""
    upstream = Scripted(nursery)
    q, other = FanOut("q", upstream, 100, 100, Evaluator()), FanOut("other", upstream, 100, 100, Evaluator())
    upstream.answers = lambda request: None if getattr(request, "qid", "") == "q" else request
    reasons: list[str] = []

    async def work() -> None:
        reasons.append(await upstream.work())

    nursery.start_soon(work)
    began = trio.current_time()
    upstream.deletes.add(q, 1)
    for mid in range(5):
        await trio.sleep(10)
        upstream.deletes.add(other, mid)
        await settled()
    while not reasons:
        await trio.sleep(1)
    assert trio.current_time() - began == pytest.approx(60, abs=1)
    assert "no answer" in reasons[0]
    upstream.answers = lambda request: request
    nursery.start_soon(upstream.work)
    await upstream.deletes.emptied()
    assert upstream.asked[-1] == DeleteMessage("q", mids=[1])


@pytest.mark.parametrize(("code", "gone"), [(404, True), (500, False), (503, False)])
async def test_a_subscription_that_is_refused(
    upstream: Scripted, autojump_clock: trio.testing.MockClock, code: int, gone: bool
) -> None:
    """Only 404 means that the queue is deleted. After a fault of the server it is asked again; a server that is
    stopping ends the connection, and the next one is asked."""
    feed = subscribed(upstream)
    (request,) = upstream.fake.subscribed
    upstream._take(Error(code, "some-error", "no", req=request.req))
    assert (upstream.told == [feed]) is gone
    await trio.sleep(1.5)
    assert len(upstream.fake.subscribed) == (2 if code == 500 else 1)


async def test_the_policy_of_a_queue(upstream: Scripted) -> None:
    """The policy of a queue is asked for before the subscription, so that it is known before the first message; an
    error means no."""
    feed = subscribed(upstream)
    asked, request = upstream.posted
    assert (type(asked), type(request)) == (GetQueue, Subscribe)
    upstream._take(GetQueue("q", QueueOptions(max_receives=3), req=asked.req, type="response"))
    assert feed.counted
    for answer in (GetQueue("q", QueueOptions(), type="response"), Error(403, "forbidden", "no")):
        feed.counted = True
        upstream.ask_policy(feed)
        answer.req = upstream.posted[-1].req
        upstream._take(answer)
        assert not feed.counted


@pytest.mark.parametrize(("delayed", "ahead"), [(False, 0), (True, 0), (True, 3600), (True, -3600)])
async def test_whether_a_released_message_comes_again(
    upstream: Scripted, autojump_clock: trio.testing.MockClock, *, delayed: bool, ahead: int
) -> None:
    """The bus looks after the release, and again later as long as somebody waits: when the delay is over, also if the
    server's clock is an hour ahead of the bus's, or behind. A message that is not there any more is given up."""
    feed = FanOut("q", upstream, 100, 100, Evaluator())
    feed.messages[1] = HeldMessage(feed, 1, 1, 1, None, 1, unhandled=1)
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
    assert feed.messages == {}
    assert {type(request) for request in upstream.asked[1:]} == {GetMessage}


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

    async def open_connection(upstream: Upstream) -> FakeServer:
        return FakeServer()

    monkeypatch.setattr(Upstream, "_open", open_connection)
    upstream = Scripted(nursery)
    upstream._prepare = prepare
    nursery.start_soon(upstream.run)
    with trio.fail_after(60):
        await upstream.connected.wait()
    assert not cuts


async def test_deliveries_of_one_read_are_one_batch(upstream: Scripted) -> None:
    """Deliveries of one read go to their feed together, in order, and before what comes behind them."""
    feed = subscribed(upstream)
    _, request = upstream.posted
    taken: list[list[int | None]] = []
    feed.take = lambda deliveries: taken.append([each.mid for each in deliveries])  # type: ignore[method-assign]
    for mid in (1, 2, 3):
        upstream._take(GetMessage("q", mid, payload=b"x", req=request.req, type="response"))
    assert taken == []
    upstream._take(Subscribe("q", req=request.req, type="response"))
    assert taken == [[1, 2, 3]]
    upstream._take(GetMessage("q", 4, payload=b"x", req=request.req, type="response"))
    upstream._hand_over()
    upstream._hand_over()
    assert taken == [[1, 2, 3], [4]]


async def test_what_cannot_be_read_concerns_one_queue(upstream: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    """Options that cannot be read count as none. A delivery that cannot be read is logged once and stays on the server;
    the subscription goes on, and nothing is asked of the server."""
    feed = subscribed(upstream)
    asked, request = upstream.posted
    feed.counted = True
    upstream._take(Error(500, "unreadable", "the answer cannot be read", req=asked.req))
    assert not feed.counted
    taken: list[GetMessage] = []
    feed.take = taken.extend  # type: ignore[method-assign]
    for _ in range(2):
        upstream._take(Error(500, "unreadable", "the answer cannot be read", req=request.req))
    upstream._take(GetMessage("q", 8, payload=b"x", req=request.req, type="response"))
    upstream._hand_over()
    assert [message.mid for message in taken] == [8]
    assert upstream.posted == [asked, request]
    assert caplog.text.count("a message of 'q' cannot be read and stays on the queue server") == 1
