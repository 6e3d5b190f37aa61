"""Removes queues: the queue at once, and what it held in slices. What a server has begun, and cannot finish, any server
finishes."""

from ..engine import SECOND, QueueNotEmptyError
from .arrays import Int4s
from .known import Known
from .pushing import LOCK, held
from .transaction import Transaction

GIVEN_UP = 60 * SECOND
"""A removal that takes so long is taken up by others. They do not harm each other."""
_REMOVE = "DELETE FROM qs.queues WHERE queue = %b::int RETURNING queue"
_BEGIN = "INSERT INTO qs.removals (queue, since) VALUES (%b::int, %b::bigint)"
_OLD = "SELECT queue FROM qs.removals WHERE since < %b::bigint"
_EMPTY = """
WITH gone AS (SELECT ctid FROM qs.messages WHERE queue = %b::int LIMIT 5000)
DELETE FROM qs.messages WHERE ctid = ANY (ARRAY(SELECT ctid FROM gone)) RETURNING 1"""
_EMPTY_REST = (
    "DELETE FROM qs.line WHERE queue = %b::int",
    "DELETE FROM qs.hidden WHERE queue = %b::int",
    "DELETE FROM qs.keys WHERE queue = %b::int",
    "DELETE FROM qs.paces WHERE queue = %b::int",
    "DELETE FROM qs.claims WHERE queue = %b::int",
    "DELETE FROM qs.consumers WHERE queue = %b::int",
    "DELETE FROM qs.staged WHERE queue = %b::int",
    "DELETE FROM qs.producers WHERE queue = %b::int",
    """
DELETE FROM qs.removals AS r WHERE r.queue = %b::int
    AND NOT EXISTS (SELECT FROM qs.messages AS m WHERE m.queue = r.queue)""",
)


def remove(tx: Transaction, known: Known, *, force: bool) -> bool:
    """Removes a queue, so that nobody can use it from the commit on. `empty` removes what it held. Returns False if
    somebody was faster. QueueNotEmptyError without force; psycopg.Error."""
    tx.ask(LOCK, [Int4s([known.number])])
    if not force and (number := held(tx, known, 1 << 31)):
        raise QueueNotEmptyError(f"queue {known.qid!r} holds {number} messages")
    if not tx.rows(_REMOVE, [known.number]):
        return False
    tx.ask(_BEGIN, [known.number, tx.now])
    return True


def given_up(tx: Transaction) -> list[int]:
    """Returns the numbers of removed queues that may hold something still, whose servers seem to have given up.
    psycopg.Error."""
    return [row[0] for row in tx.rows(_OLD, [tx.now - GIVEN_UP])]


def empty(tx: Transaction, number: int) -> bool:
    """Removes some of what a removed queue held. Returns True if there may be more. psycopg.Error."""
    if tx.rows(_EMPTY, [number]):
        return True
    for statement in _EMPTY_REST:
        tx.ask(statement, [number])
    return False
