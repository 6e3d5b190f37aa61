"""When a client becomes another principal, or the access file is read again, nothing is lost, and nothing is sent to
clients that may not have it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.access import authenticate, principal, section, write_access
from support.clients.documents import code, payloads, push, push_list, receive, req, request, subscribe
from support.servers.memory import Client, Clock, Serving, clock_of, serving, source
from tests.support.servers.requests import answers_of, batch_of

from qs_schemas import Fault, PurgeQueue, errors
from qs_server.broker.subscriber import Subscriber
from qs_server.broker.subscriptions import Subscriptions
from qs_server.operations import queues
from qs_server.operations.service import Service
from qs_server.session.requests import RequestBatch
from qs_serving.access.access import Access
from qs_serving.access.caller import Caller
from qs_serving.errors import StartError
from qs_serving.guards import Guards
from qs_storage.engine import Draft, wall_clock

EVERYBODY = section("anonymous", read=["*"], write=["*"], configure=["*"])
FIRST, SECOND = principal("first", read=["*"], configure=["*"]), principal("second", read=["*"])


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(str(write_access(tmp_path / "access.toml", [FIRST, SECOND, EVERYBODY])))


def reload(access: Access, *sections: str) -> None:
    """The file says something else, and is read."""
    write_access(Path(access.path), sections)
    access.reload()


@pytest.fixture
async def running(tmp_path: Path, autojump_clock: Clock, access: Access) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "root", clock_of(autojump_clock), access=access) as running:
        yield running


async def waiting(running: Serving, token: str) -> Client:
    """A principal whose receive waits."""
    client = running.connect()
    assert code(await client.ask(authenticate(token))) == 0
    await client.send(receive("q", wait=3600, req=token))
    assert await client.nothing_yet()
    return client


async def test_unknown_operation_without_rights_is_401(running: Serving, autojump_clock: Clock, access: Access) -> None:
    """A client without rights is not told which operations exist; an unreadable document is 400 to everybody."""
    reload(access, FIRST)
    client = running.connect()
    assert code(await client.ask(request("nonsense", req="n"))) == 401
    assert code(await client.ask(request("ping", "<colour/>"))) == 400
    assert code(await client.ask(authenticate("first-token"))) == 0
    assert code(await client.ask(request("nonsense"))) == 501


@pytest.mark.parametrize(("token", "ended_with"), [("wrong", 401), ("other-token", 403)])
async def test_subscription_ends_when_client_becomes_another(
    running: Serving, autojump_clock: Clock, access: Access, token: str, ended_with: int
) -> None:
    """A subscription ends when its client becomes nobody, or a principal that may not have it. What was held is visible
    again, and no delivery follows."""
    reload(access, FIRST, principal("other", read=["elsewhere"]), EVERYBODY)
    subscriber, producer = running.connect(), running.connect()
    await subscriber.ask(authenticate("first-token"))
    await subscriber.ask(subscribe("q", req="s"))
    await producer.ask(push("q", "held"))
    assert "held" in await subscriber.line()
    await subscriber.send(authenticate(token, req="a"))
    lines = {req(line): line for line in await subscriber.lines(2)}
    assert code(lines["s"]) == ended_with
    assert code(lines["a"]) == (401 if token == "wrong" else 0)
    await producer.ask(push("q", "next"))
    assert payloads(await producer.ask(receive("q", max=2))) == ["held", "next"]
    assert await subscriber.nothing_yet()


async def test_subscription_ends_behind_its_answer(running: Serving, autojump_clock: Clock) -> None:
    """Requests in one piece: the error that ends a subscription comes after the answer to it."""
    client = running.connect()
    await client.send(authenticate("first-token"), subscribe("q", req="s"), authenticate("wrong"))
    lines = await client.lines(4)
    assert [code(line) for line in lines if req(line) == "s"] == [0, 401]


async def test_receive_refused_while_waiting_wakes_next(
    running: Serving, autojump_clock: Clock, access: Access
) -> None:
    """The first in line loses its right in the moment in which a message comes: the second gets the message."""
    first, second = await waiting(running, "first-token"), await waiting(running, "second-token")
    running.storage.queue("q").push([Draft(b"for one of them")])
    running.storage.commit()
    reload(access, SECOND)
    running.server._waiters.wake("q", 1)
    assert code(await first.line()) == 401
    assert payloads(await second.line()) == ["for one of them"]


async def test_receive_woken_before_reload_gets_message(
    running: Serving, autojump_clock: Clock, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive that was woken while still allowed gets its message when its right goes: refused, it would take the
    message from those behind it."""
    client = await waiting(running, "first-token")
    resume = RequestBatch.resume

    def resume_and_reload(requests: RequestBatch, *, over: bool = False) -> None:
        resume(requests, over=over)
        reload(access, SECOND, EVERYBODY)

    monkeypatch.setattr(RequestBatch, "resume", resume_and_reload)
    await running.connect().ask(push("q", "x"))
    assert payloads(await client.line()) == ["x"]
    assert code(await client.ask(receive("q"))) == 401


async def test_receive_allowed_after_reload_keeps_its_place(
    running: Serving, autojump_clock: Clock, access: Access
) -> None:
    """A reload that changes nothing for a client does not end its wait, and leaves its place in line."""
    first, second = await waiting(running, "first-token"), await waiting(running, "second-token")
    reload(access, SECOND, FIRST, EVERYBODY)
    assert await first.nothing_yet()
    assert await second.nothing_yet()
    producer = running.connect()
    for consumer, payload in ((first, "1"), (second, "2")):
        await producer.ask(push("q", payload))
        assert payloads(await consumer.line()) == [payload]


async def test_purge_begun_before_reload_is_finished(
    running: Serving, autojump_clock: Clock, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge has removed a part when the right to it goes: it removes the rest, as an error means that nothing has
    changed. The next is refused."""
    monkeypatch.setattr(queues, "_PURGE_SLICE", 1)
    await running.connect().ask(push_list("q", "1", "2", "3"))
    caller = Caller(access, "peer")
    caller.authenticate("first-token")
    subscriptions = Subscriptions(source(running.storage), wall_clock)
    service = Service(running.storage, subscriptions, lambda: Subscriber(1, lambda: None), caller=caller)
    requests = batch_of([PurgeQueue("q"), PurgeQueue("q"), Fault(errors.BAD_REQUEST, "x")], service, outbox=1000)
    requests.advance(None)
    assert requests.pause is not None
    reload(access, SECOND)
    while requests.unanswered:
        requests.resume()
        requests.advance(None)
    purged, refused, unreadable = answers_of(requests)
    assert isinstance(purged, PurgeQueue)
    assert purged.count == 3
    assert [getattr(answer, "code", 0) for answer in (refused, unreadable)] == [401, 400]


def test_host_without_addresses_is_not_loopback() -> None:
    """A name that cannot be looked up now may have an address a moment later that other machines reach."""
    with pytest.raises(StartError, match=r"cannot listen on no\.such\.invalid: .*--host"):
        Guards("no.such.invalid", None, None, is_open=False)
