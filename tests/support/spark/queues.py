"""A queue for tests of the pipeline, and a reader of archives that knows nothing of qs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from qs_client import Draft, QueueClient
from qs_pipeline.errors import PipelineError
from qs_pipeline.files import LocalFiles
from qs_pipeline.translate import from_text

SHORT_LIVED_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options of a JVM that runs for a minute: half the time to start, and slower than others in the long run."""

Batches = dict[int, list[Row]]
"""The rows of each batch of a stream, by its number."""


class SparkQueue:
    """spark: a session with `qs` registered; client: connected to the server; name: the queue's name."""

    def __init__(self, spark: SparkSession, client: QueueClient, name: str) -> None:
        self.spark = spark
        self.client = client
        self.name = name

    def push(self, *payloads: bytes | str | Draft) -> list[int]:
        return self.client.push_many(self.name, payloads)

    def bodies(self) -> list[bytes]:
        """Receives the visible messages, and returns their bodies in order."""
        found: list[bytes] = []
        while messages := self.client.receive(self.name, max=1000, visibility=600):
            found += [message.payload for message in messages]
        return found

    def claims(self) -> list[tuple[str | None, int, int]]:
        """Returns consumer, number and count of the claims that are not acknowledged."""
        return [(claim.consumer, claim.seq, claim.count) for claim in self.client.list_claims(self.name)]

    def options(self, **options: Any) -> dict[str, Any]:
        return {"host": self.client.host, "port": self.client.port, "queue": self.name, **options}

    def read(self, **options: Any) -> DataFrame:
        return self.spark.read.format("qs").options(**self.options(**options)).load()

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("qs").options(**self.options(consumer="c") | options).load()

    def write(self, frame: DataFrame, **options: Any) -> None:
        frame.write.format("qs").mode("append").options(**self.options(**options)).save()

    def start_writing(self, frame: DataFrame, checkpoint: Path, **options: Any) -> StreamingQuery:
        """Starts a stream into the queue, which ends with the present rows."""
        writer = frame.writeStream.format("qs").options(**self.options(**options))
        return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def start(frame: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None], **trigger: Any) -> StreamingQuery:
    """Starts a stream that gives its batches to a function. It ends with the present messages, unless a trigger says
    otherwise."""
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger or {"availableNow": True}).start()


def drain(frame: DataFrame, checkpoint: Path, each: Callable[[int], None] = lambda _: None) -> Batches:
    """Reads the present messages, and returns the batches that were read. each: called after a batch, with its
    number."""
    batches: Batches = {}

    def keep(batch: DataFrame, number: int) -> None:
        batches[number] = batch.collect()
        each(number)

    finish(start(frame, checkpoint, keep))
    return batches


def finish(query: StreamingQuery) -> None:
    """Waits until the query has ended by itself. Raises the error that has ended it."""
    try:
        assert query.awaitTermination(200), "the query does not end"
    finally:
        query.stop()


def die_in(batch: int, frame: DataFrame, checkpoint: Path) -> list[Row]:
    """Runs until the middle of a batch, which is planned and not finished. Returns the batch's rows."""
    rows: list[Row] = []

    def die(found: DataFrame, number: int) -> None:
        if number == batch:
            rows.extend(found.collect())
            raise RuntimeError("the driver dies")

    with pytest.raises(StreamingQueryException, match="the driver dies"):
        finish(start(frame, checkpoint, die))
    return rows


def told(error: BaseException) -> PipelineError:
    """Returns the text of an exception of Spark's in the command's form."""
    return from_text(str(error))


def uncommit(checkpoint: Path, batch: int) -> None:
    """Makes a checkpoint look as after a kill of the driver between the writing of a batch and the note about it."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink()


def copy(checkpoint: Path) -> Path:
    """Makes a copy of a checkpoint in its present state."""
    return Path(shutil.copytree(checkpoint, checkpoint.with_name(f"{checkpoint.name}-copy")))


def rows(directory: Path) -> list[dict[str, Any]]:
    """Returns every row as pyarrow reads the directory, by queue and mid."""
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(directory).to_pylist() if parquet(directory) else []
    return sorted(found, key=lambda row: (row["queue"], row["mid"]))


def bodies(directory: Path) -> list[bytes]:
    """Returns the payloads, by queue and mid."""
    return [row["body"] for row in rows(directory)]


def parquet(directory: Path) -> list[Path]:
    """Returns the files of the table."""
    return sorted(directory.glob("queue=*/date=*/*.parquet"))


def asked(directory: Path, query: str) -> list[tuple[Any, ...]]:
    """Returns DuckDB's answer to a query; the table is TABLE."""
    table = f"read_parquet('{directory}/queue=*/date=*/*.parquet', hive_partitioning = true)"
    with duckdb.connect() as connection:
        found: list[tuple[Any, ...]] = connection.sql(query.replace("TABLE", table)).fetchall()
    return found


class Crash(BaseException):
    """Stands for the end of the process."""


class MortalFiles(LocalFiles):
    """Files of a process that ends before its n-th change of them, or in the middle of several renames."""

    def __init__(self, root: str, lives: int) -> None:
        """lives: changes that succeed before the process ends."""
        super().__init__(root)
        self.lives = lives

    def _live(self) -> None:
        if self.lives == 0:
            raise Crash
        self.lives -= 1

    def replace(self, path: str, data: bytes) -> None:
        self._live()
        super().replace(path, data)

    def move(self, moves: Any) -> None:
        for move in moves:
            self._live()
            super().move([move])

    def remove(self, path: str) -> None:
        self._live()
        super().remove(path)

    def sync(self, paths: Any) -> None:
        self._live()
        super().sync(paths)
