"""Files that are taken in from a queue's directory, recorded; and a power loss at every step of that."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qs_storage.engine import Durability
from support.doors import Doors
from support.engines import JournalEngine, ManualClock
from support.power_loss import Image, lay_out, points, power_loss
from support.power_loss_check import VARIANTS, fast_directory, nobody_else
from support.power_loss_disk import Entry, QuietDisk, RecordingDisk, everything_recorded
from support.power_loss_nodes import EVERYTHING, NOTHING
from support.power_loss_world import World


class Run(NamedTuple):
    """log: what was done to the disk; begin: from where on it counts; events: what was done to a message, and the
    length of the log then."""

    log: list[Entry]
    begin: int
    events: list[tuple[int, str, bytes]]


class Recorded(Doors):
    """Doors on a disk that writes down what is done. The queue's directory is there, durably, before the journal is."""

    def __init__(self, root: Path, durability: Durability) -> None:
        self.recording = RecordingDisk(str(root))
        self.events: list[tuple[int, str, bytes]] = []
        self.recording.mkdir(str(root / "q"))
        self.recording.sync_file_system(str(root))
        self.begin = len(self.recording.log)
        super().__init__(root, durability, new=False)

    def start(self) -> None:
        self.engine = JournalEngine(str(self.root), clock=self.clock, durability=self.durability, disk=self.recording)

    def be_killed(self) -> None:
        """The process ends as it is, and another one starts."""
        self.recording.end()
        self.engine._watch.close()
        self.start()

    def happens(self, event: str, *payloads: bytes) -> None:
        self.events += [(len(self.recording.log), event, payload) for payload in payloads]

    def publish(self, mid: int) -> None:
        """Publishes as the library of vsqs does: durable before it has its name, which is durable when this returns."""
        payload = b"%d." % mid * 300
        self.happens("begun", payload)
        fd = self.recording.open(f"{self.path}/{mid}.new", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        self.recording.write(fd, payload)
        self.recording.fsync(fd)
        self.recording.close(fd)
        self.recording.rename(f"{self.path}/{mid}.new", f"{self.path}/{mid}")
        self.recording.sync_directory(str(self.path))
        self.happens("published", payload)

    def consume(self) -> list[bytes]:
        here = [self.payload(mid) or b"" for mid in self.mids()]
        self.happens("deleting", *here)
        consumed = super().consume()
        self.happens("deleted", *consumed)
        return consumed


def recorded(durability: Durability) -> Run:
    """Files come, are taken in and consumed, at different moments of one another."""
    with fast_directory(Path.cwd()) as root:
        place = Recorded(root, durability)
        with everything_recorded(place.recording):
            for mid in range(1, 7):
                place.publish(mid)
                place.engine.refresh()
                for _ in range(mid % 4):
                    place.step()
                if mid % 3 == 2:
                    place.consume()
                if mid == 3:
                    place.be_killed()
            place.settle()
            place.consume()
            place.publish(9)
            place.settle()
            place.engine.close()
        return Run(place.recording.log, place.begin, place.events)


def left(image: Image, directory: Path, durability: Durability) -> Counter[bytes]:
    """The messages that there are in the end, after a start on what a power loss leaves."""
    root = tempfile.mkdtemp(dir=directory)
    disk = QuietDisk()
    try:
        lay_out(image, root)
        with nobody_else():
            place = Doors.__new__(Doors)
            place.root, place.path, place.clock, place.durability = (
                Path(root),
                Path(root) / "q",
                ManualClock(),
                durability,
            )
            place.engine = JournalEngine(root, clock=place.clock, durability=durability, disk=disk)
            place.settle()
            if not place.path.is_dir():
                return Counter()
            found = Counter(place.payload(mid) or b"" for mid in place.mids())
            assert [name for name in place.files() if not name.endswith(".new")] == []
            return found
    finally:
        disk.end()
        shutil.rmtree(root)


def sweep(run: Run, wanted: set[int], *, ordered: bool) -> Iterator[tuple[int, World]]:
    world = World(ordered=ordered)
    for number, entry in enumerate(run.log):
        world.begin(entry)
        if number in wanted:
            yield number, world
        world.complete(entry)


def check(run: Run, durability: Durability, directory: Path, *, ordered: bool) -> int:
    """Fails with the first point at which a message is lost or doubled; how many power losses there were."""
    wanted = {number for number in points(run.log) if number >= run.begin}
    known: dict[object, Counter[bytes]] = {}
    """By the key of an image: equal images are looked at once."""
    for number, world in sweep(run, wanted, ordered=ordered):
        begun, published, deleting, deleted = (
            {payload for at, event, payload in run.events if event == wanted_event and at <= number}
            for wanted_event in ("begun", "published", "deleting", "deleted")
        )
        for variant in VARIANTS:
            how = variant if variant in (NOTHING, EVERYTHING) else f"{variant}/{number}"
            image = power_loss(world, how)
            if image.key not in known:
                known[image.key] = left(image, directory, durability)
            found = known[image.key]
            where = f"{variant} at {number}: {run.log[number]}"
            assert set(found) <= begun, where
            assert not [payload for payload, times in found.items() if times > 1], where
            assert published - deleting <= set(found), where
            if durability is Durability.ALWAYS:
                assert not deleted & set(found), where
    return len(wanted) * len(VARIANTS)
