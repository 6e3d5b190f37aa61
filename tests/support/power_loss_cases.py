"""The recorded run of each engine, and the power losses in it that are played by default."""

import functools
import os
from pathlib import Path

from qs_storage.engine import Durability
from support.power_loss import points
from support.power_loss_check import VARIANTS, Alter, PowerLossCheck, fast_directory
from support.power_loss_disk import Entry
from support.power_loss_engines import ENGINES
from support.power_loss_run import Recording, record

SEED = int(os.environ.get("QS_POWER_LOSS_SEED", "20261103"))
OPERATIONS = 520
PARTS = 4
JOURNALS = ["journal", "journal-buffered"]
DEFAULT = ["files", *JOURNALS]
BEHIND = ["journal-interval", "journal-none"]
"""The engines that answer before anything is durable."""
LITTLE = [*BEHIND, "files-sidecar"]
"""The engines that are run with fewer operations."""
FEW = 120
STARTS = {"files": 250, "journal": 100, "journal-buffered": 100}
"""Every how many points a start is looked at step by step."""
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
    """The points are divided into parts, so that several processes can share them."""
    found = points(log)
    return found[len(found) * part // PARTS : len(found) * (part + 1) // PARTS]


def one_of_each(name: str, log: list[Entry], part: int) -> list[Case]:
    """Every point of a part (of a journal every second, without O_DIRECT every third), with one of the variants in
    turn."""
    numbers = part_of(log, part)[:: {"journal": 2, "journal-buffered": 3}.get(name, 1)]
    return [(number, VARIANTS[(index + index // 4) % 4]) for index, number in enumerate(numbers)]


def in_order(log: list[Entry]) -> list[Case]:
    """Every tenth point, where names are kept in their order."""
    return [(number, "mixed-1") for number in points(log)[::10]]


def behind(log: list[Entry]) -> list[Case]:
    """Every fourth point, with one of the variants in turn."""
    return [(number, VARIANTS[(index + index // 4) % 4]) for index, number in enumerate(points(log)[::4])]


def spread(log: list[Entry], step: int) -> list[int]:
    """Points at that distance of one another, from the middle of the first such stretch on."""
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
