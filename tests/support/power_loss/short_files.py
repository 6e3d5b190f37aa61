"""Short recorded runs of queues that are directories of files.

A short run does one thing that the long runs do not do, and the power fails at each of its steps (`ShortRun`).
"""

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from qs_storage.directories import DirqEngine, DirqSimpleEngine, FilesEngine
from qs_storage.engine import Draft, Durability, Engine, Feature, Headers, Options, Receipt, State
from qs_storage.remote_engine import RemoteQueue, RootedEngine
from qs_storage.vsqs import Queue
from support.power_loss.check import VARIANTS, nobody_else
from support.power_loss.disk import Entry, QuietDisk, RecordingDisk, everything_recorded
from support.power_loss.engines import without_attributes
from support.power_loss.file_system import FileSystem, Image, lay_out, points, power_loss
from support.power_loss.nodes import EVERYTHING, NOTHING
from support.storage.engines import EPOCH, ManualClock


class ShortRun(ABC):
    """A run of a few steps, which is recorded when it is made, and the power losses at each of its points.

    Ensures that `check` plays the log that it is given, or its own, at each wanted point and in each variant, and fails
    with the first image in which `look` finds something wrong. Assumes that `run` marks `answered` after each step that
    has to hold from then on.
    """

    variants: tuple[str, ...] = VARIANTS
    at = 0
    """The entry of the log at which the power fails."""
    _seen: set[object]
    """The images that were looked at. Equal images are looked at once for the same answered steps: starts of engines
    take most of the time."""

    def __init__(self, directory: Path) -> None:
        """directory: an empty one for the run and its images."""
        self.directory = directory
        root = directory / "recorded"
        root.mkdir()
        self.before = FileSystem()
        disk = self.make_disk(str(root))
        with everything_recorded(disk), nobody_else():
            self.run(disk)
        disk.end()
        self.log = disk.log

    def make_disk(self, root: str) -> RecordingDisk:
        """Returns the disk that records the run."""
        return RecordingDisk(root)

    @abstractmethod
    def run(self, disk: RecordingDisk) -> None: ...

    @abstractmethod
    def look(self, root: str, image: Image, answered: int) -> None:
        """Fails when an answered step is not in an image."""

    def wanted(self) -> list[int]:
        """Returns the points at which the power fails."""
        return points(self.log)

    def check(self, log: list[Entry] | None = None, *, ordered: bool = False) -> int:
        """Plays the log at each wanted point. Fails with the first power loss that leaves something wrong, and returns
        the number of power losses."""
        file_system, self._seen = self._begin(ordered), set()
        wanted, answered, checked = set(self.wanted()), 0, 0
        for number, entry in enumerate(self.log if log is None else log):
            file_system.begin(entry)
            answered = entry.args[0] if entry.kind == "answered" else answered
            self.at = number
            for variant in self._variants(number) if number in wanted else ():
                checked += 1
                self._lose(
                    file_system, variant if variant in (NOTHING, EVERYTHING) else f"{variant}/{number}", answered
                )
            file_system.complete(entry)
        return checked

    def _variants(self, number: int) -> tuple[str, ...]:
        return self.variants

    def _begin(self, ordered: bool) -> FileSystem:
        return FileSystem(ordered=ordered)

    def _lose(self, file_system: FileSystem, how: str, answered: int) -> None:
        image = power_loss(file_system, how)
        key = image.key, answered
        if key in self._seen:
            return
        self._seen.add(key)
        root = tempfile.mkdtemp(dir=self.directory)
        try:
            lay_out(image, root)
            with nobody_else():
                self.look(root, image, answered)
        finally:
            shutil.rmtree(root)


DELAY = 10**9
"""Microseconds, far longer than a run: a hidden message stays hidden."""


