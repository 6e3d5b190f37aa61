"""The job `route`: sends a queue's messages through a SQL query to a queue, and failing messages to another, exactly
once.

A batch is a claim, so a repeated batch has the same messages. Each target queue gets its part as a producer's batch,
which the server publishes once. The claim is acknowledged after both.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from pyspark.sql.types import LongType
from pyspark.storagelevel import StorageLevel

from . import register
from .errors import BadMessageError, BadQueryError, UsageError
from .files import file_errors, open_files
from .reading import ATTRIBUTE_NAMES, schema
from .route_state import RouteState, Targets, default_state
from .running import (
    BatchHandler,
    Progress,
    Stop,
    acknowledge_finished,
    begin,
    claimed_rows,
    require_queue,
    translated,
    wait,
)
from .security import OPEN, QueueServer, Security
from .session import restoring_active_session
from .translate import sql_error_text, translate
from .writing import BODIES, is_body, wrong_attribute

VIEW = "messages"
MESSAGES = schema("string")
"""The columns of the view."""

_NULL = "the query gives a NULL body: leave such rows out with WHERE, or send their messages elsewhere with --errors"

BATCH = 10_000
"""The default for the messages of a batch."""

BYTES = 64 << 20
"""Payload bytes of a batch, at most: its results are published at once, and a publication has a bound too."""


def read_query(path: str) -> str:
    """Returns the text of a file without a final semicolon. Raises UsageError if the file cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return text.strip().removesuffix(";")


class Query:
    """A query over the view `messages` whose rows are messages to push.

    Ensures that a query that cannot work is an error before any message is claimed: it is parsed, and tried on a view
    without rows. Must never run a command of SQL: only a query is parsed, and `sql` would execute the other.
    """

    def __init__(self, spark: SparkSession, text: str, *, with_errors: bool) -> None:
        """text: one SELECT; with_errors: messages whose row has a NULL body go to another queue.

        Raises BadQueryError if it cannot be parsed or analysed, or lacks a required column.
        """
        self._text = text
        self._with_errors = with_errors
        java: Any = spark._jsparkSession
        try:
            java.sessionState().sqlParser().parseQuery(text)  # refuses commands, which `sql` would execute
        except ParseException as error:
            raise BadQueryError(f"the query cannot be parsed: {sql_error_text(error)}") from error
        with restoring_active_session(spark):
            try:
                result = self.apply(spark.newSession().createDataFrame([], MESSAGES))
            except AnalysisException as error:
                raise BadQueryError(f"the query does not fit the view {VIEW}: {sql_error_text(error)}") from error
            self._check(result)

    def apply(self, messages: DataFrame) -> DataFrame:
        """Returns the result for these messages: the column `body`, those of ATTRIBUTES that the query gives, and `mid`
        if there is a queue for errors."""
        messages.createOrReplaceTempView(VIEW)
        result = messages.sparkSession.sql(self._text)
        named = [name for name in result.columns if name.lower() in BODIES]
        attributes = [F.col(name) for name in ATTRIBUTE_NAMES if name in map(str.lower, result.columns)]
        if len(named) != 1:
            raise BadQueryError(
                f"the query gives the columns {', '.join(result.columns)}: exactly one has to be called body or value"
            )
        if not self._with_errors:
            checked = F.coalesce(F.col(named[0]), F.raise_error(F.lit(_NULL)).cast(result.schema[named[0]].dataType))
            return result.select(checked.alias("body"), *attributes)
        if "mid" not in result.columns:
            raise BadQueryError("with --errors the query also has to give the column mid, to find the payload")
        return result.select("mid", F.col(named[0]).alias("body"), *attributes)

    def _check(self, result: DataFrame) -> None:
        kind = result.schema["body"].dataType
        if not is_body(kind):
            raise BadQueryError(
                f"the query gives a body of type {kind.simpleString()}: it has to be a string or binary"
            )
        wrong = wrong_attribute({field.name: field.dataType for field in result.schema.fields})
        if wrong is not None:
            raise BadQueryError(f"the query gives {wrong}")
        if self._with_errors and not isinstance(result.schema["mid"].dataType, LongType):
            raise BadQueryError("the query gives a mid that is not the BIGINT of the view")
        java: Any = result._jdf
        if self._with_errors and not java.queryExecution().analyzed().deterministic():
            raise BadQueryError(
                "the query is not deterministic (rand(), uuid()): when a batch is repeated, a message could go to "
                "both queues, or to none"
            )


@dataclass(frozen=True, slots=True)
class Routed:
    """The result of a run: messages read, batches, and messages that went to the queue for errors."""

    messages: int
    batches: int
    broken: int


