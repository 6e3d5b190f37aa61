"""The SQL of a route: reads it, and tries it on no messages before any is claimed."""

from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from pyspark.sql.types import BinaryType, LongType, StringType

from .active import restoring_active_session
from .errors import BadQueryError, UsageError
from .translate import sql_trouble

VIEW = "messages"
MESSAGES = "queue STRING, mid BIGINT, pushed_at TIMESTAMP, body STRING, receives INT, claim_seq BIGINT"
"""The columns of the view."""

_NULL = "the query gives a NULL body: leave such rows out with WHERE, or send their messages elsewhere with --errors"


def read_query(path: str) -> str:
    """Returns the text of a file without a final semicolon. UsageError when it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return text.strip().removesuffix(";")


class Query:
    """A query over the view `messages` whose rows are messages to push."""

    def __init__(self, spark: SparkSession, text: str, *, with_errors: bool) -> None:
        """text: one SELECT; with_errors: messages whose row has a NULL body go to another queue.

        BadQueryError when it cannot be parsed or analysed, or lacks a required column.
        """
        self._text = text
        self._with_errors = with_errors
        java: Any = spark._jsparkSession
        try:
            java.sessionState().sqlParser().parseQuery(text)  # refuses commands, which `sql` would execute
        except ParseException as error:
            raise BadQueryError(f"the query cannot be parsed: {sql_trouble(error)}") from error
        with restoring_active_session(spark):
            try:
                result = self.apply(spark.newSession().createDataFrame([], MESSAGES))
            except AnalysisException as error:
                raise BadQueryError(f"the query does not fit the view {VIEW}: {sql_trouble(error)}") from error
            self._check(result)

    def apply(self, messages: DataFrame) -> DataFrame:
        """Returns the result for these messages: the column `body`, and `mid` if there is a queue for errors."""
        messages.createOrReplaceTempView(VIEW)
        result = messages.sparkSession.sql(self._text)
        named = [name for name in result.columns if name.lower() in ("body", "value")]
        if len(named) != 1:
            raise BadQueryError(
                f"the query gives the columns {', '.join(result.columns)}: exactly one has to be called body or value"
            )
        if not self._with_errors:
            checked = F.coalesce(F.col(named[0]), F.raise_error(F.lit(_NULL)).cast(result.schema[named[0]].dataType))
            return result.select(checked.alias("body"))
        if "mid" not in result.columns:
            raise BadQueryError("with --errors the query also has to give the column mid, to find the payload")
        return result.select("mid", F.col(named[0]).alias("body"))

    def _check(self, result: DataFrame) -> None:
        kind = result.schema["body"].dataType
        if not isinstance(kind, StringType | BinaryType):
            raise BadQueryError(
                f"the query gives a body of type {kind.simpleString()}: it has to be a string or binary"
            )
        if self._with_errors and not isinstance(result.schema["mid"].dataType, LongType):
            raise BadQueryError("the query gives a mid that is not the BIGINT of the view")
        java: Any = result._jdf
        if self._with_errors and not java.queryExecution().analyzed().deterministic():
            raise BadQueryError(
                "the query is not deterministic (rand(), uuid()): when a batch is repeated, a message could go to "
                "both queues, or to none"
            )
