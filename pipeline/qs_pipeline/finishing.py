"""What the jobs ask the server themselves, before and after a run of Spark."""

from qs_client import NotFound, QueueClient, ServerError, ServerUnavailable

from .checkpoint import COMMITS, Checkpoint
from .errors import NoSuchQueueError
from .translate import translate


def require_queue(host: str, port: int, queue: str) -> None:
    """NoSuchQueueError when the server has no such queue, NoServerError when there is none to ask."""
    try:
        with QueueClient(host, port) as client:
            client.stats(queue)
    except NotFound as error:
        raise NoSuchQueueError(
            f"there is no queue {queue!r} on {host}:{port} (to make it: qs --server {host}:{port} new {queue})"
        ) from error
    except (ServerError, ServerUnavailable) as error:
        raise translate(error) from error


def acknowledge_finished(checkpoint: Checkpoint, host: str, port: int, queue: str, consumer: str) -> None:
    """Acknowledges what the last finished batch read.

    Spark acknowledges a batch when the next one begins, so the last of a run would stay claimed until the next run.
    """
    batch = checkpoint.last(COMMITS)
    offset = None if batch is None else checkpoint.end_offset(batch)
    if not offset or not offset.get("seq"):
        return
    checkpoint.sync(batch or 0)  # the acknowledgement must not outlive what says that it was due
    try:
        with QueueClient(host, port) as client:
            client.ack_claim(queue, consumer, int(offset["seq"]))
    except (ServerError, ServerUnavailable) as error:
        raise translate(error) from error
