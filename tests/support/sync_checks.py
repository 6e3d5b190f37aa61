"""The power losses that are played by default, as checks of a storage from which one sync has been taken."""

import functools
import itertools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qs_storage.engine import Durability
from support import power_loss_dead_letters as dead_letters
from support.left_out import removable
from support.power_loss import points
from support.power_loss_cases import (
    DEFAULT,
    FEW,
    JOURNALS,
    LITTLE,
    PARTS,
    SEED,
    STARTS,
    Case,
    behind,
    checker,
    in_order,
    one_of_each,
    recorded,
    spread,
)
from support.power_loss_check import VARIANTS, Alter
from support.power_loss_claims import Check, first_trouble, run_of
from support.power_loss_dirq import check as check_dirq
from support.power_loss_dirq import queue, simple
from support.power_loss_dirq import recorded as record_dirq
from support.power_loss_disk import Entry
from support.power_loss_doors import check as check_doors
from support.power_loss_doors import recorded as record_doors
from support.power_loss_run import Recording
from support.power_loss_short_files import OF_FILES
from support.power_loss_short_journal import OF_JOURNALS

SHORT = {**OF_JOURNALS, **OF_FILES}
Removal = tuple[str, str]
"""A place, and the way in which what it does is left out."""


class Checks(ABC):
    """Power losses in one recorded run."""

    log: list[Entry]

    takes_long = False
    """True if it takes a minute until they do not find anything."""

    @abstractmethod
    def finds(self, alter: Alter, directory: Path) -> bool:
        """Tells whether they fail once what is recorded has been altered."""

    def removals(self, directory: Path) -> set[Removal]:
        """Returns what the run does that can be left out."""
        return set(removable(self.log))


def first_change(log: list[Entry], altered: list[Entry]) -> int:
    """The first entry that is not as it was; behind the last one if there is none."""
    return next((at for at, (one, other) in enumerate(zip(log, altered, strict=True)) if one is not other), len(log))


class EngineChecks(Checks):
    """Checks a run of an engine: at its points, at starts, and after kills."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.little = name in LITTLE
        self.takes_long = not self.little
        self.recording = recorded(name, SEED, FEW) if self.little else recorded(name)
        self.log = self.recording.log

    def removals(self, directory: Path) -> set[Removal]:
        found = super().removals(directory)

        def note(log: list[Entry]) -> list[Entry]:
            found.update(removable(log))
            return log

        assert not any(self._starts(self.recording, note, directory))
        return found

    def finds(self, alter: Alter, directory: Path) -> bool:
        altered = alter(self.log)
        run = Recording(altered, self.recording.operations, self.recording.model)
        return any(self._points(run, first_change(self.log, altered), directory)) or any(
            self._starts(run, alter, directory)
        )

    def _points(self, run: Recording, begin: int, directory: Path) -> Iterator[bool]:
        for ordered, cases in self._cases():
            check = checker(self.name, run, directory, ordered=ordered)
            variants = {number: variant for number, variant in cases if number >= begin}
            for number, world, when in check.sweep(list(variants)):
                yield bool(check.trouble(number, world, when, variants[number]))

    def _cases(self) -> Iterator[tuple[bool, list[Case]]]:
        if self.little:
            yield from ((ordered, behind(self.log)) for ordered in (False, True))
        else:
            yield False, [case for part in range(PARTS) for case in one_of_each(self.name, self.log, part)]
            yield True, in_order(self.log)

    def _starts(self, run: Recording, alter: Alter, directory: Path) -> Iterator[bool]:
        check = checker(self.name, run, directory, alter=alter)
        if not self.name.startswith("files"):
            for number, world, when in check.sweep(points(self.log)[:: 20 if self.little else 40]):
                yield bool(check.after_a_kill(number, world, when))
        if not self.little:
            for number, world, when in check.sweep(spread(self.log, STARTS[self.name])):
                yield from map(bool, check.during_recovery(number, world, when, "mixed-1"))


class ClaimsChecks(Checks):
    """Checks a run of claims and batches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.run = run_of(name, 20261124, 70)
        self.log = self.run.log

    def finds(self, alter: Alter, directory: Path) -> bool:
        run = type(self.run)(alter(self.log), self.run.operations)
        begin = first_change(self.log, run.log)
        check = Check(self.name, run, directory, alter=alter)
        if first_trouble(check, [number for number in points(self.log) if number >= begin], VARIANTS):
            return True
        for number, world, when in check.sweep(points(self.log)[10::20]):
            if any(check.during_recovery(number, world, when, "mixed-1")):
                return True
        return False


