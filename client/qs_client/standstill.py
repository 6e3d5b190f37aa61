"""Says why a queue gives nothing out: one answer for `qs stats` and for the page."""

from qs_schemas import QueueInfo


def why_nothing(queue: QueueInfo) -> str:
    """Returns the reason for which no message of a queue can be had now, in words: `paused`, `limited by` an option,
    `delayed`, `in flight` or `empty`. Returns an empty text if a message can be had, or the storage does not know."""
    if queue.paused:
        return "paused"
    if queue.limited is not None:
        return f"limited by {queue.limited}"
    if queue.ready is None or queue.ready:
        return ""
    if queue.delayed:
        return "delayed"
    return "in flight" if queue.in_flight else "empty"
