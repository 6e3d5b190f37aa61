"""Moves a message from one queue of the log to another: to a dead-letter queue, or back."""

from ...engine import Origin
from ...index.message_index import SIZE_SHIFT
from ..log import records
from ..log.attributes import Attributes
from .messages import MessageTable


def move_size(reason: str | None, attributes: Attributes | None) -> int:
    """Returns the most bytes of log that a move takes, including those of a target that has to be made. reason,
    attributes: the message's."""
    return (
        records.QUEUE_SIZE
        + records.TRANSFER_SIZE
        + (0 if reason is None else records.STATE_SIZE + len(reason.encode()))
        + (0 if attributes is None else attributes.size)
    )


def move(  # noqa: PLR0917
    source: MessageTable, mid: int, target: MessageTable, new: int, origin: Origin | None, reason: str | None
) -> None:
    """Moves a message to the end of another queue, visible and never received. The payload stays where it is in the
    log: the move is one record, so a crash leaves the message in exactly one queue.

    new: the id in the target, from `free_ids`; origin: for a message that becomes a dead letter, else None; reason:
    kept with the message, None without one. The caller has checked that the transaction has room for `move_size`.
    Cannot fail."""
    store, transaction = source.store, source.transaction
    expiry = source.index.expiry(mid) or 0
    # The payload is not released and counted again: nothing about it changes but whose it is.
    dropped = source.drop(mid, releases=False)
    place, size, attributes = dropped[0], dropped[2] >> SIZE_SHIFT, dropped[-1]
    if attributes is not None:
        attributes = attributes.moved()
    record = records.Transfer(target.number, new, source.number, mid, place, size, origin, attributes)
    transaction.append(record.write())
    owners = store.hand_over(place, source, mid, (target.number, new))
    if attributes is not None:
        target.set_attributes(new, place, attributes)
    target.add(new, place, size, 0)
    target.last_mid = new
    target.counts.pushed += 1
    if origin is not None:
        target.origins[new] = origin
    transaction.changed += (
        (source.put_back, (mid, expiry, dropped)),
        (store.set_owners, (place, owners)),
        (target.unpush, ((new,),)),
    )
    if reason is not None:  # in the frame of the TRANSFER: it came along, or the message did not move
        transaction.append(records.Reason(target.number, new, 0, 0, False, reason).write())
        target.set_reason(new, reason)
    target.arrived()
    if target.lifecycle is not None:
        target.note("pushed", new)
