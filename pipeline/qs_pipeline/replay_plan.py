"""The plan of a replay: its messages are selected and sorted once and kept in chunks. A later run continues with the
same messages in the same chunks, whatever was archived meanwhile.

    DIR/_qs/replays/<key>/plan.json      the run, and its chunks in order
    DIR/_qs/replays/<key>/done.json      its progress
    DIR/_qs/replays/<key>/run=<n>/       a Parquet file for each chunk; removed when the run is finished

A chunk is published in portions, each in one transaction of the server. So a chunk is bounded in bytes too.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any, NamedTuple

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from pyspark.sql.types import StructType

from .archive_layout import STATE, QueueState, count_rows, date_of, glob_escaped, partition, short_hash
from .errors import PipelineError
from .files import Files
from .reading import ATTRIBUTE_NAMES, ATTRIBUTES, HEADERS, PRIORITY

ORDER = ("pushed_at", "queue", "mid")
"""A total order: a mid occurs once in a queue."""

CHUNK_BYTES = 64 * 1024 * 1024
"""Approximate bytes of the payloads and headers of a chunk: a task holds part of it in memory."""

_PUSHED = ("body", *ATTRIBUTE_NAMES)

_ROWS = 64  # of a batch of the Parquet reader

_PART = re.compile(r"part-(\d+)-.*-c(\d+)\.")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages to replay. where: a condition of SQL; begin, end: pushed from begin until before end."""

    where: str | None = None
    begin: datetime | None = None
    end: datetime | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Returns texts that identify the selection."""
        return (self.where or "", *(moment.isoformat() if moment else "" for moment in (self.begin, self.end)))  # type: ignore[return-value]


class Portion(NamedTuple):
    """`rows` messages of a chunk of `of` messages, from the one at `first`."""

    chunk: str
    first: int
    rows: int
    of: int


@dataclass(slots=True)
class Plan:
    """A run of a replay. run: its number, from 1; chunks: names of the files and their numbers of messages; portion:
    messages that are pushed at a time, None for a whole chunk; done: portions that are certainly pushed; finished:
    whether all are."""

    run: int
    chunks: list[tuple[str, int]] = field(default_factory=list)
    portion: int | None = None
    done: int = 0
    finished: bool = False

    @property
    def rows(self) -> int:
        """Returns how many messages the whole run has."""
        return sum(count for _, count in self.chunks)

    @property
    def pushed(self) -> int:
        """Returns how many messages are certainly pushed."""
        return self.rows if self.finished else sum(each.rows for each in self.portions()[: self.done])

    def portions(self) -> list[Portion]:
        return [
            Portion(name, first, min(self.portion or count, count - first), count)
            for name, count in self.chunks
            for first in range(0, count, self.portion or count)
        ]


class PlanStore:
    """Stores the plan of one replay.

    Ensures that a plan that `load` returns is complete: its chunks are synced before `plan.json` names them. So a run
    that was killed while it planned begins anew, and one that was killed later pushes the very same messages.
    """

    def __init__(self, files: Files, key: str) -> None:
        """key: the replay's, from `plan_key`."""
        self.path = f"{STATE}/replays/{key}"
        self._files = files
        self._file = f"{self.path}/plan.json"
        self._done = f"{self.path}/done.json"

    def load(self) -> Plan | None:
        """Returns the plan, None without a complete one."""
        data = self._files.read(self._file)
        if data is None:
            return None
        try:
            value = json.loads(data)
            value["chunks"] = [(str(name), int(count)) for name, count in value["chunks"]]
            plan = Plan(**value)
        except (ValueError, TypeError, KeyError):
            raise PipelineError(f"{self._files.uri(self._file)} is damaged: restore it from a backup") from None
        plan.done = max(plan.done, self._noted(plan.run))  # the plan itself is written only at its begin and its end
        return plan

    def _noted(self, run: int) -> int:
        data = self._files.read(self._done)
        if data is None:
            return 0
        try:
            value = json.loads(data)
            # Notes of an earlier run say nothing of this one.
            return int(value["done"]) if value["run"] == run else 0
        except (ValueError, TypeError, KeyError):
            raise PipelineError(f"{self._files.uri(self._done)} is damaged: restore it from a backup") from None

    def save(self, plan: Plan) -> None:
        """Stores the plan durably."""
        self._files.replace(self._file, json.dumps(asdict(plan)).encode() + b"\n")

    def note(self, plan: Plan) -> None:
        """Stores the progress durably, in a file of its own, because the plan may be long."""
        self._files.replace(self._done, json.dumps({"run": plan.run, "done": plan.done}).encode() + b"\n")

    def make(self, rows: DataFrame, run: int, chunk: int, portion: int | None) -> Plan:
        """Sorts the rows and stores them in files of at most `chunk` rows and about CHUNK_BYTES."""
        place = self.directory(run)
        sorted_rows = rows.select(*ORDER, *_PUSHED).orderBy(*ORDER)
        while True:
            self._files.remove(place)  # of this loop, or of a run that was killed here
            # Without a dictionary, the footer has the bytes of the bodies.
            writer = sorted_rows.write.option("parquet.enable.dictionary", "false")
            writer.option("maxRecordsPerFile", chunk).parquet(self._files.uri(place))
            names = sorted((name for name in self._files.names(place) if _PART.match(name)), key=_position)
            paths = [f"{place}/{name}" for name in names]
            # How many bytes the rows of a chunk have is known only when they are written: if too many, with fewer rows.
            largest = _largest(rows.sparkSession, self._files, paths)
            if chunk == 1 or largest <= 2 * CHUNK_BYTES:
                break
            chunk = max(chunk * CHUNK_BYTES // largest, 1)
        self._files.sync(paths)
        counts = count_rows(rows.sparkSession, self._files, paths)
        plan = Plan(run, [(name, count) for name, count in zip(names, counts, strict=True) if count], portion)
        self.save(plan)
        return plan

    def read(self, spark: SparkSession, plan: Plan, portion: Portion) -> DataFrame:
        """Returns what to push of a portion, in order, in one partition."""
        path = f"{self.directory(plan.run)}/{portion.chunk}"
        rows = spark.read.parquet(glob_escaped(self._files.uri(path)))
        if portion.rows < portion.of:
            place = F.col("_metadata.row_index")  # the file was written in order
            rows = rows.where((place >= portion.first) & (place < portion.first + portion.rows))
        # One task: a portion is a few thousand messages, and stays in order only in one partition.
        return rows.coalesce(1).sortWithinPartitions(*ORDER).select(*_PUSHED)

    def finish(self, plan: Plan) -> None:
        """Marks the plan as finished and removes the chunks."""
        plan.finished = True
        self.save(plan)
        self._files.remove(self.directory(plan.run))

    def directory(self, run: int) -> str:
        return f"{self.path}/run={run}"


@contextlib.contextmanager
def few_rows_at_a_time(spark: SparkSession) -> Iterator[None]:
    """Reads Parquet in small batches inside the block: 4096 rows of large bodies may exceed a driver's memory."""
    name = "spark.sql.parquet.columnarReaderBatchSize"
    before = spark.conf.get(name)
    spark.conf.set(name, _ROWS)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(name, before)


def _largest(spark: SparkSession, files: Files, paths: list[str]) -> int:
    """Returns the largest sum of the bytes of payloads and headers in a file."""
    if not paths:
        return 0
    local = [name for path in paths if (name := files.local(path)) is not None]
    if len(local) == len(paths):
        return max(_bytes_in(pyarrow.parquet.read_metadata(name)) for name in local)
    rows = spark.read.parquet(*(glob_escaped(files.uri(path)) for path in paths))
    size = F.length("body") + F.length(F.col(HEADERS).cast("string"))
    sizes = rows.groupBy(F.input_file_name()).agg(F.sum(size).alias("size"))
    return sizes.agg(F.max("size")).collect()[0][0] or 0


def _bytes_in(footer: Any) -> int:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    sized = ("body", HEADERS)  # the headers are two columns in it, of names and of texts
    return sum(int(each.total_uncompressed_size) for each in columns if each.path_in_schema.split(".")[0] in sized)


def _position(name: str) -> tuple[int, int]:
    [(part, file)] = _PART.findall(name)
    return int(part), int(file)


def selected_rows(spark: SparkSession, files: Files, archive: str, selection: Selection) -> DataFrame | None:
    """Returns the archived messages of a selection: the columns of ORDER, `body`, as bytes, and those of ATTRIBUTES.
    None when no file can have such a message.

    archive: the archive's id. A batch that is only half in the table is left out.
    """
    parts = [
        _rows_of_queue(spark, files, queue, paths, selection)
        for queue, paths in _files_by_queue(files, archive, selection)
        if paths
    ]
    return reduce(DataFrame.unionByName, parts) if parts else None


def _rows_of_queue(spark: SparkSession, files: Files, queue: str, paths: list[str], selection: Selection) -> DataFrame:
    reader, names = spark.read.option("mergeSchema", False), [glob_escaped(files.uri(path)) for path in paths]
    # All files of a queue have the same columns (see QueueState), so Spark need not open each to know them. Only those
    # of ATTRIBUTES are missing in files of an earlier version; named in a schema, they are null there.
    columns = [field for field in reader.parquet(names[0]).schema.fields if field.name not in ATTRIBUTE_NAMES]
    rows = reader.schema(StructType([*columns, *ATTRIBUTES])).parquet(*names)
    rows = rows.withColumn("queue", F.lit(queue)).withColumn("date", date_of(F.col("pushed_at")))
    none = F.create_map().cast(ATTRIBUTES[0].dataType)
    rows = rows.withColumns({HEADERS: F.coalesce(HEADERS, none), PRIORITY: F.coalesce(PRIORITY, F.lit(0))})
    # A condition sees the body as text; what is pushed is its bytes.
    rows = rows.withColumn("_bytes", F.col("body").cast("binary")).withColumn("body", F.col("body").cast("string"))
    if selection.begin is not None:
        rows = rows.where(F.col("pushed_at") >= F.timestamp_micros(F.lit(_micros(selection.begin))))
    if selection.end is not None:
        rows = rows.where(F.col("pushed_at") < F.timestamp_micros(F.lit(_micros(selection.end))))
    if selection.where is not None:
        rows = rows.where(selection.where)
    return rows.select(*ORDER, F.col("_bytes").alias("body"), *ATTRIBUTE_NAMES)


def _micros(moment: datetime) -> int:
    # Not by the float alone, which does not hold each microsecond.
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def _files_by_queue(files: Files, archive: str, selection: Selection) -> Iterator[tuple[str, list[str]]]:
    first = f"date={selection.begin.date().isoformat()}" if selection.begin else "date="
    # Directories of other dates are not even listed. ~ comes after all digits.
    last = f"date={selection.end.date().isoformat()}" if selection.end else "date=~"
    for hashed in files.names(f"{STATE}/queues"):
        data = files.read(f"{STATE}/queues/{hashed}/queue.json")
        if data is None:
            continue
        queue_state: dict[str, Any] = json.loads(data)
        unfinished = _unfinished(files, archive, queue_state["queue"])
        place = partition(queue_state["queue"])
        dates = [date for date in files.names(place) if first <= date <= last]
        paths = [f"{place}/{date}/{name}" for date in dates for name in files.names(f"{place}/{date}")]
        yield queue_state["queue"], [path for path in paths if path.endswith(".parquet") and path not in unfinished]


def _unfinished(files: Files, archive: str, queue: str) -> set[str]:
    batch = QueueState(files, archive, queue).batch()
    return set() if batch is None or batch["done"] else {new for _, new in batch["moves"]}


def plan_key(archive: str, server: str, to: str, selection: Selection) -> str:
    """Returns the key of a replay, the same for the same arguments."""
    return short_hash(archive, server, to, *selection.key)
