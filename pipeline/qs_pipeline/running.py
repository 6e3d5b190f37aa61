"""Runs streaming queries to their end, or until they are asked to stop: then between two batches, not within one.

Spark's `stop()` interrupts a batch. Nothing would be lost by that, as the batch is run again; but it is work thrown
away, and a person who presses Ctrl-C had better find things finished.
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

_GLANCE = 1
"""Seconds between two looks at whether a query has failed, and whether to stop."""


_NOTED_WITHIN = 10
_MOMENT = 0.02
"""Seconds, the bound and the step of a wait for Spark's commit log."""


@dataclass(frozen=True, slots=True)
class Step:
    """A batch is finished. queue: it came from; batch: its number, from 0; rows: messages in it."""

    queue: str
    batch: int
    rows: int


Progress = Callable[[Step], None]
"""Called in the thread of a query."""


class Stop:
    """A wish to stop. `ask` may be called from a signal handler; the second time it means at once."""

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
    """What Spark is told of an error in a batch."""


class Turn:
    """What a query is told to call for each batch. Between batches the query can be stopped."""

    def __init__(self, queue: str, work: Callable[[DataFrame, int], int], progress: Progress | None) -> None:
        """work: does a batch, given its rows and its number, and returns how many messages it had."""
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
        """For `foreachBatch`."""
        self.idle.clear()
        try:
            count = self._work(rows, batch)
            self.rows += count
            self.batches += count > 0  # a stream's first batch may have nothing
            self.last = batch
        except Exception as error:
            self.trouble = error
            # Spark keeps the text only, and searches it with a pattern that a long one of Java's is too much for.
            raise _BatchFailedError(type(error).__name__) from None
        finally:
            self.idle.set()
        if self._progress is not None:
            self._progress(Step(self._queue, batch, count))


@dataclass(frozen=True, slots=True)
class Running:
    """A query and what it calls."""

    query: StreamingQuery
    turn: Turn
    checkpoint: Checkpoint


def begin(writer: DataStreamWriter, turn: Turn, checkpoint: Checkpoint, *, every: float | None) -> Running:
    """Starts a query. every: seconds from one batch to the next, for ever; None: what is there now, then it ends."""
    writer = writer.foreachBatch(turn).option("checkpointLocation", checkpoint.uri)
    if every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")
    with translated():
        return Running(writer.start(), turn, checkpoint)


def wait(running: Sequence[Running], stop: Stop) -> None:
    """Until all queries have ended, or one has failed, or a stop is asked for; afterwards none runs.

    Raises the error of the query that failed, as one of the pipeline.
    """
    try:
        while not stop.asked and (active := [each.query for each in running if each.query.isActive]):
            active[0].awaitTermination(_GLANCE)
            _raise_failures(running)
        _raise_failures(running)
        if stop.asked:
            _between_batches(running, stop)
    except Exception as error:
        if not stop.at_once:
            raise _cause(running, error) from error
    finally:
        for each in running:
            with contextlib.suppress(Exception):  # what it ended with is known already
                each.query.stop()


def _raise_failures(running: Sequence[Running]) -> None:
    for each in running:
        failure = None if each.query.isActive else each.query.exception()
        if failure is not None:
            raise failure


def _between_batches(running: Sequence[Running], stop: Stop) -> None:
    """Spark's `stop()` interrupts whatever runs, so it comes right after a batch. One that begins at that very moment
    is interrupted, and what it has claimed is done by the next run."""
    for each in running:
        while not each.turn.idle.wait(_GLANCE) and not stop.at_once:
            pass
        trouble = each.turn.trouble
        if trouble is None:
            _await_commit(each, stop)
        each.query.stop()
        if trouble is not None:
            raise trouble


def _await_commit(running: Running, stop: Stop) -> None:
    """Until Spark has noted that the last batch is finished, which takes it some hundredths of a second."""
    last, until = running.turn.last, time.monotonic() + _NOTED_WITHIN
    while last is not None and running.query.isActive and not stop.at_once and time.monotonic() < until:
        noted = running.checkpoint.last(COMMITS)
        if noted is not None and noted >= last:
            return
        time.sleep(_MOMENT)


def _cause(running: Sequence[Running], error: Exception) -> PipelineError:
    trouble = next((each.turn.trouble for each in running if each.turn.trouble is not None), None)
    return translate(trouble or error)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What Spark raises in the block becomes an error of the pipeline."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        raise translate(error) from error