class DeadLettersChecks(Checks):
    """Checks a run in which messages die and are moved back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.run = dead_letters.run_of(name, 20261123, 60)
        self.log = self.run.log

    def finds(self, alter: Alter, directory: Path) -> bool:
        run = dead_letters.Recorded(alter(self.log), self.run.operations)
        begin = first_change(self.log, run.log)
        wanted = [number for number in points(self.log) if number >= begin]
        check = dead_letters.Check(self.name, run, directory)
        return any(dead_letters.first_trouble(check, wanted, [variant]) for variant in VARIANTS)


class DoorsChecks(Checks):
    """Checks a run that takes files in from a queue's directory."""

    def __init__(self, durability: Durability) -> None:
        self.durability = durability
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("qs_storage.journal.log.pool.FIRST_SEGMENT", 1 << 18)
            patch.setattr("qs_storage.journal.log.pool.SMALL_LOG", 0)
            self.run = record_doors(durability)
        self.log = self.run.log

    def finds(self, alter: Alter, directory: Path) -> bool:
        altered = alter(self.log)
        begin = max(self.run.begin, first_change(self.log, altered))
        run = self.run._replace(log=altered, begin=begin)
        return any(fails(check_doors, run, self.durability, directory, ordered=ordered) for ordered in (False, True))


class DirqChecks(Checks):
    """Checks a run of a directory queue."""

    def __init__(self, make: Callable[..., Any], existing: bool, directory: Path) -> None:
        self.make = make
        self.log, self.names = record_dirq(make, directory, existing)

    def finds(self, alter: Alter, directory: Path) -> bool:
        for ordered in (False, True):
            with tempfile.TemporaryDirectory(dir=directory) as made:
                if fails(check_dirq, self.make, alter(self.log), self.names, Path(made), ordered=ordered):
                    return True
        return False


class ShortChecks(Checks):
    """Checks a short run."""

    def __init__(self, name: str, directory: Path) -> None:
        self.short = SHORT[name](directory)
        self.log = self.short.log

    def finds(self, alter: Alter, directory: Path) -> bool:
        return any(fails(self.short.check, alter(self.log), ordered=ordered) for ordered in (False, True))


def fails(check: Callable[..., object], *args: object, **named: object) -> bool:
    try:
        check(*args, **named)
    except Exception:
        return True
    return False


def all_checks(directory: Path) -> dict[str, Callable[[], Checks]]:
    """Returns the checks by name, the quick ones first; each records its run when it is called. directory: for what
    they need."""

    def empty() -> Path:
        return Path(tempfile.mkdtemp(dir=directory))

    found: dict[str, Callable[[], Checks]] = {}
    for name in SHORT:
        found[name] = functools.partial(ShortChecks, name, empty())
    for make, existing in itertools.product((simple, queue), (False, True)):
        found[f"{make.__name__} {existing}"] = functools.partial(DirqChecks, make, existing, empty())
    for durability in Durability:
        found[f"doors {durability.value}"] = functools.partial(DoorsChecks, durability)
    for name in ("files", "files-sidecar", "journal"):
        found[f"dead letters {name}"] = functools.partial(DeadLettersChecks, name)
    for name in JOURNALS:
        found[f"claims {name}"] = functools.partial(ClaimsChecks, name)
    for name in (*LITTLE, *DEFAULT):
        found[f"run {name}"] = functools.partial(EngineChecks, name)
    return found
