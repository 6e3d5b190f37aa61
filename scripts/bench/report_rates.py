#!/usr/bin/env python3
"""The report of the pipeline, and DuckDB over the same data: python scripts/bench/report_rates.py --help

Makes up a day of a queue server in the format of its history record. Both compute the same tables from the same files
and write them as Parquet and CSV, one after the other, each once; the report draws its plots and its page too. What
has to be equal in the hours is compared. The start of Spark is measured apart. Beside the time stands that of the
processor, which says something on a machine that others use too. All files are in a temporary folder that is removed at
the end: 10,000,000 events have 1.4 GB, and Spark needs about as much again.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from machine import machine_line
from report_duckdb import compute, differences
from report_events import write_history
from table import Row, print_table

from qs_pipeline.report import ReportSummary, report
from qs_pipeline.report.series import bins_between, micros
from qs_pipeline.session import start_session

EVENTS, QUICK = 10_000_000, 200_000


class Spent(NamedTuple):
    """Seconds: by the clock, and of the processor."""

    wall: float
    cpu: float

    def row(self, what: str, events: int) -> Row:
        figures = f"{self.cpu:.1f} s of CPU, {events / self.wall:,.0f} events/s"
        return Row(what, f"{self.wall:.1f} s", figures=figures)


class Stopwatch:
    """Measures the time of this process, and of another one."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._started, self._cpu = time.monotonic(), self._spent()

    def _spent(self) -> float:
        if self._pid is None:
            return time.process_time()
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read(self) -> Spent:
        return Spent(time.monotonic() - self._started, self._spent() - self._cpu)


def measure_report(history: Path, to: Path, conf: dict[str, str]) -> tuple[float, Spent, ReportSummary]:
    """Seconds until Spark has started, what the report took, and what it says."""
    started = time.monotonic()
    spark = start_session("report_rates", conf=conf)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        ready = time.monotonic() - started
        gateway: Any = spark.sparkContext._gateway
        watch = Stopwatch(gateway.proc.pid)
        summary = report(spark, history, to, progress=lambda text: print(f"{text} …", flush=True))
        return ready, watch.read(), summary
    finally:
        spark.stop()


def measure_duckdb(history: Path, to: Path, summary: ReportSummary) -> Spent:
    to.mkdir()
    bins = bins_between(micros(summary.begin), micros(summary.end), 500)
    watch = Stopwatch()
    compute(history, to, bins.width)
    return watch.read()


def rows(folder: Path, events: int, memory: str) -> list[Row]:
    history = folder / "history"
    history.mkdir()
    started = time.monotonic()
    size = write_history(history, events)
    print(f"{events:,} events, {size / 1e9:.2f} GB, made in {time.monotonic() - started:.0f} s", flush=True)
    conf = {"spark.driver.memory": memory, "spark.local.dir": str(folder / "spark")}
    start, ours, summary = measure_report(history, folder / "report", conf)
    theirs = measure_duckdb(history, folder / "duckdb", summary)
    if summary.events != events or differences(folder / "report", folder / "duckdb"):
        raise RuntimeError("Spark and DuckDB disagree about the hours")
    return [
        Row("start of Spark", f"{start:.1f} s"),
        ours.row(f"report, {events:,} events", events),
        theirs.row("DuckDB, the same tables", events),
        Row(
            "report / DuckDB",
            f"{ours.wall / theirs.wall:.2f}",
            figures=f"in time, {ours.cpu / theirs.cpu:.2f} of CPU; the figures of the hours are equal",
        ),
    ]


def main() -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(description="Measures qs-pipeline report beside DuckDB. Prints a table.")
    parser.add_argument(
        "--events", type=int, default=EVENTS, metavar="N", help=f"number of events in the record (default: {EVENTS:,})"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} events")
    parser.add_argument(
        "--memory", default="1g", metavar="SIZE", help="memory of Spark's JVM (default: 1g, which is Spark's)"
    )
    parser.add_argument("--dir", type=Path, help="folder for temporary files (default: the system's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qs-report-", dir=arguments.dir) as made:
        folder = Path(made)
        print(machine_line(folder), flush=True)
        print_table(rows(folder, QUICK if arguments.quick else arguments.events, arguments.memory))


if __name__ == "__main__":
    main()
