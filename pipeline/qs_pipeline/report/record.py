"""Reads the history record: each line once, in no order. What is no event of it is carried along and counted.

Finished files only: those still being written have names that begin with a dot, which Spark does not see.
"""

import re
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from ..errors import UsageError
from ..files import open_files

EVENTS = ("pushed", "received", "extended", "released", "expired", "deleted")
"""Those of one moment, in the order of a life."""

_NAME = re.compile(r"history-.+\.jsonl(\.gz)?")
_GLOB = "history-*.jsonl{,.gz}"
_BROKEN = "_corrupt_record"
_SCHEMA = f"time BIGINT, event STRING, queue STRING, mid BIGINT, size BIGINT, receives INT, {_BROKEN} STRING"
"""Of what a line has, what is looked at: the peer is not."""
_END_OF_TIME = 253_402_300_800_000_000
"""The year 10000, in microseconds: where Spark's timestamps, and Python's, end."""


class Record(NamedTuple):
    """Where the lines are. uri: of the directory, as Spark takes it for reading; files: how many there are."""

    uri: str
    files: int


def find_record(spark: SparkSession, directory: str) -> Record:
    """Looks whether there is something to read. UsageError, with what to do, when there is not."""
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
            "; one is being written: it is finished when it is full, when it is old (--history-age), and at the stop"
            if open_ones
            else ": name the directory that queue-server.py --history writes to"
        )
        raise UsageError(f"there is no finished history file (history-*.jsonl) in {directory}{more}")
    return Record(re.sub(r"([\\*?\[\]{}])", r"\\\1", files.uri("")), count)


def read_events(spark: SparkSession, record: Record) -> DataFrame:
    """A row for each line: time (microseconds), event, queue, mid, size, receives, broken.

    broken: the line is torn, or no event of the record, or of a kind that is not known here. Such a row has an event of
    null and a mid of its own; its queue is the name of its file.
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
