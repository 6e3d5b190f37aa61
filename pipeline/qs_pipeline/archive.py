"""The job `archive`: moves queues into a Parquet table, each message once.

One stream of Spark for each queue reads claims and passes each batch to `archive_batch`. The consumer's name contains
the archive's id, so two archives of one queue share its messages but not their claims.
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
from .running import BatchHandler, Progress, Running, Stop, begin, translated, wait
from .security import OPEN, QueueServer, Security

BATCH = 100_000
"""The default for the messages of a batch."""

BATCH_BYTES = 256 * 1024 * 1024
"""Bytes of a batch, at most, but at least one message."""

EVERY = 5.0
"""Seconds from one batch to the next of a continuous run."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a run: messages and batches of each queue."""

    messages: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.messages.values())


def archive(
    spark: SparkSession,
    queues: Sequence[str],
    to: str,
    *,
    host: str = "127.0.0.1",
    port: int = 9876,
    security: Security = OPEN,
    every: float | None = None,
    batch: int = BATCH,
    schema: StructType | None = None,
    body: str = "binary",
    accept_loss: bool = False,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> Archived:
    """Moves the messages of queues into the archive in the directory `to`, which is created if it is missing.

    queues: names, duplicates are ignored; host, port, security: of the queue server; every: seconds from one batch to
    the next of a run that continues until it is stopped, None to archive what is in the queues now; batch: messages, at
    most; schema: of XML payloads, from `read_schema` or any structure: adds the columns `document` and
    `_corrupt_record`, the reason why a payload does not fit; body: `binary`, or `string` for UTF-8 payloads;
    accept_loss: continue though claimed messages have been purged or the queue was created again; stop: ends the run
    from outside; progress: is called for each batch.

    A batch is acknowledged when its files are durably in the table. The next run completes one that was interrupted.
    Raises NoServerError, NoSuchQueueError, CheckpointLostError, SchemaMismatchError, DataLossError, and UsageError when
    another process archives to the same directory.
    """
    register(spark)
    stop = stop or Stop()
    server = QueueServer(host, port, security)
    names = list(dict.fromkeys(queues))
    if not names:
        raise UsageError("no queue to archive: name at least one")
    files = open_files(spark, to)
    for name in names:
        require_queue(server, name)
    with file_errors(), files.lock(LOCK, "an archive"):
        job = _Job(spark, files, server, every, batch, schema, body, accept_loss, stop, progress)
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
    server: QueueServer
    every: float | None
    batch: int
    schema: StructType | None
    body: str
    accept_loss: bool
    stop: Stop
    progress: Progress | None

    def run(self, states: Sequence[QueueState], done: Archived) -> None:
        running: list[Running] = []
        try:
            running.extend(self._begin(state) for state in states)  # one by one, to stop the others if one fails
        except BaseException:
            self.stop.ask()
            wait(running, self.stop)
            raise
        try:
            wait(running, self.stop)
        finally:
            for state, each in zip(states, running, strict=True):
                done.messages[state.queue] = each.handler.rows
                done.batches[state.queue] = each.handler.batches
        for state in states:
            acknowledge_finished(
                state.checkpoint, self.server, state.queue, state.consumer, accept_loss=self.accept_loss
            )

    def _begin(self, state: QueueState) -> Running:
        with translated():
            rows = self._rows(state)
            state.open({each.name: each.dataType.simpleString() for each in rows.schema.fields})
            writer = BatchWriter(self.files, state, accept_loss=self.accept_loss)
            writer.recover()
            last = state.batch()
            if last is not None:  # done, or completed by recover()
                state.checkpoint.must_have_commit(last["batch"])
            handler = BatchHandler(state.queue, writer.write, self.progress)
            return begin(rows.writeStream, handler, state.checkpoint, every=self.every)

    def _rows(self, state: QueueState) -> DataFrame:
        rows = claimed_rows(
            self.spark,
            self.server,
            state.queue,
            state.consumer,
            (self.batch, BATCH_BYTES),
            body=self.body,
            accept_loss=self.accept_loss,
        )
        rows = rows.select("mid", "pushed_at", "body", "receives")
        return rows if self.schema is None else with_document(rows, self.schema)


__all__ = ["BATCH", "CORRUPT", "DOCUMENT", "EVERY", "Archived", "archive"]
