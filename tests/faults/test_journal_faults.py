"""A disk that is full or broken under the journal: what was answered holds, what was refused has not happened."""

import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support.storage.engines import LOTS, FaultyDisk, JournalEngine, ManualClock

from qs_storage.engine import Draft, Durability, Options, Receipt, StaleReceiptError, State
from qs_storage.journal.log import pool

WINDOW = 10**9
KINDS = ["_pwrite", "open", "_write", "rename", "fsync", "unlink", None]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes segments small, so that there are many."""
    for name, size in (("FIRST_SEGMENT", 24576), ("LARGEST_SEGMENT", 24576), ("SMALLEST", 4096), ("SMALL_LOG", 0)):
        monkeypatch.setattr(pool, name, size)


class FullDisk(FaultyDisk):
    """Has no room for new things; what is there can be opened."""

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        if flags & os.O_CREAT:
            return super().open(path, flags, mode)
        fd = os.open(path, flags)
        self.descriptors.add(fd)
        return fd

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        """Fails only if fdatasync is the call to fail: the journal's blocks are all allocated."""
        if self.only == "fdatasync":
            super().fdatasync(fd)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        """Does not fail for a directory: its blocks were allocated when it got the names."""
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            super().fsync(fd)

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        """Does not fail for a segment: the new name takes the place of the old one."""
        if old.endswith(".segment"):
            os.rename(old, new)
        else:
            super().rename(old, new)


class World:
    """An engine on a disk that can fail, and what it has answered for: id -> (payload, receives, in flight)."""

    def __init__(self, root: Path, durability: Durability = Durability.ALWAYS) -> None:
        root.mkdir()
        self.root = str(root)
        self.disk = FullDisk()
        self.clock = ManualClock()
        self.durability = durability
        self.known: dict[int, tuple[bytes, int, bool]] = {}
        self.refused: list[OSError] = []
        self.engine = self.open()
        self.engine.create("q", Options(visibility=WINDOW))
        self.engine.commit()

    def open(self) -> JournalEngine:
        return JournalEngine(self.root, clock=self.clock, durability=self.durability, disk=self.disk, cache=0)

    def ask(self, change: Callable[[], Callable[[], None]]) -> None:
        """Does one thing and commits it; what it gives back is done to the model, if it was answered for."""
        self.clock.now += 1
        try:
            answered = change()
            self.engine.commit()
        except OSError as error:
            self.refused.append(error)
        else:
            answered()

    def push(self, *payloads: bytes) -> None:
        def change() -> Callable[[], None]:
            found = self.engine.queue("q").push([Draft(payload) for payload in payloads])
            return lambda: self.known.update(
                {mid: (payload, 0, False) for mid, payload in zip(found, payloads, strict=True)}
            )

        self.ask(change)

    def receive(self) -> None:
        def change() -> Callable[[], None]:
            found = self.engine.receive(["q"], 1, None, LOTS)
            return lambda: self.known.update(
                {message.mid: (message.payload or b"", message.receives, True) for message in found}
            )

        self.ask(change)

    def delete(self, mid: int) -> None:
        def change() -> Callable[[], None]:
            self.engine.queue("q").delete(Receipt(mid))
            return lambda: self.known.__delitem__(mid)

        self.ask(change)

    def release(self, mid: int) -> None:
        def change() -> Callable[[], None]:
            payload, receives, in_flight = self.known[mid]
            if not in_flight:
                with pytest.raises(StaleReceiptError):
                    self.engine.queue("q").release(Receipt(mid), 0, reason="why")
                return lambda: None
            self.engine.queue("q").release(Receipt(mid), 0, reason="why")
            return lambda: self.known.update({mid: (payload, receives, False)})

        self.ask(change)

    def upkeep(self) -> None:
        work = self.engine.begin_upkeep()
        self.ask(lambda: lambda: None)
        if work is not None:
            work.run()
            self.engine.finish_upkeep(work)

    def work(self, chance: random.Random, steps: int) -> None:
        """Does some of everything: the operations of one run."""
        for _ in range(steps):
            mid = chance.choice(sorted(self.known)) if self.known else 0
            what = chance.randrange(9)
            if what < 3:
                self.push(
                    *(chance.randbytes(chance.choice([0, 10, 900, 6000])) for _ in range(chance.choice([1, 1, 3])))
                )
            elif what < 5:
                self.receive()
            elif what == 5 and mid:
                self.delete(mid)
            elif what == 6 and mid:
                self.release(mid)
            else:
                self.upkeep()

    def check(self) -> None:
        """The engine has what it has answered for, and nothing else."""
        engine = self.engine
        assert engine.queue("q").list_mids(State.ALL, 10**6, -1) == sorted(self.known)
        flying = [mid for mid, (_, _, in_flight) in sorted(self.known.items()) if in_flight]
        assert engine.queue("q").list_mids(State.IN_FLIGHT, 10**6, -1) == flying
        for mid, (payload, receives, _) in self.known.items():
            message = engine.queue("q").read(Receipt(mid))
            assert (message.payload, message.receives) == (payload, receives)

    def crash(self) -> None:
        self.disk.disarm()
        self.disk.crash()
        self.engine._watch.close()
        self.engine = self.open()
        self._lose_receives()

    def _lose_receives(self) -> None:
        """Updates what is known after a crash, which may make receives visible again."""
        for mid, (payload, receives, in_flight) in self.known.items():
            if mid in self.engine.queue("q").list_mids(State.ALL, 10**6, -1):
                seen = self.engine.queue("q").get(mid, peek=True, visibility=None)
                assert seen.receives < receives or (seen.status == "in-flight") is in_flight
                self.known[mid] = payload, min(receives, seen.receives), seen.status == "in-flight"


