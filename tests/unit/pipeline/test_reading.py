"""Messages as rows: columns, slices of a claim, and the offsets of a stream."""

import pickle
from datetime import UTC, datetime

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import LongType, StructType
from support.spark.claims import QUEUE, Ledger

from qs_client import BadRequest, Delivery
from qs_pipeline.claims import INITIAL, Claims, Offset, Slice
from qs_pipeline.errors import BadMessageError, BadOptionError, NoSuchQueueError, PipelineError, SchemaMismatchError
from qs_pipeline.options import BodyType, Options
from qs_pipeline.reading import arrow_schema, check_read_schema, messages_of, record_batch, schema
from qs_pipeline.stream_reader import QsStreamReader

MID = 1_760_000_000_000_001


@pytest.mark.parametrize("body_type", ["binary", "string"])
def test_arrow_schema_is_that_of_spark(body_type: BodyType) -> None:
    """Spark compares a batch's schema with what it makes of the declared one, and refuses any other."""
    assert arrow_schema(body_type) == to_arrow_schema(schema(body_type), timezone="UTC")


def test_record_batch_has_values_of_messages() -> None:
    """A row has what the message had. Without a pushed-at, the mid says when it was pushed; receives may be unknown."""
    headers = {"b": "1", "a": "é"}
    messages = [
        Delivery(MID, b"\x00\xff", "q", 2, MID - 1, priority=9, group="g", headers=headers),
        Delivery(MID + 1, b"", "q", None, None),
    ]
    batch = record_batch("q", messages, 7, "binary")
    assert batch.schema == arrow_schema("binary")
    assert batch.to_pylist() == [
        {
            "queue": "q", "mid": MID, "pushed_at": datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC), "body": b"\x00\xff",
            "receives": 2, "claim_seq": 7, "headers": list(headers.items()), "priority": 9, "group": "g",
        },
        {
            "queue": "q", "mid": MID + 1, "pushed_at": datetime(2025, 10, 9, 8, 53, 20, 2, tzinfo=UTC), "body": b"",
            "receives": None, "claim_seq": 7, "headers": [], "priority": 0, "group": None,
        },
    ]  # fmt: skip


def test_record_batch_with_strings() -> None:
    """UTF-8 is text; claim_seq is null where nothing was claimed."""
    batch = record_batch("q", [Delivery(MID, "é\x00".encode(), "q", 0, MID)], None, "string")
    assert batch.schema == arrow_schema("string")
    assert batch.column("body").to_pylist() == ["é\x00"]
    assert batch.column("claim_seq").to_pylist() == [None]


def test_record_batch_names_body_that_is_no_text() -> None:
    """The error names the message, and what to do."""
    messages = [Delivery(MID, b"good", "q", 0, MID), Delivery(MID + 1, b"a\xff", "q", 0, MID)]
    with pytest.raises(BadMessageError, match=rf"message {MID + 1} of the queue 'q' is no UTF-8 text \(byte 1 of 2\)"):
        record_batch("q", messages, 1, "string")


def test_check_read_schema() -> None:
    """The source's own schema may be repeated; any other is refused."""
    check_read_schema(schema("string"), "string")
    with pytest.raises(SchemaMismatchError, match=r"leave .schema\(\) out"):
        check_read_schema(StructType().add("a", LongType()), "string")
    with pytest.raises(SchemaMismatchError):
        check_read_schema(schema("string"), "binary")


@pytest.fixture
def ledger() -> Ledger:
    """A queue of ten messages, 1 to 10."""
    ledger = Ledger()
    ledger.push(*(b"%d" % number for number in range(1, 11)))
    return ledger


def _reader(ledger: Ledger, **options: object) -> QsStreamReader:
    reader = QsStreamReader(Options(QUEUE, consumer="c", **options))  # type: ignore[arg-type]
    reader._connection = ledger.server()
    return reader


def test_new_reader_does_nothing() -> None:
    """A new reader does nothing: it is made in several processes, and sent from one to another."""
    reader = pickle.loads(pickle.dumps(QsStreamReader(Options("q", consumer="c", port=1))))
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    with pytest.raises(BadOptionError, match="the option consumer is missing"):
        QsStreamReader(Options("q"))


