"""Messages that stay for long beside others that come and go: segments leave the middle of the log, and every start
finds the same, with or without the checkpoint and with whatever of the removed segments is there still."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from support.engines import FaultyDisk, ManualClock
from support.examples import examples
from support.power_loss_check import fast_directory
from support.power_loss_engines import small_journal, upkeep

from qs_server.storage.directories import JournalEngine
from qs_server.storage.engine import Draft, Durability, Options, Receipt, StorageError
from qs_server.storage.journal import compaction, log
from qs_server.storage.journal.checkpoint import NAME as CHECKPOINT
from qs_server.storage.journal.log import Log
from qs_server.storage.journal.queue import LogQueue

_QUEUES = ("cold", "hot", "copies", "dead")


class KeepingDisk(FaultyDisk):
    """Keeps what the segments held that get another name or are removed."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        super().__init__()
        self.kept = kept

    def _keep(self, path: str) -> None:
        if path.endswith(".segment"):
            self.kept[os.path.basename(path)] = Path(path).read_bytes()

    def unlink(self, path: str) -> None:
        self._keep(path)
        super().unlink(path)

    def rename(self, old: str, new: str) -> None:
        self._keep(old)
        super().rename(old, new)


@dataclass
class World:
    """An engine that is used at random. removed: the segments that are gone, as they were."""

    root: Path
    random: random.Random
    clock: ManualClock = field(default_factory=ManualClock)
    removed: dict[str, bytes] = field(default_factory=dict)
    backlog: list[int] = field(default_factory=list)
    last: int = 0

    def open(self, root: Path | None = None) -> JournalEngine:
        disk = self.disk = KeepingDisk({} if root else self.removed)
        return JournalEngine(str(root or self.root), clock=self.clock, durability=Durability.ALWAYS, disk=disk)

    def begin(self) -> None:
        self.engine = self.open()
        for qid in _QUEUES:
            options = Options(visibility=1000, dead_letter="dead", max_receives=3) if qid == "cold" else Options()
            self.engine.create(qid, options)
        for _ in range(60):
            self.queue("cold").push([Draft(self.random.randbytes(300)) for _ in range(20)])
            self.engine.commit()

    @property
    def log(self) -> Log:
        store = self.engine._journal._store
        assert store is not None
        return store.log

    def queue(self, qid: str) -> Any:
        return self.engine.queue(qid)

    def some(self, qid: str) -> int:
        mids = self.queue(qid).table.index.messages.after(-1, 10_000)
        return self.random.choice(mids) if mids else 0

    # -- what happens

    def step(self, kinds: dict[str, float]) -> None:
        [kind] = self.random.choices(list(kinds), list(kinds.values()))
        with suppress(StorageError):  # it is in another state, or gone
            getattr(self, kind)()
        self.clock.now += self.random.randrange(50)
        self.engine.commit()
        upkeep(self.engine)

    def push_cold(self) -> None:
        self.queue("cold").push([Draft(self.random.randbytes(self.random.randrange(300)), 0, None)])

    def push_keyed(self) -> None:
        self.queue("cold").push([Draft(b"keyed", 0, str(self.random.randrange(5)))])

    def push_hot(self) -> None:
        for mid in self.queue("hot").push([Draft(bytes(self.random.randrange(7000)))] * self.random.randrange(1, 4)):
            self.queue("hot").delete(Receipt(mid))

    def push_backlog(self) -> None:
        self.backlog += self.queue("hot").push([Draft(bytes(self.random.randrange(5000)))])
        while len(self.backlog) > 9 or (self.backlog and self.random.random() < 0.4):
            self.queue("hot").delete(Receipt(self.backlog.pop(0)))

    def receive(self) -> None:
        self.engine.receive(["cold"], self.random.randrange(1, 3), self.random.randrange(1, 5000), 1 << 20)
        self.engine.commit()
        self.log.commit(notes=True)

    def release(self) -> None:
        self.queue("cold").release(Receipt(self.some("cold")), self.random.choice([0, 10, 10**9]))

    def extend(self) -> None:
        self.queue("cold").extend(Receipt(self.some("cold")), self.random.randrange(1, 10**6))

    def delete(self) -> None:
        qid = self.random.choice(("cold", "cold", "dead", "copies"))
        self.queue(qid).delete(Receipt(self.some(qid)))

    def copy(self) -> None:
        self.engine.copy("cold", self.some("cold"), ["copies"])

    def redrive(self) -> None:
        letters = self.queue("dead").redrive.letters([], 2)
        self.queue("dead").redrive.move([(mid, self.queue("cold")) for mid, _ in letters])

    def claim(self) -> None:
        self.last += 1
        self.queue("cold").claims.claim("c", self.last, 2, None, None)

    def acknowledge(self) -> None:
        self.queue("cold").claims.acknowledge("c", self.random.randrange(self.last + 1))

    def stage(self) -> None:
        self.queue("cold").batches.stage("p", (self.last, self.random.randrange(2), 0), [bytes(100)])

    def publish(self) -> None:
        self.last += 1
        self.queue("cold").batches.publish("p", self.last - 1, [(0, 0)])

    def make_again(self) -> None:
        self.engine.remove("copies", force=True)
        self.engine.commit()
        self.engine.create("copies", Options())

    # -- what has to hold

    def check(self) -> None:
        """Starts on copies of the directory, each with something else of what may be there after a power loss."""
        self.log.commit(notes=True)
        expected = _state(self.engine, self.clock.now)
        for checkpoint, part in product((True, False), (0.0, 0.5)):
            copy = self.root.parent / "copy"
            shutil.copytree(self.root, copy)
            if not checkpoint:
                (copy / ".journal" / CHECKPOINT).unlink(missing_ok=True)
            for name, data in self.removed.items():
                if self.random.random() < part:
                    (copy / ".journal" / name).write_bytes(data)
            other = self.open(copy)
            assert _state(other, self.clock.now) == expected
            other.close()
            shutil.rmtree(copy)

    def reopen(self) -> None:
        self.engine.close()
        self.removed.clear()
        self.engine = self.open()


