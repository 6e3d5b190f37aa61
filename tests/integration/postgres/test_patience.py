"""Connections to PostgreSQL that are given up when the database does not answer."""

import contextlib
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from support.storage.postgres import Database, engine_on, needs_postgres

from qs_storage.engine import Draft, UnavailableError
from qs_storage.remote_engine import Push

if TYPE_CHECKING:
    from qs_storage.postgres.pipeline import Pipeline

pytestmark = needs_postgres


def test_a_large_transaction_has_time_for_each_answer(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that takes long is not cut for as long as the database answers, and is cut when it does not."""
    from qs_storage.postgres.links import PATIENCE, Links
    from qs_storage.postgres.pipeline import Pipeline

    links = Links(database.dsn, 1)
    link = links.new()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def step(pipeline: Pipeline, *, answered: bool) -> None:
        nonlocal now
        for _ in range(3):
            now += 0.6 * PATIENCE
            links.watchdog.look()
            if answered:
                pipeline.ask("SELECT 1").fetchall()
        pipeline.ask("SELECT 1").fetchall()

    link.transact(lambda pipeline: step(pipeline, answered=True))
    with pytest.raises(psycopg.OperationalError, match="has not answered in time"):
        link.transact(lambda pipeline: step(pipeline, answered=False))
    link.close()
    links.close()


def test_what_was_not_begun_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all workers wait for a database that hangs, later requests are refused: nothing was changed."""
    from qs_storage.engine import Options, UnavailableError
    from qs_storage.postgres.links import PATIENCE

    with closing(engine_on(database, Path(), connections=1)) as engine:
        engine.create("q", Options())
        with psycopg.connect(database.dsn) as other:
            other.execute("LOCK TABLE qs.queues IN ACCESS EXCLUSIVE MODE")
            first, second = Push("q", [Draft(b"1")]), Push("q", [Draft(b"2")])
            for operation in (first, second):
                operation.begin_wait()
                engine.submit([operation])
                while not database.sql("SELECT 1 FROM pg_locks WHERE NOT granted"):
                    assert not operation.has_ended
            monkeypatch.setattr("qs_storage.postgres.sweep.PATIENCE", -PATIENCE)
            with pytest.raises(UnavailableError, match="not begun"):
                second.wait()
            assert not first.has_ended
        assert first.wait() == [1]


def test_a_schema_that_cannot_be_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection is given up, too, if the database does not answer what is asked first."""
    from qs_storage.postgres import links as module

    monkeypatch.setattr(module, "PATIENCE", 0.3)
    links = module.Links(database.dsn, 1)
    link = links.new()

    def ask() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            link.transact(_ask)

    with database.connect() as other:
        other.autocommit = False
        other.execute("LOCK TABLE qs.version")
        asking = threading.Thread(target=ask)
        asking.start()
        end = time.monotonic() + 10
        while asking.is_alive():
            assert time.monotonic() < end
            links.watchdog.look()
            asking.join(0.05)
    assert links.run(_ask) == [(1,)]
    link.close()
    links.close()


def test_no_connection_is_free(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that gets no connection is refused after a while."""
    from qs_storage.postgres import links as module

    monkeypatch.setattr(module, "PATIENCE", 0.3)
    links = module.Links(database.dsn, 1)
    entered, leave = threading.Event(), threading.Event()

    def stay(pipeline: "Pipeline") -> list[tuple[object, ...]]:
        entered.set()
        assert leave.wait(10)
        return _ask(pipeline)

    staying = threading.Thread(target=links.run, args=[stay])
    staying.start()
    assert entered.wait(10)
    try:
        with pytest.raises(UnavailableError, match="nothing was changed"):
            links.run(_ask)
    finally:
        leave.set()
        staying.join()
    assert links.run(_ask) == [(1,)]
    links.close()


def _ask(pipeline: "Pipeline") -> list[tuple[object, ...]]:
    return pipeline.ask("SELECT 1").fetchall()
