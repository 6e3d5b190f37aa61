"""Requests that are answered without waking the connection's task, and where it has to take over in the middle."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import (
    PING,
    code,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    req,
    request,
    subscribe,
)
from support.servers.memory import Client, Clock, Serving, clock_of, serving

from qs_server.main.options import ServerLimits
from qs_storage.disk import Disk
from qs_storage.engine import Durability

settled = trio.testing.wait_all_tasks_blocked
LIST = request("list-messages", "<qid>q</qid>", state="all")


class Steps(trio.abc.Instrument):
    """Counts how often the tasks of connections run."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += "_run_handler" in task.name


class Gate(Disk):
    """Holds syncs back while it is closed, and says when one is held."""

    def __init__(self) -> None:
        self.open_again = threading.Event()
        self.open_again.set()
        self.held = threading.Event()

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        if not self.open_again.is_set():
            self.held.set()
            assert self.open_again.wait(20)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open_again.set()


async def held_in_the_thread(running: Serving, gate: Gate, *documents: str) -> tuple[Client, Client]:
    """A client whose requests are in a batch whose sync is held back, and another one."""
    client, other = running.connect(), running.connect()
    for each in (client, other):
        await each.ask(PING)
    gate.open_again.clear()
    await client.send(*documents)
    await trio.to_thread.run_sync(gate.held.wait, 20)
    await settled()
    return client, other


async def listed(running: Serving) -> list[int]:
    return mids(await running.connect().ask(LIST))


# -- without the task -------------------------------------------------------------------------------------------------


async def test_requests_in_loop_wake_no_task(running: Serving, autojump_clock: Clock) -> None:
    """Requests that are answered at once, alone, pipelined or in pieces, wake no task of a connection."""
    clients = [running.connect() for _ in range(5)]
    for client in clients:
        await client.ask(PING)
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    for client in clients:
        for document in (PING, push("q", "x"), receive("q"), LIST, request("no-such-operation"), receive("absent")):
            await client.ask(document)
            await client.ask(*[document] * 20)
            await client.send(document[:9])
            await settled()
            await client.ask(document[9:])
    trio.lowlevel.remove_instrument(steps)
    assert steps.count == 0


async def test_requests_in_thread_wake_no_task(tmp_path: Path, gate: Gate) -> None:
    """Requests whose answers wait for a sync wake no task either."""
    async with serving(tmp_path / "root", durability=Durability.ALWAYS, disk=gate) as running:
        clients = [running.connect() for _ in range(5)]
        for client in clients:
            await client.ask(PING)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for client in clients:
            await client.send(push("q", "x"), receive("q"), LIST)
        for client in clients:
            assert [code(line) for line in await client.lines(3)] == [0] * 3
        trio.lowlevel.remove_instrument(steps)
        assert steps.count == 0
        for client in clients:
            await client.hang_up()


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_documents_in_pieces_are_answered_in_order(running: Serving, autojump_clock: Clock, size: int) -> None:
    """Every request is answered once, in order, however the bytes are cut."""
    client = running.connect()
    data = "".join(push("q", str(number), req=str(number)) + request("ping", req=f"p{number}") for number in range(3))
    for start in range(0, len(data), size):
        await client.send(data[start : start + size])
        await settled()
    answers = await client.lines(6)
    assert [req(line) for line in answers] == [name for number in range(3) for name in (str(number), f"p{number}")]
    assert payloads(await client.ask(receive("q", max=100))) == [str(number) for number in range(3)]


async def test_requests_beyond_one_batch_run_in_several(running: Serving, autojump_clock: Clock) -> None:
    """Requests beyond one group, by count or by messages, are done in several groups, in order, with others in
    between."""
    client, other = running.connect(), running.connect()
    await client.send(*(request("ping", req=str(number)) for number in range(700)))
    assert [req(line) for line in await client.lines(700)] == [str(number) for number in range(700)]
    lists = [[f"{start + number}" for number in range(600)] for start in range(0, 3000, 600)]
    await client.send(*(push_list("q", *payload) for payload in lists), request("ping", req="last"))
    await other.send(PING)
    assert "<ping/>" in await other.line()
    answers = await client.lines(6)
    assert [len(mids(answer)) for answer in answers] == [600] * 5 + [0]
    assert req(answers[-1]) == "last"
    pushed = [mid for answer in answers for mid in mids(answer)]
    assert pushed == sorted(set(pushed))


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.ALWAYS])
async def test_request_sees_earlier_changes_by_other_programs(tmp_path: Path, durability: Durability) -> None:
    """A request sees what other programs put into a directory or took out of it before."""
    async with serving(tmp_path / "root", durability=durability) as running:
        clients = [running.connect() for _ in range(2)]
        directory = running.root / "q"
        for number in range(1, 30):
            (directory / f"{number}.new").write_text(f"text {number}")
            (directory / f"{number}.new").rename(directory / str(number))
            assert mids(await clients[number % 2].ask(LIST)) == [number]
            (directory / str(number)).unlink()
            assert mids(await clients[0].ask(receive("q"))) == []
        for client in clients:
            await client.hang_up()


