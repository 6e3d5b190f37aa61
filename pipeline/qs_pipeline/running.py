"""Runs streaming queries to their end, or until a stop is asked for: then they end between two batches.

Spark's `stop()` interrupts a batch. Nothing is lost, as the batch is run again, but its work would be.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from .checkpoint import COMMITS, Checkpoint
from .errors import PipelineError
from .translate import translate

_POLL = 1
"""Seconds between two checks for a failure or a stop."""


_COMMIT_WAIT = 10
_COMMIT_POLL = 0.02
"""Seconds: bound and step of a wait for Spark's commit log."""


@dataclass(frozen=True, slots=True)
class Step:
    """A finished batch. queue: its source; batch: its number, from 0; rows: its messages."""

    queue: str
    batch: int
    rows: int


Progress = Callable[[Step], None]
"""Called in the thread of a query."""


class Stop:
    """A request to stop, which a signal handler may make. The second `ask` means at once."""

    def __init__(self) -> None:
        self._asked = 0

    def ask(self) -> None:
        self._asked += 1

    @property
    def asked(self) -> bool:
        return self._asked > 0

    @property
    def at_once(self) -> bool:
        return self._asked > 1


class _BatchFailedError(Exception):
    """Tells Spark that a batch has failed."""


class BatchHandler:
    """Called by a query for each batch. `idle` is set between batches, when the query can be stopped."""

    def __init__(self, queue: str, work: Callable[[DataFrame, int], int], progress: Progress | None) -> None:
        """work: processes a batch, given its rows and number, and returns its number of messages."""
        self._queue = queue
        self._work = work
        self._progress = progress
        self.idle = threading.Event()
        self.idle.set()
        self.rows = 0
        self.batches = 0
        self.last: int | None = None
        self.trouble: Exception | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Processes a batch, for `foreachBatch`."""
        self.idle.clear()
        try:
            count = self._work(rows, batch)
            self.rows += count
            self.batches += count > 0  # a stream's first batch may be empty
            self.last = batch
        except Exception as error:
            self.trouble = error
            # Spark keeps only the text, and searches it with a pattern that is too slow for long Java traces.
            raise _BatchFailedError(type(error).__name__) from None
        finally:
            self.idle.set()
        if self._progress is not None:
            self._progress(Step(self._queue, batch, count))


@dataclass(frozen=True, slots=True)
class Running:
    """A query and its handler."""

    query: StreamingQuery
    handler: BatchHandler
    checkpoint: Checkpoint


def begin(writer: DataStreamWriter, handler: BatchHandler, checkpoint: Checkpoint, *, every: float | None) -> Running:
    """Starts a query. every: seconds from one batch to the next, without end; None: read what is there, then end."""
    writer = writer.foreachBatch(handler).option("checkpointLocation", checkpoint.uri)
    if every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")
    with translated():
        return Running(writer.start(), handler, checkpoint)


def wait(running: Sequence[Running], stop: Stop) -> None:
    """Waits until all queries have ended, one has failed, or a stop is asked for. No query runs afterwards.

    Raises the error of the failed query as one of the pipeline.
    """
    try:
        while not stop.asked and (active := [each.query for each in running if each.query.isActive]):
            active[0].awaitTermination(_POLL)
            _raise_failures(running)
        _raise_failures(running)
        if stop.asked:
            _between_batches(running, stop)
    except Exception as error:
        if not stop.at_once:
            raise _cause(running, error) from error
    finally:
        for each in running:
            with contextlib.suppress(Exception):  # its error is known already
                each.query.stop()


def _raise_failures(running: Sequence[Running]) -> None:
    for each in running:
        failure = None if each.query.isActive else each.query.exception()
        if failure is not None:
            raise failure


def _between_batches(running: Sequence[Running], stop: Stop) -> None:
    """Stops the queries right after a batch, as Spark's `stop()` interrupts a running one. If one has just begun, the
    next run repeats it."""
    for each in running:
        while not each.handler.idle.wait(_POLL) and not stop.at_once:
            pass
        trouble = each.handler.trouble
        if trouble is None:
            _await_commit(each, stop)
        each.query.stop()
        if trouble is not None:
            raise trouble


def _await_commit(running: Running, stop: Stop) -> None:
    """Waits, some hundredths of a second, until Spark has noted that the last batch is finished."""
    last, until = running.handler.last, time.monotonic() + _COMMIT_WAIT
    while last is not None and running.query.isActive and not stop.at_once and time.monotonic() < until:
        noted = running.checkpoint.last(COMMITS)
        if noted is not None and noted >= last:
            return
        time.sleep(_COMMIT_POLL)


def _cause(running: Sequence[Running], error: Exception) -> PipelineError:
    trouble = next((each.handler.trouble for each in running if each.handler.trouble is not None), None)
    return translate(trouble or error)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns Spark's errors in the block into errors of the pipeline."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        raise translate(error) from error
