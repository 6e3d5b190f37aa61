"""Messages as rows: exactly the columns that are declared to Spark, whatever the messages are."""

from datetime import UTC, datetime

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from qs_client import Delivery
from qs_pipeline.arrow import arrow_schema, check_read_schema, record_batch, schema
from qs_pipeline.errors import BadMessageError, SchemaMismatchError
from qs_pipeline.options import BodyType

MID = 1_760_000_000_000_001


@pytest.mark.parametrize("body_type", ["binary", "string"])
def test_the_schema_is_sparks(body_type: BodyType) -> None:
    """Spark compares a batch's schema with what it makes of the declared one, and refuses any other."""
    assert arrow_schema(body_type) == to_arrow_schema(schema(body_type), timezone="UTC")


def test_rows() -> None:
    """A row has what the message had. Without a pushed-at, the mid says when it was pushed; receives may be unknown."""
    messages = [Delivery(MID, b"\x00\xff", "q", 2, MID - 1), Delivery(MID + 1, b"", "q", None, None)]
    batch = record_batch("q", messages, 7, "binary")
    assert batch.schema == arrow_schema("binary")
    assert batch.to_pylist() == [
        {
            "queue": "q", "mid": MID, "pushed_at": datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC), "body": b"\x00\xff",
            "receives": 2, "claim_seq": 7,
        },
        {
            "queue": "q", "mid": MID + 1, "pushed_at": datetime(2025, 10, 9, 8, 53, 20, 2, tzinfo=UTC), "body": b"",
            "receives": None, "claim_seq": 7,
        },
    ]  # fmt: skip


def test_bodies_as_strings() -> None:
    """UTF-8 is text; claim_seq is null where nothing was claimed."""
    batch = record_batch("q", [Delivery(MID, "é\x00".encode(), "q", 0, MID)], None, "string")
    assert batch.schema == arrow_schema("string")
    assert batch.column("body").to_pylist() == ["é\x00"]
    assert batch.column("claim_seq").to_pylist() == [None]


def test_a_body_that_is_no_text() -> None:
    """The error names the message, and what to do."""
    messages = [Delivery(MID, b"good", "q", 0, MID), Delivery(MID + 1, b"a\xff", "q", 0, MID)]
    with pytest.raises(BadMessageError, match=rf"message {MID + 1} of the queue 'q' is no UTF-8 text \(byte 1 of 2\)"):
        record_batch("q", messages, 1, "string")


def test_a_schema_of_the_users() -> None:
    """The source's own schema may be repeated; any other is refused."""
    check_read_schema(schema("string"), "string")
    with pytest.raises(SchemaMismatchError, match=r"leave .schema\(\) out"):
        check_read_schema(StructType().add("a", LongType()), "string")
    with pytest.raises(SchemaMismatchError):
        check_read_schema(schema("string"), "binary")
