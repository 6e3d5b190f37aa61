"""Dead letters of a queue that has very many."""

from pathlib import Path

import pytest
from support.storage.engines import JournalEngine, ManualClock

from qs_storage.directories import DirectoriesEngine, FilesEngine
from qs_storage.engine import SECOND, Draft, Durability, Options, Origin

LETTERS = 1100
"""More than are sorted at once."""


class CountedOrigins(dict[int, Origin]):
    """Counts how often it is asked for a message. To go over all of it fails."""

    asked = 0

    def __contains__(self, mid: object) -> bool:
        self.asked += 1
        return super().__contains__(mid)

    def __iter__(self) -> None:  # type: ignore[override]
        raise AssertionError("this goes over all dead letters")


@pytest.mark.parametrize("kind", [JournalEngine, FilesEngine])
def test_some_of_many(tmp_path: Path, kind: type[DirectoriesEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are found among messages that are no dead letters, without looking at all."""
    clock = ManualClock()
    engine = kind(str(tmp_path), clock=clock, durability=Durability.NONE)
    engine.create("q", Options(dead_letter="dead", max_receives=1))
    engine.create("dead", Options())
    engine.queue("dead").push([Draft(b"no dead letter")] * 10)
    engine.queue("q").push([Draft(b"x")] * LETTERS)
    engine.receive(["q"], LETTERS, SECOND, 1 << 40)
    clock.now += SECOND
    while engine.expire(1000):
        clock.tick()
    queue = engine.queue("dead")
    redrive = queue.redrive
    assert redrive is not None
    everything = redrive.letters((), 2 * LETTERS)
    assert (len(everything), everything) == (LETTERS, sorted(everything))
    holder = queue if kind is JournalEngine else queue.store
    origins = CountedOrigins(holder.origins)
    monkeypatch.setattr(holder, "origins", origins)
    assert redrive.letters((), 7) == everything[:7]
    assert origins.asked == 17
    assert redrive.letters([each[0] for each in everything[9:4:-1]], 3) == everything[5:8]
    monkeypatch.undo()  # the stop writes down all of them
    engine.close()
