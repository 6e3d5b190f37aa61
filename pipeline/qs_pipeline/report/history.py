"""Reads the server's history: an event for each line, and the events of a message one after the other.

Reads finished files only: Spark ignores names that begin with a dot, as those of unfinished files do. Lines that are no
events are kept and counted.

A message is `(queue, mid)`. Its events are ordered by time, then by `receives` (events of a batch have the same time,
and that number only grows), then by lifecycle: pushed, received, extended, released or expired, then what ends it:
dead, redriven, retired or deleted.
"""

import re
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from ..errors import UsageError
from ..files import open_files

EVENTS = ("pushed", "received", "extended", "released", "expired", "dead", "redriven", "retired", "deleted")
"""The kinds of events, ordered by lifecycle for those of the same time."""

_NAME = re.compile(r"history-.+\.jsonl(\.gz)?")
_GLOB = "history-*.jsonl{,.gz}"
_BROKEN = "_corrupt_record"
_SCHEMA = f"time BIGINT, event STRING, queue STRING, mid BIGINT, size BIGINT, receives INT, {_BROKEN} STRING"
"""The fields of a line that the report uses: all but the peer."""
_END_OF_TIME = 253_402_300_800_000_000
"""The year 10000, in microseconds, where the timestamps of Spark and Python end."""

_PARTITION = 32 << 20
"""Bytes of the history in one partition, which a task has in memory: some 250 bytes for each event while they are
computed. Only the events of one message, which are always in one partition, may be more."""
_COMPRESSED = 15
"""How many times as long the text of compressed files is, at most: their lines are much alike."""
_PARTITIONS = 10_000

WAITING = ("pushed", "released", "expired")
"""The kinds of events after which a message waits."""

ENDS = ("dead", "redriven", "retired", "deleted")
"""The kinds of events after which a message is no longer in its queue."""


class HistoryFiles(NamedTuple):
    """The finished files of a history. uri: the directory's, for Spark; files: how many there are; compressed: True if
    any of them is."""

    uri: str
    files: int
    compressed: bool


def find_history(spark: SparkSession, directory: str) -> HistoryFiles:
    """Finds the history in a directory. Raises UsageError, which says what to do, if there is none."""
    files = open_files(spark, directory)
    try:
        names = files.names("")
        missing = not names and not files.exists("")
    except NotADirectoryError:
        raise UsageError(
            f"{directory} is a file: name the directory that queue-server.py --history writes to"
        ) from None
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from error
    if missing:
        raise UsageError(f"there is no directory {directory}: name the one that queue-server.py --history writes to")
    found = [name for name in names if _NAME.fullmatch(name)]
    if not found:
        open_ones = sum(name.startswith(".history-") for name in names)
        more = (
            "; one is being written: it is finished when it is full or old (--history-age), or when the server stops"
            if open_ones
            else ": name the directory that queue-server.py --history writes to"
        )
        raise UsageError(f"there is no finished history file (history-*.jsonl) in {directory}{more}")
    return HistoryFiles(
        re.sub(r"([\\*?\[\]{}])", r"\\\1", files.uri("")), len(found), any(name.endswith(".gz") for name in found)
    )


def read_events(spark: SparkSession, history: HistoryFiles) -> DataFrame:
    """Returns a row for each line: queue, mid, time (microseconds), event (its place in EVENTS), receives, size.

    The events of a message are in one partition, one after the other. A line that is torn, or no event of a known kind,
    has an event of null, a unique mid, and the file's name as queue.

    Needs one shuffle and one sort. Both start with the id: numbers compare faster than names.
    """
    lines = (
        spark.read.schema(_SCHEMA)
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", _BROKEN)
        .option("pathGlobFilter", _GLOB)
        .option("ignoreMissingFiles", "true")  # --history-keep may remove the oldest meanwhile
        .json(history.uri)
    )
    # A comparison with null is null: a line that lacks a field is not an event either.
    good = F.coalesce(
        F.col(_BROKEN).isNull()
        & F.col("time").between(0, _END_OF_TIME - 1)
        & F.col("event").isin(*EVENTS)
        & F.col("queue").isNotNull()
        & F.col("mid").isNotNull(),
        F.lit(False),
    )
    # A number instead of a name: the shuffle moves less, and the sort compares it.
    place = F.array_position(F.array(*map(F.lit, EVENTS)), F.col("event")).cast("tinyint") - F.lit(1).cast("tinyint")
    checked = lines.select("*", good.alias("good"), F.col("_metadata.file_name").alias("file"))
    events = checked.select(
        F.when(F.col("good"), F.col("queue")).otherwise(F.col("file")).alias("queue"),
        # Unique ids: with one for all, one task would get all torn lines.
        F.when(F.col("good"), F.col("mid")).otherwise(F.monotonically_increasing_id()).alias("mid"),
        F.when(F.col("good"), F.col("time")).alias("time"),
        F.when(F.col("good"), place).alias("event"),
        "receives",
        "size",
    )
    # Enough partitions for a task to have each in memory.
    bytes_ = int(lines._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
    if history.compressed:
        bytes_ *= _COMPRESSED
    events = events.repartition(min(bytes_ // _PARTITION + 1, _PARTITIONS), "mid", "queue")
    return events.sortWithinPartitions("mid", "queue", "time", F.asc_nulls_last("receives"), "event")
