"""The statements of the storage postgres read by an index, whatever PostgreSQL knows of its tables."""

import importlib
import pkgutil
import re
from collections.abc import Iterable
from typing import Any

import pytest
from support.storage.postgres import Database, needs_postgres

pytestmark = needs_postgres

_STATEMENT = re.compile(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b")
_WHOLE = re.compile(r"Seq Scan on (?!queues|servers|removals|version|mids|changes)\w+|Bitmap|Hash Join|Merge Join")
"""Steps of a plan that read whole tables, other than those that have a few rows, and sequences."""

_LOOSE = re.compile(r"Index (?:Only )?Scan using (?:messages|hidden|line)_pkey .*\n *+(?!Index Cond: .*\bid\b)")
"""Steps that read all messages of a queue."""
_OF_WHOLE_QUEUES = {"claims._CLAIMED", "limits._COUNT_IN", "looking._STATS", "pushing.HELD", "removing._EMPTY"}
"""Statements that have to read a whole queue, or a part of it for which any will do."""


def statements() -> dict[str, str]:
    """Returns the constants of all modules that are statements, without those that others begin with."""
    import qs_storage.postgres as package

    names = [found.name for found in pkgutil.iter_modules(package.__path__)]
    constants = {
        f"{name}.{constant}": value
        for name in names
        for constant, value in vars(importlib.import_module(f"{package.__name__}.{name}")).items()
        if isinstance(value, str) and not constant.startswith("__") and _STATEMENT.match(value)
    }
    whole = {name: value for name, value in constants.items() if not _begins_another(value, constants.values())}
    return {name: value for name, value in whole.items() if "pg_" not in value and "extract(" not in value}


def _begins_another(text: str, others: Iterable[str]) -> bool:
    return any(other != text and other.startswith(text) for other in others)


def plan_of(connection: Any, statement: str) -> str:
    """Returns the plan of a statement for any parameters."""
    numbers = iter(range(1, 100))
    text, count = re.subn("%b", lambda _: f"${next(numbers)}", statement)
    connection.execute(f"PREPARE tried AS {text}")
    given = f"({', '.join(['NULL'] * count)})" if count else ""
    rows = connection.execute(f"EXPLAIN EXECUTE tried{given}").fetchall()
    connection.execute("DEALLOCATE tried")
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("deep", [False, True], ids=["empty", "deep"])
def test_every_statement_is_for_an_index(database: Database, deep: bool) -> None:
    """No statement reads a whole table, or a whole queue to find some messages, neither when PostgreSQL takes the
    tables for empty nor when it knows their 100,000 rows."""
    import psycopg

    from qs_storage.postgres.links import with_settings

    found = statements()
    assert len(found) > 60
    with psycopg.connect(with_settings(database.dsn), autocommit=True) as connection:
        if deep:
            fill(connection)
        plans = {name: plan_of(connection, statement) for name, statement in found.items()}
    assert {name: plan for name, plan in plans.items() if _WHOLE.search(plan)} == {}
    assert {name: plan for name, plan in plans.items() if _LOOSE.search(plan)}.keys() <= _OF_WHOLE_QUEUES


def test_plans_of_empty_tables_do_not_last(database: Database) -> None:
    """A statement that was prepared when VACUUM had found the tables empty reads by an index a second later, though
    PostgreSQL knows nothing new of the tables."""
    from qs_storage.postgres.links import Links
    from qs_storage.postgres.pipeline import Pipeline
    from qs_storage.postgres.settling import _DELETE

    links = Links(database.dsn, 1)
    link = links.new()
    nothing: list[list[object]] = [[], [], []]

    def plan(pipeline: Pipeline) -> str:
        pipeline.ask(_DELETE, nothing).fetchall()
        name = pipeline._statements[_DELETE].name.decode()
        explain: Any = f"EXPLAIN EXECUTE {name}(NULL, NULL, NULL)"
        return "\n".join(row[0] for row in pipeline.ask(explain).fetchall())

    with database.connect() as connection:
        connection.execute("VACUUM ANALYZE")
        assert _LOOSE.search(link.transact(plan))
        connection.execute(_FILL.removesuffix("ANALYZE"))
    link._planned_at -= 1
    assert not _LOOSE.search(link.transact(plan))
    link.close()
    links.close()


_FILL = """
INSERT INTO qs.messages (queue, id, pushed_at, stored_at, priority, payload)
SELECT id % 3, id, id, id, 0, '' FROM generate_series(1, 100000) AS id;
INSERT INTO qs.line (queue, place, id, receives, size)
SELECT queue, id, id, 0, 0 FROM qs.messages WHERE id % 2 = 0;
INSERT INTO qs.hidden (queue, id, place, until, receives, size, state, held, consumer, seq)
SELECT queue, id, id, id, 1, 0, 4, false, 'c', 1 FROM qs.messages WHERE id % 2 = 1;
ANALYZE"""


def fill(connection: Any) -> None:
    """Stores 100,000 messages, of which half are visible."""
    connection.execute(_FILL)
