"""Moves a message from one queue of the log to another: to a dead-letter queue, or back."""

from ...engine import Origin
from ..log import records
from .messages import MessageTable


def move_size(reason: str | None) -> int:
    """Returns the bytes of log that a move takes at most, if the target has to be made too. reason: the message's."""
    return (
        records.QUEUE_SIZE
        + records.TRANSFER_SIZE
        + (0 if reason is None else records.STATE_SIZE + len(reason.encode()))
    )


def move(  # noqa: PLR0917
    source: MessageTable, mid: int, target: MessageTable, origin: Origin | None, reason: str | None, now: int
) -> int:
    """Moves a message to the end of another queue, visible and never received, and returns its new id. The payload
    stays where it is in the log: the move is one record, so a crash leaves the message in exactly one queue.

    origin: set if it becomes a dead letter; reason: kept with the message, None for none. The caller has checked that
    the transaction has room for `move_size`. QueueFullError if the target has no id left."""
    new = target.free_ids(1, now)[0]
    store, transaction = source.store, source.transaction
    place, size = source.places.get(mid) or 0, source.index.size(mid)
    body = records.Transfer(target.number, new, source.number, mid, place, size, origin).write()
    transaction.append(body)

    expiry = source.index.expiry(mid) or 0
    cached = store.cache.get(place)
    dropped = source.drop(mid)
    transaction.undo(source.put_back, mid, expiry, dropped)

    owners = store.owners_at(place)  # set if copies of the message are left
    transaction.undo(store.set_owners, place, owners)
    store.set_owners(place, (*(owners or ((source.number, mid),)), (target.number, new)))

    transaction.undo(target.unpush, (new,))
    target.add(new, place, size, 0)
    store.keep(target, new, place, size)
    if cached is not None:  # a payload of this batch is in no segment yet
        store.cache.put((place,), (cached,), size)
    target.last_mid = new
    target.counts.pushed += 1
    if origin is not None:
        target.origins[new] = origin
    if reason is not None:  # in the frame of the TRANSFER: it came along, or the message did not move
        transaction.append(records.Reason(target.number, new, 0, 0, False, reason).write())
        target.set_reason(new, reason)
    target.arrived()
    target.note("pushed", new)
    return new
