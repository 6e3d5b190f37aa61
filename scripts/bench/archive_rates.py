"""The archive of the pipeline, beside Spark without a queue and a loop without Spark; and what checking XML costs it.

**Rates.** In one run, one after the other, each once, of the same 1 KiB messages: (a) Spark writes the rows from a
range of numbers to Parquet; qs-pipeline's archive moves them there from a queue; (b) a plain loop receives, writes with
pyarrow and deletes. The queue is filled before each, and its messages are in files by then. Beside the rates: what the
server spends of the processor, and what the driver has in memory after 10,000 messages and after all of them. 1,000,000
messages need some 5 GB.

**XML.** The same documents of 1 KiB, in two settings. Archives of a queue: without a schema, with columns as DDL, and
validated by an XSD. And the step alone, from Parquet to nowhere: Spark's `from_xml` by itself, and what an archive
does, with DDL and with an XSD. Each in turn, round by round.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from machine import cpu_seconds, highest_bytes, tree
from measuring import Figure, Run, in_turn, ratio
from processes import Process, queue_server
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from qs_client import QueueClient
from qs_pipeline.archive import archive
from qs_pipeline.documents import DocumentSchema, read_schema, with_document
from qs_pipeline.session import start_session

MESSAGES, QUICK, FEW = 1_000_000, 50_000, 10_000
SIZE = 1024

LINE = "<line><sku>abc-{0}</sku><count>2</count><price>10.50</price></line>"
ORDER = (
    '<order at="2025-06-30T12:00:00Z"><id>{0}</id><customer><name>A. Person</name><city>Somewhere</city></customer>'
    f"{LINE * 5}<placed>2025-06-30T12:00:00Z</placed><note>"
)

END = "</note></order>"
DDL = (
    "id INT, customer STRUCT<name: STRING, city: STRING>, line ARRAY<STRUCT<sku: STRING, count: INT, "
    "price: DECIMAL(38,18)>>, placed TIMESTAMP, note STRING, _at TIMESTAMP"
)

XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="order"><xs:complexType>
  <xs:sequence>
    <xs:element name="id" type="xs:int"/>
    <xs:element name="customer"><xs:complexType><xs:sequence>
      <xs:element name="name" type="xs:string"/>
      <xs:element name="city" type="xs:string"/>
    </xs:sequence></xs:complexType></xs:element>
    <xs:element name="line" maxOccurs="unbounded"><xs:complexType><xs:sequence>
      <xs:element name="sku" type="xs:string"/>
      <xs:element name="count" type="xs:int"/>
      <xs:element name="price" type="xs:decimal"/>
    </xs:sequence></xs:complexType></xs:element>
    <xs:element name="placed" type="xs:dateTime"/>
    <xs:element name="note" type="xs:string"/>
  </xs:sequence>
  <xs:attribute name="at" type="xs:dateTime"/>
</xs:complexType></xs:element></xs:schema>"""


class Spent(NamedTuple):
    """The cost of some work: seconds by the clock, of the server's processor, and of all processors; messages."""

    wall: float
    server: float
    cpu: float
    messages: int

    @property
    def rate(self) -> float:
        """Returns messages a second."""
        return self.messages / self.wall

    def figures(self) -> str:
        """Returns the figures for a table."""
        cpu, server = (spent / self.messages * 1e6 for spent in (self.cpu, self.server))
        return f"{self.wall:.1f} s, {cpu:.1f} us of CPU a message, {server:.1f} of them the server"


def measured(server: Process, messages: int, work: Callable[[], object]) -> Spent:
    """Does the work, and returns its cost."""
    gc.collect()
    started, used, all_used = time.monotonic(), server.processor_seconds(), cpu_seconds(tree(os.getpid()))
    work()
    spent = server.processor_seconds() - used, cpu_seconds(tree(os.getpid())) - all_used
    return Spent(time.monotonic() - started, *spent, messages)


def numbered(number: int) -> str:
    """Returns a payload of 1 KiB."""
    return str(number).ljust(SIZE, "x")


def fill(
    server: Process, client: QueueClient, queue: str, count: int, payload: Callable[[int], str] = numbered
) -> None:
    """Pushes new messages, and gives time for the server to write them to files."""
    client.new_queue(queue)
    client.push_many(queue, (payload(number) for number in range(count)))
    print(f"{count:,} messages are in {queue}", flush=True)
    deadline = time.monotonic() + 60 + count / 5_000
    before = -1.0
    while (spent := server.processor_seconds()) - before > 0.1 and time.monotonic() < deadline:
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
    """Archives like a program without Spark: at least once."""
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
    """Returns MB of the driver: the peak of its Python process, and the JVM's heap after a collection."""
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return highest_bytes([os.getpid()]) >> 20, (runtime.totalMemory() - runtime.freeMemory()) >> 20


