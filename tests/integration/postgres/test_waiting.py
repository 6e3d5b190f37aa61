"""Receives that wait: all of them end, and nothing of them is kept."""

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.storage.engines import LOTS
from support.storage.postgres import Database, engine_on, needs_postgres

from qs_storage.engine import Draft, Options
from qs_storage.remote_engine import Receive

if TYPE_CHECKING:
    from qs_storage.postgres.engine import PostgresEngine

pytestmark = needs_postgres


@pytest.fixture
def engine(database: Database, tmp_path: Path) -> "Iterator[PostgresEngine]":
    """An engine with one worker and a queue `q`."""
    engine = engine_on(database, tmp_path, of_database=True, connections=1)
    engine.create("q", Options())
    yield engine
    engine.close()


def wait_until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_receives_that_ended_are_not_kept(engine: "PostgresEngine") -> None:
    """Neither a receive that has waited and got a message, nor the times at which waits would have ended."""
    before = sum(isinstance(each, Receive) for each in gc.get_objects())
    for _ in range(20):
        operation = Receive(("q",), 1, None, LOTS, wait=3600)
        operation.begin_wait()
        engine.submit([operation])
        wait_until(lambda: engine._waiting.any)
        engine.queue("q").push([Draft(b"x")])
        assert len(operation.wait()) == 1
    del operation
    idle = Receive(("q",), 1, None, LOTS, wait=3600)
    engine.submit([idle])
    for _ in range(20):  # as once a second
        wait_until(lambda: engine._waiting.any)
        engine._waiting.wake_all()

    def kept() -> int:
        gc.collect()
        return sum(isinstance(each, Receive) for each in gc.get_objects()) - before

    wait_until(lambda: kept() <= 1 and len(engine._waiting._ends) <= 1)


def test_a_receive_that_begins_to_wait_while_the_engine_closes(database: Database, tmp_path: Path) -> None:
    """A receive ends also then, though nothing would end it later."""
    engine = engine_on(database, tmp_path, of_database=True, connections=1)
    engine.create("q", Options())
    assert engine.receive(["q"], 1, None, LOTS) == []  # the worker is connected: while it closes, none connects
    operation = Receive(("q",), 1, None, LOTS, wait=3600)
    operation.begin_wait()
    engine._waiting.close()  # the first step of `close`, before the workers end
    engine.submit([operation])
    began = time.monotonic()
    engine.close()
    assert operation.ends_within(5)
    assert operation.result() == []
    assert time.monotonic() - began < 20
