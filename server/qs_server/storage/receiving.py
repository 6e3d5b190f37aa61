"""Receives from several queues by the messages' age."""

from collections.abc import Sequence
from operator import itemgetter

from .engine import Message, StorageError
from .queues import EngineQueue


def take_oldest(
    queues: Sequence[EngineQueue],
    found: list[Message],
    count: int,
    visibility: int | None,
    max_bytes: int,
    *,
    held: bool,
) -> None:
    """See Engine.receive. OSError, StorageError: earlier messages are in `found`."""
    room: int | None = None  # the first message is handed out whatever its size
    while len(found) < count:
        first = _oldest(queues)
        if first is None:
            return
        mid, queue = first
        try:
            message = queue.take(mid, visibility, room, held=held)
        except (OSError, StorageError):
            queue.arrived()  # it is there still, for whoever comes next
            raise
        if message is not None:
            found.append(message)
            room = (max_bytes if room is None else room) - len(message.payload or b"")
        elif room is not None and queue.first_ready() == mid:
            return  # too large for what room there is left


def _oldest(queues: Sequence[EngineQueue]) -> tuple[int, EngineQueue] | None:
    if len(queues) == 1:
        mid = queues[0].first_ready()
        return None if mid is None else (mid, queues[0])
    found = ((q.time(mid), mid, q) for q in queues if (mid := q.first_ready()) is not None)
    first = min(found, key=itemgetter(0), default=None)
    return None if first is None else first[1:]
