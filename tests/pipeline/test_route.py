"""The job `route`: a queue through SQL to a queue, and to a second one what comes out NULL, each message once."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.spark.queues import SparkQueue, uncommit

from qs_client import Draft
from qs_pipeline import route as route_module
from qs_pipeline.command import main
from qs_pipeline.errors import (
    BadMessageError,
    BadQueryError,
    CheckpointLostError,
    NoSuchQueueError,
    PipelineError,
    UsageError,
)
from qs_pipeline.route import Query, Routed, default_state, route

UPPER = "SELECT upper(body) AS body FROM messages WHERE body <> 'skip' ORDER BY mid"
NUMBERS = "SELECT mid, CAST(try_cast(body AS INT) * 2 AS STRING) AS value FROM messages"


@pytest.fixture
def out(queue: SparkQueue) -> Iterator[SparkQueue]:
    queue.client.new_queue(f"{queue.name}-out")
    yield SparkQueue(queue.spark, queue.client, f"{queue.name}-out")
    queue.client.delete_queue(f"{queue.name}-out", force=True)


@pytest.fixture
def bad(queue: SparkQueue) -> Iterator[SparkQueue]:
    queue.client.new_queue(f"{queue.name}-bad")
    yield SparkQueue(queue.spark, queue.client, f"{queue.name}-bad")
    queue.client.delete_queue(f"{queue.name}-bad", force=True)


Run = Callable[..., Routed]


@pytest.fixture
def run(queue: SparkQueue, out: SparkQueue, tmp_path: Path) -> Run:
    """Routes the queue of the test to `out`."""

    def run(sql: str, **more: Any) -> Routed:
        client = queue.client
        given = {"state": str(tmp_path / "state"), "host": client.host, "port": client.port} | more
        return route(queue.spark, queue.name, sql, out.name, **given)

    return run


def test_route_pushes_rows_of_query(queue: SparkQueue, out: SparkQueue, run: Run, tmp_path: Path) -> None:
    """The rows of the query are pushed in their order, batch after batch; the source is empty, and no claim is left.
    Losing Spark's note of the last batch, whose claim is gone, does no harm."""
    queue.push("a", "skip", "ü", "d", "e")
    assert run(UPPER, batch=3) == Routed(5, 2, 0)
    queue.push("f")
    assert run(UPPER) == Routed(1, 1, 0)
    uncommit(tmp_path / "state" / "checkpoint", 2)
    queue.push("g")
    assert run(UPPER) == Routed(1, 1, 0)
    assert out.bodies() == [body.encode() for body in ("A", "Ü", "D", "E", "F", "G")]
    assert queue.claims() == []
    assert list(queue.client.list_messages(queue.name, state="all")) == []


@pytest.mark.long  # seconds, on two cores
def test_route_attributes(queue: SparkQueue, out: SparkQueue, bad: SparkQueue, run: Run) -> None:
    """The query sees headers, priority and group, and a result has those that the query gives. A message that goes to
    the queue for errors keeps its own."""
    headers = {"tenant": "a", "b": "é"}
    for body in ("2", "two"):
        queue.push(Draft(body, priority=3, group="g", headers=headers))
    sql = (
        "SELECT mid, {body} AS body, map_filter(headers, (name, text) -> name = 'tenant') AS headers, {group} FROM {m}"
    )
    run(
        sql.format(
            body="CAST(try_cast(body AS INT) * priority AS STRING)", group="upper(group) AS group", m="messages"
        ),
        errors=bad.name,
    )
    assert [(m.payload, m.headers, m.priority, m.group) for m in out.client.receive(out.name, max=9)] == [
        (b"6", {"tenant": "a"}, None, "G")
    ]
    assert [(m.payload, m.headers, m.priority, m.group) for m in bad.client.receive(bad.name, max=9)] == [
        (b"two", headers, 3, "g")
    ]


@pytest.mark.long  # ten seconds, on two cores
def test_route_null_body_without_errors_queue(queue: SparkQueue, out: SparkQueue, run: Run) -> None:
    """A NULL body without a queue for errors loses no message: the batch stays claimed, and a run with a better query
    gets it."""
    queue.push("1", "one")
    with pytest.raises(BadQueryError, match="NULL body"):
        run(NUMBERS)
    assert out.bodies() == []
    run("SELECT coalesce(CAST(try_cast(body AS INT) AS STRING), 'none') AS body FROM messages ORDER BY mid")
    assert out.bodies() == [b"1", b"none"]


