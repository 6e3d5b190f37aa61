"""One operation at a time, a power loss at each of its steps: what a new engine shows is from before it or after."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.power_loss.check import look, nobody_else
from support.power_loss.disk import QuietDisk, RecordingDisk, everything_recorded
from support.power_loss.engines import ENGINES
from support.power_loss.file_system import FileSystem, Image, lay_out, power_loss
from support.power_loss.model import Held, draft_for
from support.power_loss.nodes import EVERYTHING, NOTHING
from support.power_loss.run import Make
from support.storage.engines import LOTS, ManualClock

from qs_storage.engine import Draft, Engine, Options, Receipt

MIXED = [NOTHING, EVERYTHING, *(f"mixed-{seed}" for seed in range(12))]
Shown = dict[str, tuple[object, dict[int, Held]]]


class Prepared:
    """Queues `q` with a message in every state, and `r` and `s` with nothing, all committed."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine, self.clock = engine, clock
        for qid in "qrs":
            engine.create(qid, Options(capacity=100))
        self.flying, self.back, self.ready, self.other = (self.push() for _ in range(4))
        self.delayed = self.push(901)
        engine.receive(["q"], 2, 1000, LOTS)
        engine.queue("q").release(Receipt(self.back, 1), 0)
        engine.commit()
        clock.now += 10

    def push(self, delay: int = 0) -> int:
        [mid] = self.engine.queue("q").push([Draft(b"message %d" % self.clock.now * 100, delay)])
        self.clock.now += 10
        return mid


OPERATIONS: dict[str, Callable[[Engine, Prepared], object]] = {
    "create": lambda engine, case: engine.create("t", Options(capacity=3)),
    "push": lambda engine, case: engine.queue("q").push([draft_for(engine, b"new" * 999)]),
    "push delayed": lambda engine, case: engine.queue("q").push([draft_for(engine, b"new" * 999, 55)]),
    "push list": lambda engine, case: engine.queue("q").push(
        [draft_for(engine, b"1"), draft_for(engine, b"2" * 600, 55), draft_for(engine, b"3")]
    ),
    "receive": lambda engine, case: engine.queue("q").get(case.ready, peek=False, visibility=1000),
    "receive again": lambda engine, case: engine.queue("q").get(case.back, peek=False, visibility=1000),
    "release": lambda engine, case: engine.queue("q").release(Receipt(case.flying), 0),
    "release later": lambda engine, case: engine.queue("q").release(Receipt(case.flying), 901),
    "release delayed": lambda engine, case: engine.queue("q").release(Receipt(case.delayed), 0),
    "delay again": lambda engine, case: engine.queue("q").release(Receipt(case.delayed), 555),
    "extend": lambda engine, case: engine.queue("q").extend(Receipt(case.flying), 5000),
    "delete": lambda engine, case: engine.queue("q").delete(Receipt(case.flying)),
    "copy": lambda engine, case: engine.copy("q", case.flying, ["r"]),
    "copy to several": lambda engine, case: engine.copy("q", case.flying, ["r", "s"]),
    "purge": lambda engine, case: engine.queue("q").purge(case.flying, 1),
    "remove": lambda engine, case: engine.remove("r", force=False),
    "remove with messages": lambda engine, case: engine.remove("q", force=True),
}

_ATTRIBUTE = "in a directory, the state is the name of a file and the count an attribute: two steps"
_DIRECTORY = "each queue is a directory of its own"
_NOTE = "nobody waits for a receive to be durable"
_OPTIONS = "the options of a queue go before its directory"
WEAK = {
    ("files", "receive", False): _ATTRIBUTE,
    ("files", "receive again", False): _ATTRIBUTE,
    ("files", "receive again", True): _ATTRIBUTE,
    ("files", "release later", False): _ATTRIBUTE,
    ("files", "delay again", False): _ATTRIBUTE,
    ("files", "delay again", True): _ATTRIBUTE,
    ("files", "copy to several", False): _DIRECTORY,
    ("files", "copy to several", True): _DIRECTORY,
    ("files", "remove", False): _OPTIONS,
    ("files", "remove", True): _OPTIONS,
    **{("journal", what, order): _NOTE for what in ("receive", "receive again") for order in (False, True)},
    ("journal", "remove", False): _OPTIONS,
    ("journal", "remove", True): _OPTIONS,
}
"""Engine, operation, whether names are kept in their order: where less is kept, and why."""


def shown(engine: Engine) -> Shown:
    return {qid: (seen.options, seen.messages) for qid, seen in look(engine).items()}


def found_after(make: Make, directory: Path, operation: str, ordered: bool) -> Iterator[tuple[str, Shown]]:
    """Returns the states that a new engine shows: before the operation, after each power loss, and after the
    operation."""
    clock = ManualClock()
    (directory / "recorded").mkdir()
    disk = RecordingDisk(directory / "recorded")
    with everything_recorded(disk), nobody_else():
        engine = make(clock, disk, disk.root)
        case = Prepared(engine, clock)
        begun = len(disk.log)
        OPERATIONS[operation](engine, case)
        engine.commit()
        done = len(disk.log)
        engine.close()
    file_system = FileSystem(ordered=ordered)
    numbers = iter(range(10**6))
    seen: dict[object, Shown] = {}

    def opened(how: str) -> Shown:
        image = power_loss(file_system, how)
        if image.key not in seen:
            seen[image.key] = look_at(image)
        return seen[image.key]

    def look_at(image: Image) -> Shown:
        root = directory / f"{next(numbers)}"
        root.mkdir()
        lay_out(image, str(root))
        quiet = QuietDisk()
        with nobody_else():
            found = shown(make(ManualClock(clock.now), quiet, str(root)))
        quiet.end()
        return found

    for entry in disk.log[:begun]:
        file_system.play(entry)
    yield "before", opened(NOTHING)
    for number, entry in enumerate(disk.log[begun:done]):
        file_system.begin(entry)
        if entry.changes:
            for how in MIXED:
                yield f"step {number}, {entry}, {how}", opened(how if how in MIXED[:2] else f"{how}/{number}")
        file_system.complete(entry)
    yield "after", opened(NOTHING)


def cases() -> Iterator[object]:
    for name in ("files", "journal"):
        for operation in OPERATIONS:
            for ordered in (False, True):
                weak = WEAK.get((name, operation, ordered))
                marks = [pytest.mark.xfail(reason=weak)] if weak else []
                yield pytest.param(
                    name, operation, ordered, marks=marks, id=f"{name}-{operation}-{'ordered' if ordered else 'apart'}"
                )


@pytest.mark.parametrize(("name", "operation", "ordered"), list(cases()))
def test_operation_is_whole_or_not_at_all(fast: Path, name: str, operation: str, ordered: bool) -> None:
    """After a power loss at any step, the state is the one before the operation or the one after it."""
    found = list(found_after(ENGINES[name].make, fast, operation, ordered))
    before, after = found[0][1], found[-1][1]
    assert before != after
    wrong = [(where, what) for where, what in found if what not in (before, after)]
    assert wrong == []
