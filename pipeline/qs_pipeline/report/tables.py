"""The tables of a report, computed with Spark: figures by queue and time, depths, and conspicuous messages.

`lifecycles` is always the result of `with_lifecycles` without broken lines. Times are microseconds during the
computation; results have timestamps, and durations in seconds.
"""

import functools

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from .history import ENDS, WAITING

HOUR = 3_600_000_000
ACCURACY = 1000
"""Accuracy of `percentile_approx`: a percentile's rank is off by at most one thousandth of the values."""
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TIMES = ("waiting", "handling")
COUNTS = ("pushed", "received", "redelivered", "released", "expired", "extended", *ENDS)
"""Columns of whole numbers: how often each event happened."""


def figures(lifecycles: DataFrame, width: int, column: str = "hour") -> DataFrame:
    """Returns a row for each queue and span of `width` microseconds with events: the counts, `depth` at its end, and
    the times that ended in it. Sorted."""
    begin = F.col("time") - F.col("time") % width
    found = _grouped(lifecycles, F.col("queue"), begin.alias("begin"))
    queue = Window.partitionBy("queue")
    earlier = queue.orderBy("begin").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # A message whose first event here is not its push was in the queue before: `found` counts those, at the start.
    depth = F.sum("found").over(queue) + F.sum(F.col("pushed") - _gone()).over(earlier)
    shown = found.select("queue", _at(F.col("begin"), column), *COUNTS, "pushed_bytes", depth.alias("depth"), *_shown())
    # One file in order: rows of figures are few, and the page, the plots and the CSV read them one after the other.
    return shown.repartition(1).sortWithinPartitions("queue", column)


def queues(lifecycles: DataFrame) -> DataFrame:
    """Returns a row for each queue over the whole history, with its first and last event, and `at_start`, the messages
    that were there before. Sorted by receives, most first."""
    found = _grouped(lifecycles, F.col("queue"))
    depth = F.col("found") + F.col("pushed") - _gone()
    shown = found.select(
        "queue", _at(F.col("begin"), "first"), _at(F.col("end"), "last"), *COUNTS, "pushed_bytes",
        F.col("found").alias("at_start"), depth.alias("depth"), *_shown(),
    )  # fmt: skip
    return shown.repartition(1).sortWithinPartitions(F.desc("received"), F.desc("pushed"), "queue")


def _gone() -> Column:
    """Returns the column of how many messages have left the queue."""
    return functools.reduce(Column.__add__, map(F.col, ENDS))


def _grouped(lifecycles: DataFrame, *by: Column) -> DataFrame:
    event = F.col("event")
    counts = {name: event == name for name in COUNTS} | {"redelivered": (event == "received") & (F.col("receives") > 1)}
    times = {"waiting": F.when(event == "received", F.col("waited")), "handling": F.col("handled")}
    ranks = F.array(*map(F.lit, PERCENTILES.values()))
    return lifecycles.groupBy(*by).agg(
        *(F.count_if(condition).alias(name) for name, condition in counts.items()),
        F.coalesce(F.sum(F.when(event == "pushed", F.col("size"))), F.lit(0)).alias("pushed_bytes"),
        F.count_if(~F.col("seen_before") & (event != "pushed")).alias("found"),
        F.min("time").alias("begin" if len(by) == 1 else "first"),
        F.max("time").alias("end"),
        *(F.count(time).alias(f"{name}_count") for name, time in times.items()),
        *(F.percentile_approx(time, ranks, ACCURACY).alias(f"{name}_ranks") for name, time in times.items()),
        *(F.max(time).alias(f"{name}_most") for name, time in times.items()),
    )


def _shown() -> list[Column]:
    """Returns the columns of each duration: number of values, percentiles and maximum, in seconds; null without
    values."""
    found = []
    for name in TIMES:
        found.append(F.col(f"{name}_count"))
        for at, rank in enumerate(PERCENTILES):
            found.append((F.get(f"{name}_ranks", F.lit(at)) / 1e6).alias(f"{name}_{rank}"))
        found.append((F.col(f"{name}_most") / 1e6).alias(f"{name}_max"))
    return found


def _at(time: Column, name: str) -> Column:
    return F.timestamp_micros(time).alias(name)


