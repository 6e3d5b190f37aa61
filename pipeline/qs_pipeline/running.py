"""Runs the streaming queries of a job, from the checks before to the acknowledgement after.

A run ends when the messages of the queue are done, or when a stop is asked for: then between two batches. Spark's
`stop()` interrupts a batch. No message is lost by that, because the batch is run again, but its work is.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from qs_client import Claim, NotFound, QueueClient, ServerError, ServerUnavailable

from .checkpoint import COMMITS, Checkpoint
from .errors import ConsumerInUseError, DataLossError, NoSuchQueueError, PipelineError
from .security import QueueServer
from .translate import translate

log = logging.getLogger("qs_pipeline")
_POLL = 1
"""Seconds between two checks for a failure or a stop."""

_COMMIT_WAIT = 10
_COMMIT_POLL = 0.02
"""Seconds: limit and step of a wait for Spark's commit log."""


def claimed_rows(
    spark: SparkSession,
    server: QueueServer,
    queue: str,
    consumer: str,
    bounds: tuple[int, int],
    *,
    body: str = "binary",
    accept_loss: bool = False,
) -> DataFrame:
    """Returns the stream of a queue. consumer: one that this job alone uses; bounds: messages and bytes of a batch, at
    most; body: `binary` or `string`; accept_loss: continue though claimed messages are gone."""
    messages, size = bounds
    reader = spark.readStream.format("qs").options(**server.options()).options(queue=queue, consumer=consumer)
    reader = reader.options(maxMessagesPerTrigger=messages, maxBytesPerTrigger=size)
    reader = reader.options(bodyType=body, failOnDataLoss=not accept_loss)
    return reader.load()


def require_queue(server: QueueServer, queue: str) -> None:
    """Checks that the server has the queue. Raises NoSuchQueueError if it has not, NoServerError when it cannot be
    reached."""
    try:
        with server.client() as client:
            client.stats(queue)
    except NotFound as error:
        raise NoSuchQueueError(
            f"there is no queue {queue!r} on {server.endpoint} "
            f"(to create it: qs --server {server.endpoint} new {queue})"
        ) from error
    except (ServerError, ServerUnavailable) as error:
        raise translate(error) from error


def acknowledge_finished(
    checkpoint: Checkpoint, server: QueueServer, queue: str, consumer: str, *, accept_loss: bool = False
) -> None:
    """Acknowledges the claim that the last finished batch has read. accept_loss: ignore that the claim is gone.

    Spark acknowledges a batch when the next one begins, so the last batch of a run would stay claimed until the next
    run. Also logs the claims of others, which hide messages from this job and may have been forgotten.
    """
    batch = checkpoint.last(COMMITS)
    offset = (None if batch is None else checkpoint.end_offset(batch)) or {}
    try:
        with server.client() as client:
            if offset.get("seq"):
                checkpoint.sync(batch or 0)  # the commit must be durable before the acknowledgement
                client.ack_claim(queue, consumer, int(offset["seq"]))
            _warn_of_others(client, queue, consumer)
    except (ServerError, ServerUnavailable) as error:
        found = translate(error)
        if accept_loss and isinstance(found, ConsumerInUseError | DataLossError):
            return
        raise found from error


def _owner_of(claim: Claim) -> str:
    if claim.owner is None:
        return str(claim.consumer)
    return f"{claim.consumer} of {claim.owner or 'a client without a principal'}"


def _warn_of_others(client: QueueClient, queue: str, consumer: str) -> None:
    claimed: Counter[str] = Counter()
    for claim in client.list_claims(queue):
        if claim.owner is not None or claim.consumer != consumer:
            claimed[_owner_of(claim)] += claim.count
    for other, count in sorted(claimed.items()):
        what = f"1 message of {queue} is" if count == 1 else f"{count:,} messages of {queue} are"
        log.warning("%s held by %s (qs claims %s)", what, other, queue)


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A finished batch. queue: its source; batch: its number, from 0; rows: its messages."""

    queue: str
    batch: int
    rows: int


Progress = Callable[[FinishedBatch], None]
"""Called in the thread of a query."""


class Stop:
    """A request to stop, which a signal handler may make. The second `ask` means at once.

    It takes no lock, because the handler may have interrupted the code that holds the lock: waiting code looks from
    time to time.
    """

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
    """Processes the batches of one query, in a thread of Spark.

    Ensures that `idle` is set whenever no batch is being processed, so that the query can be stopped without losing the
    work of one, and that `error` has the cause of a failure: Spark keeps only a text of an exception in this function.
    """

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
        self.error: Exception | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Processes a batch, for `foreachBatch`."""
        self.idle.clear()
        try:
            count = self._work(rows, batch)
            self.rows += count
            self.batches += count > 0  # a stream's first batch may be empty
            self.last = batch
        except Exception as error:
            self.error = error
            # Spark keeps only the text, and searches it with a pattern that is too slow for long Java traces.
            raise _BatchFailedError(type(error).__name__) from None
        finally:
            self.idle.set()
        if self._progress is not None:
            self._progress(FinishedBatch(self._queue, batch, count))


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """A query and its handler."""

    query: StreamingQuery
    handler: BatchHandler
    checkpoint: Checkpoint


def begin(
    writer: DataStreamWriter, handler: BatchHandler, checkpoint: Checkpoint, *, every: float | None
) -> RunningQuery:
    """Starts a query. every: seconds from one batch to the next, without end; None: read the present messages, then
    end."""
    writer = writer.foreachBatch(handler).option("checkpointLocation", checkpoint.uri)
    if every is None:  # of available-now, Spark tells the source, which notes what is there at the beginning
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")
    with translated():
        return RunningQuery(writer.start(), handler, checkpoint)


def wait(running: Sequence[RunningQuery], stop: Stop) -> None:
    """Waits until all queries have ended, one has failed, or a stop is asked for. No query runs afterwards.

    Raises the error of the failed query as one of the pipeline.
    """
    # awaitTermination raises only the error of the query that it waits for: all are looked at after each second.
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


def _raise_failures(running: Sequence[RunningQuery]) -> None:
    for each in running:
        failure = None if each.query.isActive else each.query.exception()
        if failure is not None:
            raise failure


def _between_batches(running: Sequence[RunningQuery], stop: Stop) -> None:
    """Stops the queries right after a batch, because Spark's `stop()` interrupts a running one. If a batch has just
    begun, the next run repeats it."""
    for each in running:
        # In steps, as a second signal has to end the wait for a long batch.
        while not each.handler.idle.wait(_POLL) and not stop.at_once:
            pass
        error = each.handler.error
        if error is None:  # without the commit, the next run would do the batch again
            _await_commit(each, stop)
        each.query.stop()
        if error is not None:
            raise error


def _await_commit(running: RunningQuery, stop: Stop) -> None:
    """Waits, some hundredths of a second, until Spark has noted that the last batch is finished."""
    last, until = running.handler.last, time.monotonic() + _COMMIT_WAIT
    while last is not None and running.query.isActive and not stop.at_once and time.monotonic() < until:
        noted = running.checkpoint.last(COMMITS)
        if noted is not None and noted >= last:
            return
        time.sleep(_COMMIT_POLL)


def _cause(running: Sequence[RunningQuery], error: Exception) -> PipelineError:
    # The handler's error is the cause; Spark's own says only that the batch function failed.
    cause = next((each.handler.error for each in running if each.handler.error is not None), None)
    return translate(cause or error)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns Spark's errors in the block into errors of the pipeline."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        raise translate(error) from error
