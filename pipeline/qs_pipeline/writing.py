"""Writes rows to a queue: `df.write.format("qs")` and `df.writeStream.format("qs")`.

Tasks stage their rows on the server, durable and invisible; the driver then publishes all parts in one step. Each list
of messages is a part of its own under a unique attempt. Leftovers of an earlier try of the task or of this call do no
harm, as only the parts that a commit names are published.
"""

import logging
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from qs_client import Conflict, Draft, Invalid, NotFound, Part, QueueClient, ServerError
from qs_client.batches import drafts_in_batches

from .connection import QueueConnection
from .errors import BadMessageError, BadOptionError, DataLossError, PipelineError, SchemaMismatchError
from .options import Options
from .reading import GROUP, HEADERS, PRIORITY

PARTS = 1_000_000
"""Parts that one task may stage: its part numbers start at its partition's number times this, so that the order of
parts is the order of partitions."""

PUBLISHED = 10_000
"""Parts of one publish: the protocol's bound."""

_DIGITS = 10**15
"""Random part of an attempt's number. The task's own attempt takes three digits more, and the protocol takes 18."""

log = logging.getLogger("qs_pipeline")


@dataclass(frozen=True)
class StagedParts(WriterCommitMessage):
    """The parts that a task has staged. parts: number and attempt of each list; batch: the server's number of the
    batch."""

    producer: str
    batch: int
    parts: tuple[tuple[int, int], ...]


BODIES = ("body", "value")
"""The names that a column of payloads may have, in upper or lower case."""

_ATTRIBUTES: dict[str, tuple[Callable[[DataType], bool], str]] = {
    HEADERS: (
        lambda kind: isinstance(kind, MapType) and {type(kind.keyType), type(kind.valueType)} == {StringType},
        "map<string,string>",
    ),
    PRIORITY: (lambda kind: isinstance(kind, ByteType | ShortType | IntegerType | LongType), "int"),
    GROUP: (lambda kind: isinstance(kind, StringType), "string"),
}
"""The columns that may stand beside the bodies: the test of their types, and the type to name in an error."""


def check_write_schema(schema: StructType, overwrite: bool) -> None:
    """Checks that rows with a body are to be appended. Raises SchemaMismatchError or BadOptionError for another
    write."""
    if overwrite:
        raise BadOptionError("a queue is append-only: write with mode append, or a stream with outputMode append")
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    bodies = [name for name in kinds if name in BODIES]
    twice = len(kinds) < len(schema.fields)
    if twice or len(bodies) != 1 or set(kinds) - set(_ATTRIBUTES) != set(bodies) or not is_body(kinds[bodies[0]]):
        raise SchemaMismatchError(
            f"what is written to a queue has one column, body or value, of type binary or string, and if need be "
            f"{', '.join(_ATTRIBUTES)}, not {schema.simpleString()}: .select('body'), or "
            ".selectExpr('to_json(struct(*)) AS body')"
        )
    wrong = wrong_attribute(kinds)
    if wrong is not None:
        raise SchemaMismatchError(f"what is written to a queue has {wrong}: cast it")


def is_body(kind: DataType) -> bool:
    """Tells whether a column of a type can be the payloads."""
    return isinstance(kind, BinaryType | StringType)


def wrong_attribute(kinds: Mapping[str, DataType]) -> str | None:
    """Returns what is wrong with the type of a column beside the bodies, None if nothing is. kinds: the columns' types,
    by their names in lower case."""
    for name, (test, wanted) in _ATTRIBUTES.items():
        if name in kinds and not test(kinds[name]):
            return f"a column {name} of type {kinds[name].simpleString()}, not {wanted}"
    return None


def messages(batches: Iterable[pa.RecordBatch], queue: str) -> Iterator[bytes | str | Draft]:
    """Yields the messages of rows, in order: bodies alone if there are no other columns. Raises BadMessageError for a
    null as a body or a header."""
    for batch in batches:
        columns = {name.lower(): batch.column(place) for place, name in enumerate(batch.schema.names)}
        bodies = next(columns[name] for name in BODIES if name in columns)
        if bodies.null_count:
            raise BadMessageError(
                f"a row for the queue {queue!r} has a null for a body: filter such rows out, or coalesce"
            )
        if len(columns) == 1:
            yield from bodies.to_pylist()
            continue
        headers, priorities, groups = (
            columns[name].to_pylist() if name in columns else repeat(None, len(bodies)) for name in _ATTRIBUTES
        )
        for body, pairs, priority, group in zip(bodies.to_pylist(), headers, priorities, groups, strict=True):
            if pairs and any(text is None for _, text in pairs):
                raise BadMessageError(f"a row for the queue {queue!r} has a null for the text of a header: coalesce")
            yield Draft(body, priority=priority or None, group=group, headers=dict(pairs or ()))


def attempt_number(attempt: int, randbelow: Callable[[int], int] = secrets.randbelow) -> int:
    """Returns a unique number of at most 18 digits, whose last three are the task's attempt, for people."""
    return randbelow(_DIGITS) * 1000 + attempt % 1000


