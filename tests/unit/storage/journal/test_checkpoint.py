"""A checkpoint of queues in which much is hidden, was received, or has a key: written in short slices, and complete."""

import errno
from pathlib import Path

import pytest
from support.storage.crashing import Place, segments_of
from support.storage.engines import Bench, checkpointed, journal_engine, maintenance_of

from qs_storage.directories import DirectoriesEngine
from qs_storage.engine import SECOND, Draft, Durability, Receipt, State
from qs_storage.journal.upkeep.checkpoint import Snapshot
from qs_storage.journal.upkeep.index_reading import CheckpointReader
from qs_storage.journal.upkeep.maintenance import BackgroundWork

COUNT = 10_000
LETTERS = 3000
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
    assert checkpointed(bench.engine) is not None
    with_checkpoint = _seen(bench)
    bench.engine._journal.close()  # as at the end of a process that is killed
    bench.engine._watch.close()
    (tmp_path / ".journal" / "checkpoint").unlink()
    bench.engine = bench.make(bench.clock)
    assert checkpointed(bench.engine) is None
    assert _seen(bench) == with_checkpoint
    bench.engine.close()


def test_slices_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that may have a million entries are written in slices."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    _fill(bench)
    assert isinstance(bench.engine, DirectoriesEngine)
    monkeypatch.setattr("qs_storage.journal.upkeep.checkpoint.SLICE", 0.0)
    keeper = bench.engine._journal
    steps, snapshot = 0, Snapshot(keeper.open(), keeper.queues.values())
    while not snapshot.step():
        steps += 1
    assert steps >= COUNT // 1024 + COUNT // 2 // 1024  # messages and keys
    bench.engine.close()


def test_dead_letters(tmp_path: Path) -> None:
    """The origin of dead letters, of which there may be a million, is written in slices, and known after a start from
    the checkpoint."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    bench.queue(dead_letter="dead", max_receives=1)
    bench.push(*[b"x"] * LETTERS)
    bench.engine.receive(["q"], LETTERS, WINDOW, 1 << 30)
    bench.clock.now += WINDOW
    while bench.engine.expire(1000):
        bench.clock.tick()
    was = {mid: origin.mid for mid, origin in bench.engine.queue("dead").origins.items()}
    assert len(was) == LETTERS
    bench.reopen()
    assert isinstance(bench.engine, DirectoriesEngine)
    assert checkpointed(bench.engine) is not None
    origins = bench.engine.queue("dead").origins
    assert {mid: origin.mid for mid, origin in origins.items()} == was
    assert {origin[:1] + origin[2:3] + origin[4:5] for origin in origins.values()} == {("q", 1, "receives")}
    assert all(origin.pushed_at == origin.mid and origin.at >= WINDOW for origin in origins.values())
    content = CheckpointReader(str(tmp_path / ".journal")).content
    [columns] = [entry["origins"] for entry in content["queues"] if entry["qid"] == "dead"]
    assert len(columns) == LETTERS // 1024 + 1
    bench.engine.close()


@pytest.mark.parametrize("durability", list(Durability))
def test_no_slice_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and the checkpoint are synced in a thread; until then the checkpoint is not found."""
    monkeypatch.setattr("qs_storage.journal.upkeep.maintenance._CHECKPOINT", 1 << 18)
    segments_of(monkeypatch, 1 << 18, 1 << 18)
    place = Place(tmp_path / "root", durability)
    place.queue("q")
    while True:
        place.push("q", bytes(1 << 16))
        for name in ("checkpoint.tmp", "*.segment"):
            place.disk.refuse("fsync", f"*/{name}", errno.EIO)
        place.disk.refuse("fdatasync", "*.segment", errno.EIO, times=0 if durability is Durability.ALWAYS else 1)
        place.disk.refuse("rename", "*/checkpoint", errno.EIO)
        work = place.engine.begin_upkeep()
        place.disk.disarm()
        place.engine.commit()
        if work is not None:
            made = isinstance(work, BackgroundWork) and work.checkpoint is not None
            assert not (tmp_path / "root/.journal/checkpoint").exists()
            work.run()
            place.engine.finish_upkeep(work)
            if made:
                break
    assert not caplog.records
    place.crash()
    assert checkpointed(place.engine) is not None
    place.leave()


def test_a_checkpoint_that_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that cannot be synced leaves the earlier one in place, and no file of its own."""
    place = Place(tmp_path / "root")
    place.queue("q")
    place.restart()
    before = (tmp_path / "root/.journal/checkpoint").read_bytes()
    place.push("q", b"x")
    place.disk.refuse("fsync", "*/checkpoint.tmp", errno.EIO)
    place.engine._journal.rest()
    assert "no checkpoint could be written" in caplog.text
    assert (tmp_path / "root/.journal/checkpoint").read_bytes() == before
    assert not (tmp_path / "root/.journal/checkpoint.tmp").exists()
    place.crash()
    assert place.payloads("q") == [b"x"]
    place.leave()


def test_a_checkpoint_beside_endless_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a load that always leaves something to compact, a checkpoint is still made: a start after it does
    not read the whole log."""
    monkeypatch.setattr("qs_storage.journal.upkeep.maintenance._CHECKPOINT", 1 << 18)
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = Place(tmp_path / "root", Durability.NONE)
    place.queue("q")
    maintenance = maintenance_of(place.engine)
    monkeypatch.setattr("support.storage.engines.overlooks_work", lambda engine: False)
    monkeypatch.setattr(maintenance.compaction, "wanted", lambda *, tight: True)
    monkeypatch.setattr(maintenance.compaction, "step", lambda: None)
    for _ in range(32):
        place.push("q", bytes(1 << 14))
        if (work := place.engine.begin_upkeep()) is not None:
            work.run()
            place.engine.finish_upkeep(work)
    assert maintenance.checkpointed is not None
    monkeypatch.undo()
    place.leave()
