"""Tests which segments compaction removes at once, what it copies for that, and how often it chooses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engines import LOTS
from support.power_loss_check import nobody_else
from support.power_loss_engines import upkeep
from support.power_loss_short_holes import COLD, open_engine, payloads, push_cold, small

from qs_storage.directories import JournalEngine
from qs_storage.disk import Disk
from qs_storage.engine import Draft, Receipt, State
from qs_storage.journal.upkeep import choice
from qs_storage.journal.upkeep.checkpoint import NAME
from qs_storage.journal.upkeep.compaction import Compaction
from qs_storage.journal.upkeep.maintenance import LogStore


@pytest.fixture(name="engine")
def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JournalEngine]:
    """An engine with messages that nobody takes, of which it has a checkpoint."""
    small(monkeypatch)
    with nobody_else():
        engine = open_engine(str(tmp_path / "root"), Disk())
        push_cold(engine)
        yield engine
        engine.close()


def store_of(engine: JournalEngine) -> LogStore:
    store = engine._journal._store
    assert store is not None
    return store


def compaction_of(engine: JournalEngine) -> Compaction:
    maintenance = engine._journal.maintenance
    assert maintenance is not None
    assert isinstance(maintenance.compaction, Compaction)
    return maintenance.compaction


def fill(engine: JournalEngine, segments: int) -> None:
    """Pushes messages and deletes them, until there are that many more segments."""
    log = store_of(engine).log
    until = log.number + segments
    while log.number < until:
        for mid in engine.queue("hot").push([Draft(bytes(9000))]):
            engine.queue("hot").delete(Receipt(mid))
        engine.commit()


def test_room_is_made_of_what_costs_nothing(engine: JournalEngine) -> None:
    """On a full disk a dead segment in the middle goes at once, and the oldest, all of which is needed, is not
    copied."""
    fill(engine, 4)
    store, compaction = store_of(engine), compaction_of(engine)
    store.checkpointed = store.log.position
    oldest, copied = store.log.segments.oldest, compaction.total
    store.log.tight = True
    assert compaction.run()
    assert (store.log.segments.oldest, compaction.total) == (oldest, copied)
    assert store.log.segments.absent
    assert payloads(engine, "cold") == COLD


def test_what_leaves_the_middle_takes_nothing_else_along(engine: JournalEngine) -> None:
    """A claim, an acknowledgement and a part without messages stay where they are: said again, they would keep the
    segments in which that stands from leaving too."""
    cold = engine.queue("cold")
    cold.claims.claim("c", 1, 1, None, None)  # type: ignore[union-attr]
    cold.claims.acknowledge("c", 1)  # type: ignore[union-attr]
    cold.claims.claim("c", 2, 1, None, None)  # type: ignore[union-attr]
    cold.batches.stage("p", (1, 0, 0), [])  # type: ignore[union-attr]
    engine.commit()
    said = store_of(engine).log.number
    fill(engine, 8)
    upkeep(engine)
    fill(engine, 4)
    upkeep(engine)
    segments = store_of(engine).log.segments
    assert sum(run.last - run.first + 1 for run in segments.absent) >= 8
    assert segments.links.broad == {said}


def test_what_costs_nothing_leaves_beside_a_damaged_segment(engine: JournalEngine) -> None:
    """The oldest cannot be copied, and stays until nothing in it is needed. What comes and goes does not fill the
    disk."""
    log, compaction = store_of(engine).log, compaction_of(engine)
    [oldest, *_] = log.segments.sizes
    mids = engine.queue("cold").list_mids(State.ALL, 999, -1)
    path = Path(log.segments.path_of(oldest))
    path.write_bytes(path.read_bytes().replace(COLD[0][:50], bytes(50)))
    for mid in mids[1:]:
        engine.queue("cold").delete(Receipt(mid))
    for _ in range(10):
        fill(engine, 2)
        upkeep(engine)
    assert compaction._damaged == log.segments.oldest == oldest
    assert len(log.segments.sizes) < 10
    engine.queue("cold").delete(Receipt(mids[0]))
    fill(engine, 1)
    upkeep(engine)
    assert compaction._damaged == 0
    assert oldest not in log.segments.sizes


def test_a_copy_waits_for_what_it_was_copied_from(engine: JournalEngine) -> None:
    """While not all of a segment is copied, it is there still."""
    for mid in engine.queue("cold").list_mids(State.ALL, 999, -1)[::2]:
        engine.queue("cold").delete(Receipt(mid))
    fill(engine, 2)
    log = store_of(engine).log
    [oldest, *_] = log.segments.sizes
    assert log.segments.links.is_free(log.number)
    while not compaction_of(engine).total:
        compaction_of(engine).step(0)
    engine.commit()
    assert log.segments.oldest == oldest
    assert log.segments.links.before(log.number) == [oldest]


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_noted_of_receives_stays(engine: JournalEngine, tmp_path: Path, count: int) -> None:
    """One and several at once: the segment with these notes holds nothing that is needed, and stays while the messages
    do. A start without a checkpoint finds them."""
    fill(engine, 1)
    taken = [message.mid for message in engine.receive(["cold"], count, 10**9, LOTS)]
    store_of(engine).commit(notes=True)
    fill(engine, 8)
    upkeep(engine)
    fill(engine, 4)
    upkeep(engine)
    assert store_of(engine).log.segments.absent
    engine.close()
    (tmp_path / "root" / ".journal" / NAME).unlink()
    again = open_engine(str(tmp_path / "root"), Disk())
    found = [again.queue("cold").read(Receipt(mid)).receives for mid in taken]
    again.close()
    assert found == [1] * count


def test_a_choice_is_remembered(engine: JournalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at all segments, and is asked for with every commit."""
    fill(engine, 2)
    upkeep(engine)
    asked: list[int | None] = []
    choose = choice.choose

    def counted(*args: object, **named: object) -> int | None:
        asked.append(choose(*args, **named))  # type: ignore[arg-type]
        return asked[-1]

    monkeypatch.setattr(choice, "choose", counted)
    compaction = compaction_of(engine)
    for _ in range(10):
        engine.queue("hot").push([Draft(b"x")])
        store_of(engine).commit()
        assert not compaction.wanted
    assert len(asked) <= 1
    for mid in engine.queue("cold").list_mids(State.ALL, 800, -1):
        engine.queue("cold").delete(Receipt(mid))
    assert compaction.wanted
