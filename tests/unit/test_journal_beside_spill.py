"""Operations on messages whose files are being written, renamed or removed just then."""

from collections.abc import Callable
from pathlib import Path

import pytest
from engines import ManualClock

from qs_server.storage.engine import Draft, Durability, Options, Receipt
from qs_server.storage.journal.engine import JournalEngine
from qs_server.storage.journal.ledger import SpillLimits

LOTS = 1 << 40
OPERATIONS: dict[str, Callable[[JournalEngine, int], object]] = {
    "receive": lambda engine, mid: engine.receive(["q"], 1, 10, LOTS)[0].payload,
    "receive held": lambda engine, mid: engine.receive(["q"], 1, 10, LOTS, held=True)[0].payload,
    "get": lambda engine, mid: engine.get("q", mid, peek=False, visibility=10).payload,
    "peek": lambda engine, mid: engine.get("q", mid, peek=True, visibility=None).payload,
    "read": lambda engine, mid: engine.read("q", Receipt(mid, 1)).payload,
    "copy": lambda engine, mid: engine.copy("q", mid, ["r"]) or engine.receive(["r"], 1, 10, LOTS)[0].payload,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("has_run", [True, False])
def test_the_file_has_another_name(tmp_path: Path, name: str, has_run: bool) -> None:
    """A message is found although its file has just been renamed, or is about to be, in another thread."""
    clock = ManualClock()
    engine = JournalEngine(str(tmp_path), clock=clock, durability=Durability.NONE, limits=SpillLimits(age=0))
    for qid in ("q", "r"):
        engine.create(qid, Options())
    [mid] = engine.push("q", [Draft(b"payload")])
    engine.commit()
    first = engine.begin_spill()
    assert first is not None
    first.run()
    engine.finish_spill(first)
    assert (tmp_path / "q" / str(mid)).exists()
    engine.receive(["q"], 1, 0, LOTS)
    engine.commit()
    second = engine.begin_spill()
    assert second is not None
    if has_run:
        second.run()
        assert not (tmp_path / "q" / str(mid)).exists()
    clock.now += 1
    assert OPERATIONS[name](engine, mid) == b"payload"
    second.run()
    engine.finish_spill(second)
    engine.commit()
    engine.close()
    again = JournalEngine(str(tmp_path), clock=clock, durability=Durability.NONE)
    assert again.stats("q").bytes == len(b"payload")
    again.close()
