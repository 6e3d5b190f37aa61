"""Requests of several connections share a commit; what a commit or a sync could not cover is not answered as done."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
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
    text,
)
from support.servers.memory import Client, Serving, clock_of, serving

from qs_schemas import ListQueues
from qs_server.operations.table import OPERATIONS
from qs_storage.disk import Disk
from qs_storage.engine import Durability

ALWAYS = Durability.ALWAYS
Clock = trio.testing.MockClock  # pytest-trio runs a test on the clock that the test itself asks for
LIST = request("list-messages", "<qid>q</qid>", state="all")


class FaultyDisk(Disk):
    """Counts syncs, holds them back while `gate` is closed, and fails those of what `faults` names."""

    def __init__(self) -> None:
        self.file_syncs = 0
        self.directory_syncs = 0
        self.faults: dict[str, int] = {}
        """By what the file holds, or `directory`: the error number."""
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        if not self.gate.is_set():
            self.held.set()
            assert self.gate.wait(20)
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            self.directory_syncs += 1
            self._fail("directory")
        else:
            self.file_syncs += 1
            with open(path, "rb") as file:
                content = file.read()
            for fault in list(self.faults):
                if fault.encode() in content:
                    self._fail(fault)

    def _fail(self, fault: str) -> None:
        number = self.faults.get(fault)
        if number is not None:
            raise OSError(number, os.strerror(number))


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    disk.gate.set()


async def gathered(running: Serving, disk: FaultyDisk, *documents: str) -> list[str]:
    """The answers to requests of as many connections that gathered while the sync of another one's was held back."""
    first, clients = running.connect(), [running.connect() for _ in documents]
    for client in clients:
        assert "<ping/>" in await client.ask(PING)
    disk.gate.clear()
    await first.send(push("q", "the first"))
    await trio.to_thread.run_sync(disk.held.wait, 20)
    for client, document in zip(clients, documents, strict=True):
        await client.send(document)
    await trio.testing.wait_all_tasks_blocked()
    disk.file_syncs = disk.directory_syncs = 0
    disk.gate.set()
    assert code(await first.line()) == 0
    answers = [await client.line() for client in clients]
    for client in (first, *clients):
        await client.hang_up()
    return answers


async def test_pushes_of_several_connections_share_one_commit(tmp_path: Path, disk: FaultyDisk) -> None:
    """One commit, with one sync of the directory, covers what 20 connections push during the commit before."""
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        answers = await gathered(running, disk, *(push("q", str(number)) for number in range(20)))
        assert [code(answer) for answer in answers] == [0] * 20
        assert disk.directory_syncs == 2  # the first one's, and one for all the others
        assert disk.file_syncs == 21
        client = running.connect()
        found = await client.ask(receive("q", max=100))
        await client.hang_up()
        assert sorted(mids(found)[1:]) == sorted(mid for answer in answers for mid in mids(answer))


async def test_pipelined_requests_share_one_commit(tmp_path: Path, disk: FaultyDisk) -> None:
    """Requests that one connection pipelines share a commit as well."""
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        client = running.connect()
        await client.ask(PING)
        disk.directory_syncs = 0
        await client.ask(*(push("q", str(number)) for number in range(50)))
        assert disk.directory_syncs == 1
        await client.hang_up()


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.NONE])
async def test_answer_waits_for_no_sync_without_always(
    tmp_path: Path, disk: FaultyDisk, durability: Durability, autojump_clock: Clock
) -> None:
    """With durability `interval` and `none` an answer about messages waits for no fsync; to make a queue does."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), durability=durability, disk=disk) as running:
        client = running.connect()
        assert (disk.file_syncs, disk.directory_syncs) == (1, 1)
        disk.file_syncs = disk.directory_syncs = 0
        await client.ask(push("q", "x"), receive("q"))
        assert (disk.file_syncs, disk.directory_syncs) == (0, 0)


async def test_interval_syncs_once_after_changes(tmp_path: Path, mock_clock: Clock) -> None:
    """With durability `interval` the file system is synced 50 ms after something happened, not while nothing does."""
    synced = threading.Semaphore(0)

    class Counting(Disk):
        def sync_file_system(self, path: str) -> None:
            synced.release()

    async def pass_time(seconds: float) -> None:
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    interval = Durability.INTERVAL
    async with serving(tmp_path / "root", clock_of(mock_clock), durability=interval, disk=Counting()) as running:
        client = running.connect()
        for _ in range(2):  # the first time for the queue that was made
            for _ in range(20):
                await client.ask(push("q", "x"))
            await pass_time(0.049)
            assert not synced.acquire(blocking=False)
            await pass_time(0.001)
            assert await trio.to_thread.run_sync(synced.acquire, True, 20)
        for _ in range(100):
            await pass_time(1)
            await client.ask(PING)
        assert not synced.acquire(blocking=False)
        await client.hang_up()


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, 507), (errno.EIO, 500)])
async def test_failed_sync_refuses_its_push_alone(
    tmp_path: Path, disk: FaultyDisk, number: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A push whose file cannot be synced is refused and leaves nothing; others of the same batch succeed."""
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        disk.faults["bad"] = number
        documents = [push("q", "good1"), push("q", "bad", req="7"), push_list("q", "a", "bad"), push("q", "good2")]
        answers = await gathered(running, disk, *documents)
        assert [code(answer) for answer in answers] == [0, expected, expected, 0]
        assert req(answers[1]) == "7"
        client = running.connect()
        found = await client.ask(receive("q", max=10))
        await client.hang_up()
        assert set(payloads(found)) == {"the first", "good1", "good2"}
        assert not [name for name in os.listdir(running.root / "q") if name.endswith(".new") or "batch" in name]
    if expected == 500:
        assert resp(answers[1]) in caplog.text


