"""The report of the pipeline, and DuckDB over the same data.

Makes up a day of a queue server in the format of its history. Both compute the same tables from the same files and
write them as Parquet and CSV, one after the other, each once; the report draws its plots and its page too. What has to
be equal in the hours is compared. The start of Spark is measured apart. Beside the time stands that of the processor,
which says something on a machine that others use too. 10,000,000 events have 1.4 GB, and Spark needs about as much
again.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

import duckdb
from machine import cpu_seconds, tree
from measuring import Figure, Run
from report_events import write_history

from qs_pipeline.report import ReportSummary, report
from qs_pipeline.report.series import bins_between, micros
from qs_pipeline.session import start_session

EVENTS, QUICK = 10_000_000, 200_000

_LIVES = """
create table lives as
select time, event, queue, mid, size, receives,
    lag(case when event <> 'extended' then event end ignore nulls) over life as before,
    time - lag(case when event <> 'extended' then time end ignore nulls) over life as took,
    lag(time) over life is not null as known, lead(time) over life is null as last
from (
    select *, list_position(['pushed', 'received', 'extended', 'released', 'expired', 'deleted'], event) as rank
    from read_json('{history}/history-*.jsonl', format = 'newline_delimited', ignore_errors = true, columns = {{
        time: 'BIGINT', event: 'VARCHAR', queue: 'VARCHAR', mid: 'BIGINT', size: 'BIGINT', receives: 'INTEGER'}})
)
window life as (partition by mid, queue order by time, receives nulls last, rank)
"""

_WAITED = "before in ('pushed', 'released', 'expired') and event in ('received', 'deleted')"
_FIGURES = """
select {by}, {counts}, coalesce(sum(size) filter (event = 'pushed'), 0) as pushed_bytes,
    count_if(not known and event <> 'pushed') as found, {times}
from lives group by {by_columns}
"""

_EVENTS = ("pushed", "received", "released", "expired", "extended", "deleted")
_COUNTS = ", ".join(
    [
        *(f"count_if(event = '{name}') as {name}" for name in _EVENTS),
        "count_if(event = 'received' and receives > 1) as redelivered",
    ]
)

_ENDED = {
    "waiting": f"event = 'received' and {_WAITED}",
    "handling": "event = 'deleted' and before = 'received' and receives is not null",
}

_TIMES = ", ".join(
    f"count(took) filter ({ended}) as {name}_count, max(took) filter ({ended}) / 1e6 as {name}_max, "
    f"approx_quantile(took, [0.5, 0.95, 0.99]) filter ({ended}) as {name}_ranks"
    for name, ended in _ENDED.items()
)

_HOURS = """
select * exclude (hour), make_timestamp(hour) as hour,
    sum(found) over (partition by queue)
    + sum(pushed - deleted) over (partition by queue order by hour rows unbounded preceding) as depth
from ({figures}) order by queue, hour
"""

_DEPTH = """
select queue, make_timestamp((bin + 1) * {width}) as time,
    sum(found) over (partition by queue)
    + sum(change) over (partition by queue order by bin rows unbounded preceding) as depth
from (
    select queue, time // {width} as bin, count_if(event = 'pushed') - count_if(event = 'deleted') as change,
        count_if(not known and event <> 'pushed') as found
    from lives group by all
) order by queue, time
"""

_RECEIVED = """
with chosen as (
    select mid, queue, max(receives) as times from lives where event = 'received' and receives > 1
    group by all order by times desc, queue, mid limit 20
)
select queue, mid, max(times) as receives, count_if(event = 'released') as released,
    count_if(event = 'expired') as expired, max(size) as size,
    make_timestamp(min(time) filter (event = 'pushed')) as pushed,
    make_timestamp(min(time) filter (event = 'received')) as first_received,
    make_timestamp(max(time) filter (event = 'received')) as last_received, max(event) filter (last) as state
