"""The keys of idempotent pushes: as many as are needed are known, and compaction says them again in slices."""

from pathlib import Path

import pytest
from support.crashing import Place, segments_of
from support.engines import Bench, checkpointed, journal_engine, maintenance_of

from qs_server.storage.directories import DirectoriesEngine
from qs_server.storage.engine import Draft, Durability, Receipt, State
from qs_server.storage.journal.keys import WINDOW
from qs_server.storage.journal.queue import LogQueue

MINUTE = 60_000_000


def _queue(bench: Bench) -> LogQueue:
    assert isinstance(bench.engine, DirectoriesEngine)
    queue = bench.engine.queue("q")
    assert isinstance(queue, LogQueue)
    return queue


def test_old_keys_are_forgotten_as_fast_as_new_ones_come(tmp_path: Path) -> None:
    """Old keys are forgotten as fast as new ones come, also in lists."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    bench.queue()
    for number in range(20):
        bench.engine.queue("q").push([Draft(b"x", key=f"{number}-{each}") for each in range(100)])
        bench.engine.commit()
        bench.clock.now += WINDOW // 2
    assert len(_queue(bench).keys.entries) <= 300
    bench.engine.close()


def test_keys_are_said_again_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are written again in slices, however many there are, and are known after a start."""
    segments_of(monkeypatch, 1 << 18, 1 << 18)
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    assert isinstance(bench.engine, DirectoriesEngine)
    bench.queue()
    mids = bench.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(2000)])
    bench.engine.queue("q").push([Draft(bytes(1 << 18))])
    for mid in bench.engine.queue("q").list_mids(State.ALL, 3000, -1):
        bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.commit()
    keeper = bench.engine._journal
    compaction, log = maintenance_of(bench.engine).compaction, keeper.open().log
    oldest, steps = log.segments.oldest, 0
    while log.segments.oldest == oldest:
        compaction.step(0.0)
        bench.engine.commit()
        steps += 1
    assert steps > 2000 // 256
    keeper.close()  # as at the end of a process that is killed
    bench.engine._watch.close()
    bench.engine = bench.make(bench.clock)
    assert bench.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(2000)]) == mids
    bench.engine.close()


def _forget_messages(place: Place, count: int) -> list[int]:
    """Pushes keyed messages and deletes them: what is left of them is keys."""
    place.queue("q")
    mids = place.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(count)])
    for mid in mids:
        place.engine.queue("q").delete(Receipt(mid))
    place.engine.commit()
    return mids


def _leave_segment(place: Place) -> None:
    """Writes until the log goes over into another segment."""
    segments = place.segments()
    while place.segments()[-1] == segments[-1]:
        [mid] = place.push("q", bytes(1 << 14))
        place.engine.queue("q").delete(Receipt(mid))
        place.engine.commit()


def test_segments_of_keys_alone_come_to_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known key is needed: a segment of nothing else is not copied again and again. They are known after a kill."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = Place(tmp_path / "root")
    mids = _forget_messages(place, 4000)
    place.upkeep_all()
    assert len(place.segments()) <= 8
    place.crash()
    assert place.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(4000)]) == mids
    place.leave()


@pytest.mark.parametrize("end", ["forgotten by compaction", "forgotten at leisure", "queue removed"])
def test_segments_of_old_keys_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Keys whose time is over, and those of a queue that is gone, hold no segment."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = Place(tmp_path / "root")
    _forget_messages(place, 4000)
    place.upkeep_all()
    place.queue("other")
    if end == "queue removed":
        place.engine.remove("q", force=True)
        place.engine.commit()
        place.queue("q")
    else:
        place.clock.now += WINDOW
    if end == "forgotten by compaction":
        _leave_segment(place)
    place.upkeep_all()
    place.clock.now += MINUTE
    place.upkeep_all()
    assert len(place.segments()) <= 3
    assert place.engine.effects().next_upkeep is None
    place.leave()


def test_a_checkpoint_with_old_keys_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the segments that say them are gone since: nobody asks for those keys any more."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = Place(tmp_path / "root")
    _forget_messages(place, 500)
    with_keys = place.segments()[-1]
    _leave_segment(place)
    place.engine._journal.rest()
    with_checkpoint = place.segments()[-1]
    place.clock.now += WINDOW
    while with_keys in place.segments():
        _leave_segment(place)
        place.upkeep()
    assert with_checkpoint in place.segments()
    place.crash()
    assert checkpointed(place.engine) is not None
    assert "is ignored" not in caplog.text
    place.leave()
