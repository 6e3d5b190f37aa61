"""How many rows Parquet files hold, from their footers."""

from collections.abc import Iterable

import pyarrow.parquet
from pyspark.sql import SparkSession

from .files import Files


def count_rows(spark: SparkSession, files: Files, paths: Iterable[str]) -> list[int]:
    """Of each file, in that order."""
    found = []
    for path in paths:
        local = files.local(path)
        if local is None:
            found.append(spark.read.parquet(glob_escaped(files.uri(path))).count())
        else:
            found.append(int(pyarrow.parquet.read_metadata(local).num_rows))
    return found


def glob_escaped(path: str) -> str:
    """A path for `spark.read`, which takes certain characters for a pattern."""
    return "".join(f"\\{character}" if character in "{}[]*?\\" else character for character in path)