class LongList(ShortRun):
    """Checks that a list whose note is longer than a sector is there whole or not at all, like the note of a list of
    files."""

    variants = (*VARIANTS, *(f"mixed-{seed}" for seed in range(3, 20)))
    count = 60

    def run(self, disk: RecordingDisk) -> None:
        engine = FilesEngine(disk.root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        engine.create("q", Options())
        engine.commit()
        engine.queue("q").push([Draft(b"%d" % number) for number in range(self.count)])
        engine.commit()
        engine.close()

    def wanted(self) -> list[int]:
        """Returns the points from the note's beginning to its end."""
        about = [number for number, entry in enumerate(self.log) if any(".batch-" in str(arg) for arg in entry.args)]
        return [number for number in points(self.log) if about[0] <= number <= about[1] + 1]

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        engine = FilesEngine(root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        assert len(engine.queue("q").list_mids(State.ALL, 1000, -1)) in (0, self.count)
        disk.end()


HEADERS: Sequence[Headers] = ((("a", "\u00e9"),), (), (("a", "b"), ("c", "d" * 2000)))
"""The headers of the messages in a queue of dirq."""


class DirqQueues(ShortRun):
    """Checks pushes, a delay and deletes in a queue of the storages `dirq` and `dirq-simple`."""

    def __init__(self, directory: Path, kind: type[DirqEngine] | type[DirqSimpleEngine], *, beside: bool) -> None:
        """beside: whether the file system has no extended attributes."""
        self.kind, self.beside = kind, beside
        self.mids: list[int] = []
        super().__init__(directory)

    def run(self, disk: RecordingDisk) -> None:
        clock = ManualClock()
        if self.beside:
            without_attributes(disk)
        engine = self.kind(disk.root, clock=clock, durability=Durability.ALWAYS, disk=disk)
        engine.create("q", Options())
        steps: list[Callable[[], object]] = [
            lambda: self._push(engine, 0),
            lambda: self._push(engine, 1),
            lambda: self._push(engine, 2, DELAY),
            lambda: engine.queue("q").delete(Receipt(self.mids[0])),
            lambda: engine.queue("q").get(self.mids[1], peek=False, visibility=DELAY),
        ]
        for number, step in enumerate(steps):
            clock.now += 1000
            step()
            engine.commit()
            disk.mark("answered", number + 1)
        engine.close()

    def _push(self, engine: Engine, number: int, delay: int = 0) -> None:
        headers = () if Feature.HEADERS in self.kind.cannot else HEADERS[number]
        self.mids += engine.queue("q").push([Draft(b"%d" % number * 999, delay, headers=headers)])

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        if self.beside:
            without_attributes(disk)
        engine = self.kind(root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        if answered:
            mids = engine.queue("q").list_mids(State.ALL, 9, -1)
            needed = set(self.mids[: min(answered, 3)])
            needed -= {self.mids[0]} if answered >= 3 else set()
            assert needed <= set(mids) <= set(self.mids[: answered + 1])
            assert answered < 4 or self.mids[0] not in mids
            for mid in mids:
                number = self.mids.index(mid)
                found = engine.queue("q").read(Receipt(mid))
                headers = () if Feature.HEADERS in self.kind.cannot else HEADERS[number]
                assert (found.payload, found.headers) == (b"%d" % number * 999, headers)
        disk.end()
        self._look_at_marks(root, image, answered)

    def _look_at_marks(self, root: str, image: Image, answered: int) -> None:
        """Looks at the marks alone: a window also depends on the time of a file, and the images have no times."""
        marks = [left.attributes["user.qs.state"] for left in image.left if "user.qs.state" in left.attributes]
        marks += [path.read_bytes() for path in Path(root).glob("q/.*.state")]
        assert all(len(mark.split()) == 3 for mark in marks)
        assert len({mark.split()[1] for mark in marks if mark.split()[1] != b"0"}) >= (answered >= 3) + (answered >= 5)


class OldMessages(ShortRun):
    """Checks that messages that have become too old are removed again by the next start if a power loss brings them
    back, and that others stay."""

    def run(self, disk: RecordingDisk) -> None:
        clock = ManualClock()
        engine = FilesEngine(disk.root, clock=clock, durability=Durability.ALWAYS, disk=disk)
        engine.create("q", Options(retention=DELAY))
        for number in range(1, 7):
            engine.queue("q").push([Draft(b"%d" % number)])
            engine.expire(2)
            engine.commit()
            disk.mark("answered", number)
            clock.now = EPOCH + number * DELAY // 3
        engine.close()

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        clock = ManualClock(EPOCH + answered * DELAY // 3)
        engine = FilesEngine(root, clock=clock, durability=Durability.ALWAYS, disk=disk)
        if answered:
            engine.effects()
            engine.expire(100)
            mids = engine.queue("q").list_mids(State.ALL, 9, -1)
            found = [engine.queue("q").read(Receipt(mid)).payload for mid in mids]
            wanted = [b"%d" % number for number in range(max(answered - 1, 1), answered + 1)]
            assert found in (wanted, [*wanted, b"%d" % (answered + 1)]), (found, wanted)
        disk.end()


class Published(ShortRun):
    """Checks a program that publishes with the library vsqs, in a directory that the program makes together with its
    parents."""

    def run(self, disk: RecordingDisk) -> None:
        with mock.patch("qs_storage.vsqs.Disk", return_value=disk):
            queue = Queue(f"{disk.root}/above/q", create=True, clock=ManualClock())
            for number in (1, 2):
                queue.publish(b"%d" % number * 999)
                disk.mark("answered", number)
            queue.close()

    def look(self, root: str, image: Image, answered: int) -> None:
        found = [path.read_bytes() for path in Path(root).glob("above/q/*[0-9]")]
        assert answered <= len(found) <= 2
        assert set(found) <= {b"%d" % number * 999 for number in (1, 2)}


class _Queue(RemoteQueue):
    """A queue of another server. Every operation succeeds."""

    def make(self) -> None: ...

    def unmake(self, *, force: bool) -> None: ...


class _Elsewhere(RootedEngine[_Queue]):
    name = "elsewhere"

    def open_queue(self, qid: str, options: Options) -> _Queue:
        return _Queue(qid, options)


class RemoteQueues(ShortRun):
    """Checks that queues of another server, which have a directory here, are made and removed."""

    def run(self, disk: RecordingDisk) -> None:
        registry = _Elsewhere(disk.root, disk)
        registry.create("q", Options())
        disk.mark("answered", 1)
        disk.mark("answered", 2)  # from here on it is being removed
        registry.remove("q", force=True)
        disk.mark("answered", 3)

    def look(self, root: str, image: Image, answered: int) -> None:
        registry = _Elsewhere(root)
        assert answered != 1 or registry.queues()
        assert answered != 3 or not registry.queues()
        assert registry.queues() or not Path(root, "q").exists()


OF_FILES: dict[str, Callable[[Path], ShortRun]] = {
    "long list": LongList,
    "dirq-simple": lambda directory: DirqQueues(directory, DirqSimpleEngine, beside=False),
    "dirq": lambda directory: DirqQueues(directory, DirqEngine, beside=False),
    "dirq beside": lambda directory: DirqQueues(directory, DirqEngine, beside=True),
    "old messages": OldMessages,
    "published": Published,
    "remote queues": RemoteQueues,
}
