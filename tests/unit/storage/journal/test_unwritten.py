"""Messages that are in no segment yet can be read within their batch."""

from pathlib import Path

import pytest
from support.storage.engines import Bench, journal_engine

from qs_storage.engine import Draft, Durability, Receipt


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Makes a bench whose engine keeps in memory only what it must."""
    monkeypatch.setattr("qs_storage.journal.log.pool.SMALL_LOG", 0)
    return Bench(journal_engine(Durability.NONE, cache=0)(tmp_path))


def test_pushed_with_a_key(bench: Bench) -> None:
    """A message is handed out in the batch that pushes it, however it is pushed."""
    bench.queue()
    pushed = bench.engine.queue("q").push([Draft(b"1", 0, "key"), Draft(b"2")])
    found = bench.engine.receive(["q"], 10, None, 100)
    assert [(message.mid, message.payload) for message in found] == list(zip(pushed, [b"1", b"2"], strict=True))
    bench.engine.commit()


def test_staged_and_published(bench: Bench) -> None:
    """A batch is handed out in the batch that stages and publishes it."""
    bench.queue()
    batches = bench.engine.queue("q").batches
    batches.stage("p", (0, 0, 0), list(map(Draft, [b"1", b"2"])))
    batches.publish("p", 0, [(0, 0)])
    assert [message.payload for message in bench.engine.receive(["q"], 10, None, 100)] == [b"1", b"2"]
    bench.engine.commit()


def test_copied_by_compaction(bench: Bench) -> None:
    """A message is handed out in the batch in which compaction copies it to the end."""
    bench.queue()
    [kept] = bench.push(b"kept")
    engine = bench.engine
    for _ in range(60):
        for mid in bench.push(b"x" * 100_000):
            engine.queue("q").delete(Receipt(mid))
        engine.commit()
        if engine.effects().next_upkeep == 0:
            upkeep = engine.begin_upkeep()
            [found] = engine.receive(["q"], 1, None, 100)
            assert (found.mid, found.payload) == (kept, b"kept")
            engine.queue("q").release(Receipt(kept), 0)
            engine.commit()
            if upkeep is not None:
                upkeep.run()
                engine.finish_upkeep(upkeep)
    assert min(engine._journal.store.log.segments.sizes) > 1  # type: ignore[attr-defined]