@pytest.mark.long
def test_route_message_that_is_no_text(queue: SparkQueue, out: SparkQueue, bad: SparkQueue, run: Run) -> None:
    """The error names a message that is not text. With a queue for errors it goes there, also when the query leaves it
    out; a result row of it is pushed."""
    mids = queue.push("a", b"\xff", b"\xfe")
    with pytest.raises(
        BadMessageError, match=f"message ({mids[1]}|{mids[2]}) of the queue {queue.name} is no UTF-8.*--errors"
    ):
        run(UPPER)
    sql = f"SELECT mid, coalesce(upper(body), 'none') AS body FROM messages WHERE body <> 'skip' OR mid = {mids[2]}"
    assert run(sql, errors=bad.name) == Routed(3, 1, 1)
    assert sorted(out.bodies()) == [b"A", b"none"]
    assert bad.bodies() == [b"\xff"]


def test_query_restores_active_session(queue: SparkQueue) -> None:
    """The session in which a query is tried is not left to others, as it knows no source `qs`."""
    frame = queue.spark.range(2).selectExpr("CAST(id AS STRING) AS body")
    frame.collect()
    Query(queue.spark, "SELECT body FROM messages", with_errors=False)
    queue.write(frame)
    assert sorted(queue.bodies()) == [b"0", b"1"]


@pytest.mark.long  # seconds, on two cores
@pytest.mark.parametrize("crash_at", [2, 3])
def test_route_after_crash_between_targets(
    queue: SparkQueue, out: SparkQueue, bad: SparkQueue, run: Run, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """Between the two pushes, or after both and before Spark commits: each message is in one target, once."""
    queue.push("1", "one", "2", "two")
    push, pushes = route_module._BatchRouter._push, []

    def crashing(self: Any, rows: DataFrame, to: str, batch: int) -> None:
        pushes.append(to)
        if len(pushes) == crash_at:
            raise PipelineError("the power went")
        push(self, rows, to, batch)
        if len(pushes) == crash_at - 1 == 2:
            raise PipelineError("the power went")

    monkeypatch.setattr(route_module._BatchRouter, "_push", crashing)
    with pytest.raises(PipelineError, match="the power went"):
        run(NUMBERS, errors=bad.name)
    monkeypatch.undo()
    run(NUMBERS, errors=bad.name)
    assert sorted(out.bodies()) == [b"2", b"4"]
    assert bad.bodies() == [b"one", b"two"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC body FROM messages", "cannot be parsed"),
        ("", "cannot be parsed"),
        ("DROP TABLE messages", "cannot be parsed"),
        ("SELECT 1 AS body; SELECT 2", "cannot be parsed"),
        ("SELECT boddy FROM messages", "boddy"),
        ("SELECT body FROM message", "message"),
        ("SELECT mid FROM messages", "body or value"),
        ("SELECT body, body AS value FROM messages", "exactly one"),
        ("SELECT mid AS body FROM messages", "bigint"),
        ("SELECT body, 'high' AS priority FROM messages", "priority of type string, not int"),
        ("SELECT count(*) AS body, body AS b FROM messages", "cannot|does not fit|aggregat"),
    ],
)
def test_route_refuses_bad_query_before_claim(spark: SparkSession, sql: str, said: str) -> None:
    """In one line, without plans."""
    with pytest.raises(BadQueryError, match=said) as told:
        Query(spark, sql, with_errors=False)
    assert "SQLSTATE" not in str(told.value)
    assert "Project" not in str(told.value)