def depths(lifecycles: DataFrame, start: int, width: int) -> DataFrame:
    """Returns a row for each queue and span of `width` microseconds with events: `depth` at its end; and first the
    depth at the start. Sorted."""
    # Only spans with events have a row: a depth lasts until the next one, and a quiet queue costs nothing.
    bin_ = F.floor((F.col("time") - start) / width).cast("long")
    event = F.col("event")
    changed = lifecycles.groupBy("queue", bin_.alias("bin")).agg(
        (F.count_if(event == "pushed") - F.count_if(event.isin(*ENDS))).alias("change"),
        F.count_if(~F.col("seen_before") & (event != "pushed")).alias("found"),
    )
    queue = Window.partitionBy("queue")
    by_time = queue.orderBy("bin")
    at_start = F.sum("found").over(queue).alias("at_start")
    running = F.sum("change").over(by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    levels = changed.select(
        "queue", "bin", at_start, running.alias("change"), F.row_number().over(by_time).alias("row")
    )
    ends = F.struct((F.col("bin") + 1).alias("bin"), (F.col("at_start") + F.col("change")).alias("depth"))
    begin = F.struct(F.lit(0).cast("long").alias("bin"), F.col("at_start").alias("depth"))
    points = F.when(F.col("row") == 1, F.array(begin, ends)).otherwise(F.array(ends))
    exploded = levels.select("queue", F.explode(points).alias("point"))
    shown = exploded.select(
        "queue", _at(F.col("point.bin") * width + start, "time"), F.col("point.depth").alias("depth")
    )
    return shown.repartition(1).sortWithinPartitions("queue", "time")


def top_received(lifecycles: DataFrame, top: int) -> DataFrame:
    """Returns the `top` messages that were received most often, more than once. `state`: at the end of the history."""
    again = lifecycles.where((F.col("event") == "received") & (F.col("receives") > 1))
    most = again.groupBy("mid", "queue").agg(F.max("receives").alias("times"))
    top_messages = most.orderBy(F.desc("times"), "queue", "mid").limit(top)
    event, time = F.col("event"), F.col("time")
    state = (
        F.when(F.col("ended").isin(*ENDS), F.col("ended"))
        .when(F.col("ended").isin(*WAITING), "waiting")
        .otherwise("handed out")
    )
    found = (
        lifecycles.join(F.broadcast(top_messages), ["mid", "queue"])
        .groupBy("mid", "queue")
        .agg(
            F.max("times").alias("receives"),
            F.max("size").alias("size"),
            F.min(F.when(event == "pushed", time)).alias("pushed"),
            F.min(F.when(event == "received", time)).alias("begin"),
            F.max(F.when(event == "received", time)).alias("end"),
            F.count_if(event == "released").alias("released"),
            F.count_if(event == "expired").alias("expired"),
            F.max(F.when(F.col("last"), event)).alias("ended"),
        )
    )
    shown = found.select(
        "queue", "mid", "receives", "released", "expired", "size", _at(F.col("pushed"), "pushed"),
        _at(F.col("begin"), "first_received"), _at(F.col("end"), "last_received"), state.alias("state"),
    )  # fmt: skip
    return shown.repartition(1).sortWithinPartitions(F.desc("receives"), "queue", "mid")


def waited_longest(lifecycles: DataFrame, top: int, end: int) -> DataFrame:
    """Returns the `top` messages with the longest waits, each with its longest. `ended_by`: received, deleted, dead,
    redriven, retired, or `nothing` for messages that still waited at the end of the history (`end`, microseconds)."""
    event, time = F.col("event"), F.col("time")
    still = F.col("last") & event.isin(*WAITING)
    waits = lifecycles.select(
        "queue",
        "mid",
        "size",
        F.when(still, F.lit(end) - time).otherwise(F.col("waited")).alias("wait"),
        F.when(still, time).otherwise(time - F.col("waited")).alias("begin"),
        F.when(still, F.lit("nothing")).otherwise(event).alias("ended_by"),
    ).where(F.col("wait").isNotNull())
    longest = waits.groupBy("mid", "queue").agg(F.max("wait").alias("wait"))
    top_messages = longest.orderBy(F.desc("wait"), "queue", "mid").limit(top)
    found = waits.join(F.broadcast(top_messages), ["mid", "queue", "wait"]).dropDuplicates(["mid", "queue"])
    shown = found.select(
        "queue", "mid", (F.col("wait") / 1e6).alias("waited"), "size", _at(F.col("begin"), "begin"),
        _at(F.col("begin") + F.col("wait"), "end"), "ended_by",
    )  # fmt: skip
    return shown.repartition(1).sortWithinPartitions(F.desc("waited"), "queue", "mid")
