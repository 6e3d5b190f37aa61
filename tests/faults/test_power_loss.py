"""A power loss at every single step of a recorded run: what was answered holds, nothing else is there in half.

`QS_POWER_LOSS=POINT/VARIANT` plays one point alone, as a failure prints it; `QS_POWER_LOSS_SEED` makes it another run.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.power_loss.check import VARIANTS, PowerLossCheck
from support.power_loss.disk import Entry
from support.power_loss.engines import (
    BEHIND,
    DEFAULT,
    ENGINES,
    FEW,
    JOURNALS,
    LITTLE,
    OPERATIONS,
    PARTS,
    SEED,
    STARTS,
    Case,
    behind,
    checker,
    in_order,
    one_of_each,
    part_of,
    recorded,
    spread,
)
from support.power_loss.file_system import points
from support.power_loss.run import Make, Recording, record

from qs_storage.disk import Disk
from qs_storage.engine import Clock, Engine
from qs_storage.files.writer import FileWriter

pytestmark = pytest.mark.usefixtures("small_segments")
ONE = os.environ.get("QS_POWER_LOSS")
KINDS = {"create", "remove", "push", "receive", "get", "delete", "release", "extend", "copy", "purge", "expire"}


def check(
    name: str, directory: Path, cases: Sequence[Case], *, ordered: bool = False, operations: int = OPERATIONS
) -> int:
    """Fails with the first trouble; how many power losses there were."""
    if ONE:
        cases = [case for case in cases if f"{case[0]}/{case[1]}" == ONE]
    checked = checker(name, recorded(name, SEED, operations), directory, ordered=ordered)
    variants: dict[int, list[str]] = {}
    for number, variant in cases:
        variants.setdefault(number, []).append(variant)
    for number, file_system, when in checked.sweep(list(variants)):
        for variant in variants[number]:
            if trouble := checked.trouble(number, file_system, when, variant):
                pytest.fail(f"seed {SEED}\n" + "\n".join(trouble))
    return checked.checked


def test_run_has_every_kind_of_operation() -> None:
    """At least 500 operations of every kind, and thousands of points at which the power can go."""
    run = recorded("files")
    kinds = {text.split()[0] for _, text in run.operations}
    assert len(run.operations) >= 500
    assert kinds == KINDS
    assert {"write", "fsync", "rename", "unlink", "mkdir", "rmdir", "setxattr"} <= {e.kind for e in run.log}
    assert len(points(run.log)) > 2000


@pytest.mark.parametrize("name", JOURNALS)
def test_run_of_journal_has_upkeep(name: str) -> None:
    """Segments are compacted and removed, and checkpoints written, well before its end."""
    run = recorded(name)
    early = run.log[: len(run.log) * 3 // 4]
    renamed = [entry.args[1] for entry in early if entry.kind == "rename"]
    removed = [entry.args[0] for entry in early if entry.kind in ("unlink", "rename")]
    assert renamed.count(".journal/checkpoint") >= 3
    assert len([path for path in removed if path.endswith(".segment")]) >= 5
    assert run.copied > 20_000
    direct = {bool(entry.args[2] & os.O_DSYNC) for entry in run.log if entry.kind == "open" and is_segment(entry)}
    assert direct == {ENGINES[name].direct}


def is_segment(entry: Entry) -> bool:
    """Tells whether a segment is opened to be written, made ready before."""
    return entry.args[1].startswith(".journal/spare-") and not entry.args[2] & os.O_CREAT


@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(name, part, marks=[pytest.mark.long] if name in JOURNALS and part % 2 else [])
        for name, part in itertools.product(DEFAULT, range(PARTS))
    ],
)
def test_power_loss_at_every_point(fast: Path, name: str, part: int) -> None:
    """Every point of the run (of a journal every second, without O_DIRECT every third), with one of the variants in
    turn. Of the parts of a journal's run, two of four are played by default: each takes 4 s."""
    cases = one_of_each(name, recorded(name).log, part)
    numbers = [number for number, _ in cases]
    found = check(name, fast, cases if not ONE else [*itertools.product(numbers, VARIANTS)])
    assert found == len(numbers) or ONE


@pytest.mark.parametrize("name", DEFAULT)
def test_power_loss_with_ordered_names(fast: Path, name: str) -> None:
    """On a file system that keeps the order of all names, and makes them durable with any fsync: every tenth point."""
    assert check(name, fast, in_order(recorded(name).log), ordered=True) or ONE


def during_recovery(name: str, directory: Path, step: int) -> int:
    checked = checker(name, recorded(name), directory)
    for number, file_system, when in checked.sweep(spread(recorded(name).log, step)):
        for trouble in checked.during_recovery(number, file_system, when, "mixed-1"):
            pytest.fail(f"seed {SEED}\n" + "\n".join(trouble))
    return checked.checked


