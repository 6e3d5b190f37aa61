"""The keys of idempotent pushes: as many as are needed are known, and compaction says them again in slices."""

from pathlib import Path

import pytest
from crashing import segments_of
from engines import Bench, journal_engine

from qs_server.storage.directories import DirectoriesEngine
from qs_server.storage.engine import Draft, Durability, Receipt, State
from qs_server.storage.journal.keys import WINDOW
from qs_server.storage.journal.queue import LogQueue


def _queue(bench: Bench) -> LogQueue:
    assert isinstance(bench.engine, DirectoriesEngine)
    queue = bench.engine.queue("q")
    assert isinstance(queue, LogQueue)
    return queue


def test_old_keys_are_forgotten_as_fast_as_new_ones_come(tmp_path: Path) -> None:
    """Also where keyed messages are pushed in lists."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    bench.queue()
    for number in range(20):
        bench.engine.queue("q").push([Draft(b"x", key=f"{number}-{each}") for each in range(100)])
        bench.engine.commit()
        bench.clock.now += WINDOW // 2
    assert len(_queue(bench).keys.known) <= 300
    bench.engine.close()


def test_keys_are_said_again_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: no slice is about all of them. They are known after a start."""
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
    compaction, log = keeper._compaction, keeper.open().log
    assert compaction is not None
    oldest, steps = log.oldest, 0
    while log.oldest == oldest:
        compaction.step(0.0)
        bench.engine.commit()
        steps += 1
    assert steps > 2000 // 256
    keeper.close()  # as at the end of a process that is killed
    bench.engine._watch.close()
    bench.engine = bench.make(bench.clock)
    assert bench.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(2000)]) == mids
    bench.engine.close()
