"""What became of each message: the events of the record, each with what it ended.

A message is `(queue, mid)`. Its events are put in order by time, then by `receives` (all events of a batch have one
time, and that number only grows), then as a life goes: pushed, received, extended, released or expired, deleted. Each
event but `extended`, which ends nothing, ends what the one before it began:

- waiting: from pushed, released or expired to what follows;
- handling: from received to deleted. A release or an expiry is a handling that failed: it has no handling time.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from .record import EVENTS

WAITING = ("pushed", "released", "expired")
"""After these a message waits."""


def with_lives(events: DataFrame) -> DataFrame:
    """Rows as `read_events` gives them, each with what it ended:

    - `known` (boolean): something of the message is in the record before this;
    - `last` (boolean): nothing is in it after this;
    - `waited` (long, microseconds): a wait ended here, be it with a receive or with a deletion; otherwise null. Of the
      first event of a message it is null, as nobody knows when that wait began;
    - `handled` (long, microseconds): a handling ended here well; otherwise null. A deletion without `receives` came
      with the queue's, and is no end of a handling.

    One shuffle and one sort. The id comes first in both: numbers are compared faster than names.
    """
    rank = F.array_position(F.array(*map(F.lit, EVENTS)), F.col("event")).cast("tinyint")
    life = Window.partitionBy("mid", "queue").orderBy("time", F.asc_nulls_last("receives"), "rank")
    earlier = life.rowsBetween(Window.unboundedPreceding, -1)
    counts = F.col("event") != "extended"
    joined = events.withColumn("rank", rank).select(
        *events.columns,
        F.last(F.when(counts, F.col("event")), ignorenulls=True).over(earlier).alias("before"),
        F.last(F.when(counts, F.col("time")), ignorenulls=True).over(earlier).alias("since"),
        F.lag("broken").over(life).isNotNull().alias("known"),
        F.lead("broken").over(life).isNull().alias("last"),
    )
    return joined.select(*events.columns, "known", "last", _waited().alias("waited"), _handled().alias("handled"))


def _waited() -> Column:
    ended = F.col("event").isin("received", "deleted") & F.col("before").isin(*WAITING)
    return F.when(ended, F.col("time") - F.col("since"))


def _handled() -> Column:
    ended = (F.col("event") == "deleted") & (F.col("before") == "received") & F.col("receives").isNotNull()
    return F.when(ended, F.col("time") - F.col("since"))
