"""Messages as rows: the source's schema, and deliveries as an Arrow RecordBatch of this schema.

Spark takes RecordBatches without converting values if their schema equals the declared one.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from qs_client import Delivery

from .errors import BadMessageError, SchemaMismatchError
from .options import BodyType

_BODY: dict[BodyType, tuple[DataType, pa.DataType]] = {
    "binary": (BinaryType(), pa.binary()),
    "string": (StringType(), pa.string()),
}


def schema(body_type: BodyType) -> StructType:
    """Returns the columns of a row. pushed_at: microseconds, UTC; receives: how often the message has been received;
    claim_seq: the number of the claim that was read, null when peeking."""
    columns: list[tuple[str, DataType]] = [
        ("queue", StringType()),
        ("mid", LongType()),
        ("pushed_at", TimestampType()),
        ("body", _BODY[body_type][0]),
        ("receives", IntegerType()),
        ("claim_seq", LongType()),
    ]
    return StructType([StructField(name, kind) for name, kind in columns])


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
        ]
    )


def check_read_schema(given: StructType, body_type: BodyType) -> None:
    """Raises SchemaMismatchError when a user's `.schema(...)` is not that of the source."""
    own_schema = schema(body_type)
    if [(field.name, field.dataType) for field in given.fields] != [(f.name, f.dataType) for f in own_schema.fields]:
        raise SchemaMismatchError(
            f"the source qs gives {own_schema.simpleString()}, not {given.simpleString()}: leave .schema() out, and "
            "select or parse the column body afterwards"
        )


def record_batch(
    queue: str, messages: Sequence[Delivery], claim_seq: int | None, body_type: BodyType
) -> pa.RecordBatch:
    """Returns the messages as rows, in order. queue: their qid. BadMessageError when body_type is string and a body is
    not UTF-8."""
    count = len(messages)
    columns = [
        pa.array([queue] * count, pa.string()),
        pa.array([message.mid for message in messages], pa.int64()),
        # The mid is the time of creation, if pushed_at is missing.
        pa.array([message.pushed_at or message.mid for message in messages], pa.timestamp("us", tz="UTC")),
        _bodies(queue, messages, body_type),
        pa.array([message.receives for message in messages], pa.int32()),
        pa.array([claim_seq] * count, pa.int64()),
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
