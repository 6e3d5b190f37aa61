"""The bus as a client that the queue server does not let in, or does not let read a queue."""

import logging
from typing import Any

import pytest
import trio
import trio.testing
from support.bus.memory import FakeHub, FakeServer

from qs_bus.fanout import FanOut
from qs_bus.feeds import DurableName, Feed, Release
from qs_bus.filtering import Evaluator
from qs_bus.options import ServerSecurity
from qs_bus.upstream import Upstream
from qs_client import Error, Message, ServerUnavailable, Unauthorized
from qs_client.security import Security, Token
from qs_schemas import GetMessage, ListQueues, ReleaseMessage, Subscribe
from qs_serving.errors import StartError
from qs_serving.timers import Timers

settled = trio.testing.wait_all_tasks_blocked
UNAUTHORIZED = Error(401, "unauthorized", "authenticate first")
FORBIDDEN = Error(403, "forbidden", "'bus' may not read 'q'")
WRONG = Unauthorized(401, "unauthorized", "wrong token")


class World:
    """An upstream whose connections are `servers`, in order, an exception for one that cannot be opened; it runs out of
    them at the end. forbidden: the feeds that were said not to be readable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *servers: FakeServer | Exception) -> None:
        self.servers = list(servers)
        self.opened: list[float] = []
        self.forbidden: list[Feed] = []
        monkeypatch.setattr(Upstream, "_open", lambda upstream: self._open())
        self.timers = Timers()
        self.upstream = Upstream(
            ("server", 1), self._prepare, lambda feed: None, self.forbidden.append, hub=FakeHub(), timers=self.timers
        )  # type: ignore[arg-type]
        self.q = FanOut("q", self.upstream, 100, 100, Evaluator())
        self.q.add_name(DurableName("q", "n"), self.q)

    async def _open(self) -> Any:
        await trio.lowlevel.checkpoint()
        self.opened.append(trio.current_time())
        server = self.servers.pop(0) if len(self.servers) > 1 else self.servers[0]
        if isinstance(server, Exception):
            raise server
        return server

    async def _prepare(self, upstream: Upstream) -> None:
        await upstream.queues()
        upstream.connected.set()
        upstream.sync(self.q)


async def test_a_wrong_token(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: Any
) -> None:
    """After a wrong token, the bus tries again, every second on average at most, and the log says so once."""
    caplog.set_level(logging.INFO)
    server = FakeServer()
    world = World(monkeypatch, *[WRONG] * 100, server)
    nursery.start_soon(world.upstream.run)
    with trio.fail_after(1000):
        await world.upstream.connected.wait()
    assert len(world.opened) == 101
    assert world.opened[-1] - world.opened[0] > 50
    lines = [record.message for record in caplog.records]
    assert len(lines) == 2
    assert "wrong token" in lines[0]
    assert "--server-token-file" in lines[0]
    assert lines[1] == "connected to server:1"


async def test_an_outage(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: Any
) -> None:
    """The log says once that the connection has ended, nothing of those that are refused then, and everything else that
    is wrong once."""
    caplog.set_level(logging.INFO)
    refused, other = ServerUnavailable("no server"), ServerUnavailable("another certificate")
    refused.__cause__ = ConnectionRefusedError()
    first = FakeServer()
    world = World(monkeypatch, refused, refused, first, *[refused, refused, other, other] * 5, FakeServer())
    nursery.start_soon(world.upstream.run)
    await world.upstream.connected.wait()
    first.close()
    await trio.sleep(60)
    texts = [record.message.partition(";")[0] for record in caplog.records]
    connected = "connected to server:1"
    assert texts == ["no server", connected, "closed by this side", "another certificate", connected]


async def test_not_let_in(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: Any
) -> None:
    """A bus without a token at a server that wants one: the same."""
    world = World(monkeypatch, *(FakeServer(lambda request: UNAUTHORIZED) for _ in range(200)))
    nursery.start_soon(world.upstream.run)
    await trio.sleep(60)
    assert not world.upstream.connected.is_set()
    assert 30 < len(world.opened) < 150
    assert len([record for record in caplog.records if "authenticate first" in record.message]) == 1
    assert len(caplog.records) == 1


async def test_forgotten_by_the_server(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """When the server has forgotten the bus's principal, the bus authenticates on a new connection; no client gets an
    error about its queue."""
    old, new = FakeServer(), FakeServer()
    world = World(monkeypatch, old, new)
    nursery.start_soon(world.upstream.run)
    await world.upstream.connected.wait()
    await settled()
    [subscribed] = old.subscribed
    old.answers = lambda request: UNAUTHORIZED
    world.upstream._take(Error(401, "unauthorized", "no", req=subscribed.req))
    while not new.subscribed:
        await trio.sleep(1)
    assert old.closed.is_set()
    assert isinstance(new.subscribed[0], Subscribe)
    assert world.forbidden == []


@pytest.mark.parametrize("refusal", [FORBIDDEN, UNAUTHORIZED])
async def test_a_queue_that_the_bus_may_not_read(
    monkeypatch: pytest.MonkeyPatch,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    caplog: Any,
    refusal: Error,
) -> None:
    """The feed gets the error, the log says so once, and the bus asks again from time to time until it may read the
    queue. 401 comes to a bus that is anonymous there."""
    server = FakeServer()
    world = World(monkeypatch, server)
    nursery.start_soon(world.upstream.run)
    await world.upstream.connected.wait()
    await settled()
    began = trio.current_time()
    for times in range(1, 6):
        while len(server.subscribed) < times:
            await trio.sleep(1)
        error = Error(refusal.code, refusal.kind, refusal.text, req=server.subscribed[-1].req)
        world.upstream._take(error)
        await settled()
        assert refusal.text in world.q.forbidden
        assert world.forbidden == [world.q] * times
    assert trio.current_time() - began > 30
    assert len([record for record in caplog.records if refusal.text in record.message]) == 1
    while len(server.subscribed) < 6:
        await trio.sleep(1)
    world.upstream._take(Subscribe("q", req=server.subscribed[-1].req, type="response"))
    assert world.q.forbidden == ""
    assert not server.closed.is_set()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (FORBIDDEN, "'bus' may not read 'q'"),
        (UNAUTHORIZED, "authenticate first"),
        (Error(404, "not-found", "there is no message 1"), ""),
        (Error(501, "not-implemented", "no"), ""),
        (GetMessage("q", 1, payload="x"), ""),
    ],
)
async def test_asked_beforehand(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, answer: Message, expected: str
) -> None:
    """Why the bus may not read a queue, asked with a request that changes nothing; any other error is no reason."""
    server = FakeServer(lambda request: ListQueues([]) if isinstance(request, ListQueues) else answer)
    world = World(monkeypatch, server)
    nursery.start_soon(world.upstream.run)
    await world.upstream.connected.wait()
    reason = await world.upstream.why_unreadable("q")
    assert expected in reason
    assert bool(reason) is bool(expected)
    asked = server.asked[-1]
    assert isinstance(asked, GetMessage)
    assert asked.peek


async def test_releasing_what_the_server_has_taken_back(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A message of a queue that the bus may not read any more is visible again: there is nothing to release."""
    server = FakeServer(lambda request: FORBIDDEN if isinstance(request, ReleaseMessage) else request)
    world = World(monkeypatch, server)
    nursery.start_soon(world.upstream.run)
    await world.upstream.connected.wait()
    world.upstream.releases.add(world.q, Release(1, 1))
    await trio.sleep(10)
    assert len([each for each in server.asked if isinstance(each, ReleaseMessage)]) == 1


def test_files_read_again() -> None:
    """A reload gives what the files hold now; files that cannot be used change nothing, and the error names them."""
    found: list[Security | Exception] = [
        Security(token=Token("one")),
        Security(token=Token("two")),
        FileNotFoundError(2, "No such file or directory", "token"),
        ValueError("token: empty"),
    ]

    def read() -> Security:
        now = found.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    security = ServerSecurity(read)
    assert security.used
    assert security().token == Token("one")
    security.reload()
    for text in ("cannot read token: No such file or directory", "token: empty"):
        with pytest.raises(StartError, match=text):
            security.reload()
        assert security().token == Token("two")
    assert not ServerSecurity(Security).used
