"""Waits that something goes wrong with: the clock is set, the queue goes, the disk fails, the client floods."""

import errno
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import code, payloads, push, receive, request
from support.servers.memory import EPOCH, Client, Serving, clock_of, serving
from support.storage.engines import FaultyDisk

from qs_server.main.options import ServerLimits

Clock = trio.testing.MockClock  # pytest-trio runs a test on the clock that the test itself asks for
SECOND = 1_000_000


async def waiting(running: Serving, **attributes: float) -> Client:
    """A client whose receive waits."""
    client = running.connect()
    await client.send(receive("q", **{"wait": 3600, **attributes}))
    assert await client.nothing_yet()
    return client


async def test_wait_lasts_as_asked_when_clock_is_set_back(tmp_path: Path, autojump_clock: Clock) -> None:
    """A wait lasts as long as was asked for, also when somebody sets the machine's clock back meanwhile."""
    now = [EPOCH]
    async with serving(tmp_path / "root", lambda: now[0]) as running:
        client = running.connect()
        began = trio.current_time()
        await client.send(receive("q", wait=10))
        assert await client.nothing_yet()
        now[0] -= 3600 * SECOND
        assert payloads(await client.line()) == []
        assert trio.current_time() - began == pytest.approx(10)


async def test_waiting_receive_of_deleted_queue_fails(tmp_path: Path, autojump_clock: Clock) -> None:
    """A receive that waits for a deleted queue fails at once."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        consumer, other = await waiting(running, wait=600), running.connect()
        await other.ask(request("delete-queue", "<qid>q</qid>"))
        began = trio.current_time()
        assert code(await consumer.line()) == 404
        assert trio.current_time() == began


async def test_receive_that_fails_wakes_next_waiter(tmp_path: Path, autojump_clock: Clock) -> None:
    """A woken receive that cannot read the message gets an error, and the next in line gets the message."""
    disk = FaultyDisk()
    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=disk) as running:
        first, second = await waiting(running), await waiting(running)
        # The push opens a file, and then the receive that it wakes does.
        disk.arm(2, errno.EIO, "open")
        await running.connect().ask(push("q", "x"))
        answers = [await first.line(), await second.line()]
        assert sorted(line.count("<error") for line in answers) == [0, 1]
        assert payloads("".join(answers)) == ["x"]


async def test_read_ahead_is_bounded_over_several_waits(tmp_path: Path, autojump_clock: Clock) -> None:
    """During waits, requests are read up to the bound on bytes, however many waits follow each other."""
    limits = ServerLimits(outbox=200_000)
    async with serving(tmp_path / "root", clock_of(autojump_clock), limits=limits) as running:
        client = running.connect(lockstep=True)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            await client.send(*[receive("q", wait=1)] * 20)
            for _ in range(100):
                await client.send(push("q2", "x" * 20_000))
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            for _ in range(10):  # waits that pass, one after the other
                assert payloads(await client.line()) == []
            assert sent * 20_000 <= 200_000 + 2 * 65536
            nursery.cancel_scope.cancel()
        await client.hang_up()
