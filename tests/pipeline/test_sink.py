"""Writing to a queue: a batch's rows are visible once, together, in order, or not at all."""

from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from support.orders import INVALID, VALID, schemas_in
from support.servers.processes import FAST, serving
from support.spark.queues import SparkQueue, finish, told, uncommit

from qs_client import Draft, QueueClient
from qs_pipeline.errors import BadMessageError, BadOptionError, PipelineError, SchemaMismatchError


@pytest.fixture
def source(queue: SparkQueue) -> SparkQueue:
    """A queue from which a stream reads."""
    name = f"{queue.name}-source"
    queue.client.new_queue(name)
    return SparkQueue(queue.spark, queue.client, name)


def numbered(queue: SparkQueue, count: int, partitions: int) -> DataFrame:
    """Rows of one column `body`: "0", "1" and so on, in order of partition."""
    return queue.spark.range(0, count, 1, partitions).selectExpr("CAST(id AS STRING) AS body")


def sometimes_failing(frame: DataFrame) -> DataFrame:
    """The rows of `numbered`; a third of the tasks fail at their first attempt, after they have written some."""

    @udf("string", useArrow=False)
    def dying(body: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() % 3 == 0 and int(body) % 2000 == 1999:
            raise RuntimeError("the task dies")
        return body

    return frame.select(dying(frame.body.cast("string")).alias("body"))


def fails(queue: SparkQueue, frame: DataFrame, **options: object) -> PipelineError:
    with pytest.raises(PySparkException) as raised:
        queue.write(frame, **options)
    return told(raised.value)


def test_write_batch(queue: SparkQueue) -> None:
    """Strings and bytes, any of them, in the order of partitions and rows; empty partitions are fine."""
    queue.write(numbered(queue, 2500, 3))
    assert queue.bodies() == [b"%d" % number for number in range(2500)]
    rows = [(b"\x00\xff",), (b"",), ("<é&>\r\n".encode(),)]
    queue.write(queue.spark.createDataFrame(rows, "value BINARY").repartition(1))
    assert queue.bodies() == [row[0] for row in rows]
    queue.write(numbered(queue, 0, 2))
    assert queue.bodies() == []


@pytest.mark.long  # seconds, on two cores
def test_write_with_failed_tasks(queue: SparkQueue) -> None:
    """A task that is tried again leaves nothing of its first attempt."""
    queue.write(sometimes_failing(numbered(queue, 12_000, 4)))
    assert queue.bodies() == [b"%d" % number for number in range(12_000)]


@pytest.mark.long  # ten seconds, on two cores
def test_failed_write_is_invisible(queue: SparkQueue) -> None:
    """A failed write shows no row, whatever its tasks have staged. Here, one row of them has a null."""
    frame = numbered(queue, 5000, 2).selectExpr("nullif(body, '4999') AS body")
    error = fails(queue, frame)
    assert isinstance(error, BadMessageError)
    assert "has a null for a body" in str(error)
    assert queue.bodies() == []


@pytest.mark.long  # seconds, on two cores
def test_write_with_txn_version_is_written_once(queue: SparkQueue) -> None:
    """With txnAppId and txnVersion a version is written once, and none below the last."""
    for version in (0, 0, 7, 3, 7):
        queue.write(numbered(queue, 2, 1).selectExpr(f"body || '/{version}' AS body"), txnAppId="a", txnVersion=version)
    queue.write(numbered(queue, 1, 1), txnAppId="b", txnVersion=0)
    assert queue.bodies() == [b"0/0", b"1/0", b"0/7", b"1/7", b"0"]


@pytest.mark.long  # seconds, on two cores
def test_write_refuses_columns(queue: SparkQueue) -> None:
    """The error says what there is, what is wanted, and how to get it."""
    error = fails(queue, queue.spark.range(3).selectExpr("id AS body"))
    assert isinstance(error, SchemaMismatchError)
    assert "one column, body or value, of type binary or string, and if need be headers, priority" in str(error)
    assert "not struct<body:bigint>" in str(error)


@pytest.mark.long  # seconds, on two cores
def test_write_attributes(queue: SparkQueue) -> None:
    """Rows with headers, a priority and a group become messages with them; the server hands out by priority. Rows that
    were read from a queue have the right columns. One that no message can have fails the write, and says why."""
    queue.push("plain", Draft("all", priority=7, group="g", headers={"b": "1", "a": "é"}))
    queue.write(queue.read().select("priority", "body", "headers", "group"))
    found = queue.client.receive(queue.name, max=9)
    assert [(m.payload, m.priority, m.group, m.headers) for m in found] == [
        *[(b"all", 7, "g", {"b": "1", "a": "é"})], *[(b"plain", None, None, {})] * 2
    ]  # fmt: skip
    error = fails(queue, queue.spark.sql("SELECT 'x' AS body, map('qs-mine', 'x') AS headers"))
    assert isinstance(error, BadMessageError)
    assert "the header 'qs-mine' has a name of the server's" in str(error)


@pytest.mark.long  # seconds, on two cores
def test_write_refuses_overwrite(queue: SparkQueue) -> None:
    """A queue is not replaced."""
    with pytest.raises(PySparkException) as raised:
        numbered(queue, 1, 1).write.format("qs").mode("overwrite").options(**queue.options()).save()
    assert isinstance(told(raised.value), BadOptionError)


@pytest.mark.long  # ten seconds, on two cores
def test_stream_from_queue_to_queue(queue: SparkQueue, source: SparkQueue, tmp_path: Path) -> None:
    """Each message once, in batches that are each in order, though tasks fail."""
    source.push(*(b"%d" % number for number in range(9000)))
    frame = sometimes_failing(source.stream(maxMessagesPerTrigger=6000, numPartitions=4).select("body"))
    finish(queue.start_writing(frame, tmp_path / "checkpoint"))
    assert [int(body) for body in queue.bodies()] == list(range(9000))


def test_stream_batch_run_again(queue: SparkQueue, tmp_path: Path) -> None:
    """One that was published when the driver was killed is not published again; a new checkpoint is a new query, whose
    first batches are not taken for the old one's."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\nb\n")
    lines = queue.spark.readStream.text(str(tmp_path / "in"))
    checkpoint = tmp_path / "checkpoint"
    finish(queue.start_writing(lines, checkpoint))
    uncommit(checkpoint, 0)
    (tmp_path / "in" / "2.txt").write_text("c\n")
    finish(queue.start_writing(lines, checkpoint))
    assert queue.bodies() == [b"a", b"b", b"c"]
    finish(queue.start_writing(lines, tmp_path / "new"))
    assert sorted(queue.bodies()) == [b"a", b"b", b"c"]


@pytest.mark.long  # ten seconds, on two cores
def test_stream_refuses_output_mode_complete(queue: SparkQueue, source: SparkQueue, tmp_path: Path) -> None:
    """`outputMode` complete would write everything again in each batch: it is refused."""
    source.push("a")
    counts = source.stream().groupBy("queue").count().selectExpr("CAST(count AS STRING) AS body")
    writer = counts.writeStream.format("qs").outputMode("complete").options(**queue.options())
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises((StreamingQueryException, PySparkException)) as raised:
        finish(writer.start())
    assert isinstance(told(raised.value), BadOptionError)
    assert queue.bodies() == []


@pytest.mark.long  # seconds, on two cores
def test_write_that_the_schema_of_the_queue_refuses(spark: SparkSession, tmp_path: Path) -> None:
    """One row that the queue's schema does not allow ends the write with the reason, and no row is visible."""
    flags = (*FAST, "--schemas", str(schemas_in(tmp_path / "schemas")))
    with (
        serving(tmp_path / "root", *flags) as server,
        QueueClient(server.host, server.port, timeout=20) as client,
    ):
        client.new_queue("orders", schema="order")
        orders = SparkQueue(spark, client, "orders")
        error = fails(orders, spark.createDataFrame([(VALID,), (INVALID,)], "body STRING").repartition(1))
        assert isinstance(error, BadMessageError)
        assert "a row cannot be written to the queue 'orders', and nothing of the batch is" in str(error)
        assert "line 1, element 'total'" in str(error)
        assert orders.bodies() == []
        orders.write(spark.createDataFrame([(VALID,)], "body STRING"))
        assert orders.bodies() == [VALID.encode()]
