"""A log from the middle of which segments have gone: what is damage there, and what is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.holes_world import KeepingDisk
from support.power_loss_check import nobody_else
from support.power_loss_engines import upkeep
from support.power_loss_short_holes import COLD, hot, make_holes, open_engine, payloads, small

from qs_storage.directories import JournalEngine
from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Options, Receipt, State, StorageError
from qs_storage.journal.log.absent_record import Run
from qs_storage.journal.log.frames import BLOCK
from qs_storage.journal.log.log import Log
from qs_storage.journal.log.opening import find_segments
from qs_storage.journal.log.places import segment_name
from qs_storage.journal.log.recovery import JournalDamagedError
from qs_storage.journal.rescue.damage import examine
from qs_storage.journal.rescue.repair import repair
from qs_storage.journal.upkeep.checkpoint import NAME
from qs_storage.tools.journal_backup import backup

LAST = hot(29)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of such a log, without a checkpoint."""
    small(monkeypatch)
    with nobody_else():
        engine = open_engine(str(tmp_path / "root"), Disk())
        make_holes(engine)
        engine.close()
    (tmp_path / "root" / ".journal" / NAME).unlink()
    return tmp_path / "root" / ".journal"


def before_the_hole(journal: Path) -> Path:
    """The last segment of those that are older than what is gone."""
    numbers = [scan.header.number for scan in find_segments(str(journal), Disk())]
    return journal / segment_name(next(number for number in numbers if number + 1 not in numbers))


def start(root: Path) -> tuple[list[bytes | None], list[bytes | None]]:
    with nobody_else():
        engine = open_engine(str(root), Disk())
        found = payloads(engine, "cold"), payloads(engine, "hot")
        engine.close()
    return found


def test_what_is_gone_is_no_damage(journal: Path) -> None:
    found = examine(str(journal), Disk())
    assert (found.missing, found.refusal) == ([], None)
    assert not any(part.faults or part.holes for part in found.parts)
    assert repair(str(journal), Disk()) is None
    assert start(journal.parent) == (COLD, [LAST])


def remove(path: Path) -> None:
    path.unlink()


def cut_its_end(path: Path) -> None:
    """Fills the last frame with zeros, as if it had never been written."""
    data = path.read_bytes().rstrip(b"\0")
    begin = data.rindex(b"qsF\x01") // BLOCK * BLOCK
    path.write_bytes(data[:begin].ljust(path.stat().st_size, b"\0"))


@pytest.mark.parametrize(("harm", "told"), [(remove, "it is missing"), (cut_its_end, "are not whole")])
def test_what_is_lost_beside_it_is_damage(journal: Path, harm: Callable[[Path], None], told: str) -> None:
    """A segment that no record calls gone, and the frames at the end of the one before the hole."""
    path = before_the_hole(journal)
    harm(path)
    with pytest.raises(JournalDamagedError, match=f"{path.name}.*{told}"), nobody_else():
        open_engine(str(journal.parent), Disk())
    found = examine(str(journal), Disk())
    assert found.refusal is not None
    with pytest.raises(StorageError, match="missing") if harm is remove else nobody_else():
        back_up(journal.parent)
    assert repair(str(journal), Disk()) is not None
    cold, last = start(journal.parent)
    assert set(cold) < set(COLD)
    assert last == [LAST]


def back_up(root: Path) -> Path:
    backup(str(root), f"{root}-copy", lambda count: None)
    return Path(f"{root}-copy")


