"""Reads the history record: each line once, in no order. Lines that are no events are kept and counted.

Reads finished files only: Spark ignores names that begin with a dot, as those of unfinished files do.
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


class Record(NamedTuple):
    """The files of the record. uri: of the directory, for Spark; files: how many there are."""

    uri: str
    files: int


def find_record(spark: SparkSession, directory: str) -> Record:
    """Finds the record in a directory. UsageError, with what to do, when there is none."""
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
    return Record(re.sub(r"([\\*?\[\]{}])", r"\\\1", files.uri("")), count)


def read_events(spark: SparkSession, record: Record) -> DataFrame:
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
        .json(record.uri)
    )
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
        F.when(F.col("good"), F.col("mid")).otherwise(F.monotonically_increasing_id()).alias("mid"),
        "size",
        "receives",
        (~F.col("good")).alias("broken"),
    )
