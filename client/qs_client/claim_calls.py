"""Calls for claims and staged batches: for consumers that replay and producers that retry. See `calls`."""

import itertools
from collections.abc import Iterable

from qs_schemas import (
    AckClaim,
    Claim,
    ClaimMessages,
    Delivery,
    Draft,
    GetClaim,
    ListClaims,
    Part,
    PublishStaged,
    ReleaseClaim,
    StageMessages,
)

from .asking import Call, ask, required
from .batches import drafts_in_batches
from .bounds import whole


def claim_messages(
    qid: str,
    consumer: str,
    seq: int,
    *,
    max: int | None = None,  # noqa: A002 - named as the protocol names it
    max_bytes: int | None = None,
    upto: int | None = None,
) -> Call[Claim]:
    """Puts the oldest visible messages into claim number seq (1, 2, 3, …) of the consumer, in one transaction. They
    stay hidden until the claim is acknowledged or released. Repeating the call with the same seq returns the same
    claim.

    max: messages, None for the server's bound (100,000); max_bytes: of payload; upto: only ids up to this one. A claim
    of count 0 does not exist: no message was visible, and seq is still free. Raises Stale when seq is acknowledged,
    Conflict when the claim before it was never made, NotFound when it was released.
    """
    answer = yield from ask(
        ClaimMessages(
            qid,
            consumer,
            whole(seq, "seq"),
            whole(max, "max", 1),
            whole(max_bytes, "max_bytes", 1),
            whole(upto, "upto"),
        )
    )
    return required(answer.claim, "claim")


def get_claim(qid: str, consumer: str, seq: int, *, part: int = 0, parts: int = 1) -> Call[list[Delivery]]:
    """Returns the messages of a slice of a claim, the same each time: slice number part, from 0, of `parts` about equal
    ones.

    receives is 1 more than before the claim. Messages that have been purged since are missing. Raises NotFound when the
    claim does not exist, BadRequest when the slice exceeds 1000 messages or one document: then ask for more parts.
    """
    deliveries = (
        yield from ask(GetClaim(qid, consumer, whole(seq, "seq"), whole(part, "part"), whole(parts, "parts", 1)))
    ).messages
    for delivery in deliveries:
        if delivery.qid is None:  # servers may leave out the queue of the request
            delivery.qid = qid
    return deliveries


def ack_claim(qid: str, consumer: str, seq: int) -> Call[None]:
    """Acknowledges: deletes the messages of all the consumer's claims up to seq. Can be repeated. Raises Conflict when
    no claim of that number exists yet."""
    yield from ask(AckClaim(qid, consumer, whole(seq, "seq")))


def release_claim(qid: str, consumer: str, seq: int, *, owner: str | None = None) -> Call[int]:
    """Makes the messages of a claim visible again, for operators. Returns how many. Raises NotFound when there is no
    such claim.

    owner: the principal whose consumer it is, as `list_claims` names it; another's than your own needs the right admin.
    """
    return required((yield from ask(ReleaseClaim(qid, consumer, whole(seq, "seq"), owner))).count, "count")


def list_claims(qid: str) -> Call[list[Claim]]:
    """Returns your own claims that are neither acknowledged nor released, with their consumer and their time
    (microseconds since the Epoch). With the right admin, those of other principals too: their `owner` is not None, and
    empty for clients without a principal."""
    return (yield from ask(ListClaims(qid))).claims


def stage_messages(
    qid: str, producer: str, payloads: Iterable[bytes | str | Draft], *, batch: int, part: int = 0, attempt: int = 0
) -> Call[int]:
    """Stores messages durably and invisibly, until `publish_staged` names this attempt at this part of the batch.
    Returns how many. Without messages, stages an empty part.

    Calls for the same attempt append to it, so do not repeat one that failed: stage the part again under another
    attempt. Sent in lists of 1000 messages, some megabytes each. payloads: as in `push_many`, without keys; batch,
    part, attempt: from 0.
    """
    for value, name in ((batch, "batch"), (part, "part"), (attempt, "attempt")):
        whole(value, name)
    total = 0
    lists = drafts_in_batches(payloads)
    # At least one list, also of no messages: an empty part has to be staged to be published.
    for drafts in itertools.chain([next(lists, [])], lists):
        answer = yield from ask(StageMessages(qid, producer, batch=batch, part=part, attempt=attempt, messages=drafts))
        total += len(drafts) if answer.count is None else answer.count
    return total


def publish_staged(qid: str, producer: str, batch: int, parts: Iterable[Part | tuple[int, int]]) -> Call[None]:
    """Makes parts (number, attempt) of a batch visible, in order of number, all or none, and drops whatever else was
    staged for the batch. Can be repeated: does nothing when this batch or a later one of the producer is published.
    Without parts, does nothing either: to drop a batch, stage an empty part and publish it. Raises NotFound when a part
    was not staged, Conflict when the batch is more than one past the greatest staged or published."""
    chosen = [part if isinstance(part, Part) else Part(*part) for part in parts]
    yield from ask(PublishStaged(qid, producer, batch=whole(batch, "batch"), chosen=chosen))
