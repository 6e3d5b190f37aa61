#!/usr/bin/env python3
"""The archive of the pipeline, beside Spark without a queue and a loop without Spark: archive_rates.py --help

In one run, one after the other, each once, of the same 1 KiB messages: (a) Spark writes the rows from a range of
numbers to Parquet; qs-pipeline's archive moves them there from a queue; (b) a plain loop receives, writes with pyarrow
and deletes. The queue is filled before each, and its messages are in files by then. Beside the rates: what the server
spends of the processor, and what the driver has in memory after 10,000 messages and after all of them. All files are in
a temporary folder that is removed at the end: 1,000,000 messages need some 5 GB.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from compare_system import cpu_seconds, highest_bytes
from machine import machine_line
from processes import Listening, queue_server
from pyspark.sql import SparkSession
from table import Row, print_table

from qs_client import QueueClient
from qs_pipeline.archive import archive
from qs_pipeline.session import start_session

MESSAGES, QUICK, FEW = 1_000_000, 50_000, 10_000
SIZE = 1024


class Spent(NamedTuple):
    """Seconds by the clock, and of the server's processor; messages."""

    wall: float
    server: float
    messages: int

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.wall

    def figures(self) -> str:
        """Returns the figures for a table."""
        return f"{self.wall:.1f} s, server {self.server / self.messages * 1e6:.1f} us of CPU a message"


def measured(server: Listening, messages: int, work: Callable[[], object]) -> Spent:
    """Does the work, and what it took."""
    gc.collect()
    started, cpu = time.monotonic(), cpu_seconds([server.process.pid])
    work()
    return Spent(time.monotonic() - started, cpu_seconds([server.process.pid]) - cpu, messages)


def numbered(number: int) -> str:
    """A payload of 1 KiB."""
    return str(number).ljust(SIZE, "x")


def fill(
    server: Listening, client: QueueClient, queue: str, count: int, payload: Callable[[int], str] = numbered
) -> None:
    """New messages, and time for the server to write them to files."""
    client.new_queue(queue)
    client.push_many(queue, (payload(number) for number in range(count)))
    print(f"{count:,} messages are in {queue}", flush=True)
    deadline = time.monotonic() + 60 + count / 5_000
    before = -1.0
    while (spent := cpu_seconds([server.process.pid])) - before > 0.1 and time.monotonic() < deadline:
        before = spent
        time.sleep(2)  # as long as the server is busy, it writes messages to files: there is nothing else to do


def from_a_range(spark: SparkSession, to: Path, count: int) -> None:
    """Makes the same rows without a queue."""
    rows = spark.range(count, numPartitions=max(count // 10_000, 1)).selectExpr(
        "1700000000000000 + id AS mid",
        "timestamp_micros(1700000000000000 + id) AS pushed_at",
        f"cast(rpad(cast(id AS string), {SIZE}, 'x') AS binary) AS body",
        "1 AS receives",
        "to_date(timestamp_micros(1700000000000000 + id)) AS date",
    )
    rows.coalesce(spark.sparkContext.defaultParallelism).write.partitionBy("date").parquet(str(to))


def plain_loop(client: QueueClient, queue: str, to: Path) -> int:
    """Archives as a program without Spark would: at least once."""
    to.mkdir()
    total = 0
    while True:
        found = client.receive(queue, 1000)
        if not found:
            return total
        table = pa.table(
            {
                "mid": [message.mid for message in found],
                "pushed_at": pa.array([message.pushed_at for message in found], pa.timestamp("us", "UTC")),
                "body": [message.payload for message in found],
                "receives": pa.array([message.receives for message in found], pa.int32()),
            }
        )
        pq.write_table(table, to / f"{total:010}.parquet")
        client.delete_many(found)
        total += len(found)


def memory(spark: SparkSession) -> tuple[int, int]:
    """MB of the driver: the most that its Python process has had; what the JVM has on its heap after a collection."""
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return highest_bytes([os.getpid()]) >> 20, (runtime.totalMemory() - runtime.freeMemory()) >> 20


def rows(folder: Path, count: int, conf: dict[str, str]) -> list[Row]:
    """Returns all rows, in order."""
    with queue_server(folder / "queues") as server:
        host, port = server.address
        client = QueueClient(host, port, timeout=120)
        spark = start_session("archive_rates", conf=conf)
        try:
            spark.sparkContext.setLogLevel("ERROR")

            def archived(queue: str) -> None:
                archive(spark, [queue], str(folder / "archive"), host=host, port=port, batch=100_000)

            fill(server, client, "few", FEW)
            archived("few")
            small = memory(spark)
            from_a_range(spark, folder / "warm", FEW)
            ranged = measured(server, count, lambda: from_a_range(spark, folder / "range", count))
            fill(server, client, "many", count)
            ours = measured(server, count, lambda: archived("many"))
            large = memory(spark)
            found = spark.read.parquet(str(folder / "archive" / "queue=many")).count()
            if found != count:
                raise RuntimeError(f"{found} of {count} messages are in the archive")
        finally:
            spark.stop()
        loops = max(count // 10, FEW)
        fill(server, client, "loop", loops)
        loop = measured(server, loops, lambda: plain_loop(client, "loop", folder / "loop"))
    return [
        Row("(a) range to Parquet", f"{ranged.rate:,.0f}/s", figures=f"{ranged.wall:.1f} s"),
        Row(f"archive of {count:,}", f"{ours.rate:,.0f}/s", figures=ours.figures()),
        Row(f"(b) plain loop, {loops:,}", f"{loop.rate:,.0f}/s", figures=loop.figures()),
        Row("archive / (a)", f"{ours.rate / ranged.rate:.2f}", ">= 0.3"),
        Row("archive / (b)", f"{ours.rate / loop.rate:.2f}", ">= 3"),
        Row("driver, Python", f"{large[0]} MB", figures=f"{small[0]} MB after {FEW:,} messages (highest)"),
        Row("driver, JVM heap", f"{large[1]} MB", figures=f"{small[1]} MB after {FEW:,} messages (collected)"),
    ]


def main() -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(
        description="Measures qs-pipeline archive beside Spark alone and a plain loop. Prints a table."
    )
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help=f"(default: {MESSAGES:,})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} messages")
    parser.add_argument(
        "--memory", default="1g", metavar="SIZE", help="memory of Spark's JVM (default: 1g, which is Spark's)"
    )
    parser.add_argument("--dir", type=Path, help="folder for temporary files (default: the system's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qs-archive-", dir=arguments.dir) as made:
        folder = Path(made)
        (folder / "queues").mkdir()
        print(machine_line(folder), flush=True)
        conf = {"spark.driver.memory": arguments.memory, "spark.local.dir": str(folder / "spark")}
        print_table(rows(folder, QUICK if arguments.quick else arguments.messages, conf))


if __name__ == "__main__":
    main()
