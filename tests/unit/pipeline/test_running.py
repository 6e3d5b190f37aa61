"""The checks before and after a run, without Spark: states of routes, checkpoints, causes."""

import errno
import json
import logging
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from qs_client import Claim
from qs_pipeline.checkpoint import COMMITS, OFFSETS, Checkpoint
from qs_pipeline.errors import BadMessageError, BadQueryError, DataLossError, PipelineError, UsageError
from qs_pipeline.files import LocalFiles, file_errors
from qs_pipeline.route_state import RouteState, Targets
from qs_pipeline.running import BatchHandler, acknowledge_finished
from qs_pipeline.security import QueueServer
from qs_pipeline.translate import from_text, translate

WAY = Targets("out", None, "SELECT body FROM messages")


def _entry(root: Path, log: str, batch: int) -> None:
    place = root / "checkpoint" / log / str(batch)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text('v1\n{"a":1}\n{"seq":1}')


def _begun(root: Path, batch: int = 0, way: Targets = WAY) -> RouteState:
    state = RouteState(LocalFiles(str(root)), "in", way)
    _entry(root, OFFSETS, batch)
    state.begin(batch)
    return state


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Targets("elsewhere", None, WAY.query), "--to is another one now \\(out before"),
        (Targets("out", "bad", WAY.query), "--errors is another one now \\(none before"),
        (Targets("out", None, "SELECT 'x' AS body FROM messages"), "query is another one now:"),
    ],
)
def test_route_state_keeps_targets_of_batch(tmp_path: Path, other: Targets, said: str) -> None:
    """One that may be half pushed is finished as it was begun; then the route may be another one."""
    state = _begun(tmp_path)
    with pytest.raises(UsageError, match=said):
        RouteState(LocalFiles(str(tmp_path)), "in", other)
    assert RouteState(LocalFiles(str(tmp_path)), "in", WAY).name == state.name
    _entry(tmp_path, COMMITS, 0)
    assert RouteState(LocalFiles(str(tmp_path)), "in", other).name == state.name


def test_route_state_refused_batch_may_change(tmp_path: Path) -> None:
    """A batch that was refused, as the query failed on it, may have other targets."""
    state = _begun(tmp_path)
    state.refused()
    other = _begun(tmp_path, way=Targets("out", "bad", "SELECT mid, body FROM messages"))
    assert other.name == state.name
    with pytest.raises(UsageError):
        RouteState(LocalFiles(str(tmp_path)), "in", WAY)


def test_route_state_writes_missing_commit(tmp_path: Path) -> None:
    """After a loss of power, Spark's note may be missing of what is done and acknowledged."""
    _begun(tmp_path, 3).done(3)
    (tmp_path / "checkpoint" / COMMITS).mkdir()
    (tmp_path / "checkpoint" / COMMITS / ".3.crc").write_bytes(b"torn")
    RouteState(LocalFiles(str(tmp_path)), "in", Targets("elsewhere", None, "SELECT 1 AS body"))
    assert (tmp_path / "checkpoint" / COMMITS / "3").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'
    assert not (tmp_path / "checkpoint" / COMMITS / ".3.crc").exists()


def test_route_state_writes_no_commit_of_earlier_batch(tmp_path: Path) -> None:
    """A commit is not written for a batch after which Spark has begun another."""
    _entry(tmp_path, OFFSETS, 4)
    checkpoint = Checkpoint(LocalFiles(str(tmp_path)), "checkpoint")
    checkpoint.must_have_commit(3)
    assert checkpoint.last(COMMITS) is None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"name": "a", "queue": "in"}', b'{"name": 1, "queue": "in", "batch": 0}']
)
def test_route_state_damaged(tmp_path: Path, data: bytes) -> None:
    """A damaged state is not taken for a missing one."""
    (tmp_path / "route.json").write_bytes(data)
    with pytest.raises(PipelineError, match="is damaged"):
        RouteState(LocalFiles(str(tmp_path)), "in", WAY)


def test_route_state_without_targets(tmp_path: Path) -> None:
    """Any way is the same for a batch of which nothing is known."""
    (tmp_path / "route.json").write_text(json.dumps({"name": "route-1", "queue": "in", "batch": 0}))
    _entry(tmp_path, OFFSETS, 0)
    assert RouteState(LocalFiles(str(tmp_path)), "in", WAY).name == "route-1"


