"""The bus without sockets and without a server: feeds whose upstream only notes what they ask for, and clients that
read as many bytes as the test says."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import trio

from qs_bus.fanout import FanOut
from qs_bus.feeds import DurableName, Feed
from qs_bus.filtering import Evaluator, Matching
from qs_bus.options import BusOptions, Policy
from qs_bus.session import BusSession
from qs_bus.share import Share
from qs_bus.subscription import DeliveryCounts, Subscription
from qs_client import ServerUnavailable
from qs_client.asking import Call
from qs_client.waiting import Pending
from qs_schemas import DeleteMessage, GetMessage, GetQueue, Message, Peer, ReleaseMessage
from qs_serving.connection import Connection
from qs_serving.figures import RequestCounts
from qs_serving.options import ServerLimits
from qs_serving.strangers import Strangers
from qs_serving.timers import Timers
from support.clients.documents import mids, payloads

MEMORY = 10_000
EVERYTHING = 1 << 60


class Asked(list[tuple[Feed, Any]]):
    """Stands for a retry queue: keeps everything that was asked for, in order."""

    def add(self, feed: Feed, *things: Any) -> None:
        self.extend((feed, thing) for thing in things)

    def of(self, feed: Feed) -> list[Any]:
        """Takes out what one feed has asked for."""
        found = [thing for about, thing in self if about is feed]
        self[:] = [entry for entry in self if entry[0] is not feed]
        return found


class FakeUpstream:
    """Notes what a feed asks of the server. synced: the prefetch that each feed wants, 0 for no messages; asked: the
    feeds that ask for the policies of their queues."""

    def __init__(self) -> None:
        self.deletes, self.releases, self.copies, self.fetches = Asked(), Asked(), Asked(), Asked()
        self.synced: dict[Feed, int] = {}
        self.asked: list[Feed] = []

    def sync(self, feed: Feed) -> None:
        self.synced[feed] = feed.prefetch if feed.wanted else 0

    def ask_policy(self, feed: Feed) -> None:
        self.asked.append(feed)


class FakeEvaluator(Evaluator):
    """Notes what is to be evaluated later, until the test says `finish`. threads: how much of it was for threads."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[tuple[Callable[[], Matching], Callable[[Matching], None]]] = []
        self.threads = 0

    def start(self, evaluate: Callable[[], Matching], then: Callable[[Matching], None], *, in_thread: bool) -> None:
        self.running.append((evaluate, then))
        self.threads += in_thread

    def finish(self) -> bool:
        """Ends all evaluations that are running. Tells whether there were any."""
        running, self.running = self.running, []
        for evaluate, then in running:
            then(evaluate())
        return bool(running)

    def finish_all(self) -> None:
        """Ends evaluations until none is running."""
        while self.finish():
            pass


class FakeHub:
    """A hub that reads nothing."""

    def watch(self, reader: Any) -> None: ...

    def drop(self, reader: Any) -> None: ...


class FakeServer:
    """A connection to a server. answers: gives the answer to each request; asked: the requests so far; posted: what was
    sent without waiting."""

    def __init__(self, answers: Callable[[Message], Message | None] = lambda request: request) -> None:
        """answers: None for a request that is never answered."""
        self.answers = answers
        self.asked: list[Message] = []
        self.posted: list[Message] = []
        self.closed = trio.Event()
        self.session = self
        self._unanswered: deque[Pending] = deque()

    def ask(self, request: Message) -> Pending:
        pending = Pending(request)
        self._unanswered.append(pending)
        return pending

    def flush(self) -> None:
        """Answers what has been asked."""
        while self._unanswered:
            pending = self._unanswered.popleft()
            self.asked.append(pending.request)
            answer = self.answers(pending.request)
            if answer is not None:
                pending.settle(answer)

    def post(self, message: Message) -> None:
        self.posted.append(message)

    @property
    def subscribed(self) -> list[Message]:
        """Returns everything that was posted, without the questions for the options of queues."""
        return [message for message in self.posted if not isinstance(message, GetQueue)]

    async def call(self, call: Call[Any], timeout: float) -> Any:
        return await answered(call, self.asked, self.answers)

    @contextlib.contextmanager
    def read_from_outside(self, take: Callable[[Message], None]) -> Iterator[None]:
        yield

    def read(self) -> int:
        return 0

    async def broken(self) -> None:
        await self.closed.wait()
        raise ServerUnavailable("closed by this side")

    def close(self) -> None:
        self.closed.set()