@pytest.mark.parametrize("name", DEFAULT)
def test_power_loss_at_start(fast: Path, name: str) -> None:
    """A second power loss, at every step of the start that follows the first one."""
    assert during_recovery(name, fast, STARTS[name]) > 50


@pytest.mark.parametrize("name", JOURNALS)
def test_power_loss_after_kill(fast: Path, name: str) -> None:
    """The server is killed, the next one answers, and the power is lost: every fortieth point."""
    after_kills(name, fast, recorded(name), 40)


def after_kills(name: str, directory: Path, run: Recording, step: int) -> None:
    checked = checker(name, run, directory)
    for number, file_system, when in checked.sweep(points(run.log)[::step]):
        if trouble := checked.after_a_kill(number, file_system, when):
            pytest.fail("\n".join(trouble))
    assert checked.checked > 15


@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
@pytest.mark.parametrize("name", LITTLE)
def test_power_loss_in_short_run(fast: Path, name: str, ordered: bool) -> None:
    """Without attributes; with `interval` what was synced behind is there; with `none` too the server starts, and shows
    nothing torn."""
    run = recorded(name, SEED, FEW)
    assert run.copied > 10_000 or name not in BEHIND
    assert check(name, fast, behind(run.log), ordered=ordered, operations=FEW) or ONE


@pytest.mark.parametrize("name", BEHIND)
def test_power_loss_after_kill_before_it_is_durable(fast: Path, name: str) -> None:
    """A server that had answered for changes that are not durable is killed, and then the power fails: every fifteenth
    point."""
    after_kills(name, fast, recorded(name, SEED, FEW), 15)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
@pytest.mark.parametrize("name", ENGINES)
def test_power_loss_every_variant_at_every_point(fast: Path, name: str, ordered: bool, part: int) -> None:
    """All variants at all points. Takes some 4 minutes of one processor."""
    check(name, fast, [*itertools.product(part_of(recorded(name).log, part), VARIANTS)], ordered=ordered)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ENGINES)
def test_power_loss_at_every_start(fast: Path, name: str) -> None:
    """A second power loss, after the first one at every tenth point. Takes some 2 minutes."""
    during_recovery(name, fast, 10)


# -- the test can fail


def first_trouble(run: Recording, make: Make, directory: Path) -> list[str]:
    under_test = ENGINES["files"]
    checked = PowerLossCheck(run, make, directory, under_test.leniency)
    for number, file_system, when in checked.sweep(points(run.log)):
        for variant in VARIANTS:
            if trouble := checked.trouble(number, file_system, when, variant):
                return trouble
    return []


def without(run: Recording, left_out: Callable[[Entry], bool]) -> Recording:
    return Recording([entry for entry in run.log if not left_out(entry)], run.operations, run.model)


def directories(run: Recording) -> set[int]:
    return {entry.args[0] for entry in run.log if entry.kind == "open" and entry.args[2] & os.O_DIRECTORY}


SABOTAGE: dict[str, Callable[[Recording], Recording]] = {
    "nothing is synced": lambda run: without(run, lambda entry: entry.kind == "fsync"),
    "no file is synced": lambda run: without(
        run, lambda entry: entry.kind == "fsync" and entry.args[0] not in directories(run)
    ),
    "no directory is synced": lambda run: without(
        run, lambda entry: entry.kind == "fsync" and entry.args[0] in directories(run)
    ),
    "renames are not done": lambda run: without(
        run, lambda entry: entry.kind == "rename" and entry.args[0].endswith(".new")
    ),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_check_finds_what_disk_leaves_out(fast: Path, what: str) -> None:
    """A disk that does not do what it says is found out."""
    run = SABOTAGE[what](recorded("files", SEED, 60))
    assert first_trouble(run, ENGINES["files"].make, fast)


def test_check_finds_answer_before_commit(fast: Path) -> None:
    """An engine whose commit makes nothing durable is found out."""

    def make(clock: Clock, disk: Disk, root: str) -> Engine:
        engine = ENGINES["files"].make(clock, disk, root)
        engine.commit = engine.effects  # type: ignore[method-assign]
        return engine

    (fast / "root").mkdir()
    assert first_trouble(record(make, str(fast / "root"), SEED, 20), make, fast)


def test_check_finds_half_a_list(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that does not note its lists before it makes them visible is found out."""
    monkeypatch.setattr(FileWriter, "_note", lambda self, request: None)
    (fast / "root").mkdir()
    run = record(ENGINES["files"].make, str(fast / "root"), SEED, 60)
    assert "in half" in "\n".join(first_trouble(run, ENGINES["files"].make, fast))


def test_check_finds_nothing_in_good_run(fast: Path) -> None:
    """A run that is left alone has no trouble in any variant."""
    assert first_trouble(recorded("files", SEED, 30), ENGINES["files"].make, fast) == []