def resp(line: str) -> str:
    return line.partition('resp="')[2].partition('"')[0]


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, 507), (errno.EIO, 500)])
async def test_failed_commit_refuses_each_request_of_batch(
    tmp_path: Path, disk: FaultyDisk, number: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """When the directory cannot be synced every request of the batch is refused, each with its own resp; the server
    goes on."""
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        client = running.connect()
        await client.send(PING)
        await client.line()
        disk.faults["directory"] = number
        await client.send(push("q", "x", req="1"), request("ping", req="2"), new_queue("q"))
        answers = await client.lines(3)
        assert [code(answer) for answer in answers] == [expected, expected, 409]
        assert [req(answer) for answer in answers[:2]] == ["1", "2"]
        assert len({resp(answer) for answer in answers}) == 3
        assert all(len(resp(answer)) == 64 for answer in answers)
        assert "may have been done" in text(answers[0])  # it is there, and may not survive a power loss
        disk.faults.clear()
        assert code(await client.ask(push("q", "y"))) == 0
        assert payloads(await client.ask(receive("q", max=5)))[-1] == "y"
        if expected == 500:
            assert resp(answers[0]) in caplog.text
        await client.hang_up()


async def test_failed_commit_in_thread_refuses_batch_and_goes_on(tmp_path: Path, disk: FaultyDisk) -> None:
    """When the commit of several connections' batch fails, each request is refused, and the next batch is served."""
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        clients = [running.connect() for _ in range(5)]
        for client in clients:
            await client.ask(PING)
        disk.faults["directory"] = errno.EIO
        for client in clients:
            await client.send(push("q", "x"))
        assert [code(await client.line()) for client in clients] == [500] * 5
        disk.faults.clear()
        for client in clients:
            assert code(await client.ask(push("q", "y"))) == 0
            await client.hang_up()


async def test_exception_in_commit_is_500_with_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception of a commit is a 500 for what it covered, with the traceback in the log, and no end."""

    class Buggy(Disk):
        broken = False

        def sync_directory(self, path: str) -> None:
            if self.broken:
                raise ZeroDivisionError("a bug")

    disk = Buggy()
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        one, other = running.connect(), running.connect()
        for client in (one, other):
            await client.ask(PING)
        Buggy.broken = True
        assert code(await one.ask(push("q", "x"))) == 500
        Buggy.broken = False
        assert "ZeroDivisionError" in caplog.text
        assert code(await other.ask(push("q", "y"))) == 0
        for client in (one, other):
            await client.hang_up()


async def test_exception_in_handler_is_500_with_traceback(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception in a handler is a 500 whose resp and traceback are in the log; the connection goes on."""

    def broken(service: object, request: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setitem(OPERATIONS, ListQueues, OPERATIONS[ListQueues]._replace(handler=broken))
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        client = running.connect()
        await client.send(push("q", "1"), request("list-queues", req="x"), push("q", "2"))
        answers = await client.lines(3)
        assert [code(answer) for answer in answers] == [0, 500, 0]
        assert req(answers[1]) == "x"
        assert "a bug" not in answers[1]
        assert resp(answers[1]) in caplog.text
        assert "RuntimeError: a bug" in caplog.text


async def test_oserror_in_handler_is_500_with_reason(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """An operation that the file system refuses is a 500 that says why, with its resp in the log."""

    class ReadOnly(Disk):
        def unlink(self, path: str) -> None:  # type: ignore[override]
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=ReadOnly()) as running:
        client = running.connect()
        mid = mids(await client.ask(push("q", "1")))[0]
        answer = await client.ask(request("delete-message", f"<qid>q</qid><mid>{mid}</mid>"))
        assert code(answer) == 500
        assert "Read-only file system" in text(answer)
        assert str(running.root) not in answer
        assert resp(answer) in caplog.text
        assert mids(await client.ask(LIST)) == [mid]


async def test_expiry_that_fails_is_tried_each_second(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """When the file system refuses to end a lease, the server tries again once a second, and others are served."""

    class Stuck(Disk):
        tries = 0
        broken = False

        def rename(self, old: str, new: str) -> None:  # type: ignore[override]
            if self.broken and "." in os.path.basename(old):
                Stuck.tries += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), old)
            os.rename(old, new)

    disk = Stuck()
    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=disk, queues=("q", "other")) as running:
        client = running.connect()
        await client.ask(push("q", "x"), receive("q", visibility=5))
        disk.broken = True
        await trio.sleep(15.5)
        assert 10 <= disk.tries <= 12
        assert code(await client.ask(push("other", "y"))) == 500  # it needs a rename as well
        assert "<ping/>" in await client.ask(PING)
        disk.broken = False
        assert payloads(await client.ask(receive("q", wait=10))) == ["x"]


