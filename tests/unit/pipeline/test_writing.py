"""Tests what tasks stage and what is published: every row once, whatever answers are lost."""

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType
from support.spark.claims import QUEUE, Ledger, LedgerClient

from qs_client import Draft, Full, Invalid, ServerUnavailable
from qs_pipeline.connection import QueueConnection
from qs_pipeline.errors import (
    BadMessageError,
    BadOptionError,
    DataLossError,
    NoSuchQueueError,
    PipelineError,
    SchemaMismatchError,
)
from qs_pipeline.options import Options
from qs_pipeline.reading import ATTRIBUTES
from qs_pipeline.writing import (
    PARTS,
    PUBLISHED,
    StagedParts,
    attempt_number,
    check_write_schema,
    discard,
    messages,
    publish,
    stage,
)


@pytest.fixture
def ledger() -> Ledger:
    """Makes an empty queue."""
    return Ledger()


def _bodies(count: int, of: int = 0) -> Iterator[bytes]:
    return (b"%d/%d" % (of, number) for number in range(count))


def _held(ledger: Ledger) -> list[bytes]:
    return [ledger.ready[mid] for mid in sorted(ledger.ready)]


def test_publish_parts_of_two_tasks(ledger: Ledger) -> None:
    """No row is visible before the publish. Then all are, in order of task and row, and once however often it is
    committed."""
    server = ledger.server()
    staged = [stage(server, _bodies(2500, task), "p", 1, task, 0) for task in (1, 0)]
    assert not ledger.ready
    assert [part for part, _ in staged[0].parts] == [PARTS, PARTS + 1, PARTS + 2]
    publish(server, staged)
    assert _held(ledger) == [*_bodies(2500, 0), *_bodies(2500, 1)]
    publish(server, staged)
    assert len(ledger.ready) == 5000


def test_stage_again_after_lost_answer(ledger: Ledger) -> None:
    """A part whose answer was lost is sent again under another attempt, and published once."""
    losses = itertools.cycle([True, False, False])

    def trouble(name: str) -> None:
        if name == "stage_messages" and next(losses):
            raise ServerUnavailable("the connection broke")

    client = LedgerClient(ledger, trouble)
    server = QueueConnection(Options(QUEUE), 10.0, lambda *_, **__: client, sleep=lambda _: None)
    publish(server, [stage(server, _bodies(5000), "p", 1, 0, 0)])
    assert _held(ledger) == list(_bodies(5000))
    assert client.asked.count("stage_messages") > 5


def test_publish_only_successful_attempt(ledger: Ledger) -> None:
    """Only the try that succeeded is named, and published."""
    server = ledger.server()
    stage(server, _bodies(10, 7), "p", 1, 0, 0)
    publish(server, [stage(server, _bodies(10, 8), "p", 1, 0, 0)])
    assert _held(ledger) == list(_bodies(10, 8))


def test_stage_and_publish_no_rows(ledger: Ledger) -> None:
    """A task without rows stages nothing; a batch without any is not published."""
    server = ledger.server()
    staged = stage(server, [], "p", 1, 0, 0)
    assert staged.parts == ()
    publish(server, [staged])
    publish(server, [])
    assert not ledger.published


def test_attempt_numbers_differ() -> None:
    """Each has a number that the wire can carry, and that says which attempt of the task it was."""
    numbers = {attempt_number(7) for _ in range(1000)}
    assert len(numbers) == 1000
    assert all(0 <= number < 10**18 and number % 1000 == 7 for number in numbers)
    assert attempt_number(5, lambda below: below - 1) == 10**18 - 1000 + 5


@pytest.mark.parametrize("batch", [1, 7])
def test_publish_without_staged_parts(ledger: Ledger, batch: int) -> None:
    """The batch fails, and says so, also if the server finds it too far ahead; a queue that is gone is named."""
    server = ledger.server()
    staged = stage(server, _bodies(1), "p", batch, 0, 0)
    ledger.staged.clear()
    with pytest.raises(
        DataLossError, match=f"staged for batch {batch} of the producer 'p' on the queue 'orders' is still"
    ):
        publish(server, [staged])
    ledger.deleted = True
    with pytest.raises(NoSuchQueueError):
        publish(server, [staged])
    with pytest.raises(NoSuchQueueError):
        stage(server, _bodies(1), "p", 2, 0, 0)


def test_stage_into_full_queue(ledger: Ledger) -> None:
    """The server's refusal ends the task, with the server's words."""

    def trouble(name: str) -> None:
        raise Full(507, "full", "the queue holds 10 messages, its capacity")

    client = LedgerClient(ledger, trouble)
    server = QueueConnection(Options(QUEUE), 10.0, lambda *_, **__: client)
    with pytest.raises(PipelineError, match="refused staging on the queue 'orders': 507 full: the queue holds 10"):
        stage(server, _bodies(1), "p", 1, 0, 0)


def test_stage_of_what_the_schema_does_not_allow(ledger: Ledger) -> None:
    """The reason of the queue's schema ends the task, after one attempt."""

    def trouble(name: str) -> None:
        raise Invalid(422, "invalid", "message 2: line 1, element 'total': 'x' is no number")

    client = LedgerClient(ledger, trouble)
    server = QueueConnection(Options(QUEUE), 10.0, lambda *_, **__: client)
    with pytest.raises(BadMessageError, match=r"a row cannot be written to the queue 'orders', .*message 2: line 1"):
        stage(server, _bodies(3), "p", 1, 0, 0)
    assert client.asked == ["stage_messages"]


