"""Reads a partition of a claim in a task.

The rows are the same wherever and however often a partition is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from qs_client import BadRequest, Delivery

from .arrow import record_batch
from .claiming import Claims
from .connecting import Server
from .offsets import Offset
from .options import Options, consumer_of
from .slices import Slice, partitions


@dataclass
class ClaimPartition(InputPartition):
    """A slice of a claim, with all that a task needs to read it."""

    options: Options
    offset: Offset
    piece: Slice


def claim_partitions(options: Options, offset: Offset) -> list[ClaimPartition]:
    """Returns the partitions of a claim, in order of mid."""
    pieces = partitions(offset.count, offset.bytes, options.partitions)
    return [ClaimPartition(options, offset, piece) for piece in pieces]


def read_claim(partition: ClaimPartition) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition, in order of mid, with one slice in memory at a time.

    DataLossError when messages are gone, unless failOnDataLoss is false; NoServerError, NoSuchQueueError;
    BadMessageError.
    """
    options, offset = partition.options, partition.offset
    with Server(options, options.later) as server:
        claims = Claims(server, consumer_of(options, "reading claims"), options.fail_on_data_loss)
        for piece in partition.piece.cut(offset.count, offset.bytes):
            for messages in messages_of(server, claims, offset, piece):
                yield record_batch(options.queue, messages, offset.seq, options.body_type)


def messages_of(server: Server, claims: Claims, offset: Offset, piece: Slice) -> Iterator[list[Delivery]]:
    """Yields the messages of a slice, in halves where they exceed one answer."""
    try:
        messages = claims.read(offset, piece)
    except BadRequest as error:
        if piece.size(offset.count) <= 1:
            raise server.refused("a message of a claim", error) from error
        for half in piece.halves():
            yield from messages_of(server, claims, offset, half)
    else:
        if messages:
            yield messages
