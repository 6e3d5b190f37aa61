"""A power loss at every file operation of a run of claims and batches: each is there wholly or not at all.

What was answered holds; the operation that was under way has happened or not; asked for once more it has happened once.
"""

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import extract_tb

import pytest
from claims_run import ClaimsRecording, Shown, record_claims, show
from engines import ManualClock
from power_loss import Image, lay_out, pick_up, points, power_loss, without_checkpoint
from power_loss_check import VARIANTS, fast_directory, nobody_else
from power_loss_disk import QuietDisk, RecordingDisk, everything_recorded
from power_loss_engines import ENGINES, small_journal
from power_loss_nodes import EVERYTHING, NOTHING
from power_loss_world import World

from qs_server.storage.engine import NoSuchQueueError
from qs_server.storage.journal.claims import LogClaims

SEED = int(os.environ.get("QS_POWER_LOSS_SEED", "20261122"))
OPERATIONS = 70
MANY = 250
NAMES = ["journal", "journal-buffered"]
WORDS = {"create", "push", "receive", "delete", "purge", "claim", "acknowledge", "release", "stage", "publish"}
Trouble = list[str]
When = tuple[int, int]


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    with fast_directory(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many of them in a run."""
    small_journal(monkeypatch)


def run_of(name: str, seed: int, operations: int) -> ClaimsRecording:
    with fast_directory(Path.cwd()) as made, nobody_else():
        return record_claims(ENGINES[name], str(made), seed, operations)


recorded = functools.cache(run_of)


class Check:
    """Of one recording."""

    def __init__(self, name: str, recording: ClaimsRecording, directory: Path, *, ordered: bool = False) -> None:
        """directory: where images are laid out, one after the other; ordered: as for World."""
        self.under_test = ENGINES[name]
        self.recording = recording
        self.directory = directory
        self.ordered = ordered
        self.checked = 0
        self._seen: dict[object, Trouble] = {}

    def sweep(self, wanted: Sequence[int]) -> Iterator[tuple[int, World, When]]:
        """At each of these points: its number, the file system, and how many operations were answered and begun."""
        left = set(wanted)
        world = World(ordered=self.ordered)
        answered = begun = 0
        for number, entry in enumerate(self.recording.log[: max(left, default=-1) + 1]):
            if entry.kind == "begin":
                begun = entry.args[0]
            elif entry.kind == "answered":
                answered = entry.args[0]
            world.begin(entry)
            if number in left:
                yield number, world, (answered, begun)
            world.complete(entry)

    def trouble(self, number: int, world: World, when: When, variant: str) -> Trouble:
        """What is wrong after a power loss there; the first line says where that was."""
        image = power_loss(world, how(variant, number))
        found = self.look(without_checkpoint(image) if number % 2 else image, when)
        return [self.where(number, variant, when), *found] if found else []

    def where(self, number: int, variant: str, when: When) -> str:
        answered, begun = when
        going = [operation.text for operation in self.recording.operations[answered:begun]]
        return f"power loss at {number}/{variant}, {self.recording.log[number]}; answered {answered}, under way {going}"

    def look(self, image: Image, when: When) -> Trouble:
        """A new engine on what is left."""
        self.checked += 1
        key = image.key, when
        if key not in self._seen:
            self._seen[key] = self._look(image, when)
        return self._seen[key]

    def _look(self, image: Image, when: When) -> Trouble:
        answered, begun = when
        operations = self.recording.operations
        now = operations[max(begun - 1, 0)].now
        allowed = [operations[number - 1].after.at(now) for number in range(max(answered, 1), begun + 1)]
        root = tempfile.mkdtemp(dir=self.directory)
        disk = QuietDisk()
        try:
            lay_out(image, root)
            with nobody_else():
                engine = self.under_test.make(ManualClock(now), disk, root)
                shown = show(engine, now)
                notes = "receive" in self.under_test.leniency.notes
                found = compare(sooner(shown, allowed) if notes else shown, allowed)
                again = operations[begun - 1].again if begun else None
                if not found and again is not None:
                    again(engine)
                    engine.commit()
                    shown = show(engine, now)
                    found = compare(sooner(shown, allowed) if notes else shown, allowed[-1:], "asked once more, ")
            return found
        except NoSuchQueueError:
            return [] if not answered else ["the queue is gone"]
        except Exception as error:  # whatever it is, a power loss must not lead to it
            steps = [f"{step.name}:{step.lineno}" for step in extract_tb(error.__traceback__)]
            return [f"the engine cannot be opened and looked at: {error!r} in {' > '.join(steps[1:])}"]
        finally:
            disk.end()
            shutil.rmtree(root)

    def during_recovery(self, number: int, world: World, when: When, variant: str) -> Iterator[Trouble]:
        """A second power loss at every step of the start after that one."""
        root = tempfile.mkdtemp(dir=self.directory)
        now = self.recording.operations[max(when[1] - 1, 0)].now
        try:
            lay_out(power_loss(world, how(variant, number)), root)
            again = pick_up(root, ordered=self.ordered)
            disk = RecordingDisk(root)
            with everything_recorded(disk), nobody_else():
                engine = self.under_test.make(ManualClock(now), disk, root)
                engine.commit()
                engine.close()
        finally:
            shutil.rmtree(root)
        wanted = set(points(disk.log))
        for step, entry in enumerate(disk.log):
            again.begin(entry)
            if step in wanted:
                second = VARIANTS[step % 4]
                if found := self.look(power_loss(again, how(second, step)), when):
                    yield [self.where(number, variant, when), f"then at step {step}, {entry}, {second}", *found]
            again.complete(entry)


def how(variant: str, number: int) -> str:
    return variant if variant in (NOTHING, EVERYTHING) else f"{variant}/{number}"


def compare(found: Shown, allowed: Sequence[Shown], what: str = "") -> Trouble:
    return [] if found in allowed else [f"{what}found {short(found)}", *(f"  not {short(each)}" for each in allowed)]


def sooner(found: Shown, allowed: Sequence[Shown]) -> Shown:
    """With the windows that are allowed, where a receive may be lost: what it has hidden is visible sooner."""
    windows = {payload: until for each in allowed for payload, until in each.messages.items() if until}
    messages = {payload: until or windows.get(payload, 0) for payload, until in found.messages.items()}
    return Shown(messages, found.claims, found.acknowledged, found.published)


def short(shown: Shown) -> str:
    messages = {payload[:6].decode(): until for payload, until in sorted(shown.messages.items())}
    claims = {key: [payload[:6].decode() for payload in payloads] for key, payloads in shown.claims.items()}
    return f"{messages} claims {claims} acknowledged {shown.acknowledged} published {shown.published}"


def first_trouble(check: Check, numbers: Sequence[int], variants: Sequence[str]) -> Trouble:
    """variants: one in turn at each point; all of them at each, if they are as many as there are."""
    for index, (number, world, when) in enumerate(check.sweep(numbers)):
        turn = (index + index // 4) % 4
        for variant in variants if len(variants) != 4 else variants[turn : turn + 1]:
            if trouble := check.trouble(number, world, when, variant):
                return trouble
    return []


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
def test_at_every_point(fast: Path, name: str) -> None:
    """Every point of a run, with one of the variants in turn."""
    run = recorded(name, SEED, OPERATIONS)
    check = Check(name, run, fast)
    numbers = points(run.log)
    assert len(numbers) > 200
    assert "\n".join(first_trouble(check, numbers, VARIANTS)) == ""
    assert check.checked == len(numbers)


@pytest.mark.parametrize("name", NAMES)
def test_names_in_order(fast: Path, name: str) -> None:
    """On a file system that keeps the order of all names: every sixth point."""
    run = recorded(name, SEED, OPERATIONS)
    check = Check(name, run, fast, ordered=True)
    assert "\n".join(first_trouble(check, points(run.log)[::6], ["mixed-1"])) == ""


def during_recovery(name: str, directory: Path, seed: int, operations: int, step: int) -> int:
    run = recorded(name, seed, operations)
    check = Check(name, run, directory)
    for number, world, when in check.sweep(points(run.log)[step // 2 :: step]):
        for trouble in check.during_recovery(number, world, when, "mixed-1"):
            pytest.fail("\n".join(trouble))
    return check.checked


@pytest.mark.parametrize("name", NAMES)
def test_again_while_it_starts(fast: Path, name: str) -> None:
    """A second power loss, while the server starts after the first one."""
    assert during_recovery(name, fast, SEED, OPERATIONS, 20) > 20


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
@pytest.mark.parametrize("round_", range(2))
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_at_every_point(fast: Path, name: str, round_: int, ordered: bool) -> None:
    """Two runs, five variants at all points. Takes some 3 minutes of one processor each."""
    run = recorded(name, SEED + round_, MANY)
    check = Check(name, run, fast, ordered=ordered)
    assert "\n".join(first_trouble(check, points(run.log), [*VARIANTS, "mixed-3"])) == ""


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_again_while_it_starts_everywhere(fast: Path, name: str) -> None:
    """A second power loss, after the first one at every fourth point. Takes some 2 minutes."""
    during_recovery(name, fast, SEED + 1, MANY // 2, 7)


# -- the test can fail


@pytest.mark.parametrize("method", ["restore", "restore_end", "carry"])
def test_it_finds_claims_that_are_forgotten(fast: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal whose start does not take up claims, or their end, or whose compaction does not say them again."""
    monkeypatch.setattr(LogClaims, method, lambda self, *args: None)
    run = run_of("journal", SEED, OPERATIONS) if method == "carry" else recorded("journal", SEED, OPERATIONS)
    assert first_trouble(Check("journal", run, fast), points(run.log)[::3], [EVERYTHING])
