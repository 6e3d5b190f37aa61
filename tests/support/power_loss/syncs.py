"""Finds out which syncs of the storage no test needs: leaves one out of a recorded log, and plays all power losses.

The calls that make something durable are found in the source. A call is known by its file, its function and the
function that it calls, so that a change elsewhere in the file does not rename it. A sync belongs to all calls on the
way to it: the fdatasync in a function is one place, and each call of that function is another, because each may be
needed for itself. The source is never changed: a record knows the calls of each operation, and is played without those
of one call.
"""

import ast
import functools
import itertools
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import qs_storage
from qs_storage.engine import Durability
from support.power_loss import dead_letters
from support.power_loss.check import VARIANTS, Alter
from support.power_loss.claims import Check, first_trouble, run_of
from support.power_loss.directories import check_dirq, check_ingest, queue, record_dirq, record_ingest, simple
from support.power_loss.disk import SYNCS, Entry
from support.power_loss.engines import (
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
from support.power_loss.file_system import points
from support.power_loss.run import Recording
from support.power_loss.short_files import OF_FILES
from support.power_loss.short_journal import OF_JOURNALS

_HOME = Path(next(iter(qs_storage.__path__)))
_SYNCS = frozenset(
    {
        "fsync",
        "fdatasync",
        "_syncfs",
        "sync",
        "_sync",
        "before",
        "sync_file",
        "sync_directory",
        "sync_file_system",
        "sync_content",
        "_sync_message",
        "_sync_last",
        "_sync_above",
        "_make_durable",
    }
)
"""The functions that make something durable, beside those that take an argument `sync`."""
_PASS_IT_ON = frozenset({"__init__", "store_for", "lease_store_for", "in_sidecars"})
"""The functions that take an argument `sync` and make nothing durable themselves. No class makes anything durable
itself."""
_NAMES = frozenset({"rename", "link"})
"""The functions that give a file that was written its durable name."""
_FLAGS = frozenset({"O_DSYNC", "O_SYNC"})


class _Finder(ast.NodeVisitor):
    """Collects the places of one file. found: first and last line, and the name of each place."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self._path = path
        self._within: list[str] = []
        self._flags = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and any(_is_flag(part) for part in ast.walk(node.value))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.found: list[tuple[int, int, str]] = []
        self._count: dict[str, int] = {}
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._go_into(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._go_into(node)

    def _go_into(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "before" and ast.unparse(node.func) != "self.before":
            called = ""
        what = called if called in _SYNCS or (called in _NAMES and _is_of_disk(node.func)) else ""
        asked = [keyword.value for keyword in node.keywords if keyword.arg == "sync"]
        if asked and ast.unparse(asked[0]) != "False" and called not in _PASS_IT_ON:
            what = "" if called.lstrip("_")[:1].isupper() else called
        if any(_is_flag(arg) or (isinstance(arg, ast.Name) and arg.id in self._flags) for arg in node.args):
            what = f"{called} O_DSYNC"
        if what:
            name = f"{self._path} {'.'.join(self._within)}: {what}"
            number = self._count[name] = self._count.get(name, 0) + 1
            self.found.append((node.lineno, node.end_lineno or 0, name if number == 1 else f"{name} {number}"))
        self.generic_visit(node)


def _is_of_disk(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2].strip("_") == "disk"


def _is_flag(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _FLAGS


@cache
def _by_file() -> dict[str, list[tuple[int, int, str]]]:
    found = {}
    for path in sorted(_HOME.rglob("*.py")):
        if path.name != "disk.py" and path.parent != _HOME / "tools":
            found[str(path)] = _Finder(str(path.relative_to(_HOME)), ast.parse(path.read_text())).found
    return found


def all_places() -> list[str]:
    """Returns the places of all calls in the storage, in the order of its files. Leaves out the commands in `tools`: a
    command that a power loss has ended is run again, and test_convert_power_loss.py plays that."""
    return [name for places in _by_file().values() for _, _, name in places]


def places_on_the_way() -> tuple[str, ...]:
    """Returns the places that are being called just now, the innermost first."""
    return tuple(_places_of(sys._getframe(1)))


def _places_of(frame: FrameType | None) -> Iterator[str]:
    files = _by_file()
    while frame is not None:
        for first, last, name in files.get(frame.f_code.co_filename, ()):
            if first <= frame.f_lineno <= last:
                yield name
        frame = frame.f_back


NOTHING_DONE = Entry("left_out", ())


def without_sync(log: list[Entry], place: str) -> list[Entry]:
    """Returns the log without the syncs of a place, and without O_DSYNC there."""

    def left(entry: Entry) -> Entry:
        if place not in entry.places:
            return entry
        if entry.kind in SYNCS:
            return NOTHING_DONE
        if entry.kind == "open" and entry.args[2] & os.O_DSYNC:
            return entry._replace(args=(*entry.args[:2], entry.args[2] & ~os.O_SYNC))
        return entry

    return [left(entry) for entry in log]


def in_place(log: list[Entry], place: str) -> list[Entry]:
    """Returns the log with files written under their final names from the beginning, instead of under temporary
    ones."""
    log = list(log)
    for number, entry in enumerate(log):
        if place in entry.places and entry.kind in ("rename", "link"):
            begin = _made(log, number, entry.args[0])
            if begin is not None:
                for at in range(begin, number):
                    log[at] = _moved(log[at], *entry.args)
                log[number] = NOTHING_DONE
                if entry.kind == "link":
                    log[_next_unlink(log, number, entry.args[0])] = NOTHING_DONE
    return log


def _made(log: list[Entry], end: int, path: str) -> int | None:
    for number in range(end - 1, -1, -1):
        entry = log[number]
        if entry.kind == "mkdir" and entry.args == (path,):
            return number
        if entry.kind == "open" and entry.args[1] == path and entry.args[2] & os.O_CREAT:
            return number
        if entry.kind in ("rename", "link") and path in entry.args:
            return None  # it has been something else
    return None


def _moved(entry: Entry, old: str, new: str) -> Entry:
    def path(arg: object) -> object:
        return new + arg[len(old) :] if isinstance(arg, str) and (arg == old or arg.startswith(old + "/")) else arg

    return entry._replace(args=tuple(map(path, entry.args)))


def _next_unlink(log: list[Entry], begin: int, path: str) -> int:
    return next(n for n in range(begin, len(log)) if log[n].kind == "unlink" and log[n].args == (path,))


def not_at_all(log: list[Entry], place: str) -> list[Entry]:
    """Returns the log without the writes of a place into an open file, and without its syncs."""
    return [NOTHING_DONE if place in entry.places and entry.kind in SYNCS | {"write"} else entry for entry in log]


WAYS: dict[str, Callable[[list[Entry], str], list[Entry]]] = {
    "no sync": without_sync,
    "in place": in_place,
    "not at all": not_at_all,
}


def removable(log: list[Entry]) -> Iterator[tuple[str, str]]:
    """Yields each place that can be left out of a log, with a way of leaving it out."""
    found: dict[tuple[str, str], None] = {}
    for number, entry in enumerate(log):
        if not entry.places:
            continue
        if entry.kind in SYNCS or (entry.kind == "open" and entry.args[2] & os.O_DSYNC):
            found |= dict.fromkeys((place, "no sync") for place in entry.places)
        if entry.kind in ("rename", "link") and _made(log, number, entry.args[0]) is not None:
            found |= dict.fromkeys((place, "in place") for place in entry.places)
        if entry.kind == "write":
            found |= dict.fromkeys((place, "not at all") for place in entry.places if ": write_last" in place)
    return iter(found)


SHORT = {**OF_JOURNALS, **OF_FILES}
Removal = tuple[str, str]
"""A place, and the way in which it is left out."""


class Checks(ABC):
    """Power losses in one recorded run."""

    log: list[Entry]

    takes_long = False
    """Whether the checks take a minute when they find nothing."""

    @abstractmethod
    def finds(self, alter: Alter, directory: Path) -> bool:
        """Tells whether the checks fail once the record has been altered."""

    def removals(self, directory: Path) -> set[Removal]:
        """Returns what can be left out of the run."""
        return set(removable(self.log))


def first_change(log: list[Entry], altered: list[Entry]) -> int:
    """Returns the index of the first entry that differs, the length of the log if none does."""
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
            for number, file_system, when in check.sweep(list(variants)):
                yield bool(check.trouble(number, file_system, when, variants[number]))

    def _cases(self) -> Iterator[tuple[bool, list[Case]]]:
        if self.little:
            yield from ((ordered, behind(self.log)) for ordered in (False, True))
        else:
            yield False, [case for part in range(PARTS) for case in one_of_each(self.name, self.log, part)]
            yield True, in_order(self.log)

    def _starts(self, run: Recording, alter: Alter, directory: Path) -> Iterator[bool]:
        check = checker(self.name, run, directory, alter=alter)
        if not self.name.startswith("files"):
            for number, file_system, when in check.sweep(points(self.log)[:: 20 if self.little else 40]):
                yield bool(check.after_a_kill(number, file_system, when))
        if not self.little:
            for number, file_system, when in check.sweep(spread(self.log, STARTS[self.name])):
                yield from map(bool, check.during_recovery(number, file_system, when, "mixed-1"))


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
        for number, file_system, when in check.sweep(points(self.log)[10::20]):
            if any(check.during_recovery(number, file_system, when, "mixed-1")):
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


class IngestChecks(Checks):
    """Checks a run that takes files in from a queue's directory."""

    def __init__(self, durability: Durability) -> None:
        self.durability = durability
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("qs_storage.journal.log.pool.FIRST_SEGMENT", 1 << 18)
            patch.setattr("qs_storage.journal.log.pool.SMALL_LOG", 0)
            self.run = record_ingest(durability)
        self.log = self.run.log

    def finds(self, alter: Alter, directory: Path) -> bool:
        altered = alter(self.log)
        begin = max(self.run.begin, first_change(self.log, altered))
        run = self.run._replace(log=altered, begin=begin)
        return any(fails(check_ingest, run, self.durability, directory, ordered=ordered) for ordered in (False, True))


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
    """Returns the checks by name, the quick ones first; each records its run when it is called. directory: for their
    files."""

    def empty() -> Path:
        return Path(tempfile.mkdtemp(dir=directory))

    found: dict[str, Callable[[], Checks]] = {}
    for name in SHORT:
        found[name] = functools.partial(ShortChecks, name, empty())
    for make, existing in itertools.product((simple, queue), (False, True)):
        found[f"{make.__name__} {existing}"] = functools.partial(DirqChecks, make, existing, empty())
    for durability in Durability:
        found[f"ingest {durability.value}"] = functools.partial(IngestChecks, durability)
    for name in ("files", "files-sidecar", "journal"):
        found[f"dead letters {name}"] = functools.partial(DeadLettersChecks, name)
    for name in JOURNALS:
        found[f"claims {name}"] = functools.partial(ClaimsChecks, name)
    for name in (*LITTLE, *DEFAULT):
        found[f"run {name}"] = functools.partial(EngineChecks, name)
    return found
