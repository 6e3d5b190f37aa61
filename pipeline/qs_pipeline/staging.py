"""How a task puts its rows on the server: durable, and invisible until the batch that they are of is published.

Each list of messages is a part of its own under an attempt that nobody else uses: whether an earlier try of the task,
or of this very call, has left something there does not matter, as only what a commit names is published.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from qs_client import NotFound, Part, QueueClient, ServerError
from qs_client.batches import drafts_in_batches

from .connecting import Server
from .errors import BadMessageError, BadOptionError, DataLossError, PipelineError, SchemaMismatchError
from .options import Options

PARTS = 1_000_000
"""Parts that one task may stage: a task's part numbers are its partition's number times that, and on."""

PUBLISHED = 10_000
"""Parts that one publishing may name: the protocol's bound of a list of parts."""

_DIGITS = 10**15

log = logging.getLogger("qs_pipeline")


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task has staged. parts: number and attempt of each list; batch: as the server counts it."""

    producer: str
    batch: int
    parts: tuple[tuple[int, int], ...]


def must_fit(schema: StructType, overwrite: bool) -> None:
    """SchemaMismatchError or BadOptionError when what is to be written is not one column of bodies to append."""
    if overwrite:
        raise BadOptionError("a queue is only appended to: write with mode append, a stream with outputMode append")
    fields = schema.fields
    names = len(fields) == 1 and fields[0].name.lower() in ("body", "value")
    if not names or not isinstance(fields[0].dataType, BinaryType | StringType):
        raise SchemaMismatchError(
            f"what is written to a queue has one column, body or value, of type binary or string, not "
            f"{schema.simpleString()}: .select('body'), or .selectExpr('to_json(struct(*)) AS body')"
        )


def payloads(batches: Iterable[pa.RecordBatch], queue: str) -> Iterator[bytes | str]:
    """The bodies of rows, in order. BadMessageError when one is null."""
    for batch in batches:
        column = batch.column(0)
        if column.null_count:
            raise BadMessageError(
                f"a row for the queue {queue!r} has a null for a body, and a message has one: filter or coalesce"
            )
        yield from column.to_pylist()


def attempt_number(attempt: int, randbelow: Callable[[int], int] = secrets.randbelow) -> int:
    """A number for what is staged now, of at most 18 digits: the last three say the task's attempt, to people."""
    return randbelow(_DIGITS) * 1000 + attempt % 1000


def stage(  # noqa: PLR0917 - as the server has them
    server: Server, bodies: Iterable[bytes | str], producer: str, batch: int, partition: int, attempt: int
) -> Staged:
    """Stages the bodies of one task. A list that may or may not have arrived is staged again under another number.

    NoServerError, NoSuchQueueError; PipelineError when the server refuses: the queue is full, a body too large.
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
    """Makes visible what tasks have staged, all of it or nothing, in order of part; once, however often it is called.

    Nothing is asked of the server when there were no rows. DataLossError when what was staged is gone.
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
    except NotFound as error:
        server.must_have_queue()
        raise DataLossError(
            f"what was staged for batch {batch} of the producer {producer!r} on the queue {server.queue!r} is not all "
            f"there ({error}): run it again"
        ) from error
    except ServerError as error:
        raise _failed(server, "publishing", error) from error


def discard(server: Server, producer: str, batch: int) -> None:
    """Drops what was staged for a batch, which can never be published after that. For a producer that nobody else is.

    Errors are only logged: the write has failed already, and its own error is what is to be told.
    """
    try:
        server.ask(lambda client: client.publish_staged(server.queue, producer, batch, []))
    except (ServerError, PipelineError) as error:
        log.warning("what was staged for %s on the queue %s is left there: %s", producer, server.queue, error)


def task() -> TaskContext:
    """The task that runs this."""
    context = TaskContext.get()
    if context is None:
        raise PipelineError("rows are written in a task of Spark's, and this is none")
    return context


def sink(options: Options) -> Server:
    """The server that is written to."""
    return Server(options, options.later)


def _failed(server: Server, what: str, error: ServerError) -> PipelineError:
    if isinstance(error, NotFound):
        server.must_have_queue()
    return server.refused(what, error)
