"""`spark.read.format("qs")`: peeks at a queue (mode peek), or reads a claim (mode consume).

Spark does not tell a source when a batch read ends, and may read rows again for the next action or a retried task. So a
read removes nothing:
- peek: the visible messages, which stay unchanged. Each action reads anew; messages that others took meanwhile are
  missing.
- consume: the consumer's oldest unacknowledged claim, or else a new one. It gives the same rows each time, hidden from
  others, until `qs_pipeline.acknowledge` is called. A job that was killed reads them again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from qs_client import Delivery, GetMessage, NotFound, QueueClient, ServerError

from .claims import PARTITION_MOST, PARTITIONS, SLICE_BYTES, SLICE_MOST, Claims
from .connection import QueueConnection
from .options import Options, consumer_of
from .pipelining import exchanges, ids
from .reading import ClaimPartition, claim_partitions, read_claim, record_batch

_AHEAD = 64
"""Unanswered requests, at most: the sizes of their answers are unknown."""


@dataclass
class PeekPartition(InputPartition):
    """The visible messages above `after`, up to and including `last`."""

    options: Options
    after: int
    last: int


def peek_partitions(connection: QueueConnection, options: Options) -> list[PeekPartition]:
    """Returns ranges of about equally many visible messages: all, or the oldest maxMessagesPerTrigger."""
    mids = list(_listed(connection, 0, options.max_messages))
    count = len(mids)
    parts = min(max(options.partitions or min(-(-count // PARTITION_MOST), PARTITIONS), 1), count)
    bounds = [0, *(mids[count * part // parts - 1] for part in range(1, parts + 1))]
    return [PeekPartition(options, after, last) for after, last in pairwise(bounds)]


def read_peeked(partition: PeekPartition) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition: its messages that are still visible."""
    options = partition.options
    with QueueConnection(options, options.later) as connection:
        for messages in _peeked(connection, partition):
            yield record_batch(options.queue, messages, None, options.body_type)


def _peeked(connection: QueueConnection, partition: PeekPartition) -> Iterator[list[Delivery]]:
    """Yields lists of at most SLICE_MOST messages and about SLICE_BYTES, estimated from the previous list."""
    after, most = partition.after, _AHEAD
    while after < partition.last:
        mids = [mid for mid in _visible(connection, after, most) if mid <= partition.last]
        if not mids:
            return
        messages = _peek_all(connection, mids)
        if messages:
            yield messages
            size = sum(len(message.payload) for message in messages)
            # The sizes of the next ones are unknown: that of these is the best guess.
            most = max(min(SLICE_BYTES * len(messages) // max(size, 1), SLICE_MOST), 1)
        after = mids[-1]


def _visible(connection: QueueConnection, after: int, most: int) -> list[int]:
    return connection.ask(lambda client: ids(client, connection.queue, "ready", after, most))


def _peek_all(connection: QueueConnection, mids: list[int]) -> list[Delivery]:
    return connection.ask(lambda client: _peek_pipelined(client, connection.queue, mids))


def _peek_pipelined(client: QueueClient, qid: str, mids: list[int]) -> list[Delivery]:
    requests = (GetMessage(qid, mid, peek=True) for mid in mids)
    found: list[Delivery] = []
    for answer in exchanges(client, requests, _AHEAD):
        if isinstance(answer, NotFound):
            continue  # consumed meanwhile
        if isinstance(answer, ServerError):
            raise answer
        if answer.payload is not None and answer.mid is not None:  # otherwise just received by another consumer
            payload = answer.payload.encode() if isinstance(answer.payload, str) else answer.payload
            found.append(
                Delivery(
                    answer.mid,
                    payload,
                    qid,
                    answer.receives,
                    answer.pushed_at,
                    priority=answer.priority,
                    group=answer.group,
                    headers=answer.headers,
                )
            )
    return found


def _listed(connection: QueueConnection, after: int, most: int | None) -> Iterator[int]:
    remaining = most
    while remaining is None or remaining > 0:
        page = SLICE_MOST if remaining is None else min(remaining, SLICE_MOST)
        mids = _visible(connection, after, page)
        yield from mids
        if len(mids) < page:
            return
        after = mids[-1]
        remaining = None if remaining is None else remaining - len(mids)


class QsBatchReader(DataSourceReader):
    """One batch read of a queue.

    Ensures that reading removes nothing: Spark reads a DataFrame once for each action, and again for a task that is
    retried, and tells the source the end of neither.
    """

    def __init__(self, options: Options) -> None:
        """Checks the options. Raises BadOptionError if mode is consume and the option consumer is missing."""
        self._options = options
        self._consumer = consumer_of(options, "mode consume") if options.mode == "consume" else None

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the partitions, in order of mid. Spark asks once for a DataFrame and all its actions.

        Raises NoServerError, NoSuchQueueError or ConsumerInUseError.
        """
        options = self._options
        with QueueConnection(options, options.at_first) as connection:
            connection.must_have_queue()
            if self._consumer is None:
                return peek_partitions(connection, options)
            claims = Claims(connection, self._consumer, options.fail_on_data_loss)
            return claim_partitions(options, claims.next(options.max_messages, options.max_bytes))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition, in a task."""
        if isinstance(partition, ClaimPartition):
            return read_claim(partition)
        if isinstance(partition, PeekPartition):
            return read_peeked(partition)
        return iter(())  # Spark's plan for no partitions
