"""`spark.readStream.format("qs")`: every message in exactly one batch, whatever happens between the steps."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from support.spark.queues import Batches, SparkQueue, copy, die_in, drain, told

from qs_pipeline.errors import CheckpointLostError, ConsumerInUseError, DataLossError, NoSuchQueueError, PipelineError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The folder for a stream's checkpoint; not made yet."""
    return tmp_path / "checkpoint"


def bodies(rows: list[Row]) -> list[bytes]:
    return [bytes(row.body) for row in sorted(rows, key=lambda row: row.mid)]


def numbers(batches: Batches) -> dict[int, list[bytes]]:
    return {number: bodies(rows) for number, rows in batches.items()}


def fails(frame: DataFrame, checkpoint: Path) -> PipelineError:
    """Returns what a run ends with, as the command tells it."""
    with pytest.raises(StreamingQueryException) as raised:
        drain(frame, checkpoint)
    return told(raised.value)


def test_stream_reads_what_is_there(queue: SparkQueue, checkpoint: Path) -> None:
    """A run takes what there is at its beginning, in batches no larger than asked for and in several partitions; what
    comes meanwhile is the next run's. A claim is acknowledged once the batch after it is planned."""
    mids = queue.push(*(b"%d\xff" % number for number in range(10)))
    frame = queue.stream(maxMessagesPerTrigger=4, numPartitions=3)
    batches = drain(frame, checkpoint, each=lambda number: queue.push(b"later %d" % number) and None)
    assert numbers(batches) == {
        0: [b"0\xff", b"1\xff", b"2\xff", b"3\xff"],
        1: [b"4\xff", b"5\xff", b"6\xff", b"7\xff"],
        2: [b"8\xff", b"9\xff"],
    }
    row = min(batches[1], key=lambda row: row.mid)
    assert (row.queue, row.mid, row.receives, row.claim_seq) == (queue.name, mids[4], 1, 2)
    assert queue.claims() in ([("c", 3, 2)], [])  # Spark need not say that the last batch is done
    assert numbers(drain(frame, checkpoint)) == {3: [b"later 0", b"later 1", b"later 2"]}
    assert queue.claims() in ([("c", 4, 3)], [])
    assert drain(frame, checkpoint) == {}
    assert queue.claims() == []
    (stats,) = queue.client.stats(queue.name)
    assert (stats.ready, stats.in_flight) == (0, 0)


@pytest.mark.long  # ten seconds, on two cores
def test_stream_bounds_bytes_of_batch(queue: SparkQueue, checkpoint: Path) -> None:
    """`maxBytesPerTrigger` bounds a batch too, and one message is always taken."""
    queue.push(*[b"x" * 100] * 3, b"y" * 1000)
    batches = drain(queue.stream(maxBytesPerTrigger=250), checkpoint)
    assert [len(rows) for rows in batches.values()] == [2, 1, 1]


def test_stream_killed_before_offset_log(queue: SparkQueue, checkpoint: Path) -> None:
    """A claim that the checkpoint knows nothing of is the next batch, and nothing of it is taken twice or lost."""
    queue.push(*(b"%d" % number for number in range(5)))
    queue.client.claim_messages(queue.name, "c", 1, max=2)
    assert numbers(drain(queue.stream(), checkpoint)) == {0: [b"0", b"1"], 1: [b"2", b"3", b"4"]}


def test_stream_killed_within_batch(queue: SparkQueue, checkpoint: Path) -> None:
    """A batch that was planned and not finished is read again, the same, also when less is wanted by then."""
    queue.push(*(b"%d" % number for number in range(5)))
    rows = die_in(1, queue.stream(maxMessagesPerTrigger=3), checkpoint)
    queue.push(b"5")
    assert numbers(drain(queue.stream(maxMessagesPerTrigger=1, numPartitions=2), checkpoint)) == {
        1: bodies(rows),
        2: [b"5"],
    }