def _state(engine: JournalEngine, now: int) -> dict[str, object]:
    """All that a queue has to know again after a start."""
    found: dict[str, object] = {}
    for qid in _QUEUES:
        queue = engine.queue(qid)
        assert isinstance(queue, LogQueue)
        queue.expire()
        table = queue.table
        found[qid] = [
            (mid, queue.payload_of(mid), table.state_of(mid), table.origins.get(mid))
            for mid in table.index.messages.after(-1, 10_000)
        ]
        found[f"{qid} keys"] = sorted((e.key, e.mid) for e in queue.keys.entries.values() if e.at > now - 300_000_000)
        found[f"{qid} claims"] = queue.claims.all()
        found[f"{qid} staged"] = {
            name: (producer.last, {n: sorted(part) for n, part in producer.staged.items()})
            for name, producer in queue.batches.producers.items()
            if producer.last >= 0 or producer.staged
        }
        found[f"{qid} last"] = queue.last_mid
    return found


_USUAL = {
    "push_hot": 20,
    "push_backlog": 8,
    "push_cold": 1,
    "receive": 0.2,
    "release": 0.2,
    "extend": 0.1,
    "delete": 0.2,
}
_KEYED = _USUAL | {"push_keyed": 1, "redrive": 0.5}
_SHARED = _USUAL | {"copy": 0.3, "make_again": 0.2}
_CLAIMS = _USUAL | {"claim": 0.2, "acknowledge": 0.2, "stage": 0.2, "publish": 0.1}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[World]:
    small_journal(monkeypatch)
    monkeypatch.setattr(log, "_RESERVE", 4096)  # else so much of a segment stays free that compaction never ends
    ticks = count()
    monkeypatch.setattr(compaction, "perf_counter", lambda: next(ticks) / (1 << 16))  # slices of many messages
    with fast_directory(tmp_path) as folder:
        made = World(folder / "root", random.Random(request.node.name))
        made.begin()
        yield made
        made.engine.close()


@pytest.mark.parametrize("kinds", [_USUAL, _KEYED, _SHARED, _CLAIMS], ids=["plain", "keyed", "shared", "claims"])
@pytest.mark.parametrize("seed", range(3, 3 + examples(1)))
def test_every_start_finds_the_same(world: World, seed: int, kinds: dict[str, float]) -> None:
    """On copies of the directory, each time that something has gone from the middle; and itself now and then."""
    checked = 0
    for step in range(500):
        before = world.log.segments.absent
        world.step(kinds)
        if step % 100 == 99 or (world.log.segments.absent not in ((), before) and checked < 12):
            checked += bool(world.log.segments.absent)
            world.check()
        if step % 150 == 149:
            world.reopen()
    assert checked
