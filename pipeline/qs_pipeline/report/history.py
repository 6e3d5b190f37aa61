"""Reads the server's history: an event for each line, in no order, and what each event ended in a message's life.

Reads finished files only: Spark ignores names that begin with a dot, as those of unfinished files do. Lines that are no
events are kept and counted.

A message is `(queue, mid)`. Its events are ordered by time, then by `receives` (events of a batch have the same time,
and that number only grows), then by lifecycle: pushed, received, extended, released or expired, then what ends it:
dead, redriven, retired or deleted. Each event except `extended` ends what the previous one began:

- waiting: from pushed, released or expired to the next event;
- handling: from received to deleted. A release, an expiry or a death is a failed handling, without a handling time.
"""

import re
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
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

WAITING = ("pushed", "released", "expired")
"""The kinds of events after which a message waits."""

ENDS = ("dead", "redriven", "retired", "deleted")
"""The kinds of events after which a message is no longer in its queue."""


class HistoryFiles(NamedTuple):
    """The finished files of a history. uri: the directory's, for Spark; files: how many there are."""

    uri: str
    files: int


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
    count = sum(_NAME.fullmatch(name) is not None for name in names)
    if not count:
        open_ones = sum(name.startswith(".history-") for name in names)
        more = (
            "; one is being written: it is finished when it is full or old (--history-age), or when the server stops"
            if open_ones
            else ": name the directory that queue-server.py --history writes to"
        )
        raise UsageError(f"there is no finished history file (history-*.jsonl) in {directory}{more}")
    return HistoryFiles(re.sub(r"([\\*?\[\]{}])", r"\\\1", files.uri("")), count)


def read_events(spark: SparkSession, history: HistoryFiles) -> DataFrame:
    """Returns a row for each line: time (microseconds), event, queue, mid, size, receives, broken.

    broken: the line is torn, or no event of a known kind. Such a row has an event of null, a unique mid, and the file's
    name as queue.
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
    checked = lines.select("*", good.alias("good"), F.col("_metadata.file_name").alias("file"))
    return checked.select(
        F.when(F.col("good"), F.col("time")).alias("time"),
        F.when(F.col("good"), F.col("event")).alias("event"),
        F.when(F.col("good"), F.col("queue")).otherwise(F.col("file")).alias("queue"),
        # Unique ids: with one for all, torn lines would be one message, whose events one task had to sort.
        F.when(F.col("good"), F.col("mid")).otherwise(F.monotonically_increasing_id()).alias("mid"),
        "size",
        "receives",
        (~F.col("good")).alias("broken"),
    )


def with_lifecycles(events: DataFrame) -> DataFrame:
    """Adds to the rows of `read_events` what each event ended:

    - `seen_before` (boolean): an earlier event of the message is in the history;
    - `last` (boolean): no later event of it is in the history;
    - `waited` (long, microseconds): the wait that ended here, by a receive or as the message left the queue; otherwise
      null. Null for the first event of a message too, as nothing tells when that wait began;
    - `handled` (long, microseconds): the handling that ended well here; otherwise null. A deletion without `receives`
      came with the queue's, and ends no handling.

    Needs one shuffle and one sort. Both start with the id: numbers compare faster than names.
    """
    rank = F.array_position(F.array(*map(F.lit, EVENTS)), F.col("event")).cast("tinyint")
    life = Window.partitionBy("mid", "queue").orderBy("time", F.asc_nulls_last("receives"), "rank")
    earlier = life.rowsBetween(Window.unboundedPreceding, -1)
    counts = F.col("event") != "extended"
    joined = events.withColumn("rank", rank).select(
        *events.columns,
        F.last(F.when(counts, F.col("event")), ignorenulls=True).over(earlier).alias("before"),
        F.last(F.when(counts, F.col("time")), ignorenulls=True).over(earlier).alias("since"),
        F.lag("broken").over(life).isNotNull().alias("seen_before"),
        F.lead("broken").over(life).isNull().alias("last"),
    )
    return joined.select(*events.columns, "seen_before", "last", _waited().alias("waited"), _handled().alias("handled"))


def _waited() -> Column:
    ended = F.col("event").isin("received", *ENDS) & F.col("before").isin(*WAITING)
    return F.when(ended, F.col("time") - F.col("since"))


def _handled() -> Column:
    ended = (F.col("event") == "deleted") & (F.col("before") == "received") & F.col("receives").isNotNull()
    return F.when(ended, F.col("time") - F.col("since"))