@pytest.mark.long  # seconds, on two cores
@pytest.mark.parametrize("strict", [True, False])
def test_stream_with_purged_claim(queue: SparkQueue, checkpoint: Path, strict: bool) -> None:
    """Messages of a planned batch are gone: the query ends and says how many; or goes on with what there is."""
    queue.push(b"0", b"1")
    die_in(0, queue.stream(), checkpoint)
    assert queue.client.purge(queue.name) == 2
    queue.push(b"2")
    frame = queue.stream(failOnDataLoss=strict)
    if strict:
        error = fails(frame, checkpoint)
        assert isinstance(error, DataLossError)
        assert "2 messages of claim 1 of the consumer 'c'" in str(error)
        assert "failOnDataLoss" in str(error)
    else:
        assert numbers(drain(frame, checkpoint)) == {0: [], 1: [b"2"]}


@pytest.mark.long  # ten seconds, on two cores
@pytest.mark.parametrize("strict", [True, False])
def test_stream_with_released_claim(queue: SparkQueue, checkpoint: Path, strict: bool) -> None:
    """An operator gave the messages of a planned batch back: the query ends and says so; or they come later."""
    queue.push(b"0", b"1")
    die_in(0, queue.stream(), checkpoint)
    queue.client.release_claim(queue.name, "c", 1)
    frame = queue.stream(failOnDataLoss=strict)
    if strict:
        error = fails(frame, checkpoint)
        assert isinstance(error, DataLossError)
        assert "claim 1 of the consumer 'c'" in str(error)
    else:
        assert [bodies(rows) for rows in drain(frame, checkpoint).values()] == [[], [b"0", b"1"]]


def test_stream_with_deleted_checkpoint(queue: SparkQueue, checkpoint: Path, tmp_path: Path) -> None:
    """The query ends before it has read anything, and says what to do; doing that gives every message that is left."""
    queue.push(b"0", b"1", b"2")
    die_in(1, queue.stream(maxMessagesPerTrigger=1), checkpoint)
    error = fails(queue.stream(), tmp_path / "new")
    assert isinstance(error, CheckpointLostError)
    assert f"qs claims --release c {queue.name}" in str(error)
    queue.client.release_claim(queue.name, "c", 2)
    assert numbers(drain(queue.stream(consumer="d"), tmp_path / "newer")) == {0: [b"1", b"2"]}


@pytest.mark.long  # ten seconds, on two cores
def test_stream_with_consumer_in_use(queue: SparkQueue, checkpoint: Path) -> None:
    """The one that is behind ends, and says that another works under its name."""
    queue.push(b"0")
    drain(queue.stream(), checkpoint)
    older = copy(checkpoint)
    queue.push(b"1", b"2")
    drain(queue.stream(maxMessagesPerTrigger=1), checkpoint)
    error = fails(queue.stream(), older)
    assert isinstance(error, ConsumerInUseError)
    assert "another query works under the same name" in str(error)


@pytest.mark.long  # ten seconds, on two cores
def test_stream_with_claim_of_another_query(queue: SparkQueue, checkpoint: Path) -> None:
    """A planned batch whose claim holds other messages by now is not read."""
    queue.push(b"0", b"1")
    die_in(0, queue.stream(), checkpoint)
    queue.client.release_claim(queue.name, "c", 1)
    queue.client.claim_messages(queue.name, "c", 1, max=1)
    error = fails(queue.stream(), checkpoint)
    assert isinstance(error, ConsumerInUseError)
    assert "claim 1 of the consumer 'c'" in str(error)
    assert "holds other messages" in str(error)


@pytest.mark.long  # ten seconds, on two cores
def test_stream_with_queue_made_again(queue: SparkQueue, checkpoint: Path) -> None:
    """The checkpoint knows claims that the server does not: the query ends, and says why."""
    queue.push(b"0")
    drain(queue.stream(), checkpoint)
    queue.client.delete_queue(queue.name, force=True)
    error = fails(queue.stream(), checkpoint)
    assert isinstance(error, NoSuchQueueError)
    queue.client.new_queue(queue.name)
    error = fails(queue.stream(), checkpoint)
    assert isinstance(error, DataLossError)
    assert "the queue was deleted and made again" in str(error)
