"""Plays a power loss at any point of a recorded run of claims and batches, and compares with the model.

What was answered holds; the operation that was under way has happened or not; asked for once more it has happened once.
"""

from collections.abc import Sequence
from pathlib import Path

from qs_storage.engine import Engine, NoSuchQueueError
from support.claims_run import ClaimsRecording, Shown, record_claims, show
from support.power_loss import Image
from support.power_loss_check import VARIANTS, Alter, PowerLosses, When, fast_directory, nobody_else
from support.power_loss_engines import ENGINES

Trouble = list[str]


def run_of(name: str, seed: int, operations: int) -> ClaimsRecording:
    with fast_directory(Path.cwd()) as made, nobody_else():
        return record_claims(ENGINES[name], str(made), seed, operations)


class Check(PowerLosses):
    """Compares what is left of a run of claims and batches with what was answered and begun."""

    def __init__(
        self, name: str, recording: ClaimsRecording, directory: Path, *, ordered: bool = False, alter: Alter = list
    ) -> None:
        """directory, ordered, alter: as for PowerLosses."""
        super().__init__(recording.log, ENGINES[name].make, directory, ordered=ordered, alter=alter)
        self._notes = "receive" in ENGINES[name].leniency.notes
        self._operations = recording.operations

    def now(self, begun: int) -> int:
        return self._operations[max(begun - 1, 0)].now

    def where(self, number: int, variant: str, when: When) -> str:
        answered, begun, _ = when
        going = [operation.text for operation in self._operations[answered:begun]]
        return f"power loss at {number}/{variant}, {self.log[number]}; answered {answered}, under way {going}"

    def seconds(self, step: int) -> Sequence[str]:
        return VARIANTS[step % 4 : step % 4 + 1]

    def compare(self, image: Image, when: When, *, long_ago: bool) -> Trouble:
        self.checked += 1
        key = image.key, when
        if key not in self._seen:
            found = self.opened(image, when[2], lambda engine: self._look(engine, when))
            self._seen[key] = [found] if isinstance(found, str) else found
        return self._seen[key]

    def _look(self, engine: Engine, when: When) -> Trouble:
        answered, begun, now = when
        allowed = [self._operations[number - 1].after.at(now) for number in range(max(answered, 1), begun + 1)]
        try:
            found = compare(self._shown(engine, now, allowed), allowed)
            again = self._operations[begun - 1].again if begun else None
            if not found and again is not None:
                again(engine)
                engine.commit()
                found = compare(self._shown(engine, now, allowed), allowed[-1:], "asked once more, ")
        except NoSuchQueueError:
            return [] if not answered else ["the queue is gone"]
        return found

    def _shown(self, engine: Engine, now: int, allowed: Sequence[Shown]) -> Shown:
        shown = show(engine, now)
        return sooner(shown, allowed) if self._notes else shown


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
