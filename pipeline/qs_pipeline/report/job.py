"""The job `report`: reads the history once, with one job of Spark, then writes the tables, the plots and the page."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from ..errors import PipelineError, UsageError
from ..security import QueueServer
from ..session import restoring_active_session
from ..translate import translate
from .conditions import Conditions, ask_bus, write_conditions
from .contents import Results, write_page
from .folder import KIND, MARK, building, check_target, save
from .history import HistoryFiles, find_history, read_events
from .lifecycles import PARTIAL, partials
from .series import EPOCH
from .tables import extent, write_tables

Progress = Callable[[str], None]
MOST_ROWS = 1000
"""The longest list of messages: a person reads it, and memory holds it."""
_BATCH = 100_000
"""Events that go to Python at a time."""


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
    bus: QueueServer | None = None,
    progress: Progress | None = None,
) -> ReportSummary:
    """Makes a report of the server's history (docs/report.md), completely or not at all.

    spark: its settings stay unchanged; history_dir: the directory of `queue-server.py --history`, or a copy, maybe of
    several servers, on any file system that Hadoop knows; to: a directory of this machine that is missing, empty, or an
    earlier report, which is replaced; top: rows of the two lists of messages, 1 to 1000; bus: is asked what its
    conditions let through and kept back, as `QueueServer("127.0.0.1", 9878)`; progress: is told each step.

    Raises UsageError if there is nothing to read, or `to` holds something else, NoServerError if the bus does not
    answer, and PipelineError if Spark or the disk fails, or the bus refuses.
    """
    say = progress or (lambda text: None)
    if not 1 <= top <= MOST_ROWS:
        raise UsageError(f"the lists can have 1 to {MOST_ROWS:,} messages, not {top}")
    place = check_target(fspath(to))
    conditions = None if bus is None else ask_bus(bus)
    with _translated(), restoring_active_session(spark):
        session = _session(spark)
        history = find_history(session, fspath(history_dir))
    with building(place) as work, _translated(), restoring_active_session(spark):
        say("reading the history")
        saved = _read(session, history, work, top)
        results = _compute(saved, work, fspath(history_dir), history, top=top, conditions=conditions, say=say)
        shutil.rmtree(saved)
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
    session.conf.set("spark.sql.adaptive.enabled", "false")  # one job: its sizes are known before
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_BATCH))
    return session


def _read(session: SparkSession, history: HistoryFiles, work: Path, top: int) -> Path:
    """Reads the history, in one job of Spark, and saves what its partitions have, sorted by queue."""
    events = read_events(session, history)
    # Not DataFrame.mapInArrow, which does the same and wants pandas without any use for it.
    function = UserDefinedFunction(partials(top), PARTIAL, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    found = DataFrame(events._jdf.mapInArrow(function(*events.columns)._jc, False, None), session)
    return save(found.repartition(1).sortWithinPartitions("queue", "kind", "at"), work, ".partials")


def _compute(
    partials: Path,
    work: Path,
    source: str,
    history: HistoryFiles,
    *,
    top: int,
    conditions: Conditions | None,
    say: Progress,
) -> Results:
    """Computes the tables, and the data of plots and page."""
    found = extent(partials)
    if not found.events:
        raise UsageError(f"{source} has no event: none of its {found.unreadable:,} lines is of a server's history")
    say("computing the tables")
    tables = write_tables(partials, work, found, top)
    if conditions is not None:
        tables.paths["conditions"] = write_conditions(conditions, work)
    return Results(
        source=source,
        events=found.events,
        unreadable=found.unreadable,
        torn_files=found.torn_files,
        files=history.files,
        begin=_time(found.begin),
        end=_time(found.end),
        tables=tables.paths,
        drawn=tables.drawn,
        plot_bins=tables.plot_bins,
        depth_bins=tables.depth_bins,
        conditions=conditions,
    )


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
