"""Payloads that queues of the journal share are counted once, and these queues are known as long as they are there."""

from pathlib import Path

import pytest
from support.engines import Bench, journal_engine

from qs_server.storage.directories import DirectoriesEngine
from qs_server.storage.engine import Durability, Receipt
from qs_server.storage.journal.store import Store


def _store(bench: Bench) -> Store:
    assert isinstance(bench.engine, DirectoriesEngine)
    return bench.engine._journal.open()


def test_a_copy_that_is_made_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start from that checkpoint counts the payload once: its segment is empty when both messages are gone."""
    bench = Bench(journal_engine(Durability.ALWAYS)(tmp_path))
    assert isinstance(bench.engine, DirectoriesEngine)
    bench.queue("a")
    bench.queue("b")
    [mid] = bench.push(bytes(1000), qid="a")
    keeper = bench.engine._journal
    monkeypatch.setattr("qs_server.storage.journal.snapshot.SLICE", 0.0)
    snapshot = keeper._begin_snapshot(keeper.open())
    assert not snapshot.step()
    bench.engine.copy("a", mid, ["b"])
    bench.engine.commit()
    counted = _store(bench).usage.total
    while not snapshot.step():
        continue
    snapshot.publish()
    keeper.close()  # as at the end of a process that is killed
    bench.engine._watch.close()
    bench.engine = bench.make(bench.clock)
    assert _store(bench).usage.total == counted
    for qid in ("a", "b"):
        bench.engine.queue(qid).delete(Receipt(mid))
    bench.engine.commit()
    assert _store(bench).usage.segments() == set()
    bench.engine.close()


def test_queues_that_are_gone_share_nothing(tmp_path: Path) -> None:
    """However many there were, also after a start that reads all of the log."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    assert isinstance(bench.engine, DirectoriesEngine)
    bench.queue("a")
    [mid] = bench.push(b"x", qid="a")
    for number in range(20):
        bench.queue(f"b{number}")
        bench.engine.copy("a", mid, [f"b{number}"])
        bench.engine.remove(f"b{number}", force=True)
        bench.engine.commit()
    assert len(_store(bench).families) <= 1
    bench.engine._journal.close()
    bench.engine._watch.close()
    bench.engine = bench.make(bench.clock)
    assert len(_store(bench).families) <= 1
    assert bench.engine.queue("a").stats().ready == 1
    bench.engine.close()
