"""Bounds of a journal: how much it writes and how large it is, beside what is pushed and what is live.

Upkeep runs as the server has it: slices between two batches. All sizes are a sixteenth of the usual ones or less.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.power_loss.check import fast_directory
from support.storage.engines import JournalEngine, ManualClock, upkeep

from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Options, Receipt
from qs_storage.journal.log import pool
from qs_storage.journal.upkeep import maintenance, room

_SEGMENT = 1 << 20
_BATCH = 32
"""Messages pushed by a batch."""
_SIZE = 4000
_COLD = 4000
"""Messages that stay, some 16 segments."""


class CountingDisk(Disk):
    """Counts what is written, but for the zeros of new files of the pool."""

    def __init__(self) -> None:
        self.written = 0
        self._new: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        fd = super().open(path, flags, mode)
        (self._new.add if path.endswith(".tmp") else self._new.discard)(fd)
        return fd

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        pass

    fdatasync = fsync  # type: ignore[assignment]

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        if fd not in self._new:
            self.written += len(data)
        return super()._pwrite(fd, data, offset)


class Measured(NamedTuple):
    """written: bytes written for each that was pushed; disk: the most bytes of needed segments for each live one; pool:
    the most bytes beside."""

    written: float
    disk: float
    pool: int


class Load:
    """An engine whose messages come and go."""

    def __init__(self, root: str) -> None:
        self.disk = CountingDisk()
        self.engine = JournalEngine(root, clock=ManualClock(), durability=Durability.NONE, disk=self.disk)
        for qid in ("cold", "hot"):
            self.engine.create(qid, Options())
        self.engine.commit()
        self.present: deque[int] = deque()

    def push(self, qid: str) -> list[int]:
        return self.engine.queue(qid).push([Draft(bytes(_SIZE))] * _BATCH)

    def fill(self) -> None:
        for _ in range(_COLD // _BATCH):
            self.push("cold")
            self.engine.commit()
            upkeep(self.engine, slices=1)

    def run(self, batches: int, held: int, slices: int) -> Measured:
        """Pushes batches, and deletes as many messages when so many are there. slices: of upkeep after each batch."""
        store = self.engine._journal.store
        assert store is not None
        written, worst, most = self.disk.written, 0.0, 0
        for _ in range(batches):
            self.present.extend(self.push("hot"))
            while len(self.present) > held:
                self.engine.queue("hot").delete(Receipt(self.present.popleft()))
            self.engine.commit()
            worst = max(worst, store.log.segments.size / store.usage.total)
            upkeep(self.engine, slices=slices)
            most = max(most, self.engine._journal.room._pool.bytes)  # type: ignore[union-attr]
        return Measured((self.disk.written - written) / (batches * _BATCH * _SIZE), worst, most)


@pytest.fixture(name="load")
def _load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    for name, size in (("FIRST_SEGMENT", _SEGMENT), ("LARGEST_SEGMENT", _SEGMENT), ("SMALLEST", 4096)):
        monkeypatch.setattr(pool, name, size)
    monkeypatch.setattr(maintenance, "_BYTES", _BATCH * _SIZE)
    for module in (maintenance, room):
        monkeypatch.setattr(module, "perf_counter", lambda: 0.0)  # slices end by what they copy
    with fast_directory(tmp_path) as directory:
        load = Load(str(directory))
        yield load
        load.engine.close()


@pytest.mark.parametrize(("held", "slices"), [(0, 1), (500, 4)])
def test_beside_many_that_stay(load: Load, held: int, slices: int) -> None:
    """At most 2.2 bytes on disk for each live one, and 3 written for each that is pushed, although all that stays is
    copied twice: also if a batch pushes as much as a slice copies."""
    load.fill()
    store = load.engine._journal.store
    assert store is not None
    found = load.run(900, held, slices)
    assert found.disk <= 2.2
    assert found.written <= 3
    assert found.pool <= 4 * _SEGMENT
    assert (store.log.segments.oldest or 0) > 2 * _COLD * _SIZE // _SEGMENT


def test_without(load: Load) -> None:
    """Where all messages come and go, at most 2.2 bytes are written for each, and 2.2 are on disk."""
    load.run(3000 // _BATCH, 3000, 1)
    found = load.run(900, 3000, 1)
    assert found.disk <= 2.2
    assert found.written <= 2.2
