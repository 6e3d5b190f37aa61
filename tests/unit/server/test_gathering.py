"""Requests about queues of an engine that gathers requests: they need no batch and no thread, and their order, errors,
waits and ends are those of any other request. The engine is one in memory, which sweeps when a test says so."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.access import authenticate, principal, section, write_access
from support.clients.documents import (
    PING,
    code,
    delete,
    delete_list,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    release,
    req,
    request,
    subscribe,
)
from support.servers.memory import Client, Clock, Serving, clock_of, serving
from support.storage.gathering import GatheringInMemory

from qs_server.history.history import HistoryOptions, running_history
from qs_serving.access.access import Access
from qs_storage.engine import Draft, NotKnownError, Options, StorageError, UnavailableError
from qs_storage.remote_engine import Operation, Push, Release

LONG = 3600


class World:
    """A server with the queues `g`, `h` (at the engine) and `q` (its own)."""

    def __init__(self, running: Serving, engine: GatheringInMemory) -> None:
        self.running = running
        self.engine = engine

    def connect(self) -> Client:
        return self.running.connect()

    async def sweep(self) -> None:
        """Has the engine do what it was asked, in a thread of its own, and waits for what follows."""
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(self.engine.sweep)
        await trio.testing.wait_all_tasks_blocked()

    async def ask(self, client: Client, document: str) -> str:
        await client.send(document)
        await self.sweep()
        return await client.line()

    def kept(self, qid: str = "g") -> dict[str, bool]:
        """Returns what the engine has: payload -> is it hidden."""
        return {each.draft.payload.decode(): each.hidden for each in self.engine.queue(qid).kept.values()}


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[World]:
    engine = GatheringInMemory("g", "h")
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=("q",), engines=(engine,)) as running:
        client = running.connect()
        for qid in ("g", "h"):  # the first request about a queue runs in a batch, which finds out whose it is
            await client.send(request("receive-message", f"<qid>{qid}</qid>"))
            await trio.testing.wait_all_tasks_blocked()
            engine.sweep()
            await client.line()
        engine.submitted.clear()
        yield World(running, engine)


async def test_requests_of_many_clients_are_submitted_together(world: World, autojump_clock: Clock) -> None:
    """Requests of one poll cycle reach the engine in one call, and all get their own answers from one sweep."""
    clients = [world.connect() for _ in range(5)]
    for number, client in enumerate(clients):
        await client.stream.send_all(push("g", f"m{number}", req=str(number)).encode())
    await world.sweep()
    answers = [await client.line() for client in clients]
    assert [req(answer) for answer in answers] == list("01234")
    assert sorted(mids(answers[0]) + mids(answers[4])) == mids(answers[0]) + mids(answers[4])
    assert world.kept() == {f"m{number}": False for number in range(5)}
    assert max(map(len, world.engine.submitted)) > 1


async def test_pushes_of_one_client_are_one_operation_in_order(world: World, autojump_clock: Clock) -> None:
    """Pipelined pushes to one queue, and deletes from one, are one operation each, as an engine keeps no order between
    operations; a request between them, also one about the server's own queue, keeps its place."""
    client = world.connect()
    await client.send(*(push("g", text) for text in "abc"), push("q", "own"), push("h", "d"), push("g", "e"))
    for _ in range(4):
        await world.sweep()
    answers = await client.lines(6)
    assert [code(answer) for answer in answers] == [0] * 6
    assert [
        (each.qid, [draft.payload for draft in each.drafts]) for [each] in world.engine.submitted if type(each) is Push
    ] == [("g", [b"a", b"b", b"c"]), ("h", [b"d"]), ("g", [b"e"])]
    await client.send(delete("g", mids(answers[0])[0]), delete("g", 99), delete("g", mids(answers[2])[0]))
    await world.sweep()
    assert [code(answer) for answer in await client.lines(3)] == [0, 404, 0]
    assert world.kept() == {"b": False, "e": False}


