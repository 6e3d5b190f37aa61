"""Moves messages to dead-letter queues, and back."""

from .known import Known, Shared
from .leaving import Hidden
from .transaction import Transaction


def bury(tx: Transaction, known: Known, row: Hidden, reason: str) -> None:
    """Moves a hidden message to the dead-letter queue of its queue, which is made if it is missing. row: with the reason
    that goes with the message; reason: `receives` or `rejected`. StorageError if that queue cannot take it: then
    nothing has changed. psycopg.Error."""
    raise NotImplementedError


class PostgresRedrive:
    """See Redrive."""

    def __init__(self, shared: Shared, known: Known) -> None:
        self._shared = shared
        self._known = known
