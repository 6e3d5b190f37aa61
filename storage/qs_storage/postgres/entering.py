"""The check before messages come into queues: the queues are there, and have room."""

from collections.abc import Mapping
from functools import partial

from ..engine import NoSuchQueueError
from ..policy import require_room
from .arrays import Int4s
from .known import Known
from .pushing import LOCK, LOCK_SHARED, THERE, held
from .transaction import Transaction


def enter(tx: Transaction, wanted: Mapping[Known, int]) -> None:
    """Checks that queues exist, and have room for so many more messages: nobody removes or fills them until the commit.
    NoSuchQueueError, QueueFullError, psycopg.Error."""
    numbers = sorted(known.number for known in wanted)
    limited = sorted(known.number for known in wanted if known.options.capacity is not None)
    if limited:
        tx.ask(LOCK, [Int4s(limited)])
    tx.ask(LOCK_SHARED, [Int4s(number for number in numbers if number not in limited)])
    there = {row[0] for row in tx.rows(THERE, [Int4s(numbers)])}
    for known, more in wanted.items():
        if known.number not in there:
            raise NoSuchQueueError(f"there is no queue {known.qid!r} any more")
        capacity = known.options.capacity
        if capacity is not None:
            require_room(known.qid, capacity, partial(held, tx, known, capacity + 1), more)
