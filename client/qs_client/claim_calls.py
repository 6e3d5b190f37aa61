"""The calls about claims and batches, for consumers that replay and publishers that retry: as in `calls.py`."""

from collections.abc import Iterable

from qs_schemas import (
    AckClaim,
    Claim,
    ClaimMessages,
    Delivery,
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
    """The oldest visible messages become claim seq (1, 2, 3, …) of the consumer: in one transaction, out of everybody's
    sight, for as long as it takes. Asked again with the same seq, the answer is the same.

    max: messages, None for as many as the server allows (100,000); max_bytes: of payload; upto: only ids up to that
    one. A claim of count 0 is none: there was nothing, and seq is still free. Raises
    Stale when seq is acknowledged, Conflict when one before it was never made, NotFound when it was released.
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
    """A slice of a claim, the same each time: of `parts` of about the same length the one with number part, from 0.

    receives is 1 more than before the claim. What has been purged since is missing. Raises NotFound when there is no
    such claim (any more), BadRequest when the slice is over 1000 messages or one document: then ask for more parts.
    """
    deliveries = (
        yield from ask(GetClaim(qid, consumer, whole(seq, "seq"), whole(part, "part"), whole(parts, "parts", 1)))
    ).messages
    for delivery in deliveries:
        if delivery.qid is None:
            delivery.qid = qid
    return deliveries


def ack_claim(qid: str, consumer: str, seq: int) -> Call[None]:
    """Acknowledges: deletes the messages of every claim of the consumer up to seq. Can be repeated. Raises Conflict
    when there is no claim of that number yet."""
    yield from ask(AckClaim(qid, consumer, whole(seq, "seq")))


def release_claim(qid: str, consumer: str, seq: int) -> Call[int]:
    """For operators: the messages of a claim are visible again; how many. Raises NotFound when there is none."""
    return required((yield from ask(ReleaseClaim(qid, consumer, whole(seq, "seq")))).count, "count")


def list_claims(qid: str) -> Call[list[Claim]]:
    """The claims that are neither acknowledged nor released, with their consumer and since when they are there
    (microseconds since the Epoch)."""
    return (yield from ask(ListClaims(qid))).claims


def stage_messages(
    qid: str, producer: str, payloads: Iterable[bytes | str], *, batch: int, part: int = 0, attempt: int = 0
) -> Call[int]:
    """Stores messages durably and invisibly, until `publish_staged` names this attempt at this part of the batch; how
    many. Calls for the same attempt add to it, in their order, so one that failed must not be repeated: stage the part
    again as another attempt. Sent in lists of 1000 messages, some megabytes each. batch, part, attempt: from 0."""
    for value, name in ((batch, "batch"), (part, "part"), (attempt, "attempt")):
        whole(value, name)
    total = 0
    for drafts in drafts_in_batches(payloads):
        answer = yield from ask(StageMessages(qid, producer, batch=batch, part=part, attempt=attempt, messages=drafts))
        total += len(drafts) if answer.count is None else answer.count
    return total


def publish_staged(qid: str, producer: str, batch: int, parts: Iterable[Part | tuple[int, int]]) -> Call[None]:
    """Makes the parts of a batch (number, attempt) visible, in order of number, all or none; whatever else was staged
    for it is dropped. When the batch, or a later one of the producer, is published already, nothing happens: so it can
    be repeated. Raises NotFound when a part was not staged."""
    chosen = [part if isinstance(part, Part) else Part(*part) for part in parts]
    yield from ask(PublishStaged(qid, producer, batch=whole(batch, "batch"), chosen=chosen))
