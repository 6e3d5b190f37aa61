"""Turns Spark's errors into errors of the pipeline: one line that says what to do, and an exit code.

A worker's error reaches the driver as text: a Python traceback inside a Java one. The last class named in it is the
cause.
"""

import re
from collections.abc import Callable

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException, PySparkException

from qs_client import NotFound, ServerError, ServerUnavailable

from . import errors
from .errors import (
    BadMessageError,
    BadQueryError,
    CheckpointLostError,
    ConsumerInUseError,
    DataLossError,
    NoServerError,
    NoSuchQueueError,
    PipelineError,
)

# A class is found by its name: of an error in a worker, or in a data source, only text arrives.
_PIPELINE_ERRORS = {
    name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, PipelineError)
}
_RAISED = re.compile(r"^[ \t]*(?:\S*: )?(qs_pipeline|qs_client)\.errors\.(\w+): (.+)$", re.MULTILINE)
_CLASS = re.compile(r"^(?:Caused by: |: )?[\w.$]*\.(\w+(?:Exception|Error)): (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_NO_REASON = re.compile(r"An (?:exception was thrown|error occurred while calling)\b")
_SINK = "[PYTHON_DATA_SOURCE_ERROR]"
_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")
_CLIENT: dict[str, type[PipelineError]] = {
    "ServerUnavailable": NoServerError,
    "NoAnswer": NoServerError,
    "ProtocolMismatch": NoServerError,
    "ShuttingDown": NoServerError,
    "Unavailable": NoServerError,
    "NotKnown": NoServerError,
    "NotFound": NoSuchQueueError,
    "Stale": ConsumerInUseError,  # a claim's number that is too low or too high: another query has used it
    "Conflict": ConsumerInUseError,
    "Invalid": BadMessageError,
}
_FAILED_EXPRESSION = re.compile(
    r"\[((?:CAST_|DIVIDE_|ARITHMETIC_|INVALID_ARRAY|NUMERIC_|USER_RAISED|DATETIME_|CANNOT_PARSE|INVALID_FRACTION|BINARY_"
    r"ARITHMETIC|CONVERSION_|MAP_KEY|ELEMENT_AT|MALFORMED_|FAILED_EXECUTE_UDF)\w*)[^\]]*\] ?(.*)"
)
_JVM_GONE = (
    "Spark's JVM has ended, maybe for lack of memory (--conf spark.driver.memory=4g): the same command continues where "
    "it stopped"
)
# Spark's texts about a checkpoint that is damaged, or that two queries share.
_CHECKPOINT = ("CANNOT_LOAD_STATE_STORE", "STREAMING_CHECKPOINT", "Incomplete log file", "CONCURRENT_STREAM_LOG_UPDATE")


def translate(error: BaseException) -> PipelineError:
    """Returns the error as one of the pipeline. Use it as `raise translate(error) from error`."""
    pipeline_error = error if isinstance(error, PipelineError) else None
    if pipeline_error is None and isinstance(error, PySparkException):
        pipeline_error = _raised(str(error))
    if pipeline_error is not None:
        return pipeline_error
    if isinstance(error, ServerUnavailable | ServerError):
        return _client_error(error)
    if isinstance(error, ParseException | AnalysisException) and _SINK not in str(error):
        return BadQueryError(sql_error_text(error))
    if isinstance(error, Py4JNetworkError | ConnectionError | EOFError):
        return PipelineError(_JVM_GONE)
    if isinstance(error, PySparkException | Py4JError):
        return from_text(str(error))
    return PipelineError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _client_error(error: Exception) -> PipelineError:
    cls = next((_CLIENT[each.__name__] for each in type(error).__mro__ if each.__name__ in _CLIENT), PipelineError)
    if isinstance(error, NotFound) and "queue" not in error.text:
        cls = DataLossError
    return cls(str(error))


def sql_error_text(error: PySparkException) -> str:
    """Returns the reason why a query fails, without Spark's drawings and plans."""
    text = str(error)
    first = next((line for line in text.splitlines() if line.strip()), text)
    place = _POSITION.search(text)
    where = f" (line {place[1]}, column {int(place[2]) + 1})" if place and "(line" not in first else ""
    return f"{first.split(' SQLSTATE:')[0]}{where}"


def from_text(text: str) -> PipelineError:
    """Returns the error that Spark's text describes."""
    # From the most specific to the least: a text may name a class of ours, of Spark and of Java.
    readers: tuple[Callable[[str], PipelineError | None], ...] = (_raised, _failed_expression, _checkpoint)
    for reader in readers:
        found = reader(text)
        if found is not None:
            return found
    return PipelineError(_last_cause(text))


def _raised(text: str) -> PipelineError | None:
    """Returns the error that a module of the pipeline has raised, in any process; None if the text has no such
    error."""
    # The last one is the cause: Python shows an error after the one that led to it, and Java a cause after its effect.
    for package, name, message in reversed(_RAISED.findall(text)):
        cls = _PIPELINE_ERRORS.get(name) if package == "qs_pipeline" else _CLIENT.get(name, PipelineError)
        if cls is not None:
            return cls(message.split(" SQLSTATE:")[0])
    return None


def _failed_expression(text: str) -> PipelineError | None:
    found = _FAILED_EXPRESSION.search(text)
    if found is None:
        return None
    message = found[2].split(" SQLSTATE:")[0]
    if found[1].startswith("USER_RAISED"):  # raise_error of a query, or of a job, which names a class of ours
        return _raised(message) or BadQueryError(message)
    return BadQueryError(f"the query fails on a message: [{found[1]}] {message}")


def _checkpoint(text: str) -> PipelineError | None:
    mark = next((mark for mark in _CHECKPOINT if mark in text), None)
    return None if mark is None else CheckpointLostError(f"Spark cannot use the checkpoint: {_last_cause(text)}")


def _last_cause(text: str) -> str:
    """Returns the end of a Python traceback, or else the last exception of a Java stack trace, or else the first line
    with a text."""
    raised = _python_cause(text.splitlines())
    if raised is not None:
        return raised
    named = _CLASS.findall(text)
    if named:
        return f"{named[-1][0]}: {named[-1][1]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next((line for line in lines if not _NO_REASON.match(line)), None)
    return told or next(iter(lines), "Spark failed without a reason")


def _python_cause(lines: list[str]) -> str | None:
    """Returns the line that ends the last Python traceback: the next one with no deeper indentation."""
    begin = max((number for number, line in enumerate(lines) if _TRACEBACK in line), default=None)
    if begin is None:
        return None
    depth = _indent(lines[begin])
    ends = (line.strip() for line in lines[begin + 1 :] if line.strip() and _indent(line) <= depth)
    end = next(ends, None)
    return None if end is None else end.split(" SQLSTATE:")[0]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
