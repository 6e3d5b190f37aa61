"""The job `archive`: queues to a Parquet table, each message once.

A stream of Spark for each queue reads claims and hands each batch to `archive_batch`. The consumer's name is made from
the archive's id, so that two archives of one queue share its messages and not their claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from . import register
from .archive_batch import BatchWriter
from .archive_layout import LOCK, QueueState, archive_id
from .documents import CORRUPT, DOCUMENT, with_document
from .errors import UsageError
from .files import Files, file_errors, open_files
from .finishing import acknowledge_finished, require_queue
from .job_stream import claimed_rows
from .running import Progress, Running, Stop, Turn, begin, translated, wait

BATCH = 100_000
"""Messages of a batch, at most, where nothing else is said."""

BATCH_BYTES = 256 * 1024 * 1024
"""Bytes of a batch, at most, and one message at least."""

EVERY = 5.0
"""Seconds from one batch to the next of a continuous run."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run did: by queue, the messages and the batches of this run."""

    messages: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Messages of all queues."""
        return sum(self.messages.values())


def archive(
    spark: SparkSession,
    queues: Sequence[str],
    to: str,
    *,
    host: str = "127.0.0.1",
    port: int = 9876,
    every: float | None = None,
    batch: int = BATCH,
    schema: StructType | None = None,
    body: str = "binary",
    accept_loss: bool = False,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> Archived:
    """Moves the messages of queues into the archive in the directory `to`, which is made if missing.

    queues: names, each archived once though given twice; host, port: of the queue server; every: seconds from one batch
    to the next of a run that goes on until it is stopped, None for what is in the queues now; batch: messages, at most;
    schema: of XML payloads, from `read_schema` or any structure; they get the columns `document` and `_corrupt_record`,
    which says why a payload does not fit; body: `binary`, or `string` for payloads that are UTF-8; accept_loss: go on
    though messages that were claimed have been purged, or the queue was made anew; stop: asked for from outside;
    progress: told of each batch.

    A batch is acknowledged once its files are in the table and durable. A run that was interrupted anywhere is taken up
    by the next one. Raises NoServerError, NoSuchQueueError, CheckpointLostError, SchemaMismatchError, DataLossError,
    and UsageError when another process archives to the same directory.
    """
    register(spark)
    stop = stop or Stop()
    names = list(dict.fromkeys(queues))
    if not names:
        raise UsageError("no queue to archive: name one at least")
    files = open_files(spark, to)
    for name in names:
        require_queue(host, port, name)
    with file_errors(), files.lock(LOCK, "an archive"):
        job = _Job(spark, files, host, port, every, batch, schema, body, accept_loss, stop, progress)
        ident = archive_id(files, create=True)
        done = Archived()
        for group in [[name] for name in names] if every is None else [names]:
            if not stop.asked:
                job.run([QueueState(files, ident, name) for name in group], done)
        return done


@dataclass(frozen=True, slots=True)
class _Job:
    spark: SparkSession
    files: Files
    host: str
    port: int
    every: float | None
    batch: int
    schema: StructType | None
    body: str
    accept_loss: bool
    stop: Stop
    progress: Progress | None

    def run(self, states: Sequence[QueueState], done: Archived) -> None:
        """Archives these queues side by side."""
        running: list[Running] = []
        try:
            running.extend(self._begin(state) for state in states)  # one by one: what was begun has to be stopped
        except BaseException:
            self.stop.ask()
            wait(running, self.stop)
            raise
        try:
            wait(running, self.stop)
        finally:
            for state, each in zip(states, running, strict=True):
                done.messages[state.queue] = each.turn.rows
                done.batches[state.queue] = each.turn.batches
        for state in states:
            acknowledge_finished(
                state.checkpoint, self.host, self.port, state.queue, state.consumer, accept_loss=self.accept_loss
            )

    def _begin(self, state: QueueState) -> Running:
        with translated():
            rows = self._rows(state)
            state.open({each.name: each.dataType.simpleString() for each in rows.schema.fields})
            writer = BatchWriter(self.files, state, accept_loss=self.accept_loss)
            writer.recover()
            last = state.batch()
            if last is not None:  # and it is done, as it was completed else
                state.checkpoint.must_have_commit(last["batch"])
            turn = Turn(state.queue, writer.write, self.progress)
            return begin(rows.writeStream, turn, state.checkpoint, every=self.every)

    def _rows(self, state: QueueState) -> DataFrame:
        rows = claimed_rows(
            self.spark,
            (self.host, self.port),
            state.queue,
            state.consumer,
            (self.batch, BATCH_BYTES),
            body=self.body,
            accept_loss=self.accept_loss,
        )
        rows = rows.select("mid", "pushed_at", "body", "receives")
        return rows if self.schema is None else with_document(rows, self.schema)


__all__ = ["BATCH", "CORRUPT", "DOCUMENT", "EVERY", "Archived", "archive"]
