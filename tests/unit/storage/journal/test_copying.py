"""Tests what compaction looks at of a segment that it removes."""

from pathlib import Path

import pytest
from support.storage.engines import Bench, journal_engine, upkeep

from qs_storage.engine import Durability, Receipt


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("qs_storage.journal.log.pool.SMALL_LOG", 0)
    return Bench(journal_engine(Durability.NONE, cache=0)(tmp_path))


def push_and_delete(bench: Bench, payload: bytes) -> None:
    for mid in bench.push(payload):
        bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.commit()


def flip(bench: Bench, word: bytes) -> None:
    """Changes a byte of the payload in the first segment that contains the word."""
    log = bench.engine._journal.store.log  # type: ignore[attr-defined]
    path = Path(log.segments.path_of(1))
    at = path.read_bytes().index(word)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"X")


@pytest.mark.parametrize(("damaged", "goes"), [(b"dead", True), (b"kept", False)])
def test_damage_counts_only_in_what_is_copied(bench: Bench, damaged: bytes, goes: bool) -> None:
    """A bit that went bad in a deleted message does not keep its segment; one in a message that is needed does."""
    bench.queue()
    push_and_delete(bench, b"dead")
    bench.push(b"kept")
    flip(bench, damaged)
    for _ in range(60):
        push_and_delete(bench, b"x" * 100_000)
        upkeep(bench.engine, slices=1000)
    assert (min(bench.engine._journal.store.log.segments.sizes) > 1) is goes  # type: ignore[attr-defined]
