"""Short recorded runs of the parts of a journal: each is a `ShortRun`."""

import errno
import os
import shutil
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qs_storage.directories import FilesEngine
from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Engine, NoRoomError, Options, Receipt, State
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD
from qs_storage.journal.log.lock import forget_last, take_lock
from qs_storage.journal.log.opening import JournalDamagedError
from qs_storage.journal.rescue.repair import repair
from qs_storage.journal.upkeep.checkpoint import NAME, CheckpointWriter
from qs_storage.journal.upkeep.index_reading import CheckpointReader
from support.power_loss.check import VARIANTS
from support.power_loss.disk import Entry, QuietDisk, RecordingDisk
from support.power_loss.engines import small_journal
from support.power_loss.file_system import FileSystem, Image, pick_up
from support.power_loss.short_files import ShortRun
from support.power_loss.short_full import Circle, CircleBehind, CircleNotSynced, FullDisk
from support.storage.broken_journals import Journal, Session, flip, made, recover, small_segments, start
from support.storage.engines import JournalEngine, ManualClock


class Checkpoints(ShortRun):
    """Checks two checkpoints, one after the other: at any time one of them is there, whole."""

    def run(self, disk: RecordingDisk) -> None:
        for number in (1, 2):
            writer = CheckpointWriter(disk.root, disk)
            where = writer.column(array("Q", range(1000 * number)))
            writer.end({"position": [1, 2, 3], "number": number, "where": where})
            writer.publish()
            disk.mark("answered", number)

    def look(self, root: str, image: Image, answered: int) -> None:
        if answered or Path(root, NAME).exists():
            reader = CheckpointReader(root)
            number = reader.content["number"]
            assert number >= answered
            assert list(reader.column(reader.content["where"])) == list(range(1000 * number))


class Behind(ShortRun):
    """Checks pushes to an engine with durability INTERVAL: they are durable after `background_sync`, or after the
    engine has closed."""

    def __init__(self, directory: Path, kind: type[FilesEngine] | type[JournalEngine]) -> None:
        self.kind = kind
        super().__init__(directory)

    def _open(self, root: str, disk: Disk) -> Engine:
        return self.kind(root, clock=ManualClock(), durability=Durability.INTERVAL, disk=disk)

    def run(self, disk: RecordingDisk) -> None:
        engine = self._open(disk.root, disk)
        engine.create("q", Options())
        for number in (1, 2):
            engine.queue("q").push([Draft(b"%d" % number * 999)])
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
            payloads = [
                engine.queue("q").read(Receipt(mid)).payload for mid in engine.queue("q").list_mids(State.ALL, 9, -1)
            ]
            assert {b"%d" % number * 999 for number in range(1, answered + 1)} <= set(payloads)
        disk.end()


