"""Whatever makes work for the upkeep of the log is noticed with the next commit, though few commits look for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.doors import Doors

from qs_server.storage.engine import Receipt
from qs_server.storage.journal.log import Log


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    monkeypatch.setattr("qs_server.storage.journal.supply.FIRST_SEGMENT", 1 << 16)
    made = Doors(tmp_path / "root")
    yield made
    made.disk.crash()
    made.engine._watch.close()


def log_of(place: Doors) -> Log:
    store = place.engine._journal._store
    assert store is not None
    return store.log


def test_a_first_segment_whose_messages_are_deleted_goes(place: Doors) -> None:
    """It is removed when its last message is deleted, though no message was pushed after it."""
    [mid] = place.push(b"x" * 1000)
    queue, log = place.engine.queue("q"), log_of(place)
    place.engine.receive(["q"], 1, None, 0)
    while log.number == 1:
        queue.extend(Receipt(mid), 10**6)
        place.engine.commit()
    place.settle()
    assert list(log.sizes) == [1, 2]
    queue.delete(Receipt(mid))
    place.engine.commit()
    place.settle()
    assert list(log.sizes) == [2]
