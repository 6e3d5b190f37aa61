"""The queue that keeps nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.storage.engines import EPOCH, ManualClock, arrived

from qs_storage.directories import DirectoriesEngine, NullEngine
from qs_storage.engine import SECOND, Draft, Durability, NoSuchMessageError, Options, Receipt, State


def test_null(tmp_path: Path) -> None:
    """Pushes get increasing ids whatever the clock does; nothing is there, nor announced, nor on disk."""
    clock = ManualClock()
    engine = NullEngine(str(tmp_path), clock=clock, durability=Durability.ALWAYS)
    engine.create("q", Options(capacity=1))
    found = engine.queue("q").push([Draft(b"x"), Draft(b"y", 5, "key")])
    clock.now -= SECOND
    found += engine.queue("q").push([Draft(b"z")])
    engine.commit()
    assert found == [EPOCH, EPOCH + 1, EPOCH + 2] == [*range(EPOCH, engine.queue("q").last_mid + 1)]
    assert arrived(engine) == {}
    assert engine.effects().next_expiry is None
    assert engine.receive(["q"], 10, None, 1) == []
    assert (engine.queue("q").list_mids(State.ALL, 10, -1), engine.queue("q").purge(found[-1], 10)) == ([], 0)
    stats = engine.queue("q").stats()
    assert (stats.pushed, stats.bytes, stats.oldest, stats.storage) == (3, 0, None, "null")
    for call in missing(engine, found[0]):
        with pytest.raises(NoSuchMessageError):
            call()
    assert [path.name for path in (tmp_path / "q").iterdir()] == [".queue.toml"]
    engine.remove("q", force=False)
    engine.close()


def missing(engine: DirectoriesEngine, mid: int) -> list[Callable[[], Any]]:
    return [
        lambda: engine.queue("q").get(mid, peek=True, visibility=None),
        lambda: engine.queue("q").read(Receipt(mid)),
        lambda: engine.queue("q").delete(Receipt(mid)),
        lambda: engine.queue("q").release(Receipt(mid), 0),
        lambda: engine.queue("q").extend(Receipt(mid), None),
    ]
