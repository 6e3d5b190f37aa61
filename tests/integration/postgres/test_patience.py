"""Connections to PostgreSQL that are given up when the database does not answer."""

import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from support.storage.postgres import Database, engine_on, needs_postgres

from qs_storage.engine import Draft
from qs_storage.remote_engine import Push

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
    with pytest.raises(psycopg.OperationalError):
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
