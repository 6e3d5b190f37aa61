"""Stages a task's rows on the server: durable, and invisible until their batch is published.

Each list of messages is a part of its own under a unique attempt. Leftovers of an earlier try of the task or of this
call do no harm, as only the parts that a commit names are published.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from qs_client import Conflict, NotFound, Part, QueueClient, ServerError
from qs_client.batches import drafts_in_batches

from .connecting import Server
from .errors import BadMessageError, BadOptionError, DataLossError, PipelineError, SchemaMismatchError
from .options import Options

PARTS = 1_000_000
"""Parts that one task may stage: its part numbers start at its partition's number times this."""

PUBLISHED = 10_000
"""Parts of one publish: the protocol's bound."""

_DIGITS = 10**15

log = logging.getLogger("qs_pipeline")


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The parts that a task has staged. parts: number and attempt of each list; batch: as the server counts it."""

    producer: str
    batch: int
    parts: tuple[tuple[int, int], ...]


def check_write_schema(schema: StructType, overwrite: bool) -> None:
    """Raises SchemaMismatchError or BadOptionError unless one column of bodies is to be appended."""
    if overwrite:
        raise BadOptionError("a queue is append-only: write with mode append, or a stream with outputMode append")
    fields = schema.fields
    names = len(fields) == 1 and fields[0].name.lower() in ("body", "value")
    if not names or not isinstance(fields[0].dataType, BinaryType | StringType):
        raise SchemaMismatchError(
            f"what is written to a queue has one column, body or value, of type binary or string, not "
            f"{schema.simpleString()}: .select('body'), or .selectExpr('to_json(struct(*)) AS body')"
        )


def payloads(batches: Iterable[pa.RecordBatch], queue: str) -> Iterator[bytes | str]:
    """Yields the bodies of rows, in order. BadMessageError when one is null."""
    for batch in batches:
        column = batch.column(0)
        if column.null_count:
            raise BadMessageError(
                f"a row for the queue {queue!r} has a null for a body: filter such rows out, or coalesce"
            )
        yield from column.to_pylist()


def attempt_number(attempt: int, randbelow: Callable[[int], int] = secrets.randbelow) -> int:
    """Returns a unique number of at most 18 digits, whose last three are the task's attempt, for people."""
    return randbelow(_DIGITS) * 1000 + attempt % 1000


def stage(  # noqa: PLR0917 - the server's arguments
    server: Server, bodies: Iterable[bytes | str], producer: str, batch: int, partition: int, attempt: int
) -> Staged:
    """Stages the bodies of one task. A list that may have arrived is staged again under another number.

    NoServerError, NoSuchQueueError; PipelineError when the server refuses, as for a full queue or a body that is too
    large.
    """
    parts: list[tuple[int, int]] = []
    for index, drafts in enumerate(drafts_in_batches(bodies)):
        part = partition * PARTS + index
        entries = [draft.payload for draft in drafts]

        def once(client: QueueClient, part: int = part, entries: list[bytes | str] = entries) -> int:
            number = attempt_number(attempt)
            client.stage_messages(server.queue, producer, entries, batch=batch, part=part, attempt=number)
            return number

        try:
            parts.append((part, server.ask(once)))
        except ServerError as error:
            raise _failed(server, "staging", error) from error
    return Staged(producer, batch, tuple(parts))


def publish(server: Server, staged: Iterable[Staged]) -> None:
    """Makes what tasks have staged visible, all or nothing, in order of part. A repeated call has no further effect.

    Sends nothing when there are no rows. DataLossError when staged parts are gone.
    """
    messages = list(staged)
    parts = sorted(part for message in messages for part in message.parts)
    if not parts:
        return
    if len(parts) > PUBLISHED:
        raise PipelineError(
            f"a batch for the queue {server.queue!r} has {len(parts)} parts, and {PUBLISHED} can be published at once: "
            "write smaller batches, or fewer partitions with repartition()"
        )
    ((producer, batch),) = {(message.producer, message.batch) for message in messages}
    chosen = [Part(number, attempt) for number, attempt in parts]
    try:
        server.ask(lambda client: client.publish_staged(server.queue, producer, batch, chosen))
    except (NotFound, Conflict) as error:
        server.must_have_queue()
        raise DataLossError(
            f"not all that was staged for batch {batch} of the producer {producer!r} on the queue {server.queue!r} is "
            f"still there ({error}): run it again"
        ) from error
    except ServerError as error:
        raise _failed(server, "publishing", error) from error


def discard(server: Server, producer: str, batch: int) -> None:
    """Drops what a producer of this write alone has staged for a batch, which can then never be published: publishes
    an empty part in its place.

    Only logs errors: the write has already failed with an error of its own.
    """

    def once(client: QueueClient) -> None:
        number = attempt_number(0)
        client.stage_messages(server.queue, producer, [], batch=batch, part=0, attempt=number)
        client.publish_staged(server.queue, producer, batch, [Part(0, number)])

    try:
        server.ask(once)
    except (ServerError, PipelineError) as error:
        log.warning("what was staged for %s on the queue %s could not be dropped: %s", producer, server.queue, error)


def task() -> TaskContext:
    """Returns the current task."""
    context = TaskContext.get()
    if context is None:
        raise PipelineError("rows can only be written in a task of Spark")
    return context


def sink(options: Options) -> Server:
    """Returns the server to write to."""
    return Server(options, options.later)


def _failed(server: Server, what: str, error: ServerError) -> PipelineError:
    if isinstance(error, NotFound):
        server.must_have_queue()
    return server.refused(what, error)