class Resumed(ShortRun):
    """Checks a start after a kill that came when a segment had its name, and no record said yet that it was begun. The
    new server begins another segment; whatever a power loss leaves of both, a start is not refused."""

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
        engine.queue("q").push([Draft(b"%d" % number)])
        engine.commit()
        engine.close()

    def run(self, disk: RecordingDisk) -> None:
        shutil.copytree(self.built, disk.root, dirs_exist_ok=True)
        self._start_and_push(disk.root, 3, disk)
        disk.mark("answered", 1)

    def _begin(self, ordered: bool) -> FileSystem:
        return pick_up(str(self.built), ordered=ordered)

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        engine = JournalEngine(root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        assert 2 + answered <= len(engine.queue("q").list_mids(State.ALL, 9, -1)) <= 3
        disk.end()


class LockRefusingDisk(RecordingDisk):
    """A disk without space for the number in the file `lock`."""

    refused: str | None = None
    """The operation that fails: `_pwrite` or, every second time, `fdatasync`."""
    failures = 0

    def _refuse(self, operation: str, fd: int) -> None:
        if operation == self.refused and os.readlink(f"/proc/self/fd/{fd}").endswith("/lock"):
            self.failures += 1
            if operation == "_pwrite" or self.failures % 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        self._refuse("_pwrite", fd)
        return super()._pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._refuse("fdatasync", fd)
        super().fdatasync(fd)


class TakenBack(ShortRun):
    """Checks a segment that gets its name and then has to lose it again: the earlier segment goes on, and its pushes
    are there after a power loss."""

    def __init__(self, directory: Path, operation: str) -> None:
        self.operation = operation
        with small_pool():
            super().__init__(directory)

    def make_disk(self, root: str) -> RecordingDisk:
        return LockRefusingDisk(root)

    def run(self, disk: RecordingDisk) -> None:
        assert isinstance(disk, LockRefusingDisk)
        engine = JournalEngine(disk.root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk, cache=0)
        engine.create("q", Options())
        self._push(engine, disk, 1)
        disk.refused = self.operation
        with pytest.raises(NoRoomError):
            engine.queue("q").push([Draft(bytes(1 << 17))])
        for number in (2, 3):
            self._push(engine, disk, number)
        assert disk.failures > 1
        disk.refused = None
        engine.queue("q").push([Draft(bytes(1 << 17))])
        self._push(engine, disk, 4)
        engine.close()

    def _push(self, engine: JournalEngine, disk: RecordingDisk, number: int) -> None:
        engine.queue("q").push([Draft(b"%d" % number)])
        engine.commit()
        disk.mark("answered", number)

    def check(self, log: list[Entry] | None = None, *, ordered: bool = False) -> int:
        with small_pool():
            return super().check(log, ordered=ordered)

    def look(self, root: str, image: Image, answered: int) -> None:
        disk = QuietDisk()
        engine = JournalEngine(root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        if answered:
            mids = engine.queue("q").list_mids(State.ALL, 9, -1)
            found = {engine.queue("q").read(Receipt(mid)).payload for mid in mids}
            assert {b"%d" % number for number in range(1, answered + 1)} <= found
        disk.end()


@contextmanager
def small_pool() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small_journal(patch)
        yield


class SetAside(ShortRun):
    """Checks a start that cuts off the torn end of the last segment and keeps the end in a file: the file is whole, and
    there once the log has named it."""

    def __init__(self, directory: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            small_segments(patch)
            journal = made(directory / "built")
        self.built = journal.root
        segment = journal.recovered.segments[-1]
        flip(Path(segment.path), segment.frames[-1].start + FRAME_HEAD + 5, 0)
        super().__init__(directory)

    def run(self, disk: RecordingDisk) -> None:
        shutil.copytree(self.built, disk.root, dirs_exist_ok=True)
        engine = JournalEngine(disk.root, clock=ManualClock(), durability=Durability.ALWAYS, disk=disk)
        [kept] = self._kept(disk.root)
        self.right = kept.read_bytes()
        disk.mark("answered", 1)
        engine.close()

    def _begin(self, ordered: bool) -> FileSystem:
        return pick_up(str(self.built), ordered=ordered)

    def _kept(self, root: str) -> list[Path]:
        return [path for path in Path(root, ".journal").glob("cut-*") if path.suffix != ".tmp"]

    def look(self, root: str, image: Image, answered: int) -> None:
        assert [path.read_bytes() for path in self._kept(root)] in ([[self.right]] if answered else [[], [self.right]])


class Repairs(ShortRun):
    """Checks the repair of a damaged journal: a server starts and has everything that is whole, or asks for the repair
    again; no segment is lost."""

    def __init__(self, directory: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            small_segments(patch)
            journal = made(directory / "built")
            self._prepare(journal)
        segment = journal.recovered.segments[1]
        flip(Path(segment.path), segment.frames[1].start + FRAME_HEAD + 100, 0)
        self.journal: Journal = journal
        self.originals = {path.name: path.read_bytes() for path in Path(journal.directory).glob("*.segment")}
        copy = journal.copy(directory / "expected")
        repair(f"{copy}/.journal", Disk())
        self.expected = start(copy)
        super().__init__(directory)

    def _prepare(self, journal: Journal) -> None:
        """Changes the journal before it is damaged."""

    def run(self, disk: RecordingDisk) -> None:
        shutil.copytree(self.journal.root, disk.root, dirs_exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            small_segments(patch, 3 * BLOCK)
            done = repair(f"{disk.root}/.journal", disk)
        assert done is not None
        assert len(done.segments) > 1
        disk.mark("answered", 1)

    def _begin(self, ordered: bool) -> FileSystem:
        return pick_up(str(self.journal.root), ordered=ordered)

    def _variants(self, number: int) -> tuple[str, ...]:
        """Returns one variant, in turn: a start and a repair take long."""
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


class RepairsWithFiles(Repairs):
    """Repairs a journal with messages of a queue whose name is lost: they are files once a server starts. The directory
    that an interrupted repair has set aside may have a part of them."""

    def _prepare(self, journal: Journal) -> None:
        session = Session(journal.root)
        session.push("orders", b"one", b"two")
        session.crash()
        last = recover(journal.directory).segments[-1]
        with open(last.path, "r+b") as file:
            file.seek(last.frames[0].start)
            file.write(bytes(last.frames[0].end - last.frames[0].start))

    def look(self, root: str, image: Image, answered: int) -> None:
        super().look(root, image, answered)
        last = max(Path(root, ".journal").glob("damaged-*[!p]"))
        assert {path.read_bytes() for path in last.glob("queue-number-*/*")} == {b"one", b"two"}


OF_JOURNALS: dict[str, Callable[[Path], ShortRun]] = {
    "checkpoints": Checkpoints,
    "files behind": lambda directory: Behind(directory, FilesEngine),
    "journal behind": lambda directory: Behind(directory, JournalEngine),
    "resumed": Resumed,
    "taken back": lambda directory: TakenBack(directory, "_pwrite"),
    "taken back with its number": lambda directory: TakenBack(directory, "fdatasync"),
    "set aside": SetAside,
    "repair": Repairs,
    "repair with files": RepairsWithFiles,
    "full disk": FullDisk,
    "circle": Circle,
    "circle behind": CircleBehind,
    "circle not synced": CircleNotSynced,
}
