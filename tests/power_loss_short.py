"""Short recorded runs, each of one thing that the long ones do not do, and a power loss at each of their steps."""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broken_journals import Journal, flip, made, small_segments, start
from engines import ManualClock
from power_loss import Image, lay_out, pick_up, points, power_loss
from power_loss_check import VARIANTS, nobody_else
from power_loss_disk import Entry, QuietDisk, RecordingDisk, everything_recorded
from power_loss_nodes import EVERYTHING, NOTHING
from power_loss_world import World

from qs_server.storage.dirqueue.engines import DirqEngine, DirqSimpleEngine
from qs_server.storage.disk import Disk
from qs_server.storage.engine import Draft, Durability, Engine, Options, Receipt, State
from qs_server.storage.files import FilesEngine
from qs_server.storage.journal.checkpoint import NAME, CheckpointReader, CheckpointWriter
from qs_server.storage.journal.engine import JournalEngine
from qs_server.storage.journal.frames import FRAME_HEAD
from qs_server.storage.journal.lock import forget_last, take_lock
from qs_server.storage.journal.recovery import JournalDamagedError
from qs_server.storage.journal.repair import repair

DELAY = 10**9


class Short(ABC):
    """One run. log: what was done, with a mark `answered` after each step."""

    variants: tuple[str, ...] = VARIANTS

    def __init__(self, directory: Path) -> None:
        """directory: empty; for the run, and for what a power loss leaves of it."""
        self.directory = directory
        root = directory / "recorded"
        root.mkdir()
        self.before = World()
        disk = RecordingDisk(root)
        with everything_recorded(disk), nobody_else():
            self.run(disk)
        disk.end()
        self.log = disk.log

    @abstractmethod
    def run(self, disk: RecordingDisk) -> None: ...

    @abstractmethod
    def look(self, root: str, image: Image, answered: int) -> None:
        """Fails when what was answered is not in what a power loss has left."""

    def wanted(self) -> list[int]:
        """Where the power fails."""
        return points(self.log)

    def check(self, log: list[Entry] | None = None, *, ordered: bool = False) -> int:
        """Fails with the first power loss that leaves something wrong; how many there were."""
        world = self._begin(ordered)
        wanted, answered, checked = set(self.wanted()), 0, 0
        for number, entry in enumerate(self.log if log is None else log):
            world.begin(entry)
            answered = entry.args[0] if entry.kind == "answered" else answered
            for variant in self._variants(number) if number in wanted else ():
                checked += 1
                self._lose(world, variant if variant in (NOTHING, EVERYTHING) else f"{variant}/{number}", answered)
            world.complete(entry)
        return checked

    def _variants(self, number: int) -> tuple[str, ...]:
        return self.variants

    def _begin(self, ordered: bool) -> World:
        return World(ordered=ordered)

    def _lose(self, world: World, how: str, answered: int) -> None:
        root = tempfile.mkdtemp(dir=self.directory)
        image = power_loss(world, how)
        try:
            lay_out(image, root)
            with nobody_else():
                self.look(root, image, answered)
        finally:
            shutil.rmtree(root)


class Checkpoints(Short):
    """Two checkpoints, one after the other: there is always the one or the other, whole."""

    def run(self, disk: RecordingDisk) -> None:
        for number in (1, 2):
            writer = CheckpointWriter(disk.root, disk)
            where = writer.column(array("Q", range(1000 * number)))
            writer.finish({"position": [1, 2, 3], "number": number, "where": where})
            disk.mark("answered", number)

    def look(self, root: str, image: Image, answered: int) -> None:
        if answered or Path(root, NAME).exists():
            reader = CheckpointReader(root)
            number = reader.content["number"]
            assert number >= answered
            assert list(reader.column(reader.content["where"])) == list(range(1000 * number))


class Behind(Short):
    """Pushes to an engine with durability INTERVAL, which are durable when they have been synced behind, or when it has
    closed."""

    def __init__(self, directory: Path, kind: type[FilesEngine] | type[JournalEngine]) -> None:
        self.kind = kind
        super().__init__(directory)

    def _open(self, root: str, disk: Disk) -> Engine:
        return self.kind(root, clock=ManualClock(), durability=Durability.INTERVAL, disk=disk)

    def run(self, disk: RecordingDisk) -> None:
        engine = self._open(disk.root, disk)
        engine.create("q", Options())
        for number in (1, 2):
            engine.push("q", [Draft(b"%d" % number * 999)])
            engine.commit()
            if number == 1 and (sync := engine.background_sync()) is not None:
                sync()
                disk.mark("answered", 1)
        engine.close()
        disk.mark("answered", 2)

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        engine = self._open(root, disk)
        if answered:
            payloads = [engine.read("q", Receipt(mid)).payload for mid in engine.list_mids("q", State.ALL, 9, -1)]
            assert {b"%d" % number * 999 for number in range(1, answered + 1)} <= set(payloads)
        disk.end()


