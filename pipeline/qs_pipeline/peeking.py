"""Peeks at a queue: returns its visible messages as rows and changes nothing.

No operation returns many messages at once, so they are requested one by one, many requests at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from qs_client import Delivery, GetMessage, NotFound, QueueClient, ServerError

from .arrow import record_batch
from .bounds import ids
from .connecting import Server
from .options import Options
from .pipelining import exchanges
from .slices import BYTES, MOST, PARTITION_MOST, PARTITIONS

_AHEAD = 64
"""Unanswered requests, at most: the sizes of their answers are unknown."""


@dataclass
class PeekPartition(InputPartition):
    """The visible messages above `after`, up to and including `last`."""

    options: Options
    after: int
    last: int


def peek_partitions(server: Server, options: Options) -> list[PeekPartition]:
    """Returns ranges of about equally many visible messages: all, or the oldest maxMessagesPerTrigger."""
    mids = list(_listed(server, 0, options.max_messages))
    count = len(mids)
    parts = min(max(options.partitions or min(-(-count // PARTITION_MOST), PARTITIONS), 1), count)
    bounds = [0, *(mids[count * part // parts - 1] for part in range(1, parts + 1))]
    return [PeekPartition(options, after, last) for after, last in pairwise(bounds)]


def read_peeked(partition: PeekPartition) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition: its messages that are still visible."""
    options = partition.options
    with Server(options, options.later) as server:
        for messages in _peeked(server, partition):
            yield record_batch(options.queue, messages, None, options.body_type)


def _peeked(server: Server, partition: PeekPartition) -> Iterator[list[Delivery]]:
    """Yields lists of at most MOST messages and, judging by the previous list, BYTES."""
    after, most = partition.after, _AHEAD
    while after < partition.last:
        mids = [mid for mid in _visible(server, after, most) if mid <= partition.last]
        if not mids:
            return
        messages = _peek_all(server, mids)
        if messages:
            yield messages
            size = sum(len(message.payload) for message in messages)
            most = max(min(BYTES * len(messages) // max(size, 1), MOST), 1)
        after = mids[-1]


def _visible(server: Server, after: int, most: int) -> list[int]:
    return server.ask(lambda client: ids(client, server.queue, "ready", after, most))


def _peek_all(server: Server, mids: list[int]) -> list[Delivery]:
    return server.ask(lambda client: _peek_pipelined(client, server.queue, mids))


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
            found.append(Delivery(answer.mid, payload, qid, answer.receives, answer.pushed_at))
    return found


def _listed(server: Server, after: int, most: int | None) -> Iterator[int]:
    remaining = most
    while remaining is None or remaining > 0:
        page = MOST if remaining is None else min(remaining, MOST)
        mids = _visible(server, after, page)
        yield from mids
        if len(mids) < page:
            return
        after = mids[-1]
        remaining = None if remaining is None else remaining - len(mids)
