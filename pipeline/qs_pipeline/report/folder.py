"""The directory of a report, and the tables in it.

The directory is built under a hidden name beside its place, and renamed to its place when it is complete. Tables
are written as Parquet; they are read here by row, and written again as CSV for people.
"""

import contextlib
import csv
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from ..errors import PipelineError, UsageError

MARK = "report.json"
"""The file that marks a directory as a report."""
KIND = "qs-pipeline report"

_ROWS = 8192
"""Rows of a table in memory."""

Row = dict[str, Any]


def check_target(to: str) -> Path:
    """Returns the path of the report, without symlinks. Raises UsageError unless the path is missing, empty, or an
    earlier report."""
    if "://" in to:
        raise UsageError(f"{to} is not a path of this machine: name a local directory for the report")
    place = Path(to).resolve()
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return place
    except NotADirectoryError:
        raise UsageError(f"{to} is a file: name a directory for the report") from None
    except OSError as error:
        raise UsageError(f"{to} cannot be read: {error.strerror}") from error
    if names and not _is_report(place):
        raise UsageError(f"{to} is neither empty nor an earlier report: name another directory, or remove it")
    return place


def _is_report(place: Path) -> bool:
    try:
        found = json.loads((place / MARK).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


@contextlib.contextmanager
def building(place: Path) -> Iterator[Path]:
    """Yields a hidden directory beside `place`, which replaces `place` after the block. If the block raises, `place`
    stays unchanged. Raises PipelineError if the directory cannot be written."""
    token = uuid.uuid4().hex[:8]
    work = place.with_name(f".{place.name}.{token}")
    old = place.with_name(f".{place.name}.{token}.old")
    # Beside its place, so that it is on the same file system and a rename puts all of it there at once.
    try:
        work.mkdir(parents=True)
        yield work
        if place.exists():
            place.rename(old)
        work.rename(place)
    except OSError as error:
        if old.exists() and not place.exists():  # the second rename failed: the earlier report goes back
            old.rename(place)
        raise PipelineError(f"the report cannot be written to {place}: {error.strerror or error}") from error
    finally:
        for left in (work, old):
            shutil.rmtree(left, ignore_errors=True)


def save(table: DataFrame, folder: Path, name: str) -> Path:
    """Writes a table of Spark to NAME.parquet, a directory. folder: of this machine."""
    path = folder / f"{name}.parquet"
    table.write.parquet(f"file:{path}")
    return path


class TableWriter:
    """Writes rows to a table, a directory with one Parquet file, with a few thousand of them in memory.

    Times are given in microseconds. A table that is not `wanted` stays unwritten.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, wanted: bool = True) -> None:
        self._schema = schema
        self._rows: list[Row] = []
        self._file: pq.ParquetWriter | None = None
        if wanted:
            path.mkdir()
            self._file = pq.ParquetWriter(path / "part-00000.parquet", schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._flush(self._file)
            self._file.close()

    def write(self, rows: Iterable[Row]) -> None:
        if self._file is None:
            return
        for row in rows:
            self._rows.append(row)
            if len(self._rows) >= _ROWS:
                self._flush(self._file)

    def _flush(self, file: pq.ParquetWriter) -> None:
        file.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows.clear()


def rows(
    path: Path, columns: Sequence[str] | None = None, *, kinds: Sequence[str] | None = None, at_once: int = _ROWS
) -> Iterator[Row]:
    """Yields the rows of a saved table in order. columns: None for all; kinds: only rows whose column `kind` is one of
    these; at_once: rows in memory."""
    for part in sorted(path.glob("part-*.parquet")):
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(batch_size=at_once, columns=list(columns) if columns else None):
                wanted = batch if kinds is None else batch.filter(pc.is_in(batch.column("kind"), pa.array(kinds)))
                yield from wanted.to_pylist()


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
