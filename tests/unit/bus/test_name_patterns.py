"""Patterns of durable names, and the conditions of names, without a server."""

import logging
from typing import Any

import pytest
import trio
from support.bus.memory import FakeUpstream

from qs_bus.durable_names import DurableNames
from qs_bus.fanout import FanOut
from qs_bus.feeds import DurableName, Feed
from qs_bus.filtering import Evaluator
from qs_bus.patterns import NamePatterns
from qs_bus.queue_names import NamePattern
from qs_bus.rights import RefusedError, Rights
from qs_bus.share import Share
from qs_client.errors import exception_for
from qs_schemas import Error, GetQueue, QueueOptions

EVERYBODY = Rights(None)


class Server(FakeUpstream):
    """A server with queues. queues: their conditions; full: queues that it does not make; asked: every queue that it
    was asked for the options of, or to make."""

    def __init__(self, **queues: str | None) -> None:
        super().__init__()
        self.queues: dict[str, str | None] = dict(queues)
        self.full: list[str] = []
        self.hidden: list[str] = []
        self.connected = trio.Event()
        self.connected.set()

    async def call(self, call: Any) -> Any:
        await trio.lowlevel.checkpoint()
        request = next(call).request
        qid = request.qid or ""
        if isinstance(request, GetQueue):
            if qid in self.hidden:
                raise exception_for(Error(503, "unavailable", "its storage is away"))
            if qid not in self.queues:
                raise exception_for(Error(404, "not-found", "there is no such queue"))
            return QueueOptions(where=self.queues[qid])
        if qid in self.full:
            raise exception_for(Error(507, "full", "no room"))
        self.queues[qid] = request.options.where if request.options else None
        return None


class World:
    """The names of the queues of a server. opened: the feeds that were opened, and the queues that were there then."""

    def __init__(self, **queues: str | None) -> None:
        self.server = Server(**queues)
        self.feeds: dict[str, FanOut] = {}
        self.opened: list[tuple[str, set[str]]] = []
        self.readable = {"q", "r"}
        self.names = DurableNames(
            self.server,  # type: ignore[arg-type]
            self.feeds,
            self.feed,
            lambda name: Share(name, self.server, 100),  # type: ignore[arg-type]
            opened=self._opened,
            ended=lambda feed, error, text: None,
        )
        self.patterns = NamePatterns(self.server, self.names, lambda owner, qid: qid in self.readable)  # type: ignore[arg-type]

    def feed(self, qid: str) -> FanOut:
        if qid not in self.feeds:
            self.feeds[qid] = FanOut(qid, self.server, 100, 100, Evaluator())  # type: ignore[arg-type]
            self._opened(self.feeds[qid])
        return self.feeds[qid]

    def _opened(self, feed: Feed) -> None:
        self.opened.append((feed.qid, set(self.server.queues)))

    async def share(self, where: str | None) -> str:
        """Returns the condition of the name `n` for a client that asks for `where`, or "CODE TEXT" if it is refused."""
        try:
            return (await self.names.share(self.feed("q"), "n", EVERYBODY, where)).where or ""
        except RefusedError as error:
            return f"{error.error.code} {error}"


def copied(feed: FanOut) -> dict[str | None, list[str]]:
    """Returns the names of a feed by their conditions."""
    groups = {None if condition is None else condition.text: group for condition, group in feed.groups.items()}
    return {where: sorted(name.name for name in group.names) for where, group in groups.items()}


async def test_all_names_are_there_before_the_first_begins() -> None:
    """The queues of all names that patterns give to a queue exist when the bus begins to take messages from it."""
    world = World(q=None)
    await world.patterns.keep(NamePattern("*", "n"), "/a")
    await world.patterns.keep(NamePattern("?", "m", "owner"), None)
    async with world.names.lock:
        await world.patterns.make(["bus:q:n", "q"])  # no queue of a bus has names
    assert [qid for qid, _ in world.opened] == ["q", "bus:q:n", "bus:q:owner:m"]
    assert world.opened[0][1] >= {"bus:q:n", "bus:q:owner:m"}
    assert world.server.queues["bus:q:n"] == world.server.queues["bus::match:*:n"] == "/a"
    assert copied(world.feed("q")) == {"/a": ["n"], None: ["m"]}


