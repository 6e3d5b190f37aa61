"""`spark.read.format("qs")`: looking at a queue, and reading claims of it."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.types import BinaryType, StringType
from support.spark.queues import SparkQueue

from qs_client import Claim, Draft
from qs_pipeline import acknowledge


def test_peek_changes_nothing(queue: SparkQueue) -> None:
    """All visible messages, in several partitions, and nothing changes: they are still new, and can be read again."""
    mids = queue.push(*(b"%d\xff" % number for number in range(2500)))
    frame = queue.read(numPartitions=3)
    rows = sorted(frame.collect(), key=lambda row: row.mid)
    assert frame.rdd.getNumPartitions() == 3
    assert [row.mid for row in rows] == mids
    first = rows[0]
    assert (first.queue, bytes(first.body), first.receives, first.claim_seq) == (queue.name, b"0\xff", 0, None)
    pushed = first.pushed_at.replace(tzinfo=UTC)
    assert pushed == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=mids[0])
    assert frame.count() == 2500
    (stats,) = queue.client.stats(queue.name)
    assert (stats.new, stats.ready) == (2500, 2500)


@pytest.mark.long  # seconds, on two cores
@pytest.mark.parametrize("mode", ["peek", "consume"])
def test_read_attributes(queue: SparkQueue, mode: str) -> None:
    """Headers, priority and group of a message are columns; a message without them has an empty map, 0 and null."""
    queue.push("plain", Draft("all", priority=7, group="g", headers={"b": "1", "a": "é"}))
    rows = queue.read(mode=mode, consumer="c", bodyType="string").orderBy("mid").collect()
    assert [(row.body, row.headers, row.priority, row.group) for row in rows] == [
        ("plain", {}, 0, None), ("all", {"b": "1", "a": "é"}, 7, "g")
    ]  # fmt: skip


@pytest.mark.long  # seconds, on two cores
def test_peek_leaves_out_what_is_not_visible(queue: SparkQueue) -> None:
    """A peek returns the oldest visible messages, at most as many as asked for: none that are in flight, delayed or
    deleted."""
    queue.push("a", "b", "c", "d", "e")
    queue.client.push(queue.name, "later", delay=600)
    taken = queue.client.receive_one(queue.name)
    assert taken is not None
    frame = queue.read(bodyType="string")
    assert [row.body for row in frame.collect()] == ["b", "c", "d", "e"]
    queue.client.delete(taken)
    gone = queue.client.receive_one(queue.name)
    assert gone is not None
    queue.client.delete(gone)
    assert [row.body for row in frame.collect()] == ["c", "d", "e"]
    assert [row.body for row in queue.read(bodyType="string", maxMessagesPerTrigger=2).collect()] == ["c", "d"]


@pytest.mark.long  # seconds, on two cores
@pytest.mark.parametrize("mode", ["peek", "consume"])
def test_peek_empty_queue(queue: SparkQueue, mode: str) -> None:
    """No rows, of the same columns."""
    frame = queue.read(mode=mode, consumer="c")
    assert frame.collect() == []
    assert frame.schema["body"].dataType == BinaryType()
    assert queue.read(bodyType="string").schema["body"].dataType == StringType()


def test_consume_until_acknowledged(queue: SparkQueue) -> None:
    """A claim: the same rows however often they are read, and by whom, until they are acknowledged; then the next."""
    queue.push(*(f"é{number}" for number in range(5)))
    options = {"mode": "consume", "consumer": "c", "maxMessagesPerTrigger": 3, "bodyType": "string"}
    frame = queue.read(**options)
    assert [(row.body, row.claim_seq, row.receives) for row in frame.collect()] == [
        ("é0", 1, 1), ("é1", 1, 1), ("é2", 1, 1)
    ]  # fmt: skip
    assert frame.count() == 3
    assert [row.body for row in queue.read(**options).collect()] == ["é0", "é1", "é2"]  # a job that was run again
    assert [row.body for row in queue.read(bodyType="string").collect()] == ["é3", "é4"]  # for others
    where = {"queue": queue.name, "consumer": "c", "host": queue.client.host, "port": queue.client.port}
    assert acknowledge(**where) == 1
    assert [(row.body, row.claim_seq) for row in queue.read(**options).collect()] == [("é3", 2), ("é4", 2)]
    assert acknowledge(**where, seq=1) == 0
    assert acknowledge(**where, seq=2) == 1
    assert acknowledge(**where) == 0
    assert queue.read(**options).collect() == []
    assert queue.claims() == []


@pytest.mark.long  # ten seconds, on two cores
def test_consume_large_messages_beside_small_ones(queue: SparkQueue) -> None:
    """Messages that no one answer can carry together are asked for in halves."""
    sizes = [10] * 500 + [3_500_000] * 4 + [10] * 500
    queue.push(*(b"x" * size for size in sizes))
    frame = queue.read(mode="consume", consumer="c", numPartitions=2)
    lengths = frame.selectExpr("mid", "length(body) AS size").collect()
    assert [row["size"] for row in sorted(lengths, key=lambda row: row.mid)] == sizes


@pytest.mark.long  # ten seconds, on two cores
def test_consume_beside_other_consumers(queue: SparkQueue) -> None:
    """Messages that are pushed and received while a claim is read are not in it."""
    mids = queue.push(*(b"%d" % number for number in range(3000)))
    done = threading.Event()

    def disturb() -> None:
        while not done.is_set():
            queue.push("later")
            queue.client.receive(queue.name)

    thread = threading.Thread(target=disturb)
    frame = queue.read(mode="consume", consumer="c", maxMessagesPerTrigger=3000, numPartitions=4)
    frame.count()
    thread.start()
    try:
        assert sorted(row.mid for row in frame.select("mid").collect()) == mids
    finally:
        done.set()
        thread.join()
    (claim,) = queue.client.list_claims(queue.name)
    assert isinstance(claim, Claim)
    assert (claim.count, claim.first, claim.last) == (3000, mids[0], mids[-1])
