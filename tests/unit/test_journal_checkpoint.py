"""A checkpoint of queues in which much is hidden, was received, or has a key: written in short slices, and complete."""

from pathlib import Path

import pytest
from engines import Bench, journal_engine

from qs_server.storage.directories import DirectoriesEngine
from qs_server.storage.engine import SECOND, Draft, Durability, Receipt, State

COUNT = 10_000
WINDOW = 100 * SECOND


def _seen(bench: Bench) -> list[object]:
    engine = bench.engine
    mids = engine.queue("q").list_mids(State.ALL, COUNT, -1)
    about = [engine.queue("q").get(mid, peek=True, visibility=None) for mid in mids]
    keyed = engine.queue("q").push([Draft(b"x", key=f"{number}") for number in range(COUNT // 2)])
    stats = engine.queue("q").stats()
    return [about, keyed, stats.new, stats.ready, stats.in_flight, stats.delayed, stats.bytes]


def _fill(bench: Bench) -> None:
    """A third each: keyed and in flight, visible after all, delayed."""
    engine = bench.engine
    bench.queue()
    engine.queue("q").push([Draft(b"x", key=f"{number}") for number in range(COUNT // 2)])
    for held in (False, True):
        engine.receive(["q"], COUNT // 4, WINDOW, 1 << 30, held=held)
    for mid in engine.queue("q").list_mids(State.ALL, 100, -1):
        engine.queue("q").release(Receipt(mid), 0)
    engine.queue("q").push([Draft(b"yy", WINDOW if number % 2 else 0) for number in range(COUNT // 2)])
    engine.commit()


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    """A start from it finds what a start from the segments alone finds."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    _fill(bench)
    bench.reopen()
    assert isinstance(bench.engine, DirectoriesEngine)
    assert bench.engine._journal._checkpointed is not None
    with_checkpoint = _seen(bench)
    bench.engine._journal.close()  # as at the end of a process that is killed
    bench.engine._watch.close()
    (tmp_path / ".journal" / "checkpoint").unlink()
    bench.engine = bench.make(bench.clock)
    assert bench.engine._journal._checkpointed is None
    assert _seen(bench) == with_checkpoint
    bench.engine.close()


def test_slices_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that there may be a million of is written in one piece."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    _fill(bench)
    assert isinstance(bench.engine, DirectoriesEngine)
    monkeypatch.setattr("qs_server.storage.journal.keeper.SLICE", 0.0)
    keeper = bench.engine._journal
    steps, snapshot = 0, keeper._begin_snapshot(keeper.open()).step()
    while snapshot is not None:
        steps, snapshot = steps + 1, snapshot.step()
    # messages, hidden, delayed, received, keys
    assert steps >= (COUNT + COUNT * 3 // 4 + COUNT // 4 + 2 * COUNT // 2) // 4096
    bench.engine.close()