def test_file_errors_name_file_in_place_of_directory(tmp_path: Path) -> None:
    """A file in the place of a directory is wrong usage, and the error names it."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file/_qs/x cannot exist"), file_errors():
        LocalFiles(str(tmp_path / "file")).read("_qs/x")


def test_file_errors_leave_connection_errors() -> None:
    """A JVM that has ended is not told as trouble with the disk; what the disk says is."""
    with pytest.raises(ConnectionRefusedError), file_errors():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    with pytest.raises(PipelineError, match="/d/f: No space"), file_errors():
        raise OSError(errno.ENOSPC, "No space left", "/d/f")


def test_batch_handler_counts_no_empty_batch() -> None:
    """Spark's first may have none."""
    counts = iter([0, 2])
    turn = BatchHandler("q", lambda rows, batch: next(counts), None)
    turn(None, 0)  # type: ignore[arg-type]
    turn(None, 1)  # type: ignore[arg-type]
    assert (turn.rows, turn.batches, turn.last) == (2, 1, 1)


def test_acknowledge_finished_logs_claims_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each consumer; nothing of our own. A consumer of another principal is told with the principal."""

    class Client:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *_: object) -> None: ...
        def list_claims(self, queue: str) -> list[Claim]:
            held = [("a", 1, 2, None), ("mine", 1, 5, None), ("a", 2, 1, None), ("b", 7, 1, None)]
            held += [("mine", 1, 3, "shop"), ("mine", 1, 4, "")]
            return [Claim(seq, count, 0, 1, 2, "x", consumer, 0, owner) for consumer, seq, count, owner in held]

    monkeypatch.setattr(QueueServer, "client", Client)
    with caplog.at_level(logging.WARNING, "qs_pipeline"):
        acknowledge_finished(Checkpoint(LocalFiles(str(tmp_path)), "c"), QueueServer("h", 1), "q", "mine")
    assert caplog.messages == [
        "3 messages of q are held by a (qs claims q)",
        "1 message of q is held by b (qs claims q)",
        "4 messages of q are held by mine of a client without a principal (qs claims q)",
        "3 messages of q are held by mine of shop (qs claims q)",
    ]


SINK = """[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance of type: Traceback (most recent call last):
  File "/x/batch_writer.py", line 38, in commit
    publish(server, staged)
%s SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (AnalysisException(SINK % "  qs_pipeline.errors.DataLossError: gone"), DataLossError, "gone"),
        (AnalysisException(SINK % "ValueError: odd"), PipelineError, "ValueError: odd"),
        (AnalysisException("[UNRESOLVED_COLUMN] no `x`"), BadQueryError, "[UNRESOLVED_COLUMN] no `x`"),
    ],
)
def test_translate_error_of_sink(error: Exception, kind: type[PipelineError], said: str) -> None:
    """An error of a sink's commit has its own class; one that is not ours is not taken for a fault of the query."""
    found = translate(error)
    assert type(found) is kind
    assert str(found).startswith(said)


WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x"
    f()
    ^^^
UnicodeDecodeError: no text
"""
WORKERS = """Caused by: x.PythonException: Traceback (most recent call last):
  File "x"
ValueError: a

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x"
KeyError: b

\tat x.Y(Z.java:1)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WORKER, "UnicodeDecodeError: no text"),
        (WORKERS, "KeyError: b"),
        ("An error occurred while calling o114.parquet.\n: x.y.SparkException: Job aborted\n\tat z", "SparkException"),
        ("An error occurred while calling o114.parquet.\nit is full", "it is full"),
    ],
)
def test_translate_finds_cause(text: str, said: str) -> None:
    """The cause of an error is its origin, not where it was noticed."""
    assert str(from_text(text)).startswith(said)


def test_translate_error_raised_in_sql() -> None:
    """Spark's function that raises knows no classes: the text names it."""
    found = from_text("x: [USER_RAISED_EXCEPTION] qs_pipeline.errors.BadMessageError: message 7 SQLSTATE: P0001\n\tat")
    assert type(found) is BadMessageError
    assert str(found) == "message 7"
