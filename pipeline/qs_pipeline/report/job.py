"""The job `report`: reads the history once, computes the tables with Spark, then draws plots and writes the page."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from ..errors import PipelineError, UsageError
from ..session import restoring_active_session
from ..translate import translate
from . import tables
from .contents import Results, write_page
from .folder import KIND, MARK, building, check_target, save, write_csv
from .history import HistoryFiles, find_history, read_events, with_lifecycles
from .series import EPOCH, Bins, bins_between, bins_of

Progress = Callable[[str], None]
MOST_ROWS = 1000
"""The longest list of messages: a person reads it, and memory holds it."""
_PARTITION = 64 << 20
"""Bytes of the history that are sorted at once; they take about as many bytes of memory."""
_DEPTHS = 500
"""Points of a queue in the table of depths, at most."""
_POINTS = 120
"""Points of a plot, at most, unless it is drawn by the hour."""
_SHORT = 12 * tables.HOUR
"""A shorter history is drawn in steps of less than an hour, to show more points."""


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """The result of a report. page: the path of the HTML page; files, events, queues: how many; unreadable: lines that
    are not events; begin, end: the first and the last event, in UTC."""

    page: str
    files: int
    events: int
    unreadable: int
    queues: int
    begin: datetime
    end: datetime


def report(
    spark: SparkSession,
    history_dir: str | PathLike[str],
    to: str | PathLike[str],
    *,
    top: int = 20,
    progress: Progress | None = None,
) -> ReportSummary:
    """Makes a report of the server's history (docs/report.md), completely or not at all.

    spark: its settings stay unchanged; history_dir: the directory of `queue-server.py --history`, or a copy, maybe of
    several servers, on any file system that Hadoop knows; to: a directory of this machine that is missing, empty, or an
    earlier report, which is replaced; top: rows of the two lists of messages, 1 to 1000; progress: is told each step.

    Raises UsageError if there is nothing to read, or `to` holds something else, and PipelineError if Spark or the disk
    fails.
    """
    say = progress or (lambda text: None)
    if not 1 <= top <= MOST_ROWS:
        raise UsageError(f"the lists can have 1 to {MOST_ROWS:,} messages, not {top}")
    place = check_target(fspath(to))
    with _translated(), restoring_active_session(spark):
        session = _session(spark)
        history = find_history(session, fspath(history_dir))
    with building(place) as work, _translated(), restoring_active_session(spark):
        say("reading the history")
        # Sorted once for all tables; without memory for it, on disk.
        lifecycles = _lifecycles(session, history).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            results = _compute(lifecycles, work, fspath(history_dir), history, top=top, say=say)
        finally:
            lifecycles.unpersist()
        say("drawing")
        write_page(results, work)
        summary = _summary(results, place, history)
        (work / MARK).write_text(_mark(summary), encoding="utf-8")
    return summary


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turns Spark's errors into errors of the pipeline. Leaves errors of the disk to `building`, which knows the
    place."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            raise
        raise translate(error) from error


def _session(spark: SparkSession) -> SparkSession:
    """Returns a new session of the same Spark with the report's own settings: the user's session keeps its settings."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return session


def _lifecycles(session: SparkSession, history: HistoryFiles) -> DataFrame:
    events = read_events(session, history)
    # Enough partitions to sort each in memory: see _PARTITION.
    plan = events._jdf.queryExecution().optimizedPlan()
    partitions = int(plan.stats().sizeInBytes()) // _PARTITION + 1
    configured = int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    session.conf.set("spark.sql.shuffle.partitions", str(min(max(partitions, configured), 10_000)))
    return with_lifecycles(events)


def _compute(
    lifecycles: DataFrame, work: Path, source: str, history: HistoryFiles, *, top: int, say: Progress
) -> Results:
    """Computes everything that needs Spark: the tables, and the data of plots and page."""
    overview = _overview(lifecycles)
    if not overview["events"]:
        raise UsageError(
            f"{source} has no event: none of its {overview['unreadable']:,} lines is of a server's history"
        )
    good = lifecycles.where(~F.col("broken"))
    begin, end = overview["begin"], overview["end"]
    depth_bins = bins_between(begin, end, _DEPTHS)
    plot_bins = _plot_bins(begin, end)
    plans = {
        "per_hour": tables.figures(good, tables.HOUR),
        "queues": tables.queues(good),
        "depth": tables.depths(good, depth_bins.start, depth_bins.width),
        "top_received": tables.top_received(good, top),
        "waited_longest": tables.waited_longest(good, top, end),
    }
    saved = {}
    for name, table in plans.items():
        say(f"computing {name}")
        saved[name] = save(table, work, name)
        write_csv(saved[name])
    drawn = saved["per_hour"]  # a plot of days shows hours, and those are computed already
    if plot_bins.width != tables.HOUR:
        say("computing the plots")
        drawn = save(tables.figures(good, plot_bins.width), work, ".drawn")
    return Results(
        source=source,
        events=overview["events"],
        unreadable=overview["unreadable"],
        torn_files=_torn_files(lifecycles) if overview["unreadable"] else [],
        files=history.files,
        begin=_time(begin),
        end=_time(end),
        tables=saved,
        drawn=drawn,
        plot_bins=plot_bins,
        depth_bins=depth_bins,
    )


def _overview(lifecycles: DataFrame) -> Row:
    [overview] = lifecycles.agg(
        F.count_if(~F.col("broken")).alias("events"),
        F.count_if("broken").alias("unreadable"),
        F.min("time").alias("begin"),
        F.max("time").alias("end"),
    ).collect()
    return overview


def _plot_bins(begin: int, end: int) -> Bins:
    return bins_between(begin, end, _POINTS) if end - begin < _SHORT else bins_of(begin, end, tables.HOUR)


def _torn_files(lifecycles: DataFrame) -> list[tuple[str, int]]:
    """Returns the files with the most lines that are not events, three at most."""
    counted = lifecycles.where("broken").groupBy("queue").count().orderBy(F.desc("count"), "queue").limit(3)
    return [(row["queue"], row["count"]) for row in counted.collect()]


def _time(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def _summary(results: Results, place: Path, history: HistoryFiles) -> ReportSummary:
    return ReportSummary(
        page=str(place / "index.html"),
        files=history.files,
        events=results.events,
        unreadable=results.unreadable,
        queues=results.queues(),
        begin=results.begin,
        end=results.end,
    )


def _mark(summary: ReportSummary) -> str:
    fields = {name: value for name, value in asdict(summary).items() if name != "page"}
    for name in ("begin", "end"):
        fields[name] = fields[name].astimezone(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"kind": KIND, **fields}, indent=2) + "\n"
