"""A power loss at every file operation of a run in which messages die, are rejected, come back and get too old: each is
in exactly one queue with its last reason, or gone."""

import functools
import os
from pathlib import Path

import pytest
from support.power_loss.check import VARIANTS
from support.power_loss.dead_letters import Check, first_trouble, run_of
from support.power_loss.file_system import points

from qs_storage.files.directory import MessageDirectory
from qs_storage.journal.log import records
from qs_storage.journal.queues.state import QueueState
from qs_storage.root import RootDirectory

pytestmark = pytest.mark.usefixtures("small_segments")
SEED = int(os.environ.get("QS_POWER_LOSS_SEED", "20261125"))
OPERATIONS = 180
FILES = ["files", "files-sidecar"]
NAMES = ["journal", "journal-buffered", *FILES]
WORDS = {"create", "push", "receive", "release", "delete", "expire", "redrive", "age", "reject"}
recorded = functools.cache(run_of)


@pytest.mark.parametrize("name", NAMES)
def test_dead_letters_power_loss_at_every_point(fast: Path, name: str) -> None:
    """Every point of a run, with one of the variants in turn. Messages die in it and in a dead-letter queue, are moved
    back, and are copied by compaction."""
    run = recorded(name, SEED, OPERATIONS)
    assert {text.split()[0] for _, text, _ in run.operations} == WORDS
    places = {place[:2] for _, _, shown in run.operations for place in shown.values()}
    assert places >= {("q", None), ("dead", "q"), ("last", "dead")}
    assert (run.copied > 5000, run.retired > 20) == (True, True) or name in FILES
    said = [place for _, _, shown in run.operations for place in shown.values() if place.reason]
    assert (run.rejected > 3, len({place.qid for place in said}), len(said) > 100) == (True, 3, True)
    numbers = points(run.log)
    assert len(numbers) > 200
    assert "\n".join(first_trouble(Check(name, run, fast), numbers, VARIANTS)) == ""


@pytest.mark.parametrize("name", ["journal", *FILES])
def test_dead_letters_power_loss_with_ordered_names(fast: Path, name: str) -> None:
    """On a file system that keeps the order of all names: every fourth point."""
    run = recorded(name, SEED, OPERATIONS)
    check = Check(name, run, fast, ordered=True)
    assert "\n".join(first_trouble(check, points(run.log)[::4], ["mixed-1"])) == ""


@pytest.mark.parametrize("name", ["journal", *FILES])
def test_dead_letters_power_loss_at_start(fast: Path, name: str) -> None:
    """A second power loss, while the server starts after the first one."""
    run = recorded(name, SEED, OPERATIONS)
    check = Check(name, run, fast)
    for number, file_system, when in check.sweep(points(run.log)[10::25]):
        for trouble in check.during_recovery(number, file_system, when, "mixed-1"):
            pytest.fail("\n".join(trouble))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["journal", *FILES])
@pytest.mark.parametrize("round_", range(3))
def test_dead_letters_every_variant_at_every_point(fast: Path, round_: int, name: str) -> None:
    """Three runs of each, every variant at all points. Takes some 2 minutes of one processor each."""
    run = recorded(name, SEED + 1 + round_, 2 * OPERATIONS)
    for variant in VARIANTS:
        assert "\n".join(first_trouble(Check(name, run, fast), points(run.log), [variant])) == ""


# -- the test can fail


def test_it_finds_a_reason_that_is_not_durable(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is answered before its reason is synced."""
    monkeypatch.setattr(MessageDirectory, "write_reason", _write_and_forget)
    run = run_of("files", SEED, OPERATIONS)
    assert first_trouble(Check("files", run, fast), points(run.log), VARIANTS)


def _write_and_forget(directory: MessageDirectory, mid: int, hidden: int, reason: str) -> None:
    directory.attributes.reasons.write(directory.name_path(mid, hidden), mid, reason)
    directory.reasons[mid] = reason


def test_it_finds_a_move_that_is_not_taken_up(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that ignores moves."""
    monkeypatch.setattr(QueueState, "restore_transfer", lambda self, place, record: None)
    run = recorded("journal", SEED, OPERATIONS)
    assert first_trouble(Check("journal", run, fast), points(run.log), VARIANTS)


def test_it_finds_a_reason_that_is_not_taken_up(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that ignores why messages were given back."""
    monkeypatch.setattr(QueueState, "restore_reason", lambda self, mid, reason: None)
    run = recorded("journal", SEED, OPERATIONS)
    assert first_trouble(Check("journal", run, fast), points(run.log), VARIANTS)


def test_it_finds_a_removal_that_is_not_taken_up(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that ignores that messages were too old."""
    monkeypatch.setattr(records.Retired, "apply", lambda self, queue, place: None)
    run = recorded("journal", SEED, OPERATIONS)
    assert first_trouble(Check("journal", run, fast), points(run.log), VARIANTS)


def test_it_finds_a_dead_letter_queue_that_is_not_durable(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is not synced before the journal has messages of its queue."""
    monkeypatch.setattr(RootDirectory, "sync", lambda self: None)
    run = run_of("journal", SEED, OPERATIONS)
    assert first_trouble(Check("journal", run, fast), points(run.log), VARIANTS)
