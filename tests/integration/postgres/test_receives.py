"""Receives of a sweep that share what they find: each gets what it would have got alone."""

from collections.abc import Iterator
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


def test_many_receives_of_one_sweep(engine: "PostgresEngine") -> None:
    """None of them is told that a queue is empty which has messages for all."""
    for _ in range(5):
        engine.queue("q").push([Draft(b"x")] * 1000)
    operations = [Receive(("q",), 1000, None, LOTS) for _ in range(5)]
    for operation in operations:
        operation.begin_wait()
    engine.submit(operations)
    assert [len(operation.wait()) for operation in operations] == [1000] * 5


def test_given_order_holds_where_not_all_fit(engine: "PostgresEngine") -> None:
    """The messages of the first queue come first, though a later queue has older ones, and there is room for one."""
    engine.create("older", Options())
    engine.queue("older").push([Draft(b"x" * 100)])
    engine.queue("q").push([Draft(b"y" * 100)])
    [message] = engine.receive(["q", "older"], 10, None, 150, given=True)
    assert message.qid == "q"