@contextmanager
def _session(run: Run, name: str) -> Iterator[SparkSession]:
    """Yields a quiet session of Spark whose files are in the run's folder."""
    conf = {"spark.driver.memory": run.options.memory, "spark.local.dir": str(run.folder / "spark")}
    spark = start_session(name, conf=conf)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def archive_rates(run: Run) -> list[Figure]:
    """Compares an archive of 1,000,000 messages of 1 KiB with Spark alone, and with a loop without Spark."""
    folder, count = run.folder, run.options.messages or (QUICK if run.quick else MESSAGES)
    with queue_server(folder / "queues") as server:
        host, port = server.address
        client = QueueClient(host, port, timeout=120)
        with _session(run, "archive_rates") as spark:

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
        loops = max(count // 10, FEW)
        fill(server, client, "loop", loops)
        loop = measured(server, loops, lambda: plain_loop(client, "loop", folder / "loop"))
    return [
        Figure("(a) range to Parquet", ranged.rate, unit="/s", of=ranged.figures(), digits=0),
        Figure(f"archive of {count:,}", ours.rate, unit="/s", of=ours.figures(), digits=0),
        Figure(f"(b) plain loop, {loops:,}", loop.rate, unit="/s", of=loop.figures(), digits=0),
        Figure("archive / (a)", ours.rate / ranged.rate, 0.6, of=f"{ranged.cpu / ours.cpu:.2f} by CPU"),
        Figure("archive / (b)", ours.rate / loop.rate, 3),
        Figure("driver, Python", large[0], unit=" MB", of=f"{small[0]} MB after {FEW:,} messages (highest)", digits=0),
        Figure(
            "driver, JVM heap", large[1], unit=" MB", of=f"{small[1]} MB after {FEW:,} messages (collected)", digits=0
        ),
    ]


def order(number: int) -> str:
    """Returns a document of 1 KiB."""
    text = ORDER.format(number)
    return f"{text}{'x' * (1024 - len(text) - len(END))}{END}"


def schemas(spark: SparkSession, folder: Path) -> dict[str, DocumentSchema]:
    """Returns schemas of the same columns, from DDL and from an XSD."""
    found = {}
    for name, text in (("DDL", DDL), ("XSD", XSD)):
        (folder / name).write_text(text)
        found[name] = read_schema(spark, str(folder / name))
    return found


def steps(spark: SparkSession, folder: Path, count: int, rounds: int) -> list[Figure]:
    """Turns payloads into columns, without a queue."""
    made = pa.table({"body": [order(number).encode() for number in range(count)]})
    pq.write_table(made, folder / "bodies.parquet")
    bodies = spark.read.parquet(str(folder / "bodies.parquet")).repartition(2).persist()
    bodies.count()
    known = schemas(spark, folder)

    def by_spark(rows: DataFrame) -> DataFrame:
        return rows.withColumn("document", F.from_xml(rows.body.cast("string"), known["DDL"]))

    ways: dict[str, Callable[[DataFrame], DataFrame]] = {"from_xml": by_spark}
    ways |= {name: lambda rows, schema=schema: with_document(rows, schema) for name, schema in known.items()}

    def rate(way: Callable[[DataFrame], DataFrame]) -> float:
        started = time.monotonic()
        way(bodies).write.format("noop").mode("overwrite").save()
        return count / (time.monotonic() - started)

    taken = in_turn({name: partial(rate, way) for name, way in ways.items()}, rounds)
    return _ratios("step", taken, "from_xml")


def archives(spark: SparkSession, folder: Path, count: int, rounds: int) -> list[Figure]:
    """Archives queues that hold the same messages."""
    known = {"no schema": None, **schemas(spark, folder)}
    taken: dict[str, list[float]] = {name: [] for name in known}
    with queue_server(folder / "queues") as server:
        host, port = server.address
        client = QueueClient(host, port, timeout=120)
        for number in range(rounds + 1):
            for name, schema in known.items():
                queue = f"{number}-{name.replace(' ', '-')}"
                fill(server, client, queue, count, order)
                work = partial(archive, spark, [queue], str(folder / queue), host=host, port=port, schema=schema)
                spent = measured(server, count, work)
                if number:
                    taken[name].append(spent.rate)
    return _ratios("archive", taken, "no schema")


def _ratios(what: str, taken: dict[str, list[float]], base: str) -> list[Figure]:
    """Returns each way's rate as a ratio to the rate of one of the ways."""
    return [ratio(f"{what}, {name} / {base}", rates, taken[base]) for name, rates in taken.items()]


def archive_xml(run: Run) -> list[Figure]:
    """Measures what checking XML payloads costs an archive, with columns as DDL and with an XSD, and the step alone."""
    count, rounds = run.options.messages or (QUICK // 10 if run.quick else QUICK), 1 if run.quick else 3
    with _session(run, "archive_xml") as spark:
        return [*steps(spark, run.folder, count, rounds), *archives(spark, run.folder, count, rounds)]
