"""Plays a power loss at any point of a recorded run of claims and batches, and compares with the model.

What was answered holds; the operation that was under way has happened or not; asked for once more it has happened once.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import extract_tb

from qs_server.storage.engine import NoSuchQueueError
from support.claims_run import ClaimsRecording, Shown, record_claims, show
from support.engines import ManualClock
from support.power_loss import Image, lay_out, pick_up, points, power_loss, without_checkpoint
from support.power_loss_check import VARIANTS, Alter, fast_directory, nobody_else
from support.power_loss_disk import QuietDisk, RecordingDisk, everything_recorded
from support.power_loss_engines import ENGINES
from support.power_loss_nodes import EVERYTHING, NOTHING
from support.power_loss_world import World

Trouble = list[str]
When = tuple[int, int]


def run_of(name: str, seed: int, operations: int) -> ClaimsRecording:
    with fast_directory(Path.cwd()) as made, nobody_else():
        return record_claims(ENGINES[name], str(made), seed, operations)


class Check:
    """Of one recording."""

    def __init__(
        self, name: str, recording: ClaimsRecording, directory: Path, *, ordered: bool = False, alter: Alter = list
    ) -> None:
        """directory: where images are laid out, one after the other; ordered: as for World; alter: as for
        PowerLossCheck."""
        self._alter = alter
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
        log = self._alter(disk.log)
        wanted = set(points(log))
        for step, entry in enumerate(log):
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