class LongList(Short):
    """A list whose note has more than a sector is there whole or not at all, as the note of a list of files."""

    variants = (*VARIANTS, *(f"mixed-{seed}" for seed in range(3, 20)))
    count = 60

    def run(self, disk: RecordingDisk) -> None:
        engine = FilesEngine(disk.root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        engine.create("q", Options())
        engine.commit()
        engine.push("q", [Draft(b"%d" % number) for number in range(self.count)])
        engine.commit()
        engine.close()

    def wanted(self) -> list[int]:
        """From the note's beginning to its end."""
        about = [number for number, entry in enumerate(self.log) if any(".batch-" in str(arg) for arg in entry.args)]
        return [number for number in points(self.log) if about[0] <= number <= about[1] + 1]

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        engine = FilesEngine(root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        assert len(engine.list_mids("q", State.ALL, 1000, -1)) in (0, self.count)
        disk.end()


class DirqQueues(Short):
    """Pushes, a delay and deletes in a queue of the storages `dirq` and `dirq-simple`."""

    def __init__(self, directory: Path, kind: type[DirqEngine] | type[DirqSimpleEngine]) -> None:
        self.kind = kind
        self.mids: list[int] = []
        super().__init__(directory)

    def run(self, disk: RecordingDisk) -> None:
        clock = ManualClock()
        engine = self.kind(disk.root, clock=clock, durability=Durability.ALWAYS, disk=disk)
        engine.create("q", Options())
        steps: list[Callable[[], object]] = [
            lambda: self._push(engine, 0),
            lambda: self._push(engine, 1),
            lambda: self._push(engine, 2, DELAY),
            lambda: engine.delete("q", Receipt(self.mids[0])),
            lambda: engine.get("q", self.mids[1], peek=False, visibility=DELAY),
        ]
        for number, step in enumerate(steps):
            clock.now += 1000
            step()
            engine.commit()
            disk.mark("answered", number + 1)
        engine.close()

    def _push(self, engine: Engine, number: int, delay: int = 0) -> None:
        self.mids += engine.push("q", [Draft(b"%d" % number * 999, delay)])

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        engine = self.kind(root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        if answered:
            mids = engine.list_mids("q", State.ALL, 9, -1)
            needed = set(self.mids[: min(answered, 3)])
            needed -= {self.mids[0]} if answered >= 3 else set()
            assert needed <= set(mids) <= set(self.mids[: answered + 1])
            assert answered < 4 or self.mids[0] not in mids
            for mid in mids:
                assert engine.read("q", Receipt(mid)).payload == b"%d" % self.mids.index(mid) * 999
        disk.end()
        # A window is also told by the time of a file, and the images have no times: so the mark alone is looked at.
        marks = [left.attributes["user.qs.state"] for left in image.left if "user.qs.state" in left.attributes]
        assert len({mark.split()[1] for mark in marks if mark.split()[1] != b"0"}) >= (answered >= 3) + (answered >= 5)


class Resumed(Short):
    """A server was killed when a segment had its name and nothing said yet that it was begun. The next one begins
    another segment: whatever is left of that, a start is not refused."""

    def __init__(self, directory: Path) -> None:
        self.built = directory / "built"
        self.built.mkdir()
        for number in (1, 2):
            self._start_and_push(str(self.built), number, Disk())
        lock = take_lock(f"{self.built}/.journal", Disk())
        forget_last(lock, 2, Disk())
        os.close(lock)
        super().__init__(directory)

    def _start_and_push(self, root: str, number: int, disk: Disk) -> None:
        clock = ManualClock()
        clock.now += number
        engine = JournalEngine(root, clock=clock, durability=Durability.ALWAYS, disk=disk)
        if number == 1:
            engine.create("q", Options())
        engine.push("q", [Draft(b"%d" % number)])
        engine.commit()
        engine.close()

    def run(self, disk: RecordingDisk) -> None:
        shutil.copytree(self.built, disk.root, dirs_exist_ok=True)
        self._start_and_push(disk.root, 3, disk)
        disk.mark("answered", 1)

    def _begin(self, ordered: bool) -> World:
        return pick_up(str(self.built), ordered=ordered)

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        engine = JournalEngine(root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        assert 2 + answered <= len(engine.list_mids("q", State.ALL, 9, -1)) <= 3
        disk.end()


class Repairs(Short):
    """The repair of a damaged journal: a server starts and has everything that is whole, or asks for the repair again;
    no segment is lost."""

    def __init__(self, directory: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            small_segments(patch)
            journal = made(directory / "built")
        segment = journal.recovered.segments[1]
        flip(Path(segment.path), segment.frames[1].start + FRAME_HEAD + 100, 0)
        self.journal: Journal = journal
        self.originals = {path.name: path.read_bytes() for path in Path(journal.directory).glob("*.segment")}
        copy = journal.copy(directory / "expected")
        repair(f"{copy}/.journal", Disk())
        self.expected = start(copy)
        super().__init__(directory)

    def run(self, disk: RecordingDisk) -> None:
        shutil.copytree(self.journal.root, disk.root, dirs_exist_ok=True)
        assert repair(f"{disk.root}/.journal", disk) is not None
        disk.mark("answered", 1)

    def _begin(self, ordered: bool) -> World:
        return pick_up(str(self.journal.root), ordered=ordered)

    def _variants(self, number: int) -> tuple[str, ...]:
        """One in turn: a start and a repair take long."""
        return (VARIANTS[number % 4],)

    def look(self, root: str, image: Image, answered: int) -> None:
        journal = Path(root, ".journal")
        found = {path.name: path.read_bytes() for path in self._segments(journal)}
        assert {name: found.get(name) for name in self.originals} == self.originals
        try:
            assert start(Path(root)) == self.expected
        except JournalDamagedError:
            assert not answered
            assert repair(str(journal), Disk()) is not None
            assert start(Path(root)) == self.expected

    def _segments(self, journal: Path) -> Iterator[Path]:
        yield from journal.glob("damaged-*[!p]/*.segment")
        yield from journal.glob("*.segment")


SHORT: dict[str, Callable[[Path], Short]] = {
    "checkpoints": Checkpoints,
    "files behind": lambda directory: Behind(directory, FilesEngine),
    "journal behind": lambda directory: Behind(directory, JournalEngine),
    "long list": LongList,
    "dirq-simple": lambda directory: DirqQueues(directory, DirqSimpleEngine),
    "dirq": lambda directory: DirqQueues(directory, DirqEngine),
    "resumed": Resumed,
    "repair": Repairs,
}