async def test_receive_of_push_whose_sync_fails_gets_nothing(tmp_path: Path, disk: FaultyDisk) -> None:
    """If a push and its receive are in one batch whose sync fails, the push is refused and the message is not given
    out."""
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        disk.faults["bad"] = errno.ENOSPC
        client = running.connect()
        await client.send(push("q", "good"), push("q", "bad"), receive("q", max=5), LIST)
        answers = await client.lines(4)
        assert [code(answer) for answer in answers] == [0, 507, 0, 0]
        assert payloads(answers[2]) == ["good"]
        assert mids(answers[3]) == mids(answers[0])
        await client.hang_up()


# -- slices -----------------------------------------------------------------------------------------------------------


async def first_answer(clients: dict[str, Client]) -> list[str]:
    """The names of the clients in the order in which their answers came."""
    order: list[str] = []

    async def wait(name: str, client: Client) -> None:
        await client.line()
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name, client in clients.items():
            nursery.start_soon(wait, name, client)
    return order


async def test_purge_runs_in_slices(tmp_path: Path, autojump_clock: Clock) -> None:
    """Purging a deep queue is done in slices: what another connection asks meanwhile is answered before its end."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        purging, other = running.connect(), running.connect()
        for _ in range(3):
            await other.ask(push_list("q", *["x"] * 1000))
        await purging.send(request("purge-queue", "<qid>q</qid>"))
        await other.send(PING)
        assert await first_answer({"purge": purging, "ping": other}) == ["ping", "purge"]
        assert mids(await other.ask(LIST)) == []


async def test_purge_leaves_later_pushes(tmp_path: Path, autojump_clock: Clock) -> None:
    """Messages pushed while a purge runs stay, and the count is of the removed ones, in flight and delayed too."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        purging, other = running.connect(), running.connect()
        await other.ask(push_list("q", *["x"] * 1000), receive("q", max=3), push("q", "later", delay=60))
        await purging.send(request("purge-queue", "<qid>q</qid>"))
        pushed: list[int] = []

        async def go_on_pushing() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    pushed.extend(mids(await other.ask(push("q", "new"))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on_pushing)
            answer = await purging.line()
            nursery.cancel_scope.cancel()
        assert "<count>1001</count>" in answer
        left = mids(await running.connect().ask(LIST))
        assert left[: len(pushed)] == pushed
        assert len(left) - len(pushed) <= 1  # the one whose answer was not waited for


async def test_queue_stats_of_deep_queue_runs_in_slices(tmp_path: Path, autojump_clock: Clock) -> None:
    """The figures of a deep queue that was found on disk are gathered in slices."""
    directory = tmp_path / "root" / "q"
    directory.mkdir(parents=True)
    for number in range(1, 4101):
        (directory / str(number)).write_bytes(b"abc")
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=()) as running:
        asking, other = running.connect(), running.connect()
        await asking.send(request("queue-stats", "<qid>q</qid>"))
        await other.send(PING)
        order: list[str] = []

        async def wait(name: str, client: Client) -> None:
            line = await client.line()
            order.append(name)
            if name == "stats":
                assert 'new="4100"' in line
                assert 'bytes="12300"' in line

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "stats", asking)
            nursery.start_soon(wait, "ping", other)
        assert order == ["ping", "stats"]


async def test_probe_waits_for_commit(tmp_path: Path, disk: FaultyDisk) -> None:
    """A probe returns after a commit, and not while the worker thread hangs in a sync. It can be cancelled."""
    async with serving(tmp_path / "root", durability=ALWAYS, disk=disk) as running:
        await running.server.probe()
        first, second = running.connect(), running.connect()
        for client in (first, second):
            assert "<ping/>" in await client.ask(PING)
        disk.gate.clear()
        await first.send(push("q", "held"))
        await trio.to_thread.run_sync(disk.held.wait, 20)
        with trio.move_on_after(0.2) as patience:
            await running.server.probe()
        assert patience.cancelled_caught
        disk.gate.set()
        await running.server.probe()
        assert code(await first.line()) == 0
        for client in (first, second):
            await client.hang_up()
