"""Questions of the jobs to the queue server before and after a run of Spark."""

import logging
from collections import Counter

from qs_client import Claim, NotFound, QueueClient, ServerError, ServerUnavailable

from .checkpoint import COMMITS, Checkpoint
from .errors import ClaimHeldError, DataLossError, NoSuchQueueError
from .security import QueueServer
from .translate import translate

log = logging.getLogger("qs_pipeline")


def require_queue(server: QueueServer, queue: str) -> None:
    """Raises NoSuchQueueError when the server has no such queue, NoServerError when it cannot be reached."""
    try:
        with server.client() as client:
            client.stats(queue)
    except NotFound as error:
        raise NoSuchQueueError(
            f"there is no queue {queue!r} on {server.endpoint} "
            f"(to create it: qs --server {server.endpoint} new {queue})"
        ) from error
    except (ServerError, ServerUnavailable) as error:
        raise translate(error) from error


def acknowledge_finished(
    checkpoint: Checkpoint, server: QueueServer, queue: str, consumer: str, *, accept_loss: bool = False
) -> None:
    """Acknowledges what the last finished batch has read. accept_loss: ignore that its claim is gone.

    Spark acknowledges a batch when the next one begins, so the last batch of a run would stay claimed until the next
    run. Also logs the claims of others, which hide messages from this job and may have been forgotten.
    """
    batch = checkpoint.last(COMMITS)
    offset = (None if batch is None else checkpoint.end_offset(batch)) or {}
    try:
        with server.client() as client:
            if offset.get("seq"):
                checkpoint.sync(batch or 0)  # the commit must be durable before the acknowledgement
                client.ack_claim(queue, consumer, int(offset["seq"]))
            _warn_of_others(client, queue, consumer)
    except (ServerError, ServerUnavailable) as error:
        found = translate(error)
        if accept_loss and isinstance(found, ClaimHeldError | DataLossError):
            return
        raise found from error


def _holder(claim: Claim) -> str:
    if claim.owner is None:
        return str(claim.consumer)
    return f"{claim.consumer} of {claim.owner or 'a client without a principal'}"


def _warn_of_others(client: QueueClient, queue: str, consumer: str) -> None:
    held: Counter[str] = Counter()
    for claim in client.list_claims(queue):
        if claim.owner is not None or claim.consumer != consumer:
            held[_holder(claim)] += claim.count
    for other, count in sorted(held.items()):
        what = f"1 message of {queue} is" if count == 1 else f"{count:,} messages of {queue} are"
        log.warning("%s held by %s (qs claims %s)", what, other, queue)
