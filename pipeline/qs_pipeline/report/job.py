"""The job: reads the record once, computes the tables with Spark, draws and writes the rest here."""

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

from ..active import keeping_active
from ..errors import PipelineError, UsageError
from ..translate import translate
from . import tables
from .folder import KIND, MARK, building, check_target
from .lifecycles import with_lives
from .record import Record, find_record, read_events
from .saved import save, write_csv
from .series import EPOCH, Bins, bins_between, bins_of
from .story import Material, tell

Progress = Callable[[str], None]
MOST_ROWS = 1000
"""Of a list of messages: it is for a person, and it is held in memory."""
_PARTITION = 64 << 20
"""Bytes of the record that are sorted at once: in memory they are about as many."""
_DEPTHS = 500
"""Points of a queue in the table of depths, at most."""
_POINTS = 120
"""Points of a plot, at most, where it is not drawn by the hour."""
_SHORT = 12 * tables.HOUR
"""A record that is shorter is drawn in steps of less than an hour: else there is little to see."""


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """What was reported on. page: the path of the HTML page; files, events: how many there were; unreadable: lines that
    are no events of the record; queues: how many; begin, end: the first and the last event, in UTC."""

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
    """Makes a report of a history record (docs/report.md), whole or not at all.

    spark: of its settings only copies are changed; history_dir: what `queue-server.py --history` was given, or a copy
    of it, maybe of several servers, here or on any file system that Hadoop knows; to: a directory of this machine that
    is missing, empty, or an earlier report, which is then replaced; top: rows of the two lists of messages, 1 to 1000;
    progress: is told what is being done.

    UsageError when there is nothing to read, or something else is in the way; PipelineError when Spark fails, or the
    disk.
    """
    say = progress or (lambda text: None)
    if not 1 <= top <= MOST_ROWS:
        raise UsageError(f"the lists can have 1 to {MOST_ROWS:,} messages, not {top}")
    place = check_target(fspath(to))
    with _translated(), keeping_active(spark):
        session = _session(spark)
        record = find_record(session, fspath(history_dir))
    with building(place) as work, _translated(), keeping_active(spark):
        say("reading the record")
        lives = _lives(session, record).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            material = _compute(lives, work, fspath(history_dir), record, top=top, say=say)
        finally:
            lives.unpersist()
        say("drawing")
        tell(material, work)
        summary = _summary(material, place, record)
        (work / MARK).write_text(_mark(summary), encoding="utf-8")
    return summary


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """What Spark raises becomes an error of the pipeline. What the disk says is left to `building`: it knows where."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            raise
        raise translate(error) from error


def _session(spark: SparkSession) -> SparkSession:
    """A session of the same Spark, whose settings are ours."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return session


def _lives(session: SparkSession, record: Record) -> DataFrame:
    events = read_events(session, record)
    plan = events._jdf.queryExecution().optimizedPlan()
    partitions = int(plan.stats().sizeInBytes()) // _PARTITION + 1
    configured = int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    session.conf.set("spark.sql.shuffle.partitions", str(min(max(partitions, configured), 10_000)))
    return with_lives(events)


def _compute(lives: DataFrame, work: Path, source: str, record: Record, *, top: int, say: Progress) -> Material:
    """The tables, and what the rest is made of. Whatever is computed with Spark is computed here."""
    found = _overview(lives)
    if not found["events"]:
        raise UsageError(f"{source} has no event: none of its {found['unreadable']:,} lines is one of a history record")
    good = lives.where(~F.col("broken"))
    begin, end = found["begin"], found["end"]
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
    drawn = saved["per_hour"]
    if plot_bins.width != tables.HOUR:
        say("computing what is drawn")
        drawn = save(tables.figures(good, plot_bins.width), work, ".drawn")
    return Material(
        source=source,
        events=found["events"],
        unreadable=found["unreadable"],
        torn_files=_torn_files(lives) if found["unreadable"] else [],
        files=record.files,
        begin=_time(begin),
        end=_time(end),
        tables=saved,
        drawn=drawn,
        plot_bins=plot_bins,
        depth_bins=depth_bins,
    )


def _overview(lives: DataFrame) -> Row:
    [found] = lives.agg(
        F.count_if(~F.col("broken")).alias("events"),
        F.count_if("broken").alias("unreadable"),
        F.min("time").alias("begin"),
        F.max("time").alias("end"),
    ).collect()
    return found


def _plot_bins(begin: int, end: int) -> Bins:
    return bins_between(begin, end, _POINTS) if end - begin < _SHORT else bins_of(begin, end, tables.HOUR)


def _torn_files(lives: DataFrame) -> list[tuple[str, int]]:
    """The files with the most lines that are no events, three at most."""
    counted = lives.where("broken").groupBy("queue").count().orderBy(F.desc("count"), "queue").limit(3)
    return [(row["queue"], row["count"]) for row in counted.collect()]


def _time(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def _summary(material: Material, place: Path, record: Record) -> ReportSummary:
    return ReportSummary(
        page=str(place / "index.html"),
        files=record.files,
        events=material.events,
        unreadable=material.unreadable,
        queues=material.queues(),
        begin=material.begin,
        end=material.end,
    )


def _mark(summary: ReportSummary) -> str:
    told = {name: value for name, value in asdict(summary).items() if name != "page"}
    for name in ("begin", "end"):
        told[name] = told[name].astimezone(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"kind": KIND, **told}, indent=2) + "\n"
