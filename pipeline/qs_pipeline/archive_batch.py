"""Writes one batch into an archive exactly once.

1. The rows are written to a directory in `staging`: Parquet that nobody reads.
2. The files are synced, and `batch.json` lists where each goes. Until then, nothing of batch N is in the table.
3. The files are renamed into the table; each appears at once.
4. `batch.json` says that the batch is done, and the staging directory is removed.

After a crash before 2, Spark runs the batch again, with the same rows, as the claim is the same. After 2, the renames
are completed from the list. After 4, the batch is not written again. Only then does Spark write its commit, and the
messages are acknowledged after that.
"""

import secrets
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from .archive_layout import QueueState
from .errors import CheckpointLostError, PipelineError
from .files import Files
from .rows import count_rows, date_of

_DATES = 2  # written side by side by a task; with more, Spark sorts the batch by date


class BatchWriter:
    """Writes the batches of one queue."""

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
        if last is not None and batch <= last["batch"]:
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
        if not moves and not self._accept_loss and (self._state.checkpoint.end_offset(batch) or {}).get("count"):
            raise PipelineError(
                f"batch {batch} was written, but {self._files.uri(staged)} has no files: on a cluster the archive must "
                "be on a file system that all machines share"
            )
        count = sum(count_rows(rows.sparkSession, self._files, (old for old, _ in moves)))
        self._files.sync(old for old, _ in moves)
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
        left = [(old, new) for old, new in moves if self._files.exists(old)]
        gone = next((new for old, new in moves if (old, new) not in left and not self._files.exists(new)), None)
        if gone is not None:
            raise CheckpointLostError(
                f"{self._files.uri(gone)} was being archived and is gone: restore it from a backup, or archive to "
                "another directory"
            )
        self._files.move(left)
        self._files.sync(dict.fromkeys(new.rpartition("/")[0] for _, new in moves))
        self._state.set_batch(batch, rows, moves, done=True)
