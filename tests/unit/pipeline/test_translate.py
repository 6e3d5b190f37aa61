"""Causes of trouble, as Spark's texts and exceptions tell of them."""

import pytest
from pyspark.errors import AnalysisException, PySparkException

from qs_client import Invalid, NoAnswer, NotFound, ServerUnavailable, Stale
from qs_pipeline import errors
from qs_pipeline.translate import from_text, translate

WORKER = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE] Failed when
Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "/x/stream_reader.py", line 1, in latestOffset
qs_client.errors.ServerUnavailable: no queue server at 127.0.0.1:9 (Connection refused)

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
qs_pipeline.errors.NoServerError: no queue server at 127.0.0.1:9 (Connection refused): start one; tried for 60 s
 SQLSTATE: 38000
\tat org.apache.spark.sql.Some(Errors.scala:1)
"""


def test_from_text_takes_last_of_own_errors() -> None:
    """The class of our last error in a text is recognized, without Spark's text."""
    found = from_text(WORKER)
    assert type(found) is errors.NoServerError
    assert str(found) == "no queue server at 127.0.0.1:9 (Connection refused): start one; tried for 60 s"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("x\nqs_client.errors.NotFound: 404 not-found: no such queue 'a'\n", errors.NoSuchQueueError, "no such queue"),
        (
            "[CAST_INVALID_INPUT] The value 'x' cannot be cast. SQLSTATE: 22018\n== SQL ==",
            errors.BadQueryError,
            "fails on a message",
        ),
        ("[USER_RAISED_EXCEPTION] a NULL body SQLSTATE: P0001", errors.BadQueryError, "NULL body"),
        ("x.IllegalStateException: Incomplete log file in the log", errors.CheckpointLostError, "checkpoint"),
        ("a\nCaused by: java.io.IOException: No space left\n\tat x", errors.PipelineError, "No space left"),
        ("", errors.PipelineError, "without a reason"),
    ],
)
def test_from_text_of_each_kind(text: str, kind: type[errors.PipelineError], said: str) -> None:
    """Each kind of trouble that Spark tells of in a text of many lines gets its class, and one line."""
    found = from_text(text)
    assert type(found) is kind
    assert said in str(found)
    assert "SQLSTATE" not in str(found)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServerUnavailable("gone"), errors.NoServerError),
        (NoAnswer("late"), errors.NoServerError),
        (NotFound(404, "not-found", "no such queue 'a'"), errors.NoSuchQueueError),
        (NotFound(404, "not-found", "no such claim"), errors.DataLossError),
        (Stale(409, "stale", "acknowledged"), errors.ConsumerInUseError),
        (Invalid(422, "invalid", "line 3: 'total' is missing"), errors.BadMessageError),
        (PySparkException("qs_client.errors.Invalid: 422 invalid: line 3"), errors.BadMessageError),
        (
            AnalysisException("[UNRESOLVED_COLUMN] no `x`. SQLSTATE: 42703; line 1 pos 7;\n'Project"),
            errors.BadQueryError,
        ),
        (PySparkException("qs_pipeline.errors.DataLossError: gone"), errors.DataLossError),
        (ConnectionRefusedError(111, "Connection refused"), errors.PipelineError),
        (RuntimeError("odd"), errors.PipelineError),
    ],
)
def test_translate_by_class_or_text(error: Exception, kind: type[errors.PipelineError]) -> None:
    """Exceptions are translated by class, or by their text. One of our own stays as it is."""
    found = translate(error)
    assert type(found) is kind
    assert translate(found) is found
