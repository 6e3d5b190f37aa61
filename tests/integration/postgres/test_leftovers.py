"""Rows that are left in the tables, by those who end in the middle of something or come together, hold nobody up."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.storage.engines import LOTS, ManualClock
from support.storage.postgres import Database, engine_on, finish, needs_postgres

from qs_storage.engine import SECOND, Draft, NotKnownError, Options, Receipt, UnavailableError
from qs_storage.postgres.running import run

if TYPE_CHECKING:
    from qs_storage.postgres.engine import PostgresEngine

pytestmark = needs_postgres
_RECEIVE = """
WITH gone AS (DELETE FROM qs.line RETURNING *)
INSERT INTO qs.hidden (queue, id, place, until, receives, size, state, held, grp)
SELECT queue, id, place, %s, receives + 1, size, 1, false, grp FROM gone"""
"""What a receive of another server does, as long as it is not committed."""
_REMOVED = "DELETE FROM qs.queues WHERE qid = 'gone'"


@pytest.fixture
def engine(database: Database, tmp_path: Path) -> "Iterator[PostgresEngine]":
    """An engine with a clock of the test's, and a queue `q`."""
    engine = engine_on(database, tmp_path, ManualClock())
    engine.create("q", Options())
    yield engine
    engine.close()


def clock_of(engine: "PostgresEngine") -> ManualClock:
    clock = engine.shared.now
    assert isinstance(clock, ManualClock)
    return clock


def test_a_message_that_is_received_while_it_expires(engine: "PostgresEngine", database: Database) -> None:
    """Such a message is received or removed, and not the half of each: its group moves on."""
    queue, clock = engine.queue("q"), clock_of(engine)
    [first] = queue.push([Draft(b"1", group="g", expires=SECOND)])
    [second] = queue.push([Draft(b"2", group="g")])
    clock.now += 2 * SECOND
    with database.connect() as other:
        other.autocommit = False
        other.execute(_RECEIVE, [clock.now + 30 * SECOND])
        assert not run(engine.shared, engine._upkeep._retire)  # waits for nobody
        other.commit()
    assert not run(engine.shared, engine._upkeep._retire)
    both = "SELECT (SELECT count(*) FROM qs.messages WHERE id = %s), (SELECT count(*) FROM qs.hidden WHERE id = %s)"
    assert database.sql(both, first, first) == [(1, 1)]
    queue.delete(Receipt(first, 1))
    assert [message.mid for message in engine.receive(["q"], 10, None, LOTS)] == [second]


def test_a_message_without_its_row_of_messages(engine: "PostgresEngine", database: Database) -> None:
    """Its other row goes when its time is over, and its group moves on."""
    queue, clock = engine.queue("q"), clock_of(engine)
    [first, second] = queue.push([Draft(b"1", group="g"), Draft(b"2", group="g")])
    assert [message.mid for message in engine.receive(["q"], 1, SECOND, LOTS)] == [first]
    database.sql("DELETE FROM qs.messages WHERE id = %s RETURNING id", first)
    clock.now += 2 * SECOND
    finish(engine)
    assert [message.mid for message in engine.receive(["q"], 10, None, LOTS)] == [second]


def test_hidden_messages_of_a_queue_whose_removal_was_broken_off(engine: "PostgresEngine", database: Database) -> None:
    """However many they are, the windows of other queues end."""
    engine.create("gone", Options())
    engine.queue("gone").push([Draft(b"x", delay=SECOND)] * 1000)
    [mid] = engine.queue("q").push([Draft(b"y", delay=2 * SECOND)])
    database.sql(f"{_REMOVED} RETURNING queue")
    clock_of(engine).now += 3 * SECOND
    finishing = threading.Thread(target=finish, args=[engine], daemon=True)
    finishing.start()
    finishing.join(20)
    assert not finishing.is_alive()
    assert [message.mid for message in engine.receive(["q"], 10, None, LOTS)] == [mid]
    assert database.sql("SELECT count(*) FROM qs.hidden WHERE state = 2") == [0]


def test_a_queue_whose_making_was_committed_late(database: Database, tmp_path: Path) -> None:
    """A server knows it soon, though nobody tells it, and though it has looked in vain."""
    engine = engine_on(database, tmp_path, of_database=True)
    with database.connect() as other:
        other.execute("INSERT INTO qs.queues (qid, paused, options) VALUES ('late', false, '{}')")
    engine._upkeep._settled = 0
    engine._upkeep._changes = database.sql("SELECT last_value + is_called::int FROM qs.changes")[0]
    engine._upkeep._rarely_at = 0.0  # ten seconds later
    for _ in range(500):
        if "late" in engine.queues():
            break
        time.sleep(0.01)
    assert "late" in engine.queues()
    engine.close()


def test_more_messages_expire_than_one_transaction_removes(database: Database, tmp_path: Path) -> None:
    """A queue whose messages nobody wants does not grow: all of them are gone soon."""
    engine = engine_on(database, tmp_path, of_database=True)
    engine.create("q", Options())
    for _ in range(5):
        engine.queue("q").push([Draft(b"x", expires=1)] * 1000)
    time.sleep(2.5)  # three looks
    assert database.sql("SELECT count(*) FROM qs.messages") == [0]
    engine.close()


def test_a_removal_that_cannot_be_finished(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is removed all the same, and another server removes what it held."""
    engine = engine_on(database, tmp_path, of_database=True)
    engine.create("q", Options())
    engine.queue("q").push([Draft(b"x", key="k")] * 10 + [Draft(b"x", delay=SECOND)])
    with monkeypatch.context() as patch:
        patch.setattr("qs_storage.postgres.removing._EMPTY", "SELECT 1 FROM qs.version WHERE version = 1 / %b::int * 0")
        patch.setattr("qs_storage.postgres.removing._EMPTY_REST", ("SELECT 1 / (%b::int * 0)",))
        engine.remove("q", force=True)
    assert list(engine.queues()) == []
    engine.close()
    assert database.sql("SELECT count(*) FROM qs.messages") == [2]
    monkeypatch.setattr("qs_storage.postgres.removing.GIVEN_UP", 0)
    other = engine_on(database, tmp_path, of_database=True)
    names = ("messages", "line", "hidden", "keys", "removals")
    tables = " UNION ALL ".join(f"SELECT queue FROM qs.{name}" for name in names)
    for _ in range(500):
        if database.sql(f"SELECT count(*) FROM ({tables}) AS u") == [0]:
            break
        time.sleep(0.01)
    assert database.sql(f"SELECT count(*) FROM ({tables}) AS u") == [0]
    other.close()


def test_a_change_that_this_server_cannot_read(engine: "PostgresEngine", monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that the change may be done, and not that nothing was changed."""

    def fail() -> None:
        raise UnavailableError("nothing was changed")

    monkeypatch.setattr(engine._upkeep, "read_queues_now", fail)
    with pytest.raises(NotKnownError):
        engine.create("new", Options())
