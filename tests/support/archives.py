"""Reads an archive with a Parquet reader that knows nothing of qs."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet

from qs_pipeline.files import LocalFiles


def rows(directory: Path) -> list[dict[str, Any]]:
    """Every row as pyarrow reads the directory, by queue and mid."""
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(directory).to_pylist() if parquet(directory) else []
    return sorted(found, key=lambda row: (row["queue"], row["mid"]))


def bodies(directory: Path) -> list[bytes]:
    """The payloads, by queue and mid."""
    return [row["body"] for row in rows(directory)]


def parquet(directory: Path) -> list[Path]:
    """The files of the table."""
    return sorted(directory.glob("queue=*/date=*/*.parquet"))


def asked(directory: Path, query: str) -> list[tuple[Any, ...]]:
    """DuckDB's answer; the table is TABLE."""
    table = f"read_parquet('{directory}/queue=*/date=*/*.parquet', hive_partitioning = true)"
    with duckdb.connect() as connection:
        found: list[tuple[Any, ...]] = connection.sql(query.replace("TABLE", table)).fetchall()
    return found


class Crash(BaseException):
    """The process ends here."""


class MortalFiles(LocalFiles):
    """Files of a process that ends before its n-th change of them, or in the middle of several renames."""

    def __init__(self, root: str, lives: int) -> None:
        """lives: changes that succeed."""
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