def stage(  # noqa: PLR0917 - the server's arguments
    connection: QueueConnection,
    rows: Iterable[bytes | str | Draft],
    producer: str,
    batch: int,
    partition: int,
    attempt: int,
) -> StagedParts:
    """Stages the messages of one task. A list that may have arrived is staged again under another number.

    Raises NoServerError, NoSuchQueueError, BadMessageError for headers, a priority or a group that a message cannot
    have, or a body that the queue's schema does not allow, or PipelineError if the server refuses, as for a full queue
    or a body that is too large.
    """
    parts: list[tuple[int, int]] = []
    try:
        for index, drafts in enumerate(drafts_in_batches(rows)):
            part = partition * PARTS + index

            def once(client: QueueClient, part: int = part, drafts: list[Draft] = drafts) -> int:
                # A new number each time: if the answer was lost, this list may be there twice, and only one is
                # published.
                number = attempt_number(attempt)
                client.stage_messages(connection.queue, producer, drafts, batch=batch, part=part, attempt=number)
                return number

            parts.append((part, connection.ask(once)))
    except Invalid as error:
        raise BadMessageError(
            f"a row cannot be written to the queue {connection.queue!r}, and nothing of the batch is: {error.text}"
        ) from error
    except ServerError as error:
        raise _failed(connection, "staging", error) from error
    except ValueError as error:  # the client sends no message that the server could not take
        raise BadMessageError(f"a row for the queue {connection.queue!r} cannot be a message: {error}") from error
    return StagedParts(producer, batch, tuple(parts))


def publish(connection: QueueConnection, staged: Iterable[StagedParts]) -> None:
    """Makes the staged parts of all tasks visible, all or nothing, in order of part. A repeated call has no further
    effect.

    Sends nothing when there are no rows. Raises DataLossError if staged parts are gone.
    """
    tasks = list(staged)
    parts = sorted(part for each in tasks for part in each.parts)
    if not parts:
        return
    if len(parts) > PUBLISHED:
        raise PipelineError(
            f"a batch for the queue {connection.queue!r} has {len(parts)} parts, and {PUBLISHED} can be published at "
            "once: write smaller batches, or fewer partitions with repartition()"
        )
    # All tasks of a write have the same.
    ((producer, batch),) = {(each.producer, each.batch) for each in tasks}
    published = [Part(number, attempt) for number, attempt in parts]
    try:
        connection.ask(lambda client: client.publish_staged(connection.queue, producer, batch, published))
    except (NotFound, Conflict) as error:
        connection.must_have_queue()
        raise DataLossError(
            f"not all that was staged for batch {batch} of the producer {producer!r} on the queue {connection.queue!r} "
            f"is still there ({error}): run it again"
        ) from error
    except ServerError as error:
        raise _failed(connection, "publishing", error) from error


def discard(connection: QueueConnection, producer: str, batch: int) -> None:
    """Drops what a producer of this write alone has staged for a batch, which can then never be published: publishes
    an empty part in its place.

    Only logs errors: the write has already failed with an error of its own.
    """

    def once(client: QueueClient) -> None:
        number = attempt_number(0)
        client.stage_messages(connection.queue, producer, [], batch=batch, part=0, attempt=number)
        client.publish_staged(connection.queue, producer, batch, [Part(0, number)])

    try:
        connection.ask(once)
    except (ServerError, PipelineError) as error:
        log.warning(
            "what was staged for %s on the queue %s could not be dropped: %s", producer, connection.queue, error
        )


def task() -> TaskContext:
    """Returns the current task."""
    context = TaskContext.get()
    if context is None:
        raise PipelineError("rows can only be written in a task of Spark")
    return context


def sink(options: Options) -> QueueConnection:
    """Returns the queue server of the options."""
    return QueueConnection(options, options.later)


def _failed(connection: QueueConnection, what: str, error: ServerError) -> PipelineError:
    if isinstance(error, NotFound):
        connection.must_have_queue()
    return connection.refused(what, error)


class QsBatchWriter(DataSourceArrowWriter):
    """`df.write.format("qs")`.

    Ensures that all rows become visible at once, or none. With the options txnAppId and txnVersion (named as in Delta)
    a repeated write has no further effect: the server publishes no version at or below the application's last one.
    Without them each write is separate.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._own = options.txn_app is None
        self._producer = options.txn_app or f"{options.producer}.{uuid.uuid4().hex}"
        self._batch = (options.txn_version or 0) + 1  # the server counts from 1

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of a task."""
        context = task()
        with sink(self._options) as connection:
            rows = messages(iterator, self._options.queue)
            return stage(connection, rows, self._producer, self._batch, context.partitionId(), context.attemptNumber())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publishes the parts that the tasks have staged."""
        with sink(self._options) as connection:
            publish(connection, [message for message in messages if isinstance(message, StagedParts)])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drops the staged parts, if no other write uses the same producer; otherwise the next write drops them."""
        if self._own:  # otherwise another try of the same version may have staged its parts by now
            with sink(self._options) as connection:
                discard(connection, self._producer, self._batch)


class QsStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("qs")`.

    Ensures that each batch becomes visible once, as a whole, even if tasks and drivers are killed. It is published
    under the query's id and the batch's number from the checkpoint, and the server publishes none twice. The next
    publish drops what failed tries have staged.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of a task."""
        options, context = self._options, task()
        producer = f"{options.producer}.{_property(context, 'sql.streaming.queryId')}"
        batch = int(_property(context, "streaming.sql.batchId")) + 1  # the server counts from 1
        with sink(options) as connection:
            rows = messages(iterator, options.queue)
            return stage(connection, rows, producer, batch, context.partitionId(), context.attemptNumber())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publishes the batch."""
        with sink(self._options) as connection:
            publish(connection, [message for message in messages if isinstance(message, StagedParts)])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: staged parts are invisible, and dropped when the batch is published."""


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise PipelineError(f"Spark does not tell {name} in a stream's task: is this pyspark 4.2 or later?")
    return value
