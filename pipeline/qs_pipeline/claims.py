"""The claims of one consumer: what identifies a claim, how it is made, read and acknowledged, and what refusals mean.

A claim is made, read any number of times, and acknowledged. It never changes, and the server returns it by its number.
So some 120 bytes, the offset in Spark's offset log, say exactly which messages a batch has, however many they are. A
claim's number is the consumer's next one, so the numbers reveal a second query under the same name, or a checkpoint of
another consumer.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from qs_client import BadRequest, Claim, Conflict, Delivery, NotFound, QueueClient, ServerError, Stale

from .connection import QueueConnection
from .errors import CheckpointLostError, ConsumerInUseError, DataLossError, PipelineError
from .options import parse_options
from .security import OPEN, QueueServer, Security

T = TypeVar("T")
CLAIM_MOST = 100_000
"""Messages that the server puts into one claim, at most."""

SLICE_MOST = 1000
"""Messages of a slice: the protocol's bound."""

SLICE_BYTES = 2 * 1024 * 1024
"""Average bytes of a slice: enough to make requests cheap, and so far below a document's bound that a slice rarely
exceeds it, even where large messages stand together."""

PARTITION_MOST = 25_000
PARTITION_BYTES = 16 * SLICE_BYTES
"""The size of a partition without numPartitions: about a second of work, as its beginning takes tenths of a second. The
largest claim has four, which keep the server's processor busy."""

PARTITIONS = 16
"""The most partitions without numPartitions."""

log = logging.getLogger("qs_pipeline")