def test_discard_drops_staged_parts(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """A write that failed leaves nothing; when the server is away it is only said."""
    server = ledger.server()
    stage(server, _bodies(3), "p", 1, 0, 0)
    discard(server, "p", 1)
    assert not ledger.staged
    assert not ledger.ready
    ledger.deleted = True
    discard(server, "p", 2)
    assert "could not be dropped" in caplog.text


def test_publish_too_many_parts(ledger: Ledger) -> None:
    """The error says how many there are, and what to do."""
    staged = StagedParts("p", 1, tuple((number, 0) for number in range(PUBLISHED + 1)))
    with pytest.raises(PipelineError, match=r"has 10001 parts, .*write smaller batches"):
        publish(ledger.server(), [staged])


def _rows(**columns: list[object]) -> list[pa.RecordBatch]:
    types = {"headers": pa.map_(pa.string(), pa.string()), "priority": pa.int32(), "group": pa.string()}
    arrays = [pa.array(values, types.get(name.lower(), pa.string())) for name, values in columns.items()]
    return [pa.record_batch(arrays, names=list(columns))]


def test_messages_of_rows_with_attributes(ledger: Ledger) -> None:
    """Headers keep their order; a null, and priority 0, are what a message has without the column. The columns may
    stand in any order."""
    headers = [[("b", "1"), ("a", "é")], None, []]
    stage(
        ledger.server(),
        messages(_rows(priority=[9, 0, None], HEADERS=headers, body=["x", "y", "z"], group=["g", None, ""]), "q"),
        "p",
        1,
        0,
        0,
    )
    assert [(d.payload, list(d.headers.items()), d.priority, d.group) for d in ledger.drafts] == [
        ("x", [("b", "1"), ("a", "é")], 9, "g"), ("y", [], None, None), ("z", [], None, ""),
    ]  # fmt: skip
    assert list(messages(_rows(value=["x"], group=["g"]), "q")) == [Draft("x", group="g")]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"headers": [[("a", None)]]}, "has a null for the text of a header"),
        ({"priority": [10]}, r"cannot be a message: .*10"),
    ],
)
def test_rows_that_cannot_be_messages(ledger: Ledger, row: dict[str, list[object]], said: str) -> None:
    """The error says what is wrong, before anything is sent."""
    with pytest.raises(BadMessageError, match=said):
        stage(ledger.server(), messages(_rows(body=["x"], **row), "q"), "p", 1, 0, 0)
    assert ledger.drafts == []


def test_messages_of_rows() -> None:
    """Binary and string columns, whatever their batches; a null is an error."""
    batches = [
        pa.record_batch([pa.array([b"a", b""])], names=["body"]),
        pa.record_batch([pa.array([], pa.string())], names=["body"]),
        pa.record_batch([pa.array(["é"])], names=["body"]),
    ]
    assert list(messages(batches, "q")) == [b"a", b"", "é"]
    with pytest.raises(BadMessageError, match="a row for the queue 'q' has a null"):
        list(messages([pa.record_batch([pa.array([None], pa.string())], names=["body"])], "q"))


@pytest.mark.parametrize("name", ["body", "value", "BODY"])
@pytest.mark.parametrize("kind", [BinaryType(), StringType()])
def test_check_write_schema_accepts_one_column(name: str, kind: BinaryType | StringType) -> None:
    """One column, body or value, of bytes or text."""
    check_write_schema(StructType().add(name, kind), overwrite=False)
    check_write_schema(StructType([*ATTRIBUTES, StructField(name, kind)]), overwrite=False)
    check_write_schema(StructType().add("PRIORITY", LongType()).add(name, kind), overwrite=False)


@pytest.mark.parametrize(
    "schema",
    [
        StructType(),
        StructType().add("body", LongType()),
        StructType().add("text", StringType()),
        StructType().add("body", StringType()).add("mid", LongType()),
        StructType().add("body", StringType()).add("value", StringType()),
        StructType().add("body", StringType()).add("group", StringType()).add("GROUP", StringType()),
        StructType(list(ATTRIBUTES)),
    ],
)
def test_check_write_schema_refuses_others(schema: StructType) -> None:
    """Anything else is refused, with what there is and what to do."""
    with pytest.raises(SchemaMismatchError, match=r"one column, body or value, .* not struct<.*\.select\('body'\)"):
        check_write_schema(schema, overwrite=False)


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("headers", MapType(StringType(), LongType()), "map<string,string>"),
        ("headers", StringType(), "map<string,string>"),
        ("priority", StringType(), "int"),
        ("group", LongType(), "string"),
    ],
)
def test_check_write_schema_refuses_types_of_attributes(name: str, kind: DataType, wanted: str) -> None:
    """The error names the column, its type, and the one that it has to have."""
    with pytest.raises(SchemaMismatchError, match=rf"a column {name} of type {kind.simpleString()}, not {wanted}"):
        check_write_schema(StructType().add("body", StringType()).add(name, kind), overwrite=False)


def test_check_write_schema_refuses_overwrite() -> None:
    """A queue is not replaced."""
    with pytest.raises(BadOptionError, match="append-only"):
        check_write_schema(StructType().add("body", StringType()), overwrite=True)
