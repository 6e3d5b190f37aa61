"""A power loss at every file operation of a run of claims and batches: each is there wholly or not at all.

What was answered holds; the operation that was under way has happened or not; asked for once more it has happened once.
"""

import functools
import os
from pathlib import Path

import pytest
from support.power_loss.check import VARIANTS
from support.power_loss.claims import Check, first_trouble, run_of
from support.power_loss.file_system import points
from support.power_loss.nodes import EVERYTHING

from qs_storage.journal.queues.claims import LogClaims

pytestmark = pytest.mark.usefixtures("small_segments")
SEED = int(os.environ.get("QS_POWER_LOSS_SEED", "20261124"))
OPERATIONS = 70
MANY = 250
NAMES = ["journal", "journal-buffered"]
WORDS = {"create", "push", "receive", "delete", "purge", "claim", "acknowledge", "release", "stage", "publish"}
recorded = functools.cache(run_of)


@pytest.mark.parametrize("name", NAMES)
def test_the_run_has_everything(name: str) -> None:
    """Every operation; segments are compacted and removed, and checkpoints written, well before its end."""
    run = recorded(name, SEED, OPERATIONS)
    assert {operation.text.split()[0] for operation in run.operations} == WORDS
    early = run.log[: len(run.log) * 3 // 4]
    assert [entry.args[1] for entry in early if entry.kind == "rename"].count(".journal/checkpoint") >= 3
    assert (
        len([entry for entry in early if entry.kind in ("unlink", "rename") and entry.args[0].endswith(".segment")])
        >= 3
    )
    assert run.copied > 5000


@pytest.mark.parametrize("name", NAMES)
def test_claims_power_loss_at_every_point(fast: Path, name: str) -> None:
    """Every point of a run, with one of the variants in turn."""
    run = recorded(name, SEED, OPERATIONS)
    check = Check(name, run, fast)
    numbers = points(run.log)
    assert len(numbers) > 200
    assert "\n".join(first_trouble(check, numbers, VARIANTS)) == ""
    assert check.checked == len(numbers)


@pytest.mark.parametrize("name", NAMES)
def test_claims_power_loss_with_ordered_names(fast: Path, name: str) -> None:
    """On a file system that keeps the order of all names: every sixth point."""
    run = recorded(name, SEED, OPERATIONS)
    check = Check(name, run, fast, ordered=True)
    assert "\n".join(first_trouble(check, points(run.log)[::6], ["mixed-1"])) == ""


def during_recovery(name: str, directory: Path, seed: int, operations: int, step: int) -> int:
    run = recorded(name, seed, operations)
    check = Check(name, run, directory)
    for number, file_system, when in check.sweep(points(run.log)[step // 2 :: step]):
        for trouble in check.during_recovery(number, file_system, when, "mixed-1"):
            pytest.fail("\n".join(trouble))
    return check.checked


@pytest.mark.parametrize("name", NAMES)
def test_claims_power_loss_at_start(fast: Path, name: str) -> None:
    """A second power loss, while the server starts after the first one."""
    assert during_recovery(name, fast, SEED, OPERATIONS, 20) > 20


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
@pytest.mark.parametrize("round_", range(2))
@pytest.mark.parametrize("name", NAMES)
def test_claims_every_variant_at_every_point(fast: Path, name: str, round_: int, ordered: bool) -> None:
    """Two runs, five variants at all points. Takes some 3 minutes of one processor each."""
    run = recorded(name, SEED + round_, MANY)
    check = Check(name, run, fast, ordered=ordered)
    assert "\n".join(first_trouble(check, points(run.log), [*VARIANTS, "mixed-3"])) == ""


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_claims_power_loss_at_every_start(fast: Path, name: str) -> None:
    """A second power loss, after the first one at every fourth point. Takes some 2 minutes."""
    during_recovery(name, fast, SEED + 1, MANY // 2, 7)


# -- the test can fail


@pytest.mark.parametrize("method", ["restore", "restore_end", "copy_records"])
def test_it_finds_claims_that_are_forgotten(fast: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal whose start does not take up claims, or their end, or whose compaction does not say them again."""
    monkeypatch.setattr(LogClaims, method, lambda self, *args: iter(()))
    run = run_of("journal", SEED, OPERATIONS) if method == "copy_records" else recorded("journal", SEED, OPERATIONS)
    assert first_trouble(Check("journal", run, fast), points(run.log)[::3], [EVERYTHING])