async def answered(call: Call[Any], asked: list[Message], answers: Callable[[Message], Message | None]) -> Any:
    """Runs a call against a server that answers as `answers` says, and adds each request to `asked`. Returns what the
    call returns."""
    await trio.lowlevel.checkpoint()
    exchange = next(call)
    while True:
        asked.append(exchange.request)
        try:
            exchange = call.send(answers(exchange.request))
        except StopIteration as returned:
            return returned.value


class Reader:
    """A client's side of a transport. `take` decides how much of what is sent is read, and keeps it."""

    begun = 0

    def __init__(self, credit: int = EVERYTHING) -> None:
        self.credit = credit
        self.read = bytearray()
        self.writes = 0
        self.broken = False
        self._more = trio.Event()

    def take(self, count: int = EVERYTHING) -> None:
        """Reads so many bytes more."""
        self.credit += count
        self._wake()

    def stop_reading(self) -> None:
        self.credit = 0

    def hang_up(self) -> None:
        """Breaks the connection: the next bytes that the bus sends fail."""
        self.broken = True
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = trio.Event()

    def send_now(self, data: bytes | memoryview) -> int:
        if self.broken:
            raise trio.BrokenResourceError("connection lost")
        self.writes += 1
        count = min(len(data), self.credit)
        self.read += data[:count]
        self.credit -= count
        return count

    async def send_all(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest := rest[self.send_now(rest) :]:
            await self._more.wait()

    async def send_eof(self) -> None:
        self.hang_up()

    def close(self) -> None:
        self.hang_up()


class FakeBus:
    """The parts of the bus that a connection uses."""

    server_name = "server:9876"

    def __init__(self, options: BusOptions, nursery: trio.Nursery) -> None:
        self.options = options
        self.slow: list[str] = []
        self.timers = Timers()
        self.counts = RequestCounts()
        self.strangers = Strangers(options.limits)
        self.delivery_counts = DeliveryCounts()
        nursery.start_soon(self.timers.serve)

    def leave(self, session: BusSession) -> None:
        session.leave()

    def log_slow(self, text: str) -> None:
        self.slow.append(text)


class Client:
    """The parts of a connection that the feeds use."""

    def __init__(self, world: "World", credit: int) -> None:
        self.reader = Reader(credit)
        peer, limits, bus = Peer(), world.options.limits, world.bus

        def session(connection: Connection[BusSession]) -> BusSession:
            return BusSession(connection, peer, bus, limits=limits, tasks=world.nursery, caller=None)  # type: ignore[arg-type]

        self.connection = Connection(
            self.reader,  # type: ignore[arg-type]
            peer,
            session,
            limits=limits,
            nursery=world.nursery,
            timers=bus.timers,
            counts=bus.counts,
            strangers=bus.strangers,
        )
        self.session = self.connection.session

    def join(self, *feeds: Feed, **options: Any) -> Subscription:
        """Makes a subscription. options: req, ack, prefetch, name."""
        options.setdefault("ack", False)
        subscription = self.session.new_subscription(options.pop("req", None), **options)
        self.session.subscriptions.append(subscription)
        for feed in feeds:
            feed.join(subscription)
        return subscription

    @property
    def lines(self) -> list[str]:
        """Returns the whole documents that it has read."""
        return bytes(self.reader.read).decode().split("\r\n")[:-1]

    @property
    def got(self) -> list[int]:
        """Returns the ids of the messages that the client has read, in order."""
        return [mid for line in self.lines if "<get-message/>" in line for mid in mids(line)]

    @property
    def deliveries(self) -> list[GetMessage]:
        """Returns the deliveries that the client has read."""
        return [message for line in self.lines if isinstance(message := Message.parse(line), GetMessage)]

    @property
    def payloads(self) -> list[str]:
        return [payload for line in self.lines for payload in payloads(line)]

    def acknowledge(self, *which: int, qid: str = "q") -> list[int]:
        """Acknowledges messages, each in a read of its own. Returns the codes of the answers, 0 for an answer that is
        not an error."""
        return [code for mid in which for code in self.acknowledge_together(mid, qid=qid)]

    def acknowledge_together(self, *which: int, qid: str = "q") -> list[int]:
        """Acknowledges messages in one read. Returns the codes of the answers."""
        codes = [self._code(DeleteMessage(qid, mid)) for mid in which]
        self.session.report_acknowledged()
        return codes

    def release(self, mid: int, delay: float | None = None, qid: str = "q", *, counts: bool = True) -> int:
        return self._code(ReleaseMessage(qid, mid, delay=delay, uncounted=not counts))

    def _code(self, request: Message) -> int:
        answer = self.session.answer_to(request)
        return getattr(answer, "code", 0) or 0

    @property
    def refusal(self) -> tuple[int, str] | None:
        """Returns the text with which the bus sends the client away."""
        refusal = self.connection._refusal
        return None if refusal is None else (refusal[0].code, refusal[1])

    def leave(self) -> None:
        self.reader.hang_up()
        self.connection.outbox.close()
        self.session.leave()


class World:
    """Feeds, their upstream, and clients. nursery: runs the sending of what clients do not take at once."""

    def __init__(
        self, nursery: trio.Nursery, *, outbox: int = MEMORY, hold: int = 100_000, policy: Policy = Policy.HOLD
    ) -> None:
        self.nursery = nursery
        self.upstream: Any = FakeUpstream()
        self.evaluator = FakeEvaluator()
        self.options = BusOptions(policy=policy, hold=hold, limits=ServerLimits(outbox=outbox))
        self.bus = FakeBus(self.options, nursery)
        self._mid = 0

    def fan_out(self, qid: str = "q", *, counted: bool = False) -> FanOut:
        """counted: the server counts how often its messages were received."""
        feed = FanOut(qid, self.upstream, self.options.limits.outbox, self.options.hold, self.evaluator)
        feed.counted = counted
        return feed

    def share(self, qid: str = "q", name: str = "n") -> Share:
        return Share(DurableName(qid, name), self.upstream, self.options.limits.outbox)

    def client(self, credit: int = EVERYTHING) -> Client:
        return Client(self, credit)

    def push(self, feed: Feed, payload: str = "x", mid: int = 0, receives: int = 1, **said: Any) -> int:
        """Lets a message come from the server. said: further fields of the delivery. Returns the message's id."""
        self._mid = mid or self._mid + 1
        feed.take([GetMessage(feed.qid, self._mid, payload=payload, receives=receives, pushed_at=self._mid, **said)])
        return self._mid

    def push_together(self, feed: Feed, count: int, payload: str = "x") -> list[int]:
        """Lets messages come from the server in one read. Returns their ids."""
        mids = range(self._mid + 1, self._mid + count + 1)
        self._mid += count
        feed.take([GetMessage(feed.qid, mid, payload=payload, receives=1, pushed_at=mid) for mid in mids])
        return list(mids)

    def deleted(self, feed: Feed) -> list[int]:
        """Lets the server delete what it was asked to delete. Returns the ids."""
        mids = self.upstream.deletes.of(feed)
        feed.deleted(mids)
        return mids

    def released(self, feed: Feed) -> list[int]:
        """Returns what a feed has released."""
        return [release.mid for release in self.upstream.releases.of(feed)]

    def fetched(self, feed: Feed, payload: bytes | None = b"x", headers: dict[str, str] | None = None) -> list[int]:
        """Lets the server give the payloads and headers that it was asked for. Returns the ids."""
        records = self.upstream.fetches.of(feed)
        for record in records:
            feed.fetched(record, payload, headers)
        return [record.mid for record in records]


def nothing_left(feed: Feed) -> bool:
    """Tells whether all accounts of the feed are at zero."""
    assert feed._payload_bytes == 0
    assert not feed.messages
    assert not getattr(feed, "_awaited", None)
    assert not getattr(feed, "_backlog", None)
    assert not getattr(feed, "_line", None)
    assert not getattr(feed, "_in_line", 0)
    for member in feed.members:
        assert not member.pending
        assert not member.waiting
        assert member.waiting_bytes == 0
        assert not member.delayed
    return True
