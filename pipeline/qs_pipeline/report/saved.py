"""Tables on disk: written by Spark as Parquet, read here by row, and written again as CSV for people."""

import csv
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

Row = dict[str, Any]


def save(table: DataFrame, folder: Path, name: str) -> Path:
    """Writes a table to NAME.parquet, a directory with one file. folder: of this machine."""
    path = folder / f"{name}.parquet"
    table.write.parquet(f"file:{path}")
    return path


def rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yields the rows of a saved table in order, with a few thousand in memory. columns: None for all."""
    for part in sorted(path.glob("part-*.parquet")):
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(batch_size=8192, columns=list(columns) if columns else None):
                yield from batch.to_pylist()


def write_csv(path: Path) -> Path:
    """Writes NAME.csv beside NAME.parquet: UTF-8, with a header, quoted as in RFC 4180; times in ISO 8601 and UTC,
    durations in seconds, empty for null."""
    target = path.with_suffix(".csv")
    columns = _columns(path)
    with target.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows(path):
            writer.writerow([_text(row[column]) for column in columns])
    return target


def _columns(path: Path) -> list[str]:
    part = next(path.glob("part-*.parquet"))
    with pq.ParquetFile(part) as file:
        return [str(name) for name in file.schema_arrow.names]


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")  # precise to microseconds
    return value
