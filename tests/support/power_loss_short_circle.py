"""A short run of a log that goes round: messages that stay are copied again and again. See power_loss_short."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Options, Receipt, State
from qs_storage.journal.upkeep.checkpoint import NAME
from support.engines import JournalEngine, ManualClock
from support.log_world import small_segments
from support.power_loss import Image
from support.power_loss_disk import QuietDisk, RecordingDisk
from support.power_loss_short import Short
from support.upkeep import upkeep

COLD = [b"%d" % number * 100 for number in range(1000)]
"""Payloads of messages that nobody takes: some three segments."""
_HOT = 40


def open_engine(root: str, disk: Disk, durability: Durability = Durability.ALWAYS) -> JournalEngine:
    return JournalEngine(root, clock=ManualClock(), durability=durability, disk=disk, cache=0)


def hot(number: int) -> bytes:
    """Returns the payload of a message that comes and goes."""
    return b"%d" % number * 9000


def push_cold(engine: JournalEngine) -> None:
    """Makes two queues, and pushes the messages that stay."""
    for qid in ("cold", "hot"):
        engine.create(qid, Options())
    for begin in range(0, len(COLD), 100):
        engine.queue("cold").push([Draft(payload) for payload in COLD[begin : begin + 100]])
        engine.commit()
    upkeep(engine)


def go_round(engine: JournalEngine, answered: Callable[[int], object] = lambda number: None) -> None:
    """Pushes messages that stay, and then others each of which is deleted with the push of the next, until all that
    stays has been copied. answered: is told the number of each of these."""
    push_cold(engine)
    store = engine._journal.store
    assert store is not None
    last = store.log.number
    before: list[int] = []
    for number in range(_HOT):
        new = engine.queue("hot").push([Draft(hot(number))])
        for mid in before:
            engine.queue("hot").delete(Receipt(mid))
        before = new
        engine.commit()
        answered(number)
        upkeep(engine)
    assert (store.log.segments.oldest or 0) > last


def payloads(engine: JournalEngine, qid: str) -> list[bytes | None]:
    """Returns the payloads of a queue's messages."""
    queue = engine.queue(qid)
    return [queue.read(Receipt(mid)).payload for mid in queue.list_mids(State.ALL, 9999, -1)]


class Circle(Short):
    """Checks that the messages that stay and those that go are the same with and without the checkpoint."""

    durability = Durability.ALWAYS

    def run(self, disk: RecordingDisk) -> None:
        with pytest.MonkeyPatch.context() as patch:
            small_segments(patch)
            engine = open_engine(disk.root, disk, self.durability)
            go_round(engine, lambda number: self._answer(engine, disk, number + 1))
            engine.close()

    def _answer(self, engine: JournalEngine, disk: RecordingDisk, number: int) -> None:
        if self.durability is not Durability.NONE:
            if (sync := engine.background_sync()) is not None:
                sync()
            disk.mark("answered", number)

    def wanted(self) -> list[int]:
        return super().wanted()[::15]

    def look(self, root: str, image: Image, answered: int) -> None:
        for _ in range(2):
            disk = QuietDisk()
            engine = open_engine(root, disk, self.durability)
            if answered:
                assert payloads(engine, "cold") == COLD
                assert payloads(engine, "hot") in ([hot(answered - 1)], [hot(answered)])
            disk.end()
            with suppress(FileNotFoundError):
                Path(root, ".journal", NAME).unlink()


class CircleBehind(Circle):
    """Checks the circle with durability INTERVAL."""

    durability = Durability.INTERVAL


class CircleNotSynced(Circle):
    """With NONE nothing is promised, but the server starts."""

    durability = Durability.NONE