@pytest.mark.parametrize("only", KINDS)
@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NONE])
def test_journal_on_full_disk(tmp_path: Path, only: str | None, durability: Durability) -> None:
    """While any call on the disk finds no room, requests that need room are refused and change nothing, what was
    answered is there, and later everything goes on. Also after a crash."""
    refused = spared = 0
    for at in range(1, 40):
        if spared == 6:
            break  # there are no more calls to fail
        chance = random.Random(at)
        world = World(tmp_path / f"{at}", durability)
        world.work(chance, 10)
        world.disk.arm(at, errno.ENOSPC, only, lasting=True)
        world.work(chance, 15)
        assert all(error.errno == errno.ENOSPC for error in world.refused)
        spared += not world.disk.failed
        world.disk.disarm()
        world.check()
        refused += len(world.refused)
        world.refused.clear()
        world.clock.now += 10**7
        world.work(chance, 10)
        assert not world.refused
        world.check()
        if at % 2:
            world.crash()
            world.check()
        world.engine.close()
        world.engine = world.open()
        world.check()
        world.engine.close()
    assert refused or only not in ("_pwrite", None), "the disk was never missed"


@pytest.mark.parametrize("only", ["_pwrite", "fdatasync"])
def test_broken_disk(tmp_path: Path, only: str) -> None:
    """Once the journal could not be written and synced, changes are refused; what was answered before is there, also
    after a start."""
    stopped = 0
    for at in range(1, 12):
        chance = random.Random(at)
        world = World(tmp_path / f"{at}")
        world.work(chance, 10)
        world.disk.arm(at, errno.EIO, only)
        world.work(chance, 25)
        world.disk.disarm()
        world.check()
        store = world.engine._journal.store
        if store is not None and store.log.failed:
            stopped += 1
            world.refused.clear()
            world.push(b"no more")
            if world.known:
                world.delete(min(world.known))
            assert {error.errno for error in world.refused} == {errno.EIO}
            assert len(world.refused) == 1 + bool(world.known)
            world.check()
        world.crash()
        there = {
            mid: world.engine.queue("q").read(Receipt(mid)).payload
            for mid in world.engine.queue("q").list_mids(State.ALL, 10**6, -1)
        }
        assert {mid: known[0] for mid, known in world.known.items()}.items() <= there.items()
        world.engine.close()
    assert stopped
