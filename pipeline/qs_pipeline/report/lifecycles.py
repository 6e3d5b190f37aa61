"""The lifecycles of messages: adds to each event of the record what it ended.

A message is `(queue, mid)`. Its events are ordered by time, then by `receives` (events of a batch have the same time,
and that number only grows), then by lifecycle: pushed, received, extended, released or expired, then what ends it:
dead, redriven, retired or deleted. Each event except `extended` ends what the previous one began:

- waiting: from pushed, released or expired to the next event;
- handling: from received to deleted. A release, an expiry or a death is a failed handling, without a handling time.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from .record import EVENTS

WAITING = ("pushed", "released", "expired")
"""After these events a message waits."""
ENDS = ("dead", "redriven", "retired", "deleted")
"""After these events a message is no longer in its queue."""


def with_lifecycles(events: DataFrame) -> DataFrame:
    """Adds to the rows of `read_events` what each event ended:

    - `seen_before` (boolean): an earlier event of the message is in the record;
    - `last` (boolean): no later event of it is in the record;
    - `waited` (long, microseconds): the wait that ended here, by a receive or as the message left the queue; otherwise
      null. Null for the first event of a message too, as nothing tells when that wait began;
    - `handled` (long, microseconds): the handling that ended well here; otherwise null. A deletion without `receives`
      came with the queue's, and ends no handling.

    Needs one shuffle and one sort. Both start with the id: numbers compare faster than names.
    """
    rank = F.array_position(F.array(*map(F.lit, EVENTS)), F.col("event")).cast("tinyint")
    life = Window.partitionBy("mid", "queue").orderBy("time", F.asc_nulls_last("receives"), "rank")
    earlier = life.rowsBetween(Window.unboundedPreceding, -1)
    counts = F.col("event") != "extended"
    joined = events.withColumn("rank", rank).select(
        *events.columns,
        F.last(F.when(counts, F.col("event")), ignorenulls=True).over(earlier).alias("before"),
        F.last(F.when(counts, F.col("time")), ignorenulls=True).over(earlier).alias("since"),
        F.lag("broken").over(life).isNotNull().alias("seen_before"),
        F.lead("broken").over(life).isNull().alias("last"),
    )
    return joined.select(*events.columns, "seen_before", "last", _waited().alias("waited"), _handled().alias("handled"))


def _waited() -> Column:
    ended = F.col("event").isin("received", *ENDS) & F.col("before").isin(*WAITING)
    return F.when(ended, F.col("time") - F.col("since"))


def _handled() -> Column:
    ended = (F.col("event") == "deleted") & (F.col("before") == "received") & F.col("receives").isNotNull()
    return F.when(ended, F.col("time") - F.col("since"))
