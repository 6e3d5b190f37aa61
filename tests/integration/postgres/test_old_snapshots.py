"""The figure about transactions that keep deleted rows knows each kind of them."""

from contextlib import closing

import pytest
from support.storage.postgres import Database, needs_postgres

pytestmark = needs_postgres

REPEATABLE = ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM qs.line")
WRITTEN = ("BEGIN", "INSERT INTO qs.servers (name, beat) VALUES ('x', 1)")


@pytest.mark.parametrize("statements", [REPEATABLE, WRITTEN], ids=["snapshot", "written"])
def test_transaction_that_keeps_rows_is_seen(database: Database, statements: tuple[str, ...]) -> None:
    """A transaction that waits has an age, with a snapshot or after a write; when it has ended there is none."""
    from qs_storage.postgres.upkeep import _SNAPSHOT  # only where psycopg is

    assert database.sql(_SNAPSHOT) == [0]
    with closing(database.connect()) as holder:
        for statement in statements:
            holder.execute(statement.encode())
        [age] = database.sql(_SNAPSHOT)
        assert age > 0
        holder.execute("ROLLBACK")
        assert database.sql(_SNAPSHOT) == [0]
