"""The owners of durable names, and the queues that keep their messages, without a server."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.bus.memory import FakeUpstream

from qs_bus.durable_names import DurableNames
from qs_bus.fanout import FanOut
from qs_bus.feeds import DurableName, Feed
from qs_bus.filtering import Evaluator
from qs_bus.rights import RefusedError, Rights
from qs_bus.share import Share
from qs_client.errors import exception_for
from qs_schemas import Error, ErrorCode, GetQueue, QueueOptions
from qs_serving.access.caller import Caller
from qs_serving.access.principal import Principal, Right

NO_QUEUE = Error(code=404, kind="not-found", text="there is no such queue")


class Server(FakeUpstream):
    """A server that can make queues. refusal: the error with which that fails; taken: another bus always makes the
    queue first; options: those of `q`; hidden: the bus
    may not see them; made: those of the queue that was made last."""

    def __init__(self) -> None:
        super().__init__()
        self.existing: list[str] = []
        self.refusal: Error | None = None
        self.options = QueueOptions()
        self.hidden = self.taken = False
        self.made: QueueOptions | None = None
        self.connected = trio.Event()
        self.connected.set()

    async def call(self, call: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if self.refusal is not None:
            raise exception_for(self.refusal)
        request = next(call).request
        if isinstance(request, GetQueue):
            return self._options_of(request.qid)
        self.existing.append(request.qid)
        if self.taken:
            raise exception_for(Error(code=409, kind="conflict", text="there already, with other options"))
        self.made = request.options
        return None

    def _options_of(self, qid: str | None) -> QueueOptions:
        if self.hidden and qid == "q":
            raise exception_for(Error(code=403, kind="forbidden", text="no"))
        if qid not in [*self.existing, "q"]:
            raise exception_for(NO_QUEUE)
        return self.options


class World:
    """The names of one queue, `q`. ended: the names that have ended."""

    def __init__(self, *names: DurableName) -> None:
        self.server = Server()
        self.q = FanOut("q", self.server, 100, 100, Evaluator())
        self.ended: list[DurableName] = []
        feeds = {"q": self.q}
        self.names = DurableNames(
            self.server,
            feeds,
            feeds.__getitem__,
            lambda name: Share(name, self.server, 100),
            opened=lambda feed: None,
            ended=self._ended,
        )
        for name in names:
            self.server.existing.append(self.names.add(name).qid)

    def _ended(self, feed: Feed, error: ErrorCode, text: str) -> None:
        self.ended.append(feed.name)  # type: ignore[attr-defined]

    async def use(self, name: str, principal: Principal | None) -> str:
        """Returns the queue of the name that a client gets, or "CODE" if the name is refused."""
        access = SimpleNamespace(table=SimpleNamespace(anonymous=principal))
        rights = Rights(None if principal is None else Caller(access, "client:1"))  # type: ignore[arg-type]
        try:
            return (await self.names.share(self.q, name, rights)).qid
        except RefusedError as error:
            return str(error.error.code)


def reader(name: str | None) -> Principal:
    return Principal(name, {Right.READ: ["q"]})


A, B, ANONYMOUS, ADMIN = reader("a"), reader("b"), reader(None), Principal("ops", admin=True)


async def test_each_principal_has_names_of_its_own() -> None:
    """The owner is part of the queue's name: the client that comes first keeps no other from a name. An admin uses one
    that is there."""
    world = World()
    assert await world.use("n", A) == "bus:q:a:n"
    assert await world.use("n", A) == "bus:q:a:n"
    assert await world.use("n", ADMIN) == "bus:q:a:n"
    assert await world.use("n", B) == "bus:q:b:n"
    assert await world.use("n", ANONYMOUS) == "bus:q:n"
    assert await world.use("n", A) == "bus:q:a:n"
    assert set(world.server.existing) == {"bus:q:a:n", "bus:q:b:n", "bus:q:n"}
    assert world.ended == []


async def test_a_name_without_an_owner() -> None:
    """A name that was made without an access file, or by an anonymous client, is no principal's but an admin's."""
    world = World()
    assert await world.use("n", None) == "bus:q:n"
    assert await world.use("m", ANONYMOUS) == "bus:q:m"
    for principal in (ANONYMOUS, ADMIN, None):
        assert await world.use("n", principal) == "bus:q:n"
        assert await world.use("m", principal) == "bus:q:m"
    assert await world.use("n", A) == "bus:q:a:n"
    assert await world.use("m", B) == "bus:q:b:m"


async def test_owned_name_without_access_file() -> None:
    """A name that has an owner is used as it is: there is no second one."""
    world = World(DurableName("q", "n", "a"))
    assert await world.use("n", None) == "bus:q:a:n"


async def test_several_of_one_name() -> None:
    """A client gets the name of its own. An admin without one gets the name without an owner first."""
    world = World(DurableName("q", "n", "b"), DurableName("q", "n"), DurableName("q", "n", "a"))
    assert await world.use("n", A) == "bus:q:a:n"
    assert await world.use("n", B) == "bus:q:b:n"
    assert await world.use("n", ADMIN) == "bus:q:n"
    assert await world.use("n", reader("c")) == "bus:q:c:n"


async def test_two_principals_at_the_same_time(autojump_clock: trio.testing.MockClock) -> None:
    """Two principals that ask for a name at the same time get a name each."""
    world = World()
    got: list[str] = []

    async def use(principal: Principal) -> None:
        got.append(await world.use("n", principal))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, A)
        nursery.start_soon(use, B)
    assert sorted(got) == sorted(world.server.existing) == ["bus:q:a:n", "bus:q:b:n"]


async def test_how_long_a_name_may_be() -> None:
    """The queue of a name has at most 200 characters, the owner among them."""
    world = World()
    room = 200 - len("bus:q:a:")
    assert await world.use("n" * room, A) == "bus:q:a:" + "n" * room
    assert await world.use("n" * (room + 1), A) == "400"
    assert await world.use(":" * room, A) == "400"  # written as three characters each
    assert await world.use("n" * room, reader("long")) == "400"


@pytest.mark.parametrize(
    ("code", "kind", "expected"), [(401, "unauthorized", 403), (403, "forbidden", 403), (500, "internal", 500)]
)
async def test_a_queue_that_the_bus_may_not_make(code: int, kind: str, expected: int) -> None:
    """The client is refused, and the name is not there."""
    world = World()
    world.server.refusal = Error(code, kind, "no")
    assert await world.use("n", A) == str(expected)
    assert world.q.names == {}


async def test_a_queue_that_another_bus_makes_meanwhile() -> None:
    """A queue that is there when the bus is about to make it is the queue of the name, whatever its options are."""
    world = World()
    world.server.taken = True
    assert await world.use("n", A) == "bus:q:a:n"
    assert world.server.made is None


async def test_a_name_takes_over_the_policy() -> None:
    """The queue of a new name has the options of its queue that concern messages nobody handles, and its storage if it
    has a dead-letter queue. A name that is there keeps its own."""
    world = World()
    world.server.options = QueueOptions("files", 5, 100, 60, "dead", 3)
    assert await world.use("n", A) == "bus:q:a:n"
    assert world.server.made == QueueOptions("files", 5, None, 60, "dead", 3)
    world.server.options = QueueOptions("files", 7)
    assert await world.use("n", A) == "bus:q:a:n"
    assert world.server.made.dead_letter == "dead"
    assert await world.use("other", A) == "bus:q:a:other"
    assert world.server.made == QueueOptions(visibility=7)


async def test_a_name_takes_over_order_and_pace() -> None:
    """The queue of a new name has the order and the pace of its queue, and its storage, which has them."""
    for options in (
        QueueOptions("journal", group_in_flight=2),
        QueueOptions("journal", fair=True),
        QueueOptions("journal", max_in_flight=5),
        QueueOptions("journal", rate=0.5),
    ):
        world = World()
        world.server.options = options
        assert await world.use("n", A) == "bus:q:a:n"
        assert world.server.made == options


async def test_a_policy_that_the_bus_may_not_see() -> None:
    """A name copies nothing from a policy that the bus may not see."""
    world = World()
    world.server.hidden = True
    assert await world.use("n", A) == "bus:q:a:n"
    assert world.server.made is None
