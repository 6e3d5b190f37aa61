"""The job `archive`: moves queues into a Parquet table, each message once.

One stream of Spark for each queue reads claims and passes each batch to `BatchWriter`. The consumer's name contains
the archive's id, so two archives of one queue share its messages but not their claims.
"""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from pyspark.sql.types import StructType

from . import register
from .archive_layout import LOCK, QueueState, archive_id, count_rows, date_of
from .documents import CORRUPT, DOCUMENT, with_document
from .errors import CheckpointLostError, PipelineError, UsageError
from .files import Files, file_errors, open_files
from .reading import ATTRIBUTE_NAMES
from .running import (
    BatchHandler,
    Progress,
    RunningQuery,
    Stop,
    acknowledge_finished,
    begin,
    claimed_rows,
    require_queue,
    translated,
    wait,
)
from .security import OPEN, QueueServer, Security

_DATES = 2  # written side by side by a task; with more, Spark sorts the batch by date

BATCH = 100_000
"""The default for the messages of a batch."""

BATCH_BYTES = 256 * 1024 * 1024
"""Bytes of a batch, at most, but at least one message."""

EVERY = 5.0
"""Seconds from one batch to the next of a continuous run."""


class BatchWriter:
    """Writes the batches of one queue into an archive.

    Ensures that each batch is in the table exactly once, whatever ends the run and when:
    1. The rows are written to a directory in `staging`: Parquet that nobody reads.
    2. The files are synced, and `batch.json` lists where each goes. Until then, nothing of batch N is in the table.
    3. The files are renamed into the table; each appears at once.
    4. `batch.json` says that the batch is done, and the staging directory is removed.

    After a crash before 2, Spark runs the batch again, with the same rows, as the claim is the same. After 2, the
    renames are completed from the list. After 4, the batch is not written again. Only then does Spark write its commit,
    and the messages are acknowledged after that.

    Assumes that one archive at a time works in the directory: the caller holds its lock. Must never acknowledge.
    """

    def __init__(self, files: Files, state: QueueState, *, accept_loss: bool = False) -> None:
        """accept_loss: a batch may have no rows although its claim had."""
        self._files = files
        self._state = state
        self._accept_loss = accept_loss

    def recover(self) -> None:
        """Completes a batch that a crash has left half in the table. Call it first."""
        last = self._state.batch()
        if last is not None and not last["done"]:
            self._complete(last["batch"], last["rows"], [(old, new) for old, new in last["moves"]])
        self._files.remove(self._state.staging)

    def write(self, rows: DataFrame, batch: int) -> int:
        """Puts the batch into the table and returns its number of rows. rows: the columns of the table, with
        `pushed_at`."""
        last = self._state.batch()
        if last is not None and batch <= last["batch"]:  # Spark had no time for its commit, and runs the batch again
            if batch < last["batch"]:
                raise CheckpointLostError(
                    f"Spark runs batch {batch} of the queue {self._state.queue!r}, but {last['batch']} is archived "
                    "already: the checkpoint is older than the archive; restore the newer one from a backup"
                )
            return 0
        self._state.checkpoint.sync(batch)
        # A unique name: a worker that a killed run has left behind may still be writing.
        staged = f"{self._state.staging}/batch={batch}-{secrets.token_hex(4)}"
        self._stage(rows, staged)
        moves = list(self._moves(staged, batch))
        # Tasks of another machine have written to its own disk: the rows would be lost with the acknowledgement.
        if not moves and not self._accept_loss and (self._state.checkpoint.end_offset(batch) or {}).get("count"):
            raise PipelineError(
                f"batch {batch} was written, but {self._files.uri(staged)} has no files: on a cluster the archive must "
                "be on a file system that all machines share"
            )
        count = sum(count_rows(rows.sparkSession, self._files, (old for old, _ in moves)))
        self._files.sync(old for old, _ in moves)  # before the list, which promises that they are there
        self._state.set_batch(batch, count, moves, done=False)
        self._complete(batch, count, moves)
        self._files.remove(staged)
        return count

    def _stage(self, rows: DataFrame, staged: str) -> None:
        session = rows.sparkSession
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # not every reader knows INT96
        session.conf.set("spark.sql.maxConcurrentOutputFileWriters", _DATES)
        dated = rows.withColumn("date", date_of(F.col("pushed_at")))
        files = session.sparkContext.defaultParallelism  # otherwise one for each slice of the claim
        dated.coalesce(files).write.partitionBy("date").parquet(self._files.uri(staged))

    def _moves(self, staged: str, batch: int) -> Iterator[tuple[str, str]]:
        number = 0
        for date in self._files.names(staged):
            if not date.startswith("date="):
                continue
            for name in self._files.names(f"{staged}/{date}"):
                if name.endswith(".parquet"):
                    target = f"{self._state.prefix}-{batch:010}-{number:05}.parquet"
                    yield f"{staged}/{date}/{name}", f"{self._state.partition}/{date}/{target}"
                    number += 1

    def _complete(self, batch: int, rows: int, moves: list[tuple[str, str]]) -> None:
        left = [(old, new) for old, new in moves if self._files.exists(old)]  # the others were renamed before a crash
        gone = next((new for old, new in moves if (old, new) not in left and not self._files.exists(new)), None)
        if gone is not None:
            raise CheckpointLostError(
                f"{self._files.uri(gone)} was being archived and is gone: restore it from a backup, or archive to "
                "another directory"
            )
        self._files.move(left)
        self._files.sync(dict.fromkeys(new.rpartition("/")[0] for _, new in moves))
        self._state.set_batch(batch, rows, moves, done=True)


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a run: numbers of messages and batches of each queue."""

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
    for name in names:  # before anything is made in the directory
        require_queue(server, name)
    with file_errors(), files.lock(LOCK, "an archive"):
        job = _Job(spark, files, server, every, batch, schema, body, accept_loss, stop, progress)
        ident = archive_id(files, create=True)
        done = Archived()
        # A run without end needs all streams at once; one that ends needs no more than one at a time.
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
        running: list[RunningQuery] = []
        try:
            running.extend(self._begin(state) for state in states)  # one by one, to stop the others if one fails
        except BaseException:  # a query that went on would write to a directory whose lock is given up
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

    def _begin(self, state: QueueState) -> RunningQuery:
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
        rows = rows.select("mid", "pushed_at", "body", "receives", *ATTRIBUTE_NAMES)
        return rows if self.schema is None else with_document(rows, self.schema)


__all__ = ["BATCH", "CORRUPT", "DOCUMENT", "EVERY", "Archived", "archive"]
