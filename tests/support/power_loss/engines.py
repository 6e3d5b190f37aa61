"""The engines that power losses are played on, what each may leave of operations that were not answered, and which
points of their runs are played by default."""

import functools
import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from qs_storage.directories import FilesEngine
from qs_storage.disk import Disk
from qs_storage.engine import Clock, Durability, Engine
from qs_storage.journal.log import pool
from qs_storage.journal.upkeep import checkpoint, maintenance, room
from support.power_loss.check import VARIANTS, Alter, PowerLossCheck, fast_directory
from support.power_loss.disk import Entry
from support.power_loss.file_system import points
from support.power_loss.model import STRICT, Held, Leniency
from support.power_loss.run import Background, Make, Recording, record
from support.storage.engines import JournalEngine, WithoutAttributes, upkeep


@dataclass(frozen=True)
class UnderTest:
    """An engine that power losses are played on. make: opens it on a root directory; background: its upkeep; leniency:
    what may be left half done where each directory is durable for itself; ordered: the leniency where names are kept in
    their order; keys: whether pushes can have keys; direct: whether files can be written past the page cache;
    durability: the one it is opened with."""

    make: Make
    background: Background | None = None
    leniency: Leniency = STRICT
    ordered: Leniency = STRICT
    keys: bool = False
    direct: bool = True
    durability: Durability = Durability.ALWAYS


def files(clock: Clock, disk: Disk, root: str) -> Engine:
    return FilesEngine(root, clock=clock, durability=Durability.ALWAYS, disk=disk)


def files_sidecar(clock: Clock, disk: Disk, root: str) -> Engine:
    """Opens queues of files on a file system without extended attributes."""
    without_attributes(disk)
    return files(clock, disk, root)


def without_attributes(disk: Disk) -> None:
    """Makes the disk one whose file system has no extended attributes."""
    for name in ("getxattr", "listxattr", "setxattr", "removexattr"):
        setattr(disk, name, getattr(WithoutAttributes(), name))


def journal(clock: Clock, disk: Disk, root: str) -> Engine:
    """Opens a journal without a cache, so that every payload is read from its segment."""
    return JournalEngine(root, clock=clock, durability=Durability.ALWAYS, disk=disk, cache=0)


def journal_interval(clock: Clock, disk: Disk, root: str) -> Engine:
    return JournalEngine(root, clock=clock, durability=Durability.INTERVAL, disk=disk, cache=0)


def journal_none(clock: Clock, disk: Disk, root: str) -> Engine:
    return JournalEngine(root, clock=clock, durability=Durability.NONE, disk=disk, cache=0)


def _half_in_files(steps: list[Held], found: Held) -> bool:
    """Tells whether a message may be found like this between two steps. Its state is the name of its file; its count of
    receives and its delay are attributes. A power loss may leave the name of an earlier step and the attributes of a
    later one. A hidden message without attributes that say why was taken by another program, and counts as received
    once."""
    counts = {held.receives for held in steps}
    if not found.delayed and any(held.until for held in steps):
        counts |= {max(count, 1) for count in counts}
    ends = {held.until: held.delayed for held in sorted(steps, key=lambda held: held.delayed)}
    return (
        found.payload == steps[0].payload
        and found.receives in counts
        and found.until in ends
        and found.delayed <= ends[found.until]
    )


def small_journal(patch: pytest.MonkeyPatch) -> None:
    """Makes segments small, so that a run has many, which are compacted, and checkpoints."""
    patch.setattr(pool, "FIRST_SEGMENT", 1 << 15)
    patch.setattr(pool, "SMALL_LOG", 0)
    patch.setattr(pool, "LARGEST_SEGMENT", 1 << 16)
    patch.setattr(pool, "SMALLEST", 4096)
    patch.setattr(maintenance, "_CHECKPOINT", 1 << 15)
    ticks = count()
    # Slices are the same each time: no number of ticks is as long as one, so rounding decides nothing.
    for module in (maintenance, room, checkpoint):
        patch.setattr(module, "perf_counter", lambda: next(ticks) / 1024)


_COPIES = frozenset({"copy"})
"""Operations on several queues, each of which is a directory of its own. (A queue that is removed loses its options
before rmdir, so that nothing is lost that another program puts there.)"""

