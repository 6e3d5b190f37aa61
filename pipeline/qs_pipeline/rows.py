"""Counts the rows of Parquet files, and prepares paths and dates for Spark."""

from collections.abc import Iterable

import pyarrow.parquet
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from .files import Files

_MICROSECONDS_A_DAY = 86_400_000_000


def count_rows(spark: SparkSession, files: Files, paths: Iterable[str]) -> list[int]:
    """Returns the number of rows of each file, in order; of local files from their footers."""
    found = []
    for path in paths:
        local = files.local(path)
        if local is None:
            found.append(spark.read.parquet(glob_escaped(files.uri(path))).count())
        else:
            found.append(int(pyarrow.parquet.read_metadata(local).num_rows))
    return found


def glob_escaped(path: str) -> str:
    """Escapes a path for `spark.read`, which takes some characters for a pattern."""
    return "".join(f"\\{character}" if character in "{}[]*?\\" else character for character in path)


def date_of(moment: Column) -> Column:
    """Returns the date of a timestamp in UTC, whatever the session's time zone."""
    days = F.floor(F.unix_micros(moment) / F.lit(_MICROSECONDS_A_DAY)).cast("int")
    return F.date_add(F.lit("1970-01-01").cast("date"), days)