# -- with the task in the middle --------------------------------------------------------------------------------------


async def test_pipelined_requests_with_waits_stay_in_order(running: Serving, autojump_clock: Clock) -> None:
    """Waits in the middle of a pipeline, that pass or are ended by a message, and slices of others: all in order; and
    afterwards the task sleeps on again."""
    client, producer = running.connect(), running.connect()
    await client.send(
        request("ping", req="1"),
        receive("q", wait=5, req="2"),
        push("q", "a", req="3"),
        receive("q", wait=5, req="4"),
        receive("q", wait=600, req="5"),
        request("purge-queue", "<qid>q</qid>", req="6"),
        request("queue-stats", req="7"),
        request("ping", req="8"),
    )
    assert [req(line) for line in await client.lines(2)] == ["1", "2"]
    answers = await client.lines(2)
    assert [(req(line), payloads(line)) for line in answers] == [("3", []), ("4", ["a"])]
    assert await client.nothing_yet()
    await producer.ask(push("q", "b"))
    answers = await client.lines(4)
    assert [req(line) for line in answers] == ["5", "6", "7", "8"]
    assert payloads(answers[0]) == ["b"]
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    await client.ask(PING)
    trio.lowlevel.remove_instrument(steps)
    assert steps.count == 0


async def test_pipelined_fault_is_answered_in_its_place(running: Serving, autojump_clock: Clock) -> None:
    """A document that breaks a bound is answered in its place; behind what is not XML nothing is done, and the
    connection is closed."""
    client = running.connect()
    await client.send(
        request("ping", req="1"), push("absent", "x", req="2"), request("push-message", req="3"),
        request("ping", req="4"), "this is not XML", push("q", "never"),
    )  # fmt: skip
    answers = await client.rest()
    assert [code(answer) for answer in answers] == [0, 404, 400, 0, 400]
    assert [req(answer) for answer in answers] == ["1", "2", "3", "4", ""]
    assert await listed(running) == []


async def test_stream_end_behind_requests_ends_after_answers(running: Serving, autojump_clock: Clock) -> None:
    """Requests and the end of the stream in one moment: all are answered, half a document too, and then it ends."""
    for rest, codes in (("", [0, 0, 0]), (PING[:9], [0, 0, 0, 400])):
        client = running.connect()
        await client.send(PING, push("q", "x"), receive("q"), rest)
        await client.stream.send_eof()
        assert [code(answer) for answer in await client.rest()] == codes


