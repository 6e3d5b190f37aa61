"""The figures of an engine with a journal: syncs that it reports, and sums that outlive queues and failed commits."""

from pathlib import Path

import pytest
from support.storage.engines import JournalEngine, ManualClock

from qs_storage.directories import FilesEngine
from qs_storage.engine import SECOND, Draft, Durability, Options


@pytest.mark.parametrize(
    ("durability", "committed", "synced"),
    [(Durability.ALWAYS, 1, 1), (Durability.INTERVAL, 0, 1), (Durability.NONE, 0, 0)],
)
def test_syncs_are_reported(tmp_path: Path, durability: Durability, committed: int, synced: int) -> None:
    """Each commit that is synced, or the sync behind it; a commit of nothing is none."""
    seconds: list[float] = []
    engine = JournalEngine(str(tmp_path), clock=ManualClock(), durability=durability, on_sync=seconds.append)
    engine.create("q", Options())
    engine.commit()
    if (sync := engine.background_sync()) is not None:
        sync()
    seconds.clear()
    engine.queue("q").push([Draft(b"x")])
    engine.commit()
    engine.commit()
    assert len(seconds) == committed
    if (sync := engine.background_sync()) is not None:
        sync()
    assert len(seconds) == synced
    assert all(0 < each < 60 for each in seconds)
    engine.close()


def test_sums(tmp_path: Path) -> None:
    """Sums include queues that are gone or were replaced by another of the name."""
    engine = JournalEngine(str(tmp_path), clock=ManualClock(), durability=Durability.NONE)
    for storage in ("journal", "files", "null", "journal"):
        engine.create("q", Options(storage=storage))
        engine.queue("q").push([Draft(b"x"), Draft(b"y")])
        engine.commit()
        engine.remove("q", force=True)
    assert engine.figures()["messages_pushed_total"] == 8
    engine.close()


def test_what_is_taken_back(tmp_path: Path) -> None:
    """A push whose commit fails was none."""
    engine = JournalEngine(str(tmp_path), clock=ManualClock(), durability=Durability.NONE)
    engine.create("q", Options())
    engine.commit()
    engine.queue("q").push([Draft(b"x")])
    engine.roll_back()
    assert engine.figures()["messages_pushed_total"] == 0
    engine.close()


def test_what_is_too_old(tmp_path: Path) -> None:
    """Messages that retention removes are counted."""
    clock = ManualClock()
    engine = JournalEngine(str(tmp_path), clock=clock, durability=Durability.NONE)
    engine.create("q", Options(retention=SECOND))
    engine.queue("q").push([Draft(b"x"), Draft(b"y")])
    engine.commit()
    clock.now += 2 * SECOND
    engine.expire(10)
    engine.commit()
    assert engine.figures()["messages_retired_total"] == 2
    engine.close()


def test_without_a_journal(tmp_path: Path) -> None:
    """Before there is a journal its figures are 0, and those of the disk are there."""
    engine = FilesEngine(str(tmp_path), clock=ManualClock(), durability=Durability.NONE)
    figures = engine.figures()
    assert {name: value for name, value in figures.items() if name.startswith("journal_")} == dict.fromkeys(
        ("journal_bytes", "journal_live_bytes", "journal_segments", "journal_failed", "journal_compacted_bytes_total"),
        0,
    )
    assert figures["disk_free_bytes"] > 0
    engine.close()