def route(
    spark: SparkSession,
    queue: str,
    sql: str,
    to: str,
    *,
    state: str,
    errors: str | None = None,
    host: str = "127.0.0.1",
    port: int = 9876,
    security: Security = OPEN,
    every: float | None = None,
    batch: int = BATCH,
    accept_loss: bool = False,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> Routed:
    """Pushes the results of the query `sql` over the messages of `queue` to the queue `to`.

    sql: over the view `messages`, with a column `body` or `value` (see `Query`), and `headers`, `priority` and `group`
    if the results are to have them; errors: the queue for messages whose body comes out NULL or that are not text, as
    they are; state: a directory of this route alone, or a URI that
    Hadoop knows; host, port, security: of the queue server; every: seconds from one batch to the next of a run that
    continues until it is stopped, None for what is in the queue now; batch: messages, at most; accept_loss, stop,
    progress: as in `archive`.

    The query is applied to each batch separately. Raises BadQueryError before anything is claimed, or when the query
    fails on a message; BadMessageError for a message that is not UTF-8, without a queue for errors; NoServerError,
    NoSuchQueueError, CheckpointLostError, DataLossError; UsageError when the state is in use, or a batch is half pushed
    to other queues or with another query.
    """
    register(spark)
    server = QueueServer(host, port, security)
    _require_queues(queue, to, errors, server)
    query = Query(spark, sql, with_errors=errors is not None)
    files = open_files(spark, state)
    with file_errors(), files.lock("lock", "a route"):
        route_state = RouteState(files, queue, Targets(to, errors, sql))
        work = _BatchRouter(route_state, query, server, to, errors)
        handler = BatchHandler(queue, work, progress)
        with translated():
            rows = claimed_rows(spark, server, queue, route_state.name, (batch, BYTES), accept_loss=accept_loss)
            running = begin(rows.writeStream, handler, route_state.checkpoint, every=every)
        wait([running], stop or Stop())
        acknowledge_finished(route_state.checkpoint, server, queue, route_state.name, accept_loss=accept_loss)
    return Routed(handler.rows, handler.batches, work.broken)


def _require_queues(queue: str, to: str, errors: str | None, server: QueueServer) -> None:
    if errors == to:
        raise UsageError(f"{to!r} is the queue for both results and errors: name two queues")
    for name in filter(None, (queue, to, errors)):
        require_queue(server, name)


class _BatchRouter:
    """Routes a batch. broken: messages that went to the queue for errors.

    Ensures that each target gets its part of a batch once: a part is a batch of a producer of the route's name, under
    the batch's number, and the server publishes none twice. The part for errors is pushed first; if the process is
    killed between the two, the repeated batch pushes the other, with the same rows.
    """

    def __init__(self, state: RouteState, query: Query, server: QueueServer, to: str, errors: str | None) -> None:
        self._state = state
        self._query = query
        self._server = server
        self._to = to
        self._errors = errors
        self.broken = 0

    def __call__(self, rows: DataFrame, batch: int) -> int:
        if self._errors is None:
            self._push_all(rows, batch)
        else:
            rows.persist(StorageLevel.MEMORY_AND_DISK)  # used several times, and each would ask the server again
            try:
                self._split(rows, batch, self._errors)
            finally:
                rows.unpersist()
        self._state.done(batch)
        # The claim knows how many messages it has: to count rows would read them once more.
        offset = self._state.checkpoint.end_offset(batch) or {}
        return int(offset.get("count", 0))

    def _push_all(self, rows: DataFrame, batch: int) -> None:
        text = F.when(_is_text(), _text()).otherwise(F.raise_error(_no_text()).cast("string"))
        result = self._query.apply(rows.withColumn("body", text))
        self._state.begin(batch)
        try:
            self._push(result, self._to, batch)
        except Exception as error:
            if isinstance(translate(error), BadQueryError | BadMessageError):  # nothing was published
                self._state.refused()
            raise

    def _split(self, rows: DataFrame, batch: int, errors: str) -> None:
        text = F.when(_is_text(), _text())
        result = self._query.apply(rows.withColumn("body", text)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            good = result.where("body IS NOT NULL")
            # For payloads that are not text the query sees NULL. They go there even if it leaves their rows out.
            no_text = rows.where(~_is_text()).select("mid").join(good.select("mid"), "mid", "left_anti")
            doomed = result.where("body IS NULL").select("mid").union(no_text).distinct()
            count = doomed.count()
            broken = rows.join(doomed, "mid", "left_semi").orderBy("mid")
            if count and broken.count() != count:
                raise BadQueryError("the query gives a NULL body with a mid that no message of the batch has")
            self._state.begin(batch)  # from here on, something of the batch may be pushed
            if count:
                self._push(broken.select("body", *ATTRIBUTE_NAMES), errors, batch)
            self._push(good.drop("mid"), self._to, batch)
        finally:
            result.unpersist()
        self.broken += count

    def _push(self, rows: DataFrame, queue: str, batch: int) -> None:
        writer = rows.write.format("qs").mode("append").options(**self._server.options())
        writer.option("queue", queue).option("txnAppId", self._state.name).option("txnVersion", batch).save()


def _text() -> Column:
    return F.col("body").cast("string")


def _is_text() -> Column:
    return F.is_valid_utf8(_text())


def _no_text() -> Column:
    """Returns the error of a message that is not UTF-8, with the name of its class: see `translate`."""
    said = "is no UTF-8 text: name a queue for such messages with --errors"
    return F.format_string(f"qs_pipeline.errors.BadMessageError: message %s of the queue %s {said}", "mid", "queue")


__all__ = ["BATCH", "Routed", "default_state", "route"]
