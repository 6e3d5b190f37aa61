"""Payloads that queues of the journal share are counted once, and these queues are known as long as they are there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.storage.crashing import segments_of
from support.storage.engines import Bench, compact, journal_engine

from qs_storage.directories import DirectoriesEngine
from qs_storage.engine import Draft, Durability, Engine, Receipt, State
from qs_storage.journal.queues.store import PayloadStore
from qs_storage.journal.upkeep.checkpoint import Snapshot


def _store(bench: Bench) -> PayloadStore:
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
    monkeypatch.setattr("qs_storage.journal.upkeep.checkpoint.SLICE", 0.0)
    snapshot = Snapshot(keeper.open(), keeper.queues.values())
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


def _acknowledge(engine: Engine) -> None:
    engine.queue("a").claims.claim("c", 1, 3000, None, None)
    engine.commit()
    engine.queue("a").claims.acknowledge("c", 1)


@pytest.mark.parametrize("remove", [_acknowledge, lambda engine: engine.remove("a", force=True)])
@pytest.mark.parametrize("came_back", [False, True])
def test_what_thousands_leave_when_they_go_together(
    tmp_path: Path, remove: Callable[[Engine], object], came_back: bool
) -> None:
    """Only the payload that another queue has too counts as needed then, and is still there. It makes no difference
    that the queue has a payload twice, as a copy that came back as a dead letter."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    bench.queue("a")
    bench.queue("b", dead_letter="a", max_receives=1)
    mids = [mid for _ in range(3) for mid in bench.push(*[b"x"] * 900, qid="a")]
    [alone] = bench.push(b"x", qid="b")
    one = _store(bench).usage.total // 2701
    bench.engine.queue("b").delete(Receipt(alone))
    bench.engine.copy("a", mids[1500], ["b"])
    if came_back:
        bench.engine.copy("a", mids[700], ["b"])
        bench.engine.queue("b").reject(Receipt(mids[700]), None)
        assert len(bench.engine.queue("a").list_mids(State.ALL, 3000, -1)) == 2701
    bench.engine.commit()
    remove(bench.engine)
    bench.engine.commit()
    for _ in range(2):
        assert _store(bench).usage.total == one
        assert bench.engine.queue("b").get(mids[1500], peek=True, visibility=None).payload == b"x"
        bench.reopen()
    bench.engine.queue("b").delete(Receipt(mids[1500]))
    bench.engine.commit()
    assert _store(bench).usage.segments() == set()
    bench.engine.close()


def test_queues_that_are_gone_share_nothing(tmp_path: Path) -> None:
    """Queues that are gone share no payloads, also after a start that reads all of the log: nobody looks for messages
    in them."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    assert isinstance(bench.engine, DirectoriesEngine)
    bench.queue("a")
    [mid] = bench.push(b"x", qid="a")
    for number in range(20):
        bench.queue(f"b{number}")
        bench.engine.copy("a", mid, [f"b{number}"])
        bench.engine.remove(f"b{number}", force=True)
        bench.engine.commit()
    assert all(family == {bench.engine.queue("a").number} for family in _store(bench).families.values())
    bench.engine._journal.close()
    bench.engine._watch.close()
    bench.engine = bench.make(bench.clock)
    assert all(family == {bench.engine.queue("a").number} for family in _store(bench).families.values())
    assert bench.engine.queue("a").stats().ready == 1
    bench.engine.close()


def test_copies_outlive_the_queue_that_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment with payloads that only copies need is compacted, also after a start from a checkpoint or from the
    segments; what was known of the queue that is gone goes with its last segment."""
    segments_of(monkeypatch, 1 << 14, 1 << 14)
    for start in ("none", "checkpoint", "segments"):
        bench = Bench(journal_engine(Durability.NONE)(tmp_path / start))
        assert isinstance(bench.engine, DirectoriesEngine)
        bench.queue("a")
        bench.queue("b")
        mids = [bench.push(bytes([number]) * 1000, qid="a")[0] for number in range(40)]
        for mid in mids:
            bench.engine.copy("a", mid, ["b"])
        bench.engine.queue("a").delete(Receipt(mids[0]))
        bench.engine.remove("a", force=True)
        bench.engine.commit()
        if start == "checkpoint":
            bench.reopen()
            assert isinstance(bench.engine, DirectoriesEngine)
        elif start == "segments":
            bench.engine._journal.close()
            bench.engine._watch.close()
            bench.engine = bench.make(bench.clock)
            assert isinstance(bench.engine, DirectoriesEngine)
        store = _store(bench)
        oldest = store.log.segments.oldest
        for _ in range(3):
            compact(bench.engine)
        assert oldest != store.log.segments.oldest
        assert len(store.families) <= 1
        found = bench.engine.receive(["b"], 100, None, 1 << 30)
        assert [(each.mid, each.payload) for each in found] == [
            (mid, bytes([number]) * 1000) for number, mid in enumerate(mids)
        ]
        bench.engine.close()


def test_copies_outlive_the_queue_to_which_they_were_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment with staged messages that only copies need is compacted, although their queue is gone."""
    segments_of(monkeypatch, 1 << 14, 1 << 14)
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    assert isinstance(bench.engine, DirectoriesEngine)
    bench.queue("a")
    bench.queue("b")
    bench.queue("c")
    batches = bench.engine.queue("a").batches
    assert batches is not None
    payloads = [bytes([number]) * 1000 for number in range(10)]
    batches.stage("p", (1, 0, 1), list(map(Draft, payloads)))
    batches.publish("p", 1, [(0, 1)])
    mids = bench.engine.queue("a").list_mids(State.ALL, 100, -1)
    for mid in mids:
        bench.engine.copy("a", mid, ["b", "c"])
    bench.engine.remove("a", force=True)
    bench.engine.commit()
    segment = min(_store(bench).usage.segments())
    for _ in range(100):
        for mid in bench.push(bytes(1000), qid="b"):
            bench.engine.queue("b").delete(Receipt(mid))
        bench.engine.commit()
        compact(bench.engine)
    assert segment not in _store(bench).usage.segments()
    for qid in ("b", "c"):
        found = [bench.engine.queue(qid).get(mid, peek=True, visibility=None).payload for mid in mids]
        assert found == payloads
    bench.engine.close()


class Asked(dict[int, Any]):
    """Notes which numbers are looked up."""

    def __init__(self, entries: dict[int, Any], asked: list[int]) -> None:
        super().__init__(entries)
        self._asked = asked

    def get(self, number: int, default: Any = None) -> Any:
        self._asked.append(number)
        return super().get(number, default)


def test_a_message_that_was_never_copied_asks_no_other_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that has shared payloads with many others removes its other messages no slower, also after a start."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    assert isinstance(bench.engine, DirectoriesEngine)
    others = [f"b{number}" for number in range(50)]
    for qid in ("a", *others):
        bench.queue(qid)
    [mid] = bench.push(b"x", qid="a")
    bench.engine.copy("a", mid, others)
    alone = bench.push(b"alone", b"too", qid="a")
    bench.engine.commit()
    for message in alone:
        asked: list[int] = []
        monkeypatch.setattr(_store(bench), "tables", Asked(_store(bench).tables, asked))
        bench.engine.queue("a").delete(Receipt(message))
        bench.engine.commit()
        assert asked == []
        monkeypatch.undo()
        bench.reopen()
    counted = _store(bench).usage.total
    bench.engine.queue("a").delete(Receipt(mid))
    bench.engine.commit()
    assert _store(bench).usage.total == counted
    bench.engine.close()