@dataclass(frozen=True, slots=True)
class Offset:
    """A claim, as Spark's offset log holds it.

    seq: its number, 0 before the first; count: messages; bytes: of their payloads; first, last: least and greatest mid;
    checksum: of the messages, from the server; lost: how often the query went on with other claims than the checkpoint
    says (failOnDataLoss false), as a number may then stand for other messages.
    """

    seq: int = 0
    count: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None
    checksum: str | None = None
    lost: int = 0

    @classmethod
    def of(cls, claim: Claim) -> "Offset":
        """Returns the offset of a claim."""
        return cls(claim.seq, claim.count, claim.bytes, claim.first, claim.last, claim.checksum)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Offset":
        """Reads an offset from Spark's log. Raises CheckpointLostError if another source has written it."""
        wrong = CheckpointLostError(
            f"the checkpoint holds {dict(values)!r}, which is no offset of the source qs: it belongs to another query, "
            "or is damaged; start with a new checkpoint"
        )
        if set(values) - set(cls.__slots__):
            raise wrong
        offset = cls(**values)
        numbers = (offset.seq, offset.count, offset.bytes, offset.lost)
        if not all(type(number) is int and number >= 0 for number in numbers) or (offset.seq == 0) != (
            offset.count == 0
        ):
            raise wrong
        return offset

    def to_json(self) -> dict[str, Any]:
        """Returns the offset as Spark writes it to its log, without fields that are None."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None and (name != "lost" or value)}


INITIAL = Offset()
"""The start of a query without a checkpoint: no message is claimed."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Part `part` of `parts` of a claim."""

    part: int
    parts: int

    def size(self, count: int) -> int:
        """Returns how many of `count` messages the slice holds."""
        return count * (self.part + 1) // self.parts - count * self.part // self.parts

    def halves(self) -> tuple["Slice", "Slice"]:
        """Returns the two halves of the slice."""
        return Slice(2 * self.part, 2 * self.parts), Slice(2 * self.part + 1, 2 * self.parts)

    def cut(self, count: int, size: int) -> Iterator["Slice"]:
        """Yields the smaller slices in which this one is read, in order: at most SLICE_MOST messages each, SLICE_BYTES
        on average. count, size: messages and bytes of the whole claim."""
        own = self.size(count)
        share = size * own // count if count else 0
        pieces = max(min(max(-(-own // SLICE_MOST), -(-share // SLICE_BYTES)), own), 1)
        for piece in range(pieces):
            yield Slice(self.part * pieces + piece, self.parts * pieces)


def partitions(count: int, size: int, wanted: int | None) -> list[Slice]:
    """Returns the partitions of a claim of count messages and size bytes. wanted: how many, None for a suitable number.

    There are never more partitions than messages, so none is empty.
    """
    parts = wanted or min(max(-(-count // PARTITION_MOST), -(-size // PARTITION_BYTES)), PARTITIONS)
    parts = min(max(parts, 1), count)
    return [Slice(part, parts) for part in range(parts)]


class Claims:
    """The claims of one consumer on a queue.

    Ensures:
    1. A claim has the same messages whenever it is read, or reading it says how many are missing.
    2. Nothing is acknowledged but what the caller names: a claim whose number the server does not know is never taken
       for one that is done.
    3. A second query under the same consumer name, an older copy of a checkpoint, and a queue that was made again are
       recognized by the numbers and by the checksum of a claim. None of them goes on as if nothing were wrong.

    Assumes that one query at a time works under the name. Must never release a claim: that gives its messages to
    others, and only an operator knows whether they were handled.
    """

    def __init__(self, connection: QueueConnection, consumer: str, strict: bool = True) -> None:
        """strict: missing messages are an error (failOnDataLoss), otherwise a warning."""
        self._connection = connection
        self._consumer = consumer
        self._strict = strict
        self._warned: set[str] = set()
        self._who = f"the consumer {consumer!r} of the queue {connection.queue!r} on {connection.place}"

    def claim(self, seq: int, most: int | None = None, size: int | None = None, upto: int | None = None) -> Offset:
        """Returns claim number seq: the existing one, or a new one of the oldest visible messages. A claim with count 0
        has no messages.

        most: messages; size: bytes; upto: the greatest mid. Raises Stale and Conflict like the client.
        """
        queue, consumer = self._connection.queue, self._consumer
        most = CLAIM_MOST if most is None else min(most, CLAIM_MOST)
        made = self._ask(
            lambda client: client.claim_messages(queue, consumer, seq, max=most, max_bytes=size, upto=upto)
        )
        return Offset.of(made)

    def after(
        self, done: Offset, most: int | None, size: int | None, upto: int | None, acknowledged: bool = False
    ) -> Offset:
        """Returns the claim that follows the claim `done` of a checkpoint, and acknowledges `done` first, unless
        `acknowledged`.

        Raises CheckpointLostError, ConsumerInUseError or DataLossError if the server's numbers contradict the
        checkpoint.
        """
        try:
            if done.seq and not acknowledged:
                self.acknowledge(done)
            # The next number: if a driver was killed after it had claimed and before Spark had logged that, the server
            # returns that very claim.
            return replace(self.claim(done.seq + 1, most, size, upto), lost=done.lost)
        except Stale:
            raise self._behind_error(done) from None
        except Conflict:
            self._report_loss(self._ahead_text(done))
        except NotFound:
            self._report_loss(self._gone_text(done.seq + 1))
        except DataLossError as error:
            self._report_loss(str(error))
        return replace(self.next(most, size, upto), lost=done.lost + 1)

    def next(self, most: int | None, size: int | None, upto: int | None = None) -> Offset:
        """Returns the oldest unacknowledged claim, or a new one."""
        # One that is there was claimed by a run that did not finish it: a new one would leave its messages hidden.
        waiting = self.outstanding()
        if waiting:
            return Offset.of(waiting[0])
        return search(lambda seq: self.claim(seq, most, size, upto))

    def acknowledge(self, done: Offset) -> None:
        """Removes the messages of this claim and of all before it. Can be repeated. Raises DataLossError if
        the server has never made that claim."""
        queue, consumer = self._connection.queue, self._consumer
        try:
            self._ask(lambda client: client.ack_claim(queue, consumer, done.seq))
        except Conflict:
            raise DataLossError(self._ahead_text(done)) from None

    def outstanding(self) -> list[Claim]:
        """Returns the unacknowledged claims, in order. A claim with an owner belongs to another principal's consumer of
        this name; a principal with the right admin is shown these claims too."""
        queue = self._connection.queue
        claims = self._ask(lambda client: client.list_claims(queue))
        # An admin is shown the consumers of other principals too, which may have the same name.
        own = (claim for claim in claims if claim.owner is None and claim.consumer == self._consumer)
        return sorted(own, key=lambda claim: claim.seq)

    def warn_of_others(self) -> None:
        """Logs the claims that exist although there is no checkpoint: they may belong to another query."""
        for claim in self.outstanding():
            log.warning(
                "claim %d of %s (%d messages) exists already, and is read first: if another query works under that "
                "name, stop this one, as both would read the same messages",
                claim.seq,
                self._who,
                claim.count,
            )

    def is_there(self, offset: Offset) -> bool:
        """Tells whether the server still has that claim. If it has not, raises DataLossError if strict, and logs a
        warning otherwise. Raises ConsumerInUseError if the claim holds other messages than the offset says."""
        found = {claim.seq: claim for claim in self.outstanding()}.get(offset.seq)
        if found is None:
            self._report_loss(self._gone_text(offset.seq))
            return False
        if found.checksum != offset.checksum:
            raise ConsumerInUseError(
                f"claim {offset.seq} of {self._who} holds other messages than the checkpoint says: another query works "
                "under the same name, or the claim was released and made again; give each query a consumer name of its "
                "own, and this one a new checkpoint"
            )
        return True

    def read(self, offset: Offset, piece: Slice) -> list[Delivery]:
        """Returns the messages of a slice of a claim. For missing messages, raises DataLossError if strict, and logs a
        warning otherwise. Raises BadRequest when the slice exceeds one answer."""
        queue, consumer = self._connection.queue, self._consumer
        try:
            messages = self._ask(
                lambda client: client.get_claim(queue, consumer, offset.seq, part=piece.part, parts=piece.parts)
            )
        except NotFound:
            self._report_loss(self._gone_text(offset.seq))
            return []
        missing = piece.size(offset.count) - len(messages)
        if missing:
            self._report_loss(
                f"{missing} messages of claim {offset.seq} of {self._who} are gone: they were purged, or deleted, "
                "while they were claimed"
            )
        return messages

    # -- what it means ------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[QueueClient], T]) -> T:
        try:
            return self._connection.ask(question)
        except NotFound:
            self._connection.must_have_queue()  # a missing queue is told as such; otherwise the claim is missing
            raise
        except (Conflict, BadRequest):  # what they mean depends on the question
            raise
        except ServerError as error:
            raise self._connection.refused("claims", error) from error

    def _report_loss(self, text: str) -> None:
        if self._strict:
            raise DataLossError(f"{text}; with failOnDataLoss false the query continues with the other messages")
        if text not in self._warned:  # a waiting query asks many times a second
            self._warned.add(text)
            log.warning("%s", text)

    def _gone_text(self, seq: int) -> str:
        return (
            f"claim {seq} of {self._who} is no longer there: it was released by an operator, or acknowledged by "
            "another query that works under the same name"
        )

    def _ahead_text(self, done: Offset) -> str:
        return (
            f"the checkpoint is at claim {done.seq} of {self._who}, and the server has given none of that number: the "
            "queue was deleted and made again, or its claim released, or the checkpoint is of another queue, server or "
            "consumer"
        )

    def _behind_error(self, done: Offset) -> PipelineError:
        if done.seq == 0:
            return CheckpointLostError(
                f"this query starts from the beginning, and {self._who} has acknowledged claims already: the "
                "checkpoint was deleted, or another query works under that name; start with a consumer name that was "
                f"never used here (what the old one holds is given back by: qs claims --release {self._consumer} "
                f"{self._connection.queue})"
            )
        return ConsumerInUseError(
            f"the checkpoint is at claim {done.seq} of {self._who}, which has acknowledged later ones already: another "
            "query works under the same name, or the checkpoint is an older copy; give each query a consumer name of "
            "its own"
        )


def search(claim: Callable[[int], Offset]) -> Offset:
    """Finds the only number for which the server makes a claim, and returns the claim. claim: makes a claim of a
    number, or raises Stale for a number that is too low and another Conflict for one that is too high.

    Doubles the number until it is too high, then bisects: some 2 * log2(number) questions. A refused number makes no
    claim.
    """
    # No operation tells the number. A consumer has made one claim for each batch, so it may be in the millions.
    low, high, step = 0, None, 1  # low: too low; high: too high
    while high is None or high - low > 1:
        seq = low + step if high is None else (low + high) // 2
        try:
            return claim(seq)
        except Stale:
            low, step = seq, step * 2
        except Conflict:
            high = seq
    raise ConsumerInUseError(
        "the consumer's claims are changing: something else works under its name; stop it, or use another name"
    )


def acknowledge(
    *,
    queue: str,
    consumer: str,
    host: str = "127.0.0.1",
    port: int = 9876,
    security: Security = OPEN,
    seq: int | None = None,
) -> int:
    """Removes the messages that a batch read in mode consume has read. Call it when the rows have been processed.

    seq: the last claim to remove (column claim_seq), None for all of the consumer. Returns how many claims were
    removed. Until then, each read of that consumer returns the same messages: at-least-once. It is exactly-once if
    processing the rows and this call succeed or fail together, or if the processing can be repeated.
    """
    options = parse_options({"queue": queue, "consumer": consumer, **QueueServer(host, port, security).options()})
    with QueueConnection(options, options.at_first) as connection:
        claims = Claims(connection, consumer)
        done = [claim for claim in claims.outstanding() if seq is None or claim.seq <= seq]
        if done:
            claims.acknowledge(Offset.of(done[-1]))  # and, with it, all before it
        return len(done)
