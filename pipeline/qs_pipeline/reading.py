"""Messages as rows: the schema of the source, deliveries as Arrow RecordBatches, and a partition of a claim as rows.

Spark takes RecordBatches without converting values if their schema equals the declared one. The rows of a partition are
the same wherever and however often it is read, as a claim never changes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from qs_client import BadRequest, Delivery

from .claims import Claims, Offset, Slice, partitions
from .connection import QueueConnection
from .errors import BadMessageError, SchemaMismatchError
from .options import BodyType, Options, consumer_of

_HEADERS = pa.map_(pa.string(), pa.string())
_BODY: dict[BodyType, tuple[DataType, pa.DataType]] = {
    "binary": (BinaryType(), pa.binary()),
    "string": (StringType(), pa.string()),
}


HEADERS, PRIORITY, GROUP = "headers", "priority", "group"

ATTRIBUTES = (
    StructField(HEADERS, MapType(StringType(), StringType())),
    StructField(PRIORITY, IntegerType()),
    StructField(GROUP, StringType()),
)
"""The columns of a row that a message carries beside its payload, wherever it goes. headers: an empty map for a message
without any; priority: 0 to 9; group: null for a message without one."""

ATTRIBUTE_NAMES = tuple(field.name for field in ATTRIBUTES)


def schema(body_type: BodyType) -> StructType:
    """Returns the columns of a row. pushed_at: microseconds, UTC; receives: how often the message has been received;
    claim_seq: the number of the claim that was read, null when peeking; then ATTRIBUTES."""
    columns: list[tuple[str, DataType]] = [
        ("queue", StringType()),
        ("mid", LongType()),
        ("pushed_at", TimestampType()),
        ("body", _BODY[body_type][0]),
        ("receives", IntegerType()),
        ("claim_seq", LongType()),
    ]
    return StructType([*(StructField(name, kind) for name, kind in columns), *ATTRIBUTES])


def arrow_schema(body_type: BodyType) -> pa.Schema:
    """Returns the same columns as an Arrow schema."""
    return pa.schema(
        [
            ("queue", pa.string()),
            ("mid", pa.int64()),
            ("pushed_at", pa.timestamp("us", tz="UTC")),
            ("body", _BODY[body_type][1]),
            ("receives", pa.int32()),
            ("claim_seq", pa.int64()),
            (HEADERS, _HEADERS),
            (PRIORITY, pa.int32()),
            (GROUP, pa.string()),
        ]
    )


def check_read_schema(given: StructType, body_type: BodyType) -> None:
    """Checks that a user's `.schema(...)` is the schema of the source. Raises SchemaMismatchError if it is not."""
    own_schema = schema(body_type)
    if [(field.name, field.dataType) for field in given.fields] != [(f.name, f.dataType) for f in own_schema.fields]:
        raise SchemaMismatchError(
            f"the source qs gives {own_schema.simpleString()}, not {given.simpleString()}: leave .schema() out, and "
            "select or parse the column body afterwards"
        )


def record_batch(
    queue: str, messages: Sequence[Delivery], claim_seq: int | None, body_type: BodyType
) -> pa.RecordBatch:
    """Returns the messages as rows, in order. queue: the messages' qid. Raises BadMessageError if body_type is string
    and a body is not UTF-8."""
    count = len(messages)
    columns = [
        pa.array([queue] * count, pa.string()),
        pa.array([message.mid for message in messages], pa.int64()),
        # The mid is the time of creation, if pushed_at is missing.
        pa.array([message.pushed_at or message.mid for message in messages], pa.timestamp("us", tz="UTC")),
        _bodies(queue, messages, body_type),
        pa.array([message.receives for message in messages], pa.int32()),
        pa.array([claim_seq] * count, pa.int64()),
        pa.array([message.headers for message in messages], _HEADERS),
        pa.array([message.priority or 0 for message in messages], pa.int32()),
        pa.array([message.group for message in messages], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(body_type))


def _bodies(queue: str, messages: Sequence[Delivery], body_type: BodyType) -> pa.Array:
    bodies = pa.array([message.payload for message in messages], pa.binary())
    if body_type == "binary":
        return bodies
    try:
        return bodies.cast(pa.string())  # checks every byte
    except pa.ArrowInvalid:
        raise BadMessageError(_no_text(queue, messages)) from None


def _no_text(queue: str, messages: Sequence[Delivery]) -> str:
    for message in messages:
        try:
            message.payload.decode()
        except UnicodeDecodeError as error:
            return (
                f"message {message.mid} of the queue {queue!r} is no UTF-8 text (byte {error.start} of "
                f"{len(message.payload)}): read with bodyType binary, and decode the text in the query"
            )
    return f"a message of the queue {queue!r} is no UTF-8 text: read with bodyType binary"


@dataclass
class ClaimPartition(InputPartition):
    """A slice of a claim, with everything that a task needs to read it."""

    options: Options
    offset: Offset
    piece: Slice


def claim_partitions(options: Options, offset: Offset) -> list[ClaimPartition]:
    """Returns the partitions of a claim, in order of mid."""
    pieces = partitions(offset.count, offset.bytes, options.partitions)
    return [ClaimPartition(options, offset, piece) for piece in pieces]


def read_claim(partition: ClaimPartition) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition, in order of mid, with one slice in memory at a time.

    Raises DataLossError if messages are gone, unless failOnDataLoss is false; NoServerError, NoSuchQueueError;
    BadMessageError.
    """
    options, offset = partition.options, partition.offset
    with QueueConnection(options, options.later) as connection:
        claims = Claims(connection, consumer_of(options, "reading claims"), options.fail_on_data_loss)
        for piece in partition.piece.cut(offset.count, offset.bytes):
            for messages in messages_of(connection, claims, offset, piece):
                yield record_batch(options.queue, messages, offset.seq, options.body_type)


def messages_of(connection: QueueConnection, claims: Claims, offset: Offset, piece: Slice) -> Iterator[list[Delivery]]:
    """Yields the messages of a slice. Reads the halves of a slice that exceeds one answer."""
    try:
        messages = claims.read(offset, piece)
    except BadRequest as error:
        # Slices are cut by the average size of the claim's messages; here, large ones stand together.
        if piece.size(offset.count) <= 1:
            raise connection.refused("a message of a claim", error) from error
        for half in piece.halves():
            yield from messages_of(connection, claims, offset, half)
    else:
        if messages:
            yield messages