def test_route_command_tells_wrong_query_in_one_line(
    queue: SparkQueue,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark's log of the error, with Java's stack, is not shown beside the one line."""
    (tmp_path / "q.sql").write_text("SELECT nope FROM messages")
    server = f"{queue.client.host}:{queue.client.port}"
    arguments = ["route", queue.name, "--sql", str(tmp_path / "q.sql"), "--to", queue.name, "--server", server]
    assert main([*arguments, "--state", str(tmp_path / "state")]) == BadQueryError.exit_code
    assert capsys.readouterr().err.count("\n") == 1
    assert [record.name for record in caplog.records if "QueryContext" in record.name] == []


@pytest.mark.long  # seconds, on two cores
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT body FROM messages", "column mid"),
        ("SELECT CAST(mid AS STRING) AS mid, body FROM messages", "BIGINT"),
        ("SELECT mid, IF(rand() < 0.5, body, NULL) AS body FROM messages", "not deterministic"),
    ],
)
def test_route_with_errors_queue_needs_mid(spark: SparkSession, sql: str, said: str) -> None:
    """With --errors, the query must return the mid."""
    with pytest.raises(BadQueryError, match=said):
        Query(spark, sql, with_errors=True)


@pytest.mark.long  # ten seconds, on two cores
def test_route_null_body_of_unknown_message(queue: SparkQueue, out: SparkQueue, bad: SparkQueue, run: Run) -> None:
    """A NULL body of an unknown message is an error: nobody knows which payload is meant."""
    queue.push("1")
    with pytest.raises(BadQueryError, match="no message of the batch"):
        run("SELECT mid + 1 AS mid, CAST(NULL AS STRING) AS body FROM messages", errors=bad.name)
    assert out.bodies() == bad.bodies() == []


@pytest.mark.long  # ten seconds, on two cores
def test_route_refuses_state_of_another_route(queue: SparkQueue, out: SparkQueue, run: Run, tmp_path: Path) -> None:
    """Another queue's state, one without its checkpoint, and missing queues are reported, and nothing is pushed."""
    queue.push("a")
    run(UPPER)
    with pytest.raises(UsageError, match="give another --state"):
        route(queue.spark, out.name, UPPER, queue.name, state=str(tmp_path / "state"), port=queue.client.port)
    with pytest.raises(NoSuchQueueError):
        run(UPPER, errors="nowhere")
    with pytest.raises(UsageError):
        run(UPPER, errors=out.name)
    shutil.rmtree(tmp_path / "state" / "checkpoint")
    with pytest.raises(CheckpointLostError, match="qs claims"):
        run(UPPER)
    assert out.bodies() == [b"A"]


def test_default_state_by_server_and_queue() -> None:
    """The state is in the user's state directory by default, by server and queue."""
    place = default_state("h:1", "a", {"XDG_STATE_HOME": "/s"})
    assert place.startswith("/s/qs-pipeline/route-")
    assert place == default_state("h:1", "a", {"XDG_STATE_HOME": "/s"})
    assert place != default_state("h:1", "b", {"XDG_STATE_HOME": "/s"})


@pytest.mark.long  # ten seconds, on two cores
def test_route_command(queue: SparkQueue, out: SparkQueue, bad: SparkQueue, tmp_path: Path, capsys: Any) -> None:
    """A summary. What comes out NULL goes elsewhere, also when it is not text. A query that is wrong, or fails on a
    message, has its own code."""
    queue.push("1", "one", b"\xff\xfe", "2")
    (tmp_path / "q.sql").write_text(f"-- twice\n{NUMBERS};\n")
    server = f"{queue.client.host}:{queue.client.port}"
    common = ["route", queue.name, "--to", out.name, "--server", server, "--state", str(tmp_path / "state"), "--sql"]
    assert main([*common, str(tmp_path / "q.sql"), "--errors", bad.name]) == 0
    assert capsys.readouterr().out.startswith(f"routed 4 messages, 2 of them to {bad.name} in 1 batch (")
    assert out.bodies() == [b"2", b"4"]
    assert bad.bodies() == [b"one", b"\xff\xfe"]
    queue.push("one")
    (tmp_path / "q.sql").write_text("SELECT mid, CAST(CAST(body AS INT) AS STRING) AS body FROM messages")
    assert main([*common, str(tmp_path / "q.sql")]) == BadQueryError.exit_code
    assert "fails on a message: [CAST_INVALID_INPUT]" in capsys.readouterr().err
    (tmp_path / "q.sql").write_text("SELECT body FROM massages")
    assert main([*common, str(tmp_path / "q.sql")]) == BadQueryError.exit_code
    assert main([*common, str(tmp_path / "none")]) == UsageError.exit_code
    err = capsys.readouterr().err
    assert "massages" in err
    assert "Traceback" not in err


@pytest.mark.long  # ten seconds, on two cores
def test_route_tells_of_lost_claim(
    queue: SparkQueue, out: SparkQueue, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claimed message that is gone is an error, unless loss is accepted."""

    def fails(self: object, rows: DataFrame, batch: int) -> int:
        raise PipelineError("no")

    queue.push("1", "2")
    with monkeypatch.context() as patched:
        patched.setattr(route_module._BatchRouter, "__call__", fails)
        with pytest.raises(PipelineError, match="no"):
            run(UPPER)
    [claim] = queue.client.list_claims(queue.name)
    assert claim.consumer is not None
    queue.client.release_claim(queue.name, claim.consumer, claim.seq)
    queue.client.delete_many(queue.client.receive(queue.name, max=2))
    queue.push("c")
    with pytest.raises(PipelineError) as told:
        run(UPPER)
    assert told.value.exit_code != 1, told.value
    assert out.bodies() == []
    run(UPPER, accept_loss=True)
    assert out.bodies() == [b"C"]
    assert queue.claims() == []