async def test_every_operation(world: World, autojump_clock: Clock) -> None:
    """Each request that needs no batch is answered as by any storage."""
    client = world.connect()
    one, two = mids(await world.ask(client, push_list("g", "1", "2")))
    keyed = mids(await world.ask(client, push("g", "3", key="k", delay=5)))
    assert isinstance(pushed := world.engine.submitted[-1][0], Push)
    assert pushed.drafts == [Draft(b"3", 5_000_000, key="k")]
    assert payloads(await world.ask(client, receive("g", max=2))) == ["1", "2"]
    assert code(await world.ask(client, release("g", one))) == 0
    assert 'receives="2"' in await world.ask(client, receive("g"))
    extended = await world.ask(client, request("extend-message", f"<qid>g</qid><mid>{two}</mid>", visibility=9))
    assert 'visible-at="9000000"' in extended
    assert code(await world.ask(client, request("reject-message", f"<qid>g</qid><mid>{two}</mid>"))) == 0
    assert mids(await world.ask(client, delete_list("g", one, two, *keyed))) == [one, *keyed]
    assert not world.kept()


async def test_requests_that_are_wrong_reach_no_engine(world: World, autojump_clock: Clock) -> None:
    """A request that contradicts itself is refused in its place; those around it are done."""
    client = world.connect()
    both = "<qid>g</qid><mid>1</mid><messages><mid>2</mid></messages>"
    await client.send(push("g", "a"), push("g", "b", unique="yes"), request("delete-message", both), PING)
    await world.sweep()
    assert [code(answer) for answer in await client.lines(4)] == [0, 400, 400, 0]
    assert world.kept() == {"a": False}
    await client.send(push("g", "c", unique="yes"))
    assert code(await client.line()) == 400


@pytest.mark.parametrize(("error", "kind"), [(UnavailableError, "unavailable"), (NotKnownError, "not-known")])
async def test_error_of_one_operation(
    world: World, autojump_clock: Clock, error: type[StorageError], kind: str
) -> None:
    """An operation that fails concerns its own client, with the code that says whether something was done; the
    connection goes on."""
    world.engine.refuses = lambda operation: error("the database is away") if _is(operation, "bad") else None
    bad, good = world.connect(), world.connect()
    await bad.send(push("g", "bad", req="1"), PING)
    await good.send(push("g", "good"))
    await world.sweep()
    answer = await bad.line()
    assert (code(answer), req(answer)) == (503, "1")
    assert f'type="{kind}"' in answer
    assert code(await bad.line()) == 0
    assert code(await good.line()) == 0
    assert world.kept() == {"good": False}


def _is(operation: Operation[object], payload: str) -> bool:
    return isinstance(operation, Push) and operation.drafts[0].payload == payload.encode()


