"""Tests what a stream's reader asks of the server when Spark asks it for offsets, and how a task reads its slice."""

import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from support.claim_ledger import QUEUE, Ledger

from qs_client import BadRequest
from qs_pipeline.claiming import Claims
from qs_pipeline.errors import BadOptionError, NoSuchQueueError, PipelineError
from qs_pipeline.offsets import INITIAL, Offset
from qs_pipeline.options import Options
from qs_pipeline.reading import messages_of
from qs_pipeline.slices import Slice
from qs_pipeline.stream_reader import QsStreamReader


@pytest.fixture
def ledger() -> Ledger:
    """A queue of ten messages, 1 to 10."""
    ledger = Ledger()
    ledger.push(*(b"%d" % number for number in range(1, 11)))
    return ledger


def _reader(ledger: Ledger, **options: object) -> QsStreamReader:
    reader = QsStreamReader(Options(QUEUE, consumer="c", **options))  # type: ignore[arg-type]
    reader._server = ledger.server()
    return reader


def test_a_new_reader_does_nothing() -> None:
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
def test_limits(ledger: Ledger, options: dict[str, int], limit: ReadLimit, counts: list[int]) -> None:
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


def test_sparks_limit_goes_before_the_options(ledger: Ledger) -> None:
    """Where Spark asks for everything, options bound nothing."""
    assert _reader(ledger, max_messages=1).latestOffset(INITIAL.to_json(), ReadAllAvailable())["count"] == 10


def test_the_initial_offset(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The queue is looked for before anything is claimed; Spark's asking again, after the first claim, says nothing."""
    monkeypatch.setattr("qs_pipeline.stream_reader.Server", lambda *_: ledger.server())
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


def test_what_is_available_now(ledger: Ledger) -> None:
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


def test_acknowledged_once(ledger: Ledger) -> None:
    """Spark may tell that a batch is done, or not, or twice: it is acknowledged, and not asked for in vain."""
    reader = _reader(ledger, max_messages=4)
    first = reader.latestOffset(INITIAL.to_json(), ReadMaxRows(4))
    reader.commit(first)
    reader.commit(first)
    second = reader.latestOffset(first, ReadMaxRows(4))
    reader.latestOffset(second, ReadMaxRows(4))
    assert list(ledger.claims) == [("c", 3)]
    assert reader._server is not None
    assert reader._server._client.asked.count("ack_claim") == 2  # type: ignore[attr-defined]


def test_a_slice_that_is_too_large(ledger: Ledger) -> None:
    """A slice that is too large is asked for in halves, and these in halves, in order."""
    ledger.carries = 2
    made = Offset.of(ledger.server().ask(lambda client: client.claim_messages(QUEUE, "c", 1, max=10)))
    server = ledger.server()
    lists = list(messages_of(server, Claims(server, "c"), made, Slice(0, 1)))
    assert [message.mid for messages in lists for message in messages] == list(range(1, 11))
    assert all(1 <= len(messages) <= 2 for messages in lists)


def test_a_message_that_is_refused(ledger: Ledger) -> None:
    """A single message cannot be split: the server's error is raised."""
    ledger.carries = 0
    made = Offset.of(ledger.server().ask(lambda client: client.claim_messages(QUEUE, "c", 1, max=10)))
    server = ledger.server()
    with pytest.raises(PipelineError, match="refused a message of a claim on the queue 'orders': 400") as raised:
        list(messages_of(server, Claims(server, "c"), made, Slice(0, 1)))
    assert isinstance(raised.value.__cause__, BadRequest)
