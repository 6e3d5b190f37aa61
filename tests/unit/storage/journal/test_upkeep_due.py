"""The next commit notices everything that makes work for the upkeep of the log, though few commits look for it."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.crashing import segments_of
from support.storage.ingest import IngestCase

from qs_storage.engine import SECOND, Draft, Receipt
from qs_storage.journal.log.log import Log


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IngestCase]:
    monkeypatch.setattr("qs_storage.journal.log.pool.FIRST_SEGMENT", 1 << 18)
    monkeypatch.setattr("qs_storage.journal.log.pool.SMALL_LOG", 0)
    made = IngestCase(tmp_path / "root")
    yield made
    made.disk.crash()
    made.engine._watch.close()


def log_of(place: IngestCase) -> Log:
    store = place.engine._journal.store
    assert store is not None
    return store.log


def test_a_first_segment_whose_messages_are_deleted_goes(place: IngestCase) -> None:
    """The first segment is removed when its last message is deleted, though no message was pushed after it. The message
    is so large that it is not worth copying."""
    [mid] = place.push(b"x" * 200_000)
    queue, log = place.engine.queue("q"), log_of(place)
    place.engine.receive(["q"], 1, None, 0)
    while log.number == 1:
        queue.extend(Receipt(mid), 10**6)
        place.engine.commit()
    place.settle()
    assert list(log.segments.sizes) == [1, 2]
    queue.delete(Receipt(mid))
    place.engine.commit()
    place.settle()
    assert list(log.segments.sizes) == [2]


def test_old_keys_wait_on_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure there is nothing to do for a second, though it is time to forget keys."""
    segments_of(monkeypatch, 1 << 20, 1 << 20)  # so large that no batch begins a segment, and writes notes for that
    place = IngestCase(tmp_path / "root")
    place.engine.queue("q").push([Draft(b"x", key="k")])
    place.engine.commit()
    place.settle()
    place.clock.now += 300 * SECOND
    place.engine.receive(["q"], 1, None, 0)
    place.engine.commit()
    place.clock.now += SECOND
    place.disk.arm(1, errno.ENOSPC, lasting=True)
    assert place.step()
    due = place.engine.effects().next_upkeep
    assert due is not None
    assert due >= place.clock() + SECOND
    place.disk.disarm()
    place.clock.now = due
    place.settle()
    assert not place.engine.queue("q").keys
    place.engine.close()