async def test_what_an_owner_may_not_read() -> None:
    """A pattern makes no name on a queue that its owner may not read, until the owner may."""
    world = World()
    await world.patterns.keep(NamePattern("*", "n"), None)
    async with world.names.lock:
        await world.patterns.make(["secret", "q"])
        assert set(world.feeds) == {"q"}
        world.readable.add("secret")
        await world.patterns.make(["secret", "q"])
    assert set(world.feeds) == {"q", "secret"}


async def test_a_name_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    """A name that the server does not make holds up no other."""
    world = World()
    world.server.full = ["bus:q:n"]
    await world.patterns.keep(NamePattern("*", "n"), None)
    async with world.names.lock:
        await world.patterns.make(["q", "r"])
    assert set(world.feeds) == {"r"}
    assert "'n' of the queue 'q' cannot be made" in caplog.text


async def test_patterns_are_found_and_forgotten() -> None:
    """Patterns that the server keeps are found with their conditions; without its queue a pattern is forgotten."""
    world = World(**{"bus::match:*:n": "/a", "bus::127.0.0.1:1": None, "bus:q:n": None})
    async with world.names.lock:
        await world.patterns.find(list(world.server.queues))
        await world.patterns.make(["r"])
        assert copied(world.feeds["r"]) == {"/a": ["n"]}
        await world.patterns.find(["bus:q:n"])
    assert not world.patterns
    assert not world.patterns.accept("r")


async def test_another_condition_of_a_pattern() -> None:
    """A pattern of a name has one condition: another one is 409."""
    world = World()
    pattern = NamePattern("*", "n")
    await world.patterns.keep(pattern, "/a")
    await world.patterns.keep(pattern, "/a")
    with pytest.raises(RefusedError, match="bus::match") as raised:
        await world.patterns.keep(pattern, None)
    assert raised.value.error.code == 409
    with pytest.raises(RefusedError) as raised:
        await world.patterns.keep(NamePattern("*" * 200, "n"), None)
    assert raised.value.error.code == 400


async def test_the_condition_of_a_name() -> None:
    """The first subscriber gives a name its condition. An operator changes it; then the next subscriber must have the
    new one, and copies follow that."""
    world = World()
    assert await world.share("/a") == "/a"
    assert (await world.share(None)).startswith("409 the name 'n' of the queue 'q' has the condition '/a'")
    world.server.queues["bus:q:n"] = "/b"
    assert (await world.share("/a")).startswith("409")
    assert copied(world.feed("q")) == {"/b": ["n"]}
    assert await world.share("/b") == "/b"
    world.server.queues["bus:q:n"] = None
    assert await world.share(None) == ""
    assert copied(world.feed("q")) == {None: ["n"]}


async def test_a_condition_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """A name whose option is no condition gets every message and refuses its members; the log says so once."""
    caplog.set_level(logging.ERROR)
    world = World(**{"bus:q:n": "/a["})
    name = DurableName("q", "n")
    await world.names.find([name], ["q"])
    assert copied(world.feed("q")) == {None: ["n"]}
    for where in ("/a", None):
        assert (await world.share(where)).startswith("409")
    assert len(caplog.records) == 1
    world.server.queues["bus:q:n"] = "/a"
    assert await world.share("/a") == "/a"
    assert copied(world.feed("q")) == {"/a": ["n"]}


async def test_a_condition_that_the_server_does_not_tell() -> None:
    """A name whose queue's options cannot be had gets every message: none is lost."""
    world = World(**{"bus:q:n": "/a"})
    world.server.hidden = ["bus:q:n"]
    await world.names.find([DurableName("q", "n"), DurableName("gone", "n"), DurableName("r", "n")], ["q", "gone"])
    assert copied(world.feed("q")) == {None: ["n"]}
    assert set(world.feeds) == {"q"}
