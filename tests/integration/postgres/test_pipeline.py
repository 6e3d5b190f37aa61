"""Statements of the storage postgres that are sent together: their parameters, their answers, and their errors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.storage.postgres import Database, needs_postgres

if TYPE_CHECKING:
    from qs_storage.postgres.pipeline import Pipeline

pytestmark = needs_postgres


@pytest.fixture
def connection(database: Database) -> Iterator[Any]:
    with database.connect() as made:
        made.autocommit = True
        yield made


@pytest.fixture
def pipeline(connection: Any) -> "Iterator[Pipeline]":
    from qs_storage.postgres.pipeline import Pipeline

    made = Pipeline(connection)
    made.begin()
    yield made
    made.end()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("smallint", -3), ("int", 1 << 30), ("bigint", -(1 << 62)), ("boolean", True), ("boolean", False),
        ("text", "ä\n'; DROP TABLE"), ("text", ""), ("bytea", b"\x00\xff'"), ("bytea", b""), ("bigint", None),
        ("smallint[]", [1, None, -1]), ("int[]", [1, 2]), ("int[]", []), ("bigint[]", [1 << 62, -1]),
        ("boolean[]", [True, None, False]), ("text[]", ["a,\"b\"", "", None, "NULL"]),
        ("bytea[]", [b"", None, b"\x00"]),
    ],
)  # fmt: skip
def test_values_come_back(pipeline: "Pipeline", kind: str, value: object) -> None:
    """A parameter of each type, and an array with NULLs, is what PostgreSQL sends back."""
    assert pipeline.ask(f"SELECT %b::{kind}", [value]).fetchall() == [(value,)]  # type: ignore[arg-type]


def test_json_is_given_as_text(pipeline: "Pipeline") -> None:
    """A jsonb parameter is text, and comes back as objects."""
    assert pipeline.ask("SELECT %b::jsonb", ['{"a": [1]}']).fetchall() == [({"a": [1]},)]


def test_answers_belong_to_their_statements(pipeline: "Pipeline") -> None:
    """Several statements are sent together, the same one with other values too, and read in any order."""
    one = pipeline.ask("SELECT %b::int", [1])
    none = pipeline.ask("SELECT 1 WHERE %b::boolean", [False])
    other = pipeline.ask("SELECT %b::int", [2])
    assert (list(other), list(none), list(one)) == ([(2,)], [], [(1,)])
    assert list(pipeline.ask("SELECT %b::int", [3])) == [(3,)]


def test_more_than_sockets_hold(pipeline: "Pipeline") -> None:
    """Statements of many MB, whose answers are as long, do not wait for each other for ever."""
    many = [b"x" * (1 << 20)] * 8
    answers = [pipeline.ask("SELECT %b::bytea[]", [many]) for _ in range(4)]
    assert all(answer.fetchall() == [(many,)] for answer in answers)


def test_an_error_is_of_the_first_statement(connection: Any, pipeline: "Pipeline") -> None:
    """The first error is raised, what follows in the transaction is not done, and the connection serves on."""
    from psycopg import errors as pg

    pipeline.ask("BEGIN")
    pipeline.ask("CREATE TABLE qs.made (a int)")
    pipeline.ask("SELECT 1 / %b::int", [0])
    last = pipeline.ask("SELECT no_such_column")
    with pytest.raises(pg.DivisionByZero):
        last.fetchall()
    pipeline.ask("ROLLBACK").fetchall()
    assert pipeline.ask("SELECT to_regclass('qs.made')").fetchall() == [(None,)]


def test_a_statement_that_was_not_prepared_is_prepared_again(pipeline: "Pipeline") -> None:
    """A statement that failed when it was prepared, or was never reached, can be asked again."""
    from psycopg import errors as pg

    statement = "SELECT count(*) FROM qs.made"
    with pytest.raises(pg.UndefinedTable):
        pipeline.ask(statement).fetchall()
    pipeline.ask("SELECT 1 / %b::int", [0])
    pipeline.ask("CREATE TABLE qs.made (a int)")
    with pytest.raises(pg.DivisionByZero):
        pipeline.read()
    pipeline.ask("CREATE TABLE qs.made (a int)").fetchall()
    assert pipeline.ask(statement).fetchall() == [(0,)]


def test_psycopg_goes_on_after_the_end(connection: Any) -> None:
    """After `end` psycopg uses the connection, also after an answer that nobody has read, and after an error."""
    from psycopg import errors as pg

    from qs_storage.postgres.pipeline import Pipeline

    pipeline = Pipeline(connection)
    pipeline.begin()
    pipeline.ask("SELECT 1")
    pipeline.end()
    assert connection.execute("SELECT 2").fetchone() == (2,)
    pipeline.begin()
    pipeline.ask("SELECT 1 / %b::int", [0])
    with pytest.raises(pg.DivisionByZero):
        pipeline.end()
    assert connection.execute("SELECT 3").fetchone() == (3,)


def test_a_broken_connection(database: Database, connection: Any) -> None:
    """The end of the connection is an error of the statement that waits."""
    import psycopg

    from qs_storage.postgres.pipeline import Pipeline

    pipeline = Pipeline(connection)
    pipeline.begin()
    (pid,) = pipeline.ask("SELECT pg_backend_pid()").fetchall()[0]
    database.sql(f"SELECT pg_terminate_backend({pid}, 10000)")
    with pytest.raises(psycopg.OperationalError):
        pipeline.ask("SELECT 1").fetchall()
    assert connection.closed
    pipeline.end()  # raises nothing more, which would hide that error


def test_a_parameter_without_a_type(pipeline: "Pipeline") -> None:
    """A statement whose parameter has no type is refused before anything is sent."""
    with pytest.raises(ValueError, match="needs its type"):
        pipeline.ask("SELECT %b", [1])
    assert pipeline.ask("SELECT 1").fetchall() == [(1,)]
