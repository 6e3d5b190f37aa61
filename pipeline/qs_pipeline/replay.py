"""The job `replay`: pushes an archive to a queue, in the original order, each message once.

The first run selects the messages and cuts them into chunks (`replay_plan`). Portion k is batch k of a producer of the
queue, which the server publishes once, so an interrupted run continues without duplicates.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from . import register
from .archive_layout import archive_id
from .errors import BadQueryError, PipelineError, UsageError
from .files import Files, file_errors, open_files
from .replay_plan import Plan, PlanStore, Selection, few_rows_at_a_time, plan_key, selected_rows
from .running import FinishedBatch, Progress, Stop, require_queue, translated
from .security import OPEN, QueueServer, Security
from .translate import translate

CHUNK = 5_000
"""Messages of a chunk, at most. With a rate, one second's messages are pushed at a time."""

_POLL = 0.1
"""Seconds between two checks for a stop."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a run. messages: selected in all; before: how many earlier runs have pushed; pushed: how many this
    run has pushed."""

    messages: int
    before: int
    pushed: int


@dataclass(frozen=True, slots=True)
class QueuePreview:
    """The messages that a replay would push from one queue of the archive. first, last: times of their push, in UTC."""

    queue: str
    messages: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A replay that was begun before. messages: in all; pushed: how many are certainly pushed; finished: whether all
    are."""

    messages: int
    pushed: int
    finished: bool


def preview(spark: SparkSession, archive: str, selection: Selection) -> list[QueuePreview]:
    """Returns the messages that a new replay would push, by original queue. Writes nothing. Raises the errors of
    `replay`."""
    files = open_files(spark, archive)
    ident = archive_id(files, create=False)
    with _where_errors(), few_rows_at_a_time(spark):
        rows = selected_rows(spark, files, ident, selection)
        if rows is None:
            return []
        times = F.min("pushed_at").alias("first"), F.max("pushed_at").alias("last")
        grouped = rows.groupBy("queue").agg(F.count("*").alias("messages"), *times).orderBy("queue")
        # Spark returns times in this machine's zone.
        return [
            QueuePreview(row["queue"], row["messages"], row["first"].astimezone(UTC), row["last"].astimezone(UTC))
            for row in grouped.collect()
        ]


def earlier_run(
    spark: SparkSession, archive: str, to: str, selection: Selection, *, host: str = "127.0.0.1", port: int = 9876
) -> EarlierRun | None:
    """Returns the progress of the replay with these arguments, None if it was not begun. Raises the errors of
    `replay`."""
    files = open_files(spark, archive)
    plan = PlanStore(files, plan_key(archive_id(files, create=False), f"{host}:{port}", to, selection)).load()
    return None if plan is None else EarlierRun(plan.rows, plan.pushed, plan.finished)


def replay(
    spark: SparkSession,
    archive: str,
    to: str,
    selection: Selection | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 9876,
    security: Security = OPEN,
    rate: int | None = None,
    again: bool = False,
    stop: Stop | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Replayed:
    """Pushes the messages of `selection` from the archive in a directory to the queue `to`.

    host, port, security: of the queue server; rate: messages a second, at most, None for no bound; again: repeat a
    finished replay; stop, progress: as in `archive`; clock, sleep: for tests.

    A call with the same archive, queue, server and selection continues an interrupted one. Raises UsageError if there
    is no archive, or this replay is finished or running; BadQueryError, NoServerError, NoSuchQueueError.
    """
    register(spark)
    selection = selection or Selection()
    stop = stop or Stop()
    files = open_files(spark, archive)
    ident = archive_id(files, create=False)
    server = QueueServer(host, port, security)
    require_queue(server, to)  # before the plan, which may take long
    key = plan_key(ident, f"{host}:{port}", to, selection)
    plans = PlanStore(files, key)
    with file_errors(), files.lock(f"{plans.path}/lock", "this replay"), few_rows_at_a_time(spark):
        plan = _plan(spark, plans, files, ident, selection, rate=rate, again=again)
        if plan is None:
            return Replayed(0, 0, 0)
        before = plan.pushed
        rate_limit = _RateLimit(rate, stop, clock, sleep)
        # Each run has a producer of its own: with --again, the server would else drop all as published.
        producer = f"replay-{ident}-{key}-{plan.run}"
        with translated():
            options = {**server.options(), "queue": to, "txnAppId": producer}
            pushed = _push(spark, plans, plan, rate_limit, progress=progress, options=options)
    return Replayed(plan.rows, before, pushed)


def _plan(
    spark: SparkSession,
    plans: PlanStore,
    files: Files,
    ident: str,
    selection: Selection,
    *,
    rate: int | None,
    again: bool,
) -> Plan | None:
    """Returns the plan of an earlier run, or a new one. None when no message is selected."""
    plan = plans.load()
    if plan is not None and not plan.finished:
        return plan
    if plan is not None and not again:
        raise UsageError(f"this replay is finished, with {plan.rows:,} messages: --again repeats it")
    with _where_errors():
        rows = selected_rows(spark, files, ident, selection)
        return None if rows is None else plans.make(rows, 1 if plan is None else plan.run + 1, CHUNK, rate)


def _push(
    spark: SparkSession,
    plans: PlanStore,
    plan: Plan,
    rate_limit: "_RateLimit",
    *,
    progress: Progress | None,
    options: dict[str, str],
) -> int:
    pushed = 0
    # A portion has the same number in each run, and so the server knows which it has published.
    for number, portion in list(enumerate(plan.portions()))[plan.done :]:
        if not rate_limit.wait(pushed):
            return pushed
        rows = plans.read(spark, plan, portion)
        rows.write.format("qs").mode("append").options(**options).option("txnVersion", number).save()
        plan.done = number + 1  # if this note is lost, the portion is pushed again, and the server drops it
        plans.note(plan)
        pushed += portion.rows
        if progress is not None:
            progress(FinishedBatch(options["queue"], number, portion.rows))
    plans.finish(plan)
    return pushed


class _RateLimit:
    """Limits the rate over the whole run: after a slow portion, the next ones are pushed sooner."""

    def __init__(
        self, rate: int | None, stop: Stop, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._rate = rate
        self._stop = stop
        self._clock = clock
        self._sleep = sleep
        self._started = clock()

    def wait(self, pushed: int) -> bool:
        """Waits until more than `pushed` messages may be pushed. Returns False when a stop is asked for."""
        due = self._started + (pushed / self._rate if self._rate else 0)
        while not self._stop.asked:
            left = due - self._clock()
            if left <= 0:
                return True
            self._sleep(min(left, _POLL))  # a stop is looked for in between
        return False


@contextlib.contextmanager
def _where_errors() -> Iterator[None]:
    """Reports a wrong condition, or one that fails on a message, as an error of --where."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        found = translate(error)
        if isinstance(found, BadQueryError):
            raise BadQueryError(f"--where: {found}") from error
        raise found from error