@pytest.mark.parametrize(
    ("options", "limit", "counts"),
    [
        ({}, ReadAllAvailable(), [10]),
        ({"max_messages": 4}, ReadMaxRows(4), [4, 4, 2]),
        ({"max_bytes": 4}, ReadMaxBytes(4), [4, 4, 2]),
        ({"max_messages": 3, "max_bytes": 100}, ReadMaxRows(3), [3, 3, 3, 1]),
        ({"max_messages": 9, "max_bytes": 5}, ReadMaxRows(9), [5, 4, 1]),
    ],
)
def test_latest_offset_keeps_limits(
    ledger: Ledger, options: dict[str, int], limit: ReadLimit, counts: list[int]
) -> None:
    """The stream announces its limits to Spark, and bounds each batch by those that Spark then gives."""
    reader = _reader(ledger, **options)
    assert reader.getDefaultReadLimit() == limit
    offset, found = INITIAL.to_json(), []
    while (end := reader.latestOffset(offset, limit)) != offset:
        found.append(end["count"])
        assert sum(part.piece.size(end["count"]) for part in reader.partitions(offset, end)) == end["count"]
        offset = end
    assert found == counts
    assert reader.partitions(offset, offset) == []


def test_latest_offset_prefers_limit_of_spark(ledger: Ledger) -> None:
    """Where Spark asks for everything, options bound nothing."""
    assert _reader(ledger, max_messages=1).latestOffset(INITIAL.to_json(), ReadAllAvailable())["count"] == 10


def test_initial_offset_looks_for_queue(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue is looked for before anything is claimed; Spark's asking again, after the first claim, says nothing."""
    monkeypatch.setattr("qs_pipeline.stream_reader.QueueConnection", lambda *_: ledger.server())
    reader = _reader(ledger)
    start = reader.initialOffset()
    reader.latestOffset(start, ReadAllAvailable())
    assert reader.initialOffset() == start
    assert not caplog.records
    assert _reader(ledger).initialOffset() == start
    assert "exists already, and is read first" in caplog.text
    ledger.deleted = True
    with pytest.raises(NoSuchQueueError):
        _reader(ledger).initialOffset()


def test_available_now_leaves_out_later_messages(ledger: Ledger) -> None:
    """A run with available-now does not read messages pushed after its beginning, whether the queue was empty or
    not."""
    reader = _reader(ledger)
    reader.prepareForTriggerAvailableNow()
    ledger.push(b"later")
    end = reader.latestOffset(INITIAL.to_json(), ReadAllAvailable())
    assert (end["count"], end["last"]) == (10, 10)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    empty = Ledger()
    reader = _reader(empty)
    reader.prepareForTriggerAvailableNow()
    empty.push(b"later")
    assert reader.latestOffset(INITIAL.to_json(), ReadAllAvailable()) == INITIAL.to_json()


def test_claim_is_acknowledged_once(ledger: Ledger) -> None:
    """Spark may tell that a batch is done, or not, or twice: it is acknowledged, and not asked for in vain."""
    reader = _reader(ledger, max_messages=4)
    first = reader.latestOffset(INITIAL.to_json(), ReadMaxRows(4))
    reader.commit(first)
    reader.commit(first)
    second = reader.latestOffset(first, ReadMaxRows(4))
    reader.latestOffset(second, ReadMaxRows(4))
    assert list(ledger.claims) == [("c", 3)]
    assert reader._connection is not None
    assert reader._connection._client.asked.count("ack_claim") == 2  # type: ignore[attr-defined]


def test_messages_of_halves_large_slice(ledger: Ledger) -> None:
    """A slice that is too large is asked for in halves, and these in halves, in order."""
    ledger.carries = 2
    made = Offset.of(ledger.server().ask(lambda client: client.claim_messages(QUEUE, "c", 1, max=10)))
    server = ledger.server()
    lists = list(messages_of(server, Claims(server, "c"), made, Slice(0, 1)))
    assert [message.mid for messages in lists for message in messages] == list(range(1, 11))
    assert all(1 <= len(messages) <= 2 for messages in lists)


def test_messages_of_refused_message(ledger: Ledger) -> None:
    """A single message cannot be split: the server's error is raised."""
    ledger.carries = 0
    made = Offset.of(ledger.server().ask(lambda client: client.claim_messages(QUEUE, "c", 1, max=10)))
    server = ledger.server()
    with pytest.raises(PipelineError, match="refused a message of a claim on the queue 'orders': 400") as raised:
        list(messages_of(server, Claims(server, "c"), made, Slice(0, 1)))
    assert isinstance(raised.value.__cause__, BadRequest)
