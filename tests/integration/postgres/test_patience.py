"""Connections to PostgreSQL that are given up when the database does not answer."""

import time

import psycopg
import pytest
from support.storage.postgres import Database, needs_postgres

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