async def test_unavailable_is_not_logged_for_each_request(
    world: World, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine logs an outage, once: the answers do not."""
    world.engine.refuses = lambda operation: UnavailableError("the database is away")
    client = world.connect()
    assert code(await world.ask(client, push("g", "x"))) == 503
    assert not caplog.records


async def test_full_queue_takes_what_fits(world: World, autojump_clock: Clock) -> None:
    """Pushes that fail together because the queue is full are done one by one: as many as fit."""
    world.engine.queue("g").options.capacity = 2
    client = world.connect()
    await client.send(*(push("g", text) for text in "abc"))
    for _ in range(4):
        await world.sweep()
    assert [code(answer) for answer in await client.lines(3)] == [0, 0, 507]
    assert world.kept() == {"a": False, "b": False}


# -- waits


async def test_receive_that_waits(world: World, autojump_clock: Clock) -> None:
    """A receive waits at the engine, and counts as one that waits; a push of another client ends it."""
    client, other = world.connect(), world.connect()
    await client.send(receive("g", "h", wait=LONG))
    await world.sweep()
    assert await client.nothing_yet()
    assert 'waiting="1"' in await other.ask(request("queue-stats", "<qid>g</qid>"))
    await other.send(push("h", "x"))
    await world.sweep()
    assert payloads(await client.line()) == ["x"]
    assert code(await other.line()) == 0
    assert 'waiting="0"' in await other.ask(request("queue-stats", "<qid>g</qid>"))


async def test_client_that_goes_while_its_receive_waits(world: World, autojump_clock: Clock) -> None:
    """The receive of a client that has gone is stopped, and takes no message."""
    client, other = world.connect(), world.connect()
    await client.send(receive("g", wait=LONG))
    await world.sweep()
    await client.hang_up()
    await trio.testing.wait_all_tasks_blocked()
    assert code(await world.ask(other, push("g", "x"))) == 0
    assert world.kept() == {"x": False}


async def test_client_that_goes_as_its_message_comes(world: World, autojump_clock: Clock) -> None:
    """A message that the engine has handed out while the client went is given back."""
    client, other = world.connect(), world.connect()
    await client.send(receive("g", wait=LONG))
    await world.sweep()
    world.engine.late = True
    await other.send(push("g", "x"))
    await client.hang_up()
    await trio.testing.wait_all_tasks_blocked()
    await world.sweep()
    assert world.kept() == {"x": True}
    assert isinstance(world.engine.submitted[-1][0], Release)
    await world.sweep()
    assert world.kept() == {"x": False}
    assert code(await other.line()) == 0


async def test_stop_ends_a_receive_that_waits(tmp_path: Path, autojump_clock: Clock) -> None:
    """A stopping server answers a receive that waits, with nothing, and says that it stops."""
    engine = GatheringInMemory("g", auto=True)
    try:
        async with serving(tmp_path / "root", clock_of(autojump_clock), engines=(engine,)) as running:
            client = running.connect()
            await client.send(receive("g", wait=LONG, req="w"))
            with trio.fail_after(10):
                while not engine.submitted:
                    await trio.to_thread.run_sync(engine.idle.wait, 0.01)
            running.server.stop()
            answer, bye = await client.lines(2)
            assert (req(answer), payloads(answer), code(bye)) == ("w", [], 503)
    finally:
        engine.close()


async def test_deleted_queue_ends_a_receive(world: World, autojump_clock: Clock) -> None:
    """A receive from several queues goes on with the others when one of them is deleted; from none, it is refused."""
    client, alone = world.connect(), world.connect()
    await client.send(receive("g", "h", wait=LONG))
    await alone.send(receive("g", wait=LONG))
    await world.sweep()
    world.engine.remove("g", force=True)
    await world.sweep()
    assert code(await alone.line()) == 404
    await world.sweep()
    assert await client.nothing_yet()
    await world.ask(world.connect(), push("h", "x"))
    await world.sweep()
    assert payloads(await client.line()) == ["x"]


async def test_order_of_several_queues(world: World, autojump_clock: Clock) -> None:
    """`order="given"` empties the first queue before the second is looked at, otherwise the oldest come first."""
    client = world.connect()
    await world.ask(client, push("h", "1"))
    await world.ask(client, push("g", "2"))
    assert payloads(await world.ask(client, receive("g", "h", max=2, order="given"))) == ["2", "1"]
    await world.ask(client, push("h", "3"))
    await world.ask(client, push("g", "4"))
    assert payloads(await world.ask(client, receive("g", "h", max=2))) == ["3", "4"]


# -- queues


async def test_queue_that_nobody_knows_yet(world: World, autojump_clock: Clock) -> None:
    """Before the engine has answered once, a name that is not known may be that of a queue: 503, and 404 later."""
    client = world.connect()
    world.engine.known = False
    answer = await client.ask(push("new", "x"))
    assert (code(answer), 'type="unavailable"' in answer) == (503, True)
    assert code(await client.ask(subscribe("new"))) == 503
    assert code(await client.ask(push("q", "x"))) == 0
    world.engine.known = True
    assert code(await client.ask(push("new", "x"))) == 404


async def test_queue_of_the_server_comes_first(world: World, autojump_clock: Clock) -> None:
    """A queue that another server makes under the name of one of this server is not reached here, and neither kind
    takes the other's name."""
    client = world.connect()
    world.engine.create("q", Options())
    assert code(await client.ask(push("q", "own"))) == 0
    assert not world.engine.submitted
    assert payloads(await client.ask(receive("q"))) == ["own"]
    assert code(await client.ask(new_queue("g"))) == 409
    assert code(await client.ask(new_queue("q", '<options storage="gathering"/>'))) == 409
    world.engine.remove("g", force=True)
    assert code(await client.ask(new_queue("g"))) == 0
    world.engine.create("g", Options())
    assert code(await client.ask(push("g", "own"))) == 0
    assert not world.engine.submitted


async def test_figures_of_all_queues(world: World, autojump_clock: Clock) -> None:
    """The figures of a name are those of the queue that it means, and an engine that does not answer is not asked."""
    client = world.connect()
    world.engine.create("q", Options())
    assert code(await client.ask(push("q", "own"))) == 0
    assert code(await world.ask(client, push("g", "x"))) == 0

    async def ready() -> dict[str, str]:
        answer = await client.ask(request("queue-stats"))
        found = re.findall("<queue ([^>]*)>([^<]*)</queue>", answer)
        return {qid: "".join(re.findall(' ready="([0-9]+)"', figures)) for figures, qid in found}

    assert await ready() == {"g": "1", "h": "0", "q": "1"}
    world.engine.answering = False
    assert await ready() == {"g": "", "h": "", "q": "1"}


async def test_new_queue_is_used_at_once(world: World, autojump_clock: Clock) -> None:
    """A queue that a client makes at the engine takes requests, also those that were sent behind it."""
    client = world.connect()
    await client.send(new_queue("n", '<options storage="gathering"/>'), push("n", "x"))
    with trio.fail_after(10):
        while not world.engine.submitted:
            await trio.lowlevel.checkpoint()
    await world.sweep()
    assert [code(answer) for answer in await client.lines(2)] == [0, 0]
    assert world.kept("n") == {"x": False}


async def test_subscription_holds_what_it_gets(world: World, autojump_clock: Clock) -> None:
    """Subscribers get messages that the engine notes as held by this server, and a delete of theirs makes room for the
    next."""
    client, other = world.connect(), world.connect()
    for text in "ab":
        await world.ask(other, push("g", text))
    await client.send(subscribe("g", prefetch=1))
    assert code(await client.line()) == 0
    first = await client.line()
    assert is_delivery(first)
    assert [each.held for each in world.engine.queue("g").kept.values()] == [True, False]
    came = [await world.ask(client, delete("g", mids(first)[0])), await client.line()]  # in either order
    [second] = filter(is_delivery, came)
    assert [code(each) for each in came] == [0, 0]
    assert mids(second) != mids(first)


async def test_figures(world: World, autojump_clock: Clock) -> None:
    """Operations that were done without a batch are counted among the server's figures."""
    client = world.connect()
    one, two = mids(await world.ask(client, push_list("g", "1", "2")))
    await world.ask(client, receive("g", max=2))
    await world.ask(client, release("g", one))
    await world.ask(client, receive("g"))
    await world.ask(client, delete_list("g", one, two, 99))
    figures = await client.ask(request("server-stats"))
    for name, value in (("pushed", 2), ("received", 3), ("redelivered", 1), ("released", 1), ("deleted", 2)):
        assert f'name="messages_{name}_total">{value}<' in figures


# -- rights, and the record


async def test_rights_that_end_a_wait(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that may not read the queue any more does not go on waiting; without the right it is refused at once."""
    everybody = section("anonymous", read=["*"], write=["*"], configure=["*"])
    access = Access(str(write_access(tmp_path / "access.toml", [principal("first", read=["*"]), everybody])))
    engine = GatheringInMemory("g")
    clock = clock_of(autojump_clock)
    async with serving(tmp_path / "root", clock, access=access, engines=(engine,)) as running:
        world, client = World(running, engine), running.connect()
        assert code(await client.ask(authenticate("first-token"))) == 0
        await client.send(receive("g", wait=LONG))
        await world.sweep()
        write_access(Path(access.path), [principal("first", read=["q"]), everybody])
        access.reload()
        assert code(await client.line()) == 403
        assert code(await client.ask(push("g", "x"))) == 403
        assert code(await client.ask(PING)) == 0


async def test_record_of_what_clients_do(tmp_path: Path, autojump_clock: Clock) -> None:
    """The lifecycle record has what was done without a batch, in order, with the client's address."""
    engine = GatheringInMemory("g")
    folder = tmp_path / "history"
    folder.mkdir()
    clock = clock_of(autojump_clock)
    with running_history(HistoryOptions(str(folder)), str(tmp_path / "root"), clock) as history:
        async with serving(tmp_path / "root", clock, engines=(engine,), history=history) as running:
            world, client = World(running, engine), running.connect()
            [mid] = mids(await world.ask(client, push("g", "12345")))
            await world.ask(client, receive("g"))
            await world.ask(client, request("extend-message", f"<qid>g</qid><mid>{mid}</mid>", visibility=9))
            await world.ask(client, release("g", mid))
            await world.ask(client, receive("g", "g"))
            await world.ask(client, delete_list("g", mid, 99))
    lines = [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    mine = [line for line in lines if line["queue"] == "g"]
    assert [line["event"] for line in mine] == ["pushed", "received", "extended", "released", "received", "deleted"]
    assert [line["receives"] for line in mine if line["event"] == "received"] == [1, 2]
    assert {line["peer"] for line in mine} == {mine[0]["peer"]}
    assert mine[0]["peer"]
    assert mine[0]["size"] == 5
