"""Refuses pushes to a queue that holds as many messages as its capacity allows."""

from collections.abc import Callable

from .engine import QueueFullError


def require_room(
    qid: str,
    capacity: int | None,
    held: Callable[[], int],
    more: int,
    refresh: Callable[[], object] = lambda: None,
) -> None:
    """Raises QueueFullError unless `more` messages fit. held: the known count; refresh: looks for more room."""
    if capacity is None or held() + more <= capacity:
        return
    refresh()
    if (now := held()) + more > capacity:
        raise QueueFullError(f"queue {qid!r} holds {now} messages; its capacity is {capacity}")
