"""Signs of life when the database moves to another machine."""

import time
from pathlib import Path

import psycopg
import pytest
from support.storage.postgres import Database, engine_on, needs_postgres

from qs_storage.postgres import heartbeat
from qs_storage.postgres.transaction import Transaction

pytestmark = needs_postgres


def test_a_clock_that_jumps(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a new primary, which is ahead, makes no server dead that is alive."""
    monkeypatch.setattr(heartbeat, "_INTERVAL", 0.1)
    engines = [engine_on(database, tmp_path, of_database=True) for _ in range(2)]
    time.sleep(0.5)
    known = "SELECT server FROM qs.servers ORDER BY server"
    before = database.sql(known)
    assert len(before) == 2
    for engine in engines:
        engine._heartbeat._jumped = 0.0  # the start is long ago
    monkeypatch.setattr(heartbeat, "_TIME", heartbeat._TIME + " + 20000000")
    time.sleep(1)
    assert database.sql(known) == before
    for engine in engines:
        engine.close()


def test_signs_of_life_look_for_the_primary(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection to a server that takes no changes any more is given up."""
    monkeypatch.setattr(heartbeat, "_INTERVAL", 0.1)
    engine = engine_on(database, tmp_path, of_database=True)
    link, beat = engine._heartbeat._link, engine._heartbeat.beat
    while not engine.shared.server:
        time.sleep(0.01)
    first = link._connection
    failed: list[int] = []

    def refuse(tx: Transaction) -> None:
        if not failed:
            failed.append(1)
            raise psycopg.errors.ReadOnlySqlTransaction("cannot execute UPDATE in a read-only transaction")
        beat(tx)

    monkeypatch.setattr(engine._heartbeat, "beat", refuse)
    for _ in range(200):
        if failed and link._connection not in {None, first}:
            break
        time.sleep(0.02)
    assert link._connection not in {None, first}
    engine.close()