def test_a_backup(journal: Path) -> None:
    assert start(back_up(journal.parent)) == (COLD, [LAST])


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a log whose last segment has a torn end, which nothing has made durable."""
    small(monkeypatch)
    root = tmp_path / "torn"
    with nobody_else():
        engine = open_engine(str(root), Disk(), Durability.INTERVAL)
        for qid in ("cold", "hot", "copies"):
            engine.create(qid, Options())
        for begin in range(0, 800, 100):
            engine.queue("cold").push([Draft(payload) for payload in COLD[begin : begin + 100]])
            engine.commit()
        engine.copy("cold", engine.queue("cold").list_mids(State.ALL, 1, -1)[0], ["copies"])
        engine.commit()
        engine.queue("cold").push([Draft(payload) for payload in COLD[800:900]])
        engine.commit()
        engine._journal.close()  # nothing is synced, as if it were killed
    path = max((root / ".journal").glob("*.segment"))
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(data[: end - 9000].ljust(len(data), b"\0"))
    return root / ".journal"


def test_what_is_torn_before_a_hole_is_no_damage(torn: Path) -> None:
    """A start has cut it off, and the segment that was begun then is gone."""
    with nobody_else():
        engine = open_engine(str(torn.parent), Disk())
        push_and_delete(engine, until=lambda log: bool(log.segments.absent))
        engine.close()
    found = examine(str(torn), Disk())
    assert (found.missing, found.refusal) == ([], None)
    assert not any(part.faults or part.holes for part in found.parts)


def test_a_segment_with_a_torn_end_is_compacted(torn: Path) -> None:
    """The bytes that were cut off have whole heads of frames and records, and are not looked at."""
    with nobody_else():
        engine = open_engine(str(torn.parent), Disk())
        last = max(log_of(engine).segments.sizes)
        for mid in engine.queue("cold").list_mids(State.ALL, 999, -1)[1::2]:
            engine.queue("cold").delete(Receipt(mid))
        push_and_delete(engine, until=lambda log: last not in log.segments.sizes)
        assert payloads(engine, "cold") == COLD[:800:2]
        assert payloads(engine, "copies") == COLD[:1]
        engine.close()


def log_of(engine: JournalEngine) -> Log:
    store = engine._journal._store
    assert store is not None
    return store.log


def push_and_delete(engine: JournalEngine, until: Callable[[Log], bool]) -> None:
    """Pushes messages and deletes them until the log is as wanted."""
    for _ in range(200):
        for mid in engine.queue("hot").push([Draft(bytes(9000))]):
            engine.queue("hot").delete(Receipt(mid))
        engine.commit()
        upkeep(engine)
        if until(log_of(engine)):
            return
    raise AssertionError("the log never came to be so")


def test_a_removed_segment_that_is_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power loss, and the one behind it with the deletions of its messages is not: both were removed since the
    last segment was begun, and nothing has made that durable."""
    small(monkeypatch)
    removed: dict[str, bytes] = {}
    root = tmp_path / "root"
    with nobody_else():
        engine = open_engine(str(root), KeepingDisk(removed))
        for qid in ("cold", "hot"):
            engine.create(qid, Options())
        for begin in range(0, len(COLD), 100):
            engine.queue("cold").push([Draft(payload) for payload in COLD[begin : begin + 100]])
            engine.commit()
        log, [table] = log_of(engine), [queue.table for queue in engine._journal.queues.values() if queue.qid == "cold"]
        begin_segment(engine)
        for mid in engine.queue("cold").list_mids(State.ALL, 999, -1):
            if (table.places.get(mid) or 0) >> 32 == 2:
                engine.queue("cold").delete(Receipt(mid))
        deletions = log.number
        begin_segment(engine)
        while not {2, deletions}.isdisjoint(log.segments.sizes):
            upkeep(engine, slices=1)
        assert log.segments.oldest == 1
        kept = payloads(engine, "cold")
        engine._journal.close()
        (root / ".journal" / NAME).unlink()
        (root / ".journal" / segment_name(deletions)).unlink(missing_ok=True)  # it may be kept to be recycled
        (root / ".journal" / segment_name(2)).write_bytes(removed[segment_name(2)])
        engine = open_engine(str(root), Disk())
        assert payloads(engine, "cold") == kept
        engine.close()


def begin_segment(engine: JournalEngine) -> None:
    """Pushes and deletes, without upkeep, until there is another segment."""
    number = log_of(engine).number
    while log_of(engine).number == number:
        for mid in engine.queue("hot").push([Draft(bytes(9000))]):
            engine.queue("hot").delete(Receipt(mid))
        engine.commit()


def test_a_record_names_what_is_gone(journal: Path) -> None:
    """One record names the segments that are gone, and each new segment repeats it."""
    scan = find_segments(str(journal), Disk())[-1]
    with nobody_else():
        engine = open_engine(str(journal.parent), Disk())
        [run] = log_of(engine).segments.absent
        engine.close()
    assert run == Run(int(before_the_hole(journal).stem) + 1, scan.header.number - 1, run.frame)
