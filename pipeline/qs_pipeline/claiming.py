"""What one consumer does with its claims, and what it means when the server refuses.

A claim is made, read any number of times, and acknowledged. Its number is the consumer's next one, so whoever works
under a name that somebody else uses too, or from a checkpoint that is not the name's, is found out by the numbers.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from qs_client import BadRequest, Claim, Conflict, Delivery, NotFound, QueueClient, ServerError, Stale

from .connecting import Server
from .errors import CheckpointLostError, ClaimHeldError, DataLossError, PipelineError
from .offsets import Offset
from .options import parse_options
from .slices import Slice

T = TypeVar("T")

MOST = 100_000
"""Messages that the server puts into one claim at most."""

log = logging.getLogger("qs_pipeline")


class Claims:
    """The claims of a consumer on the queue of a server. strict: messages that are gone are an error (failOnDataLoss),
    and else a warning."""

    def __init__(self, server: Server, consumer: str, strict: bool = True) -> None:
        self._server = server
        self._consumer = consumer
        self._strict = strict
        self._warned: set[str] = set()
        self._who = f"the consumer {consumer!r} of the queue {server.queue!r} on {server.place}"

    def claim(self, seq: int, most: int | None = None, size: int | None = None, upto: int | None = None) -> Offset:
        """Claim number seq: the one there is, or a new one of the oldest visible messages. count 0: there are none.

        most: messages; size: bytes; upto: no mid above it. Raises Stale and Conflict as the client has them.
        """
        queue, consumer = self._server.queue, self._consumer
        most = MOST if most is None else min(most, MOST)
        made = self._ask(
            lambda client: client.claim_messages(queue, consumer, seq, max=most, max_bytes=size, upto=upto)
        )
        return Offset.of(made)

    def after(
        self, done: Offset, most: int | None, size: int | None, upto: int | None, acknowledged: bool = False
    ) -> Offset:
        """The claim that follows what a checkpoint says is done, which is acknowledged first, unless it is already.

        CheckpointLostError, ClaimHeldError or DataLossError when the server's numbers are not the checkpoint's.
        """
        try:
            if done.seq and not acknowledged:
                self.acknowledge(done)
            return replace(self.claim(done.seq + 1, most, size, upto), lost=done.lost)
        except Stale:
            raise self._behind(done) from None
        except Conflict:
            self._lost(self._ahead(done))
        except NotFound:
            self._lost(self._gone(done.seq + 1))
        except DataLossError as error:
            self._lost(str(error))
        return replace(self.next(most, size, upto), lost=done.lost + 1)

    def next(self, most: int | None, size: int | None, upto: int | None = None) -> Offset:
        """The oldest claim that is not acknowledged, or a new one, without knowing its number."""
        waiting = self.outstanding()
        if waiting:
            return Offset.of(waiting[0])
        return search(lambda seq: self.claim(seq, most, size, upto))

    def acknowledge(self, done: Offset) -> None:
        """The messages of this claim and of those before it are removed for good. It can be repeated.

        DataLossError when the server has never given that claim.
        """
        queue, consumer = self._server.queue, self._consumer
        try:
            self._ask(lambda client: client.ack_claim(queue, consumer, done.seq))
        except Conflict:
            raise DataLossError(self._ahead(done)) from None

    def outstanding(self) -> list[Claim]:
        """The claims that are not acknowledged, in order."""
        queue = self._server.queue
        claims = self._ask(lambda client: client.list_claims(queue))
        return sorted((claim for claim in claims if claim.consumer == self._consumer), key=lambda claim: claim.seq)

    def warn_of_others(self) -> None:
        """Logs that there are claims already, although there is no checkpoint: nobody can tell whose they are."""
        for claim in self.outstanding():
            log.warning(
                "claim %d of %s (%d messages) is there already, and is read first: if another query works under that "
                "name, stop this one, as both would read the same messages",
                claim.seq,
                self._who,
                claim.count,
            )

    def is_there(self, offset: Offset) -> bool:
        """Whether the server still has that claim, with the messages that the offset says.

        When it has not: DataLossError if strict, else a warning. ClaimHeldError when it holds others.
        """
        found = {claim.seq: claim for claim in self.outstanding()}.get(offset.seq)
        if found is None:
            self._lost(self._gone(offset.seq))
            return False
        if found.checksum != offset.checksum:
            raise ClaimHeldError(
                f"claim {offset.seq} of {self._who} holds other messages than the checkpoint says: another query works "
                "under the same name, or the claim was released and made again; give each query a consumer name of its "
                "own, and this one a new checkpoint"
            )
        return True

    def read(self, offset: Offset, piece: Slice) -> list[Delivery]:
        """The messages of a slice of a claim. Fewer than it should hold is lost messages: DataLossError if strict, else
        a warning. BadRequest when it is more than one answer carries."""
        queue, consumer = self._server.queue, self._consumer
        try:
            messages = self._ask(
                lambda client: client.get_claim(queue, consumer, offset.seq, part=piece.part, parts=piece.parts)
            )
        except NotFound:
            self._lost(self._gone(offset.seq))
            return []
        missing = piece.size(offset.count) - len(messages)
        if missing:
            self._lost(
                f"{missing} messages of claim {offset.seq} of {self._who} are gone: they were purged, or deleted, "
                "while they were claimed"
            )
        return messages

    # -- what it means ------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[QueueClient], T]) -> T:
        try:
            return self._server.ask(question)
        except NotFound:
            self._server.must_have_queue()
            raise
        except (Conflict, BadRequest):
            raise
        except ServerError as error:
            raise self._server.refused("claims", error) from error

    def _lost(self, text: str) -> None:
        if self._strict:
            raise DataLossError(f"{text}; with failOnDataLoss false the query goes on with what there is")
        if text not in self._warned:  # a query that waits for messages asks many times a second
            self._warned.add(text)
            log.warning("%s", text)

    def _gone(self, seq: int) -> str:
        return (
            f"claim {seq} of {self._who} is no longer there: it was released by an operator, or acknowledged by "
            "another query that works under the same name"
        )

    def _ahead(self, done: Offset) -> str:
        return (
            f"the checkpoint is at claim {done.seq} of {self._who}, and the server has given none of that number: the "
            "queue was deleted and made again, or its claim released, or the checkpoint is of another queue, server or "
            "consumer"
        )

    def _behind(self, done: Offset) -> PipelineError:
        if done.seq == 0:
            return CheckpointLostError(
                f"this query starts from the beginning, and {self._who} has acknowledged claims already: the "
                "checkpoint was deleted, or another query works under that name; start with a consumer name that was "
                f"never used here (what the old one holds is given back by: qs claims --release {self._consumer} "
                f"{self._server.queue})"
            )
        return ClaimHeldError(
            f"the checkpoint is at claim {done.seq} of {self._who}, which has acknowledged later ones already: another "
            "query works under the same name, or the checkpoint is an older copy; give each query a consumer name of "
            "its own"
        )


def search(claim: Callable[[int], Offset]) -> Offset:
    """The claim with the one number for which the server makes one. claim: makes it, or raises Stale when the number is
    too low, and another Conflict when it is too high.

    Doubles until it is too high, then bisects: some 2 * log2(number) questions. A number that was refused is no claim.
    """
    low, high, step = 0, None, 1  # low: too low; high: too high
    while high is None or high - low > 1:
        seq = low + step if high is None else (low + high) // 2
        try:
            return claim(seq)
        except Stale:
            low, step = seq, step * 2
        except Conflict:
            high = seq
    raise ClaimHeldError("the consumer's claims change while they are looked at: something else works under its name")


def acknowledge(*, queue: str, consumer: str, host: str = "127.0.0.1", port: int = 9876, seq: int | None = None) -> int:
    """Removes what a batch read with mode consume has read: call it once the rows have been dealt with.

    seq: up to which claim (the column claim_seq), None for all that the consumer has claimed. Returns how many claims
    were removed. Until then, each read of that consumer gives the same messages again; so reading is at least once, and
    exactly once if what was done with the rows and this call fail or succeed together, or the first is repeatable.
    """
    options = parse_options({"queue": queue, "consumer": consumer, "host": host, "port": str(port)})
    with Server(options, options.at_first) as server:
        claims = Claims(server, consumer)
        done = [claim for claim in claims.outstanding() if seq is None or claim.seq <= seq]
        if done:
            claims.acknowledge(Offset.of(done[-1]))
        return len(done)
