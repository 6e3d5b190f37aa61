#!/usr/bin/env python3
"""Measures what it costs an archive to check XML payloads: archive_xml.py --help

The same documents of 1 KiB, in two settings. Archives of a queue: without a schema, with columns as DDL, and validated
by an XSD. And the step alone, from Parquet to nowhere: Spark's `from_xml` by itself, and what an archive does, with DDL
and with an XSD. Each in turn, round by round; the table has the medians of the rounds' ratios. All files are in a
temporary folder that is removed at the end.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from archive_rates import fill, measured
from machine import machine_line
from processes import queue_server
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from table import Row, print_table

from qs_client import QueueClient
from qs_pipeline.archive import archive
from qs_pipeline.documents import DocumentSchema, read_schema, with_document
from qs_pipeline.session import start_session

MESSAGES, ROUNDS = 50_000, 3

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


def order(number: int) -> str:
    """A document of 1 KiB."""
    text = ORDER.format(number)
    return f"{text}{'x' * (1024 - len(text) - len(END))}{END}"


def schemas(spark: SparkSession, folder: Path) -> dict[str, DocumentSchema]:
    """Returns schemas of the same columns, from DDL and from an XSD."""
    found = {}
    for name, text in (("DDL", DDL), ("XSD", XSD)):
        (folder / name).write_text(text)
        found[name] = read_schema(spark, str(folder / name))
    return found


def steps(spark: SparkSession, folder: Path, count: int, rounds: int) -> list[Row]:
    """Payloads to columns, without a queue."""
    made = pa.table({"body": [order(number).encode() for number in range(count)]})
    pq.write_table(made, folder / "bodies.parquet")
    bodies = spark.read.parquet(str(folder / "bodies.parquet")).repartition(2).persist()
    bodies.count()
    known = schemas(spark, folder)

    def by_spark(rows: DataFrame) -> DataFrame:
        return rows.withColumn("document", F.from_xml(rows.body.cast("string"), known["DDL"]))

    ways: dict[str, Callable[[DataFrame], DataFrame]] = {"from_xml": by_spark}
    ways |= {name: lambda rows, schema=schema: with_document(rows, schema) for name, schema in known.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            started = time.monotonic()
            way(bodies).write.format("noop").mode("overwrite").save()
            if number:  # the first is for the JVM
                taken[name].append(count / (time.monotonic() - started))
    return ratios("step", taken, "from_xml")


def archives(spark: SparkSession, folder: Path, count: int, rounds: int) -> list[Row]:
    """Archives of queues that hold the same."""
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
    return ratios("archive", taken, "no schema")


def ratios(what: str, taken: dict[str, list[float]], base: str) -> list[Row]:
    """Returns each way's rate, as a ratio to one of them."""
    return [
        Row(
            f"{what}, {name} / {base}",
            f"{median(a / b for a, b in zip(rates, taken[base], strict=True)):.2f}",
            figures=f"{median(rates):,.0f}/s",
        )
        for name, rates in taken.items()
    ]


def main() -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(
        description="Measures what checking XML payloads costs an archive. Prints a table."
    )
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help=f"(default: {MESSAGES:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"(default: {ROUNDS})")
    parser.add_argument("--dir", type=Path, help="folder for temporary files (default: the system's)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qs-archive-xml-", dir=given.dir) as made:
        folder = Path(made)
        (folder / "queues").mkdir()
        print(machine_line(folder), flush=True)
        spark = start_session("archive_xml", conf={"spark.local.dir": str(folder / "spark")})
        try:
            spark.sparkContext.setLogLevel("ERROR")
            found = steps(spark, folder, given.messages, given.rounds)
            found += archives(spark, folder, given.messages, given.rounds)
        finally:
            spark.stop()
        print_table(found)


if __name__ == "__main__":
    main()
