"""Lists of messages that a queue of the log hands out: in order, within the bytes asked for, none lost."""

import errno
import os
import struct
from pathlib import Path

import pytest
from support.storage.engines import EPOCH, LOTS, JournalEngine, ManualClock

from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Options, State
from qs_storage.journal.log.places import start_of
from qs_storage.journal.queues.queue import LogQueue


class _Unreadable(Disk):
    """Cannot read a file at some of its bytes."""

    broken: tuple[int, int] = (0, 0)
    error = errno.EMFILE
    most = 0
    """Bytes that were asked for at once."""

    def pread(self, fd: int, length: int, at: int, /) -> bytes:
        self.most = max(self.most, length)
        if self.broken[0] < at + length and at < self.broken[1]:
            raise OSError(self.error, os.strerror(self.error))
        return super().pread(fd, length, at)


@pytest.fixture(name="disk")
def _disk() -> _Unreadable:
    return _Unreadable()


@pytest.fixture(name="engine")
def _engine(tmp_path: Path, disk: _Unreadable) -> JournalEngine:
    engine = JournalEngine(str(tmp_path), clock=ManualClock(EPOCH), durability=Durability.NONE, disk=disk, cache=0)
    engine.create("q", Options(storage="journal"))
    return engine


@pytest.mark.parametrize(
    ("max_bytes", "received"), [(LOTS, 5), (0, 1), (29, 2), (30, 3)], ids=["all", "the first at least", "two", "three"]
)
def test_a_list_has_what_fits(engine: JournalEngine, max_bytes: int, received: int) -> None:
    """A list has the oldest messages that fit together, the first whatever its size; the others stay visible."""
    mids = engine.queue("q").push([Draft(b"x" * 10)] * 5)
    engine.commit()
    found = engine.receive(["q"], 100, None, max_bytes)
    assert [message.mid for message in found] == mids[:received]
    assert engine.queue("q").list_mids(State.READY, 10, -1) == mids[received:]
    assert engine.queue("q").list_mids(State.NEW, 10, -1) == mids[received:]
    engine.close()


def test_a_payload_that_cannot_be_read(engine: JournalEngine, disk: _Unreadable) -> None:
    """Messages before one that cannot be read for now are handed out; the next call says why; that one stays."""
    mids = engine.queue("q").push([Draft(b"x" * 50_000)] * 3)
    engine.commit()
    disk.broken = (100_000, LOTS)
    assert [message.mid for message in engine.receive(["q"], 100, None, LOTS)] == mids[:1]
    with pytest.raises(OSError, match="Too many open files"):
        engine.receive(["q"], 100, None, LOTS)
    assert engine.queue("q").list_mids(State.READY, 10, -1) == mids[1:]
    disk.broken = (0, 0)
    assert [message.mid for message in engine.receive(["q"], 100, None, LOTS)] == mids[1:]
    engine.close()


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_payload_that_the_disk_cannot_read(
    engine: JournalEngine, disk: _Unreadable, tmp_path: Path, count: int, sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A payload that the disk cannot read is set aside with a line in the log, and those beside it are received. The
    next start makes it visible again."""
    mids = engine.queue("q").push([Draft(b"x" * 5000)] * 3)
    engine.commit()
    while sealed and engine._journal.open().log.number == 1:
        engine.queue("q").push([Draft(b"y" * 100_000)])
        engine.commit()
    queue = engine.queue("q")
    assert isinstance(queue, LogQueue)
    start = start_of(queue.places.get(mids[0]) or 0)
    disk.error, disk.broken = errno.EIO, (start + 100, start + 5000)
    assert engine.receive(["q"], count, None, LOTS)[0].mid == mids[1]
    assert "is not delivered" in caplog.text
    assert "the disk cannot read it" in caplog.text
    engine.close()
    disk.broken = (0, 0)
    engine = JournalEngine(str(tmp_path), clock=ManualClock(EPOCH), durability=Durability.NONE, disk=disk, cache=0)
    assert engine.queue("q").list_mids(State.READY, 10, -1)[0] == mids[0]
    engine.close()


@pytest.mark.parametrize(("at", "written"), [(0, struct.pack("<I", 0xF0000000)), (4, b"\1\2\3\4")])
def test_many_damaged_messages(
    engine: JournalEngine, disk: _Unreadable, tmp_path: Path, at: int, written: bytes
) -> None:
    """The messages of a lost MiB are given to nobody, and what comes behind them is received. No more is read than
    a segment can have, whatever a length says."""
    mids = engine.queue("q").push([Draft(b"x")] * 1500)
    engine.commit()
    queue = engine.queue("q")
    assert isinstance(queue, LogQueue)
    with next(tmp_path.glob(".journal/*.segment")).open("r+b") as file:
        for mid in mids[:-1]:
            file.seek(start_of(queue.places.get(mid) or 0) + at)
            file.write(written)
    assert [message.mid for message in engine.receive(["q"], 2, None, LOTS)] == mids[-1:]
    assert disk.most < 1 << 21
    engine.close()