from lives join chosen using (mid, queue) group by all order by receives desc, queue, mid
"""

_LONGEST = f"""
with waits as (
    select queue, mid, size, event, case when {_WAITED} then took else (select max(time) from lives) - time end as wait
    from lives where {_WAITED} or last and event in ('pushed', 'released', 'expired')
), chosen as (select mid, queue, max(wait) as wait from waits group by all order by wait desc, queue, mid limit 20)
select queue, mid, wait / 1e6 as waited, any_value(size) as size, any_value(event) as ended_by
from waits join chosen using (mid, queue, wait) group by all order by waited desc, queue, mid
"""


class Spent(NamedTuple):
    """Seconds of some work: by the clock, and of the processor."""

    wall: float
    cpu: float

    def figure(self, what: str, events: int) -> Figure:
        of = f"{self.cpu:.1f} s of CPU, {events / self.wall:,.0f} events/s"
        return Figure(what, self.wall, unit=" s", of=of, digits=1)


class Stopwatch:
    """Measures the time of this process, and, with `below`, of all processes below it: Java, and Python's workers."""

    def __init__(self, *, below: bool = False) -> None:
        self._below = below
        self._started, self._cpu = time.monotonic(), self._spent()

    def _spent(self) -> float:
        return cpu_seconds(tree(os.getpid())) if self._below else time.process_time()

    def read(self) -> Spent:
        return Spent(time.monotonic() - self._started, self._spent() - self._cpu)


def measure_report(history: Path, to: Path, conf: dict[str, str]) -> tuple[float, Spent, ReportSummary]:
    """Makes a report. Returns the seconds until Spark has started, the time of the report, and its summary."""
    started = time.monotonic()
    spark = start_session("report_rates", conf=conf)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        ready = time.monotonic() - started
        watch = Stopwatch(below=True)
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


def report_rates(run: Run) -> list[Figure]:
    """Compares a report on 10,000,000 events of a server's history with DuckDB over the same data."""
    folder, events = run.folder, run.options.messages or (QUICK if run.quick else EVENTS)
    history = folder / "history"
    history.mkdir()
    started = time.monotonic()
    size = write_history(history, events)
    print(f"{events:,} events, {size / 1e9:.2f} GB, made in {time.monotonic() - started:.0f} s", flush=True)
    conf = {"spark.driver.memory": run.options.memory, "spark.local.dir": str(folder / "spark")}
    start, ours, summary = measure_report(history, folder / "report", conf)
    theirs = measure_duckdb(history, folder / "duckdb", summary)
    if summary.events != events or differences(folder / "report", folder / "duckdb"):
        raise RuntimeError("Spark and DuckDB disagree about the hours")
    return [
        Figure("start of Spark", start, unit=" s", digits=1),
        ours.figure(f"report, {events:,} events", events),
        theirs.figure("DuckDB, the same tables", events),
        Figure("report / DuckDB", ours.wall / theirs.wall, 4, "at most", of=f"{ours.cpu / theirs.cpu:.2f} of the CPU"),
    ]


def compute(history: Path, to: Path, depth_width: int) -> None:
    """Writes each table as Parquet and as CSV into the folder. depth_width: microseconds."""
    hour = "time - time % 3600000000"
    queries = {
        "per_hour": _HOURS.format(
            figures=_FIGURES.format(by=f"queue, {hour} as hour", by_columns="all", counts=_COUNTS, times=_TIMES)
        ),
        "queues": _FIGURES.format(by="queue", by_columns="all", counts=_COUNTS, times=_TIMES),
        "depth": _DEPTH.format(width=depth_width),
        "top_received": _RECEIVED,
        "waited_longest": _LONGEST,
    }
    with duckdb.connect() as database:
        database.execute(_LIVES.format(history=history))
        for name, query in queries.items():
            database.execute(f"create table {name} as {query}")
            database.execute(f"copy {name} to '{to / name}.parquet' (format parquet)")
            database.execute(f"copy {name} to '{to / name}.csv' (header)")


def differences(ours: Path, theirs: Path) -> int:
    """Counts the rows of the hours in which two reports differ. The percentiles are not compared, because each program
    approximates them in its own way."""
    columns = (
        "queue, epoch_us(hour), pushed, received, redelivered, released, expired, extended, deleted, pushed_bytes, "
        "depth, waiting_count, waiting_max, handling_count, handling_max"
    )
    one = f"select {columns} from read_parquet('{ours}/per_hour.parquet/*.parquet')"
    other = f"select {columns} from read_parquet('{theirs}/per_hour.parquet')"
    with duckdb.connect() as database:
        both = f"({one} except {other}) union all ({other} except {one})"
        return len(database.execute(both).fetchall())