_FILES = Leniency(apart=_COPIES, bare=True, half=_half_in_files)

ENGINES: dict[str, UnderTest] = {
    name: UnderTest(make, leniency=_FILES, ordered=_FILES)
    for name, make in (("files", files), ("files-sidecar", files_sidecar))
}
_JOURNAL = Leniency(bare=True, notes=frozenset({"receive"}))
ENGINES["journal"] = UnderTest(journal, upkeep, _JOURNAL, _JOURNAL, keys=True)
ENGINES["journal-buffered"] = UnderTest(journal, upkeep, _JOURNAL, _JOURNAL, keys=True, direct=False)
for _durability, _make in ((Durability.INTERVAL, journal_interval), (Durability.NONE, journal_none)):
    ENGINES[f"journal-{_durability.value}"] = UnderTest(
        _make, upkeep, _JOURNAL, _JOURNAL, keys=True, durability=_durability
    )


# Every variant at every point takes minutes of one processor for each engine. By default a point has one variant. The
# turn shifts every four points, so that it does not keep step with the entries of a commit.
SEED = int(os.environ.get("QS_POWER_LOSS_SEED", "20261103"))
OPERATIONS = 520
"""Operations of a run: enough that a journal of small segments compacts five of them, which a test asserts."""
PARTS = 4
"""Parts of a run's points, each a test of its own, so that several processes can share them."""
JOURNALS = ["journal", "journal-buffered"]
DEFAULT = ["files", *JOURNALS]
BEHIND = ["journal-interval", "journal-none"]
"""The engines that answer before anything is durable."""
LITTLE = [*BEHIND, "files-sidecar"]
"""The engines that are run with fewer operations."""
FEW = 120
STARTS = {"files": 250, "journal": 100, "journal-buffered": 100}
"""Distance of the points whose starts are looked at step by step: each such start is recorded and played as a run
is."""
Case = tuple[int, str]
"""A point of the log, and a variant."""


@functools.cache
def recorded(name: str, seed: int = SEED, operations: int = OPERATIONS) -> Recording:
    under_test = ENGINES[name]
    with fast_directory(Path.cwd()) as made:
        return record(
            under_test.make,
            str(made),
            seed,
            operations,
            under_test.background,
            keys=under_test.keys,
            direct=under_test.direct,
            durability=under_test.durability,
        )


def part_of(log: list[Entry], part: int) -> list[int]:
    """Returns one of the parts into which points are divided, so that several processes can share them."""
    found = points(log)
    return found[len(found) * part // PARTS : len(found) * (part + 1) // PARTS]


def one_of_each(name: str, log: list[Entry], part: int) -> list[Case]:
    """Returns every point of a part (of a journal every second, without O_DIRECT every third), with one of the variants
    in turn."""
    numbers = part_of(log, part)[:: {"journal": 2, "journal-buffered": 3}.get(name, 1)]
    return [(number, VARIANTS[(index + index // 4) % 4]) for index, number in enumerate(numbers)]


def in_order(log: list[Entry]) -> list[Case]:
    """Returns every tenth point, for playing with names kept in their order."""
    return [(number, "mixed-1") for number in points(log)[::10]]


def behind(log: list[Entry]) -> list[Case]:
    """Returns every fourth point, with one of the variants in turn."""
    return [(number, VARIANTS[(index + index // 4) % 4]) for index, number in enumerate(points(log)[::4])]


def spread(log: list[Entry], step: int) -> list[int]:
    """Returns points at that distance of one another, from the middle of the first such stretch on."""
    return points(log)[step // 2 :: step]


def checker(
    name: str, run: Recording, directory: Path, *, ordered: bool = False, alter: Alter = list
) -> PowerLossCheck:
    """Returns the checker of an engine's run. The other arguments: as for PowerLossCheck."""
    under_test = ENGINES[name]
    return PowerLossCheck(
        run,
        under_test.make,
        directory,
        under_test.ordered if ordered else under_test.leniency,
        ordered=ordered,
        direct=under_test.direct,
        alter=alter,
        promises=under_test.durability is not Durability.NONE,
    )