async def test_unread_answer_stops_requests_until_it_is_read(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that does not read its answer has nothing more done; when it reads again, it goes on where it was."""
    limits = ServerLimits(outbox=500)
    async with serving(tmp_path / "root", clock_of(autojump_clock), limits=limits) as running:
        slow = running.connect(lockstep=True)
        for _ in range(3):
            before = len(await listed(running))
            await slow.send(*[PING] * 300, push("q", "x"), receive("q", visibility=0) * 3)
            await settled()
            assert len(await listed(running)) == before
            lines = await slow.lines(304)
            assert [code(line) for line in lines] == [0] * 304
            assert len(await listed(running)) == before + 1


async def test_subscribe_in_pipeline_begins_after_its_answer(running: Serving, autojump_clock: Clock) -> None:
    """A subscription in the middle of a pipeline begins after its answer, and what is asked behind it is done."""
    client = running.connect()
    await client.ask(push("q", "before"))
    await client.send(PING, subscribe("q"), push("q", "behind", req="p"), request("ping", req="last"))
    lines = await client.lines(6)
    assert "<ping/>" in lines[0]
    assert "<subscribe/>" in lines[1]
    assert [payload for line in lines[2:] for payload in payloads(line)] == ["before", "behind"]
    assert [req(line) for line in lines[2:] if not payloads(line)] == ["p", "last"]


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.ALWAYS])
async def test_subscribe_serves_from_its_answer(tmp_path: Path, durability: Durability) -> None:
    """A subscription is served from the moment of its answer."""
    async with serving(tmp_path / "root", durability=durability) as running:
        producer = running.connect()
        clients = [running.connect() for _ in range(10)]
        await producer.ask(PING)
        for number, client in enumerate(clients, 1):
            waiting = receive("other", wait=0) if number % 2 else ""
            await client.ask(subscribe("q", req="s") + waiting)
            if waiting:
                await client.line()
            await producer.ask(push_list("q", *"x" * number))
            for each in clients[:number]:
                assert len(payloads(await each.line())) == 1
        for client in (producer, *clients):
            await client.hang_up()


# -- while a batch is in the thread -----------------------------------------------------------------------------------


async def test_requests_during_batch_in_thread_run_after_it(tmp_path: Path, gate: Gate) -> None:
    """Requests that arrive while one of the client's is in the thread are done after it."""
    async with serving(tmp_path / "root", durability=Durability.ALWAYS, disk=gate) as running:
        client, other = await held_in_the_thread(running, gate, push("q", "1", req="1"))
        await client.send(push("q", "2", req="2"), receive("q", max=5, req="3"))
        await other.send(LIST)
        await settled()
        gate.open_again.set()
        answers = await client.lines(3)
        assert [req(answer) for answer in answers] == ["1", "2", "3"]
        assert payloads(answers[2]) == ["1", "2"]
        assert mids(await other.line())[:1] == mids(answers[0])
        for each in (client, other):
            await each.hang_up()


async def test_stop_answers_request_in_thread_and_refuses_later(tmp_path: Path, gate: Gate) -> None:
    """At a stop, the request in the thread is answered; those behind it, read or not, are refused."""
    async with serving(tmp_path / "root", durability=Durability.ALWAYS, disk=gate) as running:
        pings = [request("ping", req=str(number)) for number in range(300)]
        client, other = await held_in_the_thread(running, gate, push("q", "1", req="first"), *pings)
        await other.send(push("q", "2", req="gathered"))
        await settled()
        running.server.stop()
        await settled()
        gate.open_again.set()
        answers = await client.rest()
        assert [req(answer) for answer in answers] == ["first", *map(str, range(256))]
        assert [code(answer) for answer in answers] == [0] * 256 + [503]
        assert [(req(answer), code(answer)) for answer in await other.rest()] == [("gathered", 0), ("", 503)]


def stored_at_the_end(running: Serving) -> list[int]:
    """Filled when the engine is closed: with how many new messages `q` holds then."""
    found: list[int] = []
    close = running.storage.close

    def look_and_close() -> None:
        found.append(running.storage.queue("q").stats().new)
        close()

    running.storage.close = look_and_close  # type: ignore[method-assign]
    return found


async def test_cut_off_during_batch_in_thread_finishes_batch(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is cut off while a batch is in the thread ends when that is over, and what was begun is done."""
    async with serving(tmp_path / "root", durability=Durability.ALWAYS, disk=gate) as running:
        client, other = await held_in_the_thread(running, gate, push("q", "1"), receive("q", "q", wait=100))
        found = stored_at_the_end(running)
        running.server.stop()
        running.server.cut_off()
        await settled()
        gate.open_again.set()
        await other.rest()
    assert found == [0]  # pushed, and received behind that
    assert "fault" not in caplog.text
    assert len(await client.rest()) <= 2


async def test_cut_off_during_request_in_thread_sends_no_answer(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is cut off makes no answer for a request that was in its thread, which is still carried out."""
    faults: list[object] = []

    def broken(self: object, message: object) -> bytes:
        faults.append(message)
        raise KeyError("a bug")

    async with serving(tmp_path / "root", durability=Durability.ALWAYS, disk=gate) as running:
        client, other = await held_in_the_thread(running, gate, push("q", "1"))
        found = stored_at_the_end(running)
        running.server.stop()
        monkeypatch.setattr("qs_schemas.Peer.send", broken)
        running.server.cut_off()
        await settled()
        gate.open_again.set()
        assert await client.rest() == []
        assert [code(line) for line in await other.rest()] == [503]
    assert (faults, found) == ([], [1])
    assert "Traceback" not in caplog.text


async def test_client_gone_during_batch_has_request_done(tmp_path: Path, gate: Gate) -> None:
    """A client that goes while its request is in the thread has it done, and disturbs nobody."""
    async with serving(tmp_path / "root", durability=Durability.ALWAYS, disk=gate) as running:
        client, other = await held_in_the_thread(running, gate, push("q", "1"), receive("q", wait=0), push("q", "2"))
        await client.hang_up()
        await other.send(LIST)
        await settled()
        gate.open_again.set()
        assert len(mids(await other.line())) == 2
        assert code(await other.ask(new_queue("another"))) == 0
        await other.hang_up()
