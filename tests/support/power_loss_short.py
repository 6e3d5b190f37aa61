"""A short recorded run of one thing that the long ones do not do, and a power loss at each of its steps."""

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from support.power_loss import Image, lay_out, points, power_loss
from support.power_loss_check import VARIANTS, nobody_else
from support.power_loss_disk import Entry, RecordingDisk, everything_recorded
from support.power_loss_nodes import EVERYTHING, NOTHING
from support.power_loss_world import World


class Short(ABC):
    """One run. log: what was done, with a mark `answered` after each step."""

    variants: tuple[str, ...] = VARIANTS
    at = 0
    """The entry of the log at which the power fails."""
    _seen: set[object]
    """What has been looked at: images that are equal, and of which the same must hold, are looked at once."""

    def __init__(self, directory: Path) -> None:
        """directory: empty; for the run, and for what a power loss leaves of it."""
        self.directory = directory
        root = directory / "recorded"
        root.mkdir()
        self.before = World()
        disk = self.make_disk(str(root))
        with everything_recorded(disk), nobody_else():
            self.run(disk)
        disk.end()
        self.log = disk.log

    def make_disk(self, root: str) -> RecordingDisk:
        """Returns what the run is recorded with."""
        return RecordingDisk(root)

    @abstractmethod
    def run(self, disk: RecordingDisk) -> None: ...

    @abstractmethod
    def look(self, root: str, image: Image, answered: int) -> None:
        """Fails when what was answered is not in what a power loss has left."""

    def wanted(self) -> list[int]:
        """Returns the points at which the power fails."""
        return points(self.log)

    def check(self, log: list[Entry] | None = None, *, ordered: bool = False) -> int:
        """Fails with the first power loss that leaves something wrong; how many there were."""
        world, self._seen = self._begin(ordered), set()
        wanted, answered, checked = set(self.wanted()), 0, 0
        for number, entry in enumerate(self.log if log is None else log):
            world.begin(entry)
            answered = entry.args[0] if entry.kind == "answered" else answered
            self.at = number
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
        image = power_loss(world, how)
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
