"""Tests what the log says of a full disk: one line when it begins, one when it ends."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import code, delete, push
from support.faults import small_disk
from support.servers.memory import Clock, clock_of, serving

from qs_server.broker.room import DiskRoom
from qs_storage.disk import Disk
from qs_storage.engine import State

LARGE = "x" * 100_000
SMALL = "y"


class RoomyDisk(Disk):
    """Has as many free bytes as a test says; None: does not say."""

    free: int | None = 4096

    def free_bytes(self, path: str) -> int:
        if self.free is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.free


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about the room on the disk."""
    return [
        record.getMessage()
        for record in caplog.records
        if " is full: it has " in record.getMessage() or " has room again: " in record.getMessage()
    ]


async def looking(nursery: trio.Nursery, clock: Clock) -> DiskRoom:
    """A room whose task runs in the nursery."""
    room = DiskRoom("/root", clock_of(clock), RoomyDisk())
    nursery.start_soon(room.serve)
    await trio.testing.wait_all_tasks_blocked()
    return room


async def test_refused_logs_one_line_for_many(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first refusal is a line that names the path and the free bytes; the next thousand are none."""
    room = await looking(nursery, autojump_clock)
    for _ in range(1000):
        room.refused(1_000_000)
        await trio.sleep(0.1)
    (line,) = told(caplog)
    assert "the disk of /root is full: it has 4096 bytes free" in line
    assert "1000000 bytes of payload" in line


async def test_stored_logs_one_line_when_room_is_back(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten seconds after the last refusal, once as much was stored as was refused, a line says that it is over."""
    room = await looking(nursery, autojump_clock)
    room.refused(1000)
    room.refused(2000)
    await trio.sleep(1)
    room.stored(1000)
    await trio.sleep(8)
    assert room.full
    await trio.sleep(2)
    assert not room.full
    assert "has room again" in told(caplog)[1]
    assert "2 requests were refused" in told(caplog)[1]
    await trio.sleep(1000)
    assert len(told(caplog)) == 2


async def test_stored_of_smaller_request_does_not_end_full_disk(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Small messages that still fit do not end it, however rarely a large one is tried."""
    room = await looking(nursery, autojump_clock)
    for _ in range(20):
        room.refused(1_000_000)
        for _ in range(30):
            room.stored(10)
            await trio.sleep(2)
    assert len(told(caplog)) == 1


async def test_stored_between_refusals_does_not_end_full_disk(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk on which each deleted message makes room for the next is full all the time."""
    room = await looking(nursery, autojump_clock)
    for _ in range(100):
        room.refused(1000)
        await trio.sleep(3)
        room.stored(1000)
        await trio.sleep(3)
    assert len(told(caplog)) == 1


async def test_full_disk_stays_full_without_requests(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk still counts as full when no request tries to write any more."""
    room = await looking(nursery, autojump_clock)
    room.refused(1000)
    await trio.sleep(10_000)
    assert room.full
    room.stored(1000)
    await trio.sleep(2)
    assert len(told(caplog)) == 2


async def test_full_disk_ends_when_much_more_is_free(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """One large message that nobody tries again does not keep a disk full that has a gigabyte more since."""
    disk = RoomyDisk()
    room = DiskRoom("/root", clock_of(autojump_clock), disk)
    nursery.start_soon(room.serve)
    await trio.testing.wait_all_tasks_blocked()
    room.refused(8_000_000)
    disk.free = 100 << 20
    await trio.sleep(60)
    assert room.full
    disk.free = 1 << 30
    room.refused(8_000_000)  # a quota, for example
    await trio.sleep(60)
    assert room.full
    disk.free = 2 << 30
    await trio.sleep(5)
    assert not room.full
    assert f"{2 << 30} bytes are free" in told(caplog)[1]


async def test_refused_after_end_logs_again(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full a second time is a line again."""
    room = await looking(nursery, autojump_clock)
    for _ in range(2):
        room.refused(1000)
        room.stored(1000)
        await trio.sleep(20)
    assert [" is full" in line for line in told(caplog)] == [True, False, True, False]


async def test_refused_without_free_bytes_names_disk(
    nursery: trio.Nursery, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that does not tell its free bytes is still named."""
    disk = RoomyDisk()
    disk.free = None
    DiskRoom("/root", clock_of(autojump_clock), disk).refused(1)
    assert "unknown number of bytes" in told(caplog)[0]


@pytest.fixture(name="mounted")
def _mounted(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "2m") as mounted:
        yield mounted


async def test_pushes_on_full_file_system_log_once(
    mounted: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Files on a really full disk: all requests of a client and of many say it once; room is told once it is there."""
    async with serving(mounted / "root", clock_of(autojump_clock)) as running:
        client = running.connect()
        answers = [await client.ask(push("q", LARGE)) for _ in range(30)]
        assert code(answers[-1]) == 507
        assert code(await client.ask(push("q", SMALL))) == 0
        answers = [await client.ask(push("q", LARGE), push("q", SMALL)) for _ in range(5)]
        (line,) = told(caplog)
        assert f"the disk of {mounted / 'root'} is full: it has " in line
        for mid in running.storage.queue("q").list_mids(State.ALL, 3, -1):
            await client.ask(delete("q", mid))
        assert code(await client.ask(push("q", LARGE))) == 0
        await trio.sleep(12)
        assert len(told(caplog)) == 2
        assert code(await client.ask(push("q", LARGE))) == 0
        assert len(told(caplog)) == 2
