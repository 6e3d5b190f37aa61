"""The check before messages come into queues: the queues are there, and have room."""

from collections.abc import Mapping
from functools import partial

from ..engine import NoSuchQueueError
from ..policy import require_room
from .known import Known
from .pushing import held, lock
from .transaction import Transaction


def enter(tx: Transaction, wanted: Mapping[Known, int]) -> None:
    """Checks that queues exist, and have room for so many more messages: nobody removes or fills them until the commit.
    NoSuchQueueError, QueueFullError, psycopg.Error."""
    there = {row[0] for row in lock(tx, wanted).fetchall()}
    for known, more in wanted.items():
        if known.number not in there:
            raise NoSuchQueueError(f"there is no queue {known.qid!r} any more")
        capacity = known.options.capacity
        if capacity is not None:
            require_room(known.qid, capacity, partial(held, tx, known, capacity + 1), more)
