"""Ids of new messages: greater than all that were given, whatever far ids others have used by mistake."""

from pathlib import Path

from support.storage.engines import EPOCH
from support.storage.ingest import IngestCase

from qs_storage.engine import Draft, State
from qs_storage.names import FAR, MAX_MID


def test_far_ids_are_passed_by(tmp_path: Path) -> None:
    """Pushes in a list, one by one and by key, and batches get ids of their time, though a file had the last id."""
    place = IngestCase(tmp_path / "root")
    place.put(FAR, b"far")
    place.put(MAX_MID, b"last")
    place.settle()
    queue = place.engine.queue("q")
    queue.push([Draft(b"1"), Draft(b"2")])
    queue.push([Draft(b"3", key="k"), Draft(b"4", delay=1)])
    assert queue.batches is not None
    queue.batches.stage("p", (1, 0, 0), list(map(Draft, [b"5", b"6"])))
    queue.batches.publish("p", 1, [(0, 0)])
    place.engine.commit()
    expected = [*range(EPOCH, EPOCH + 6), FAR, MAX_MID]
    assert queue.list_mids(State.ALL, 10, -1) == expected
    place.crash()
    assert place.engine.queue("q").list_mids(State.ALL, 10, -1) == expected
    place.disk.crash()
    place.engine._watch.close()
