"""Messages by their ids: looking at them, listing, counting, removing and copying them.

Each function is one transaction, which first ends the windows that are over. Messages that wait for others of their
group are ready ones that no receive gets.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..engine import (
    Draft,
    Message,
    NoSuchMessageError,
    Receipt,
    StaleReceiptError,
    State,
    Stats,
)
from ..policy import too_old_since
from . import limits, order
from .arrays import Int2s, Int8s
from .entering import enter
from .known import CLAIMED, DELAYED, IN_FLIGHT, PARKED, Known, Shared
from .leaving import Leaver, left, take_out
from .pipeline import Row
from .pushing import New, line_up
from .running import run
from .settling import refusal
from .taking import message_of
from .transaction import Transaction

_AT_ONCE = 1000
"""Messages that a purge removes with one statement."""
_FIND = """
SELECT m.queue, m.id, coalesce(l.place, h.place), h.until, coalesce(l.receives, h.receives), coalesce(l.size, h.size),
    coalesce(l.reason, h.reason), m.pushed_at, m.stored_at, m.expires_at, m.grp, m.ukey, m.origin, m.headers,
    CASE WHEN %b::boolean OR h.id IS NULL OR h.state = 3 THEN m.payload END, h.state, q.paused
FROM qs.messages AS m JOIN qs.queues AS q ON q.queue = m.queue
LEFT JOIN qs.line AS l ON l.queue = m.queue AND l.id = m.id
LEFT JOIN qs.hidden AS h ON h.queue = m.queue AND h.id = m.id
WHERE m.queue = %b::int AND m.id = %b::bigint"""
_TAKE_ONE = """
WITH gone AS (DELETE FROM qs.line WHERE queue = %b::int AND id = %b::bigint RETURNING *)
INSERT INTO qs.hidden (queue, id, place, until, receives, size, server, state, held, counted, grp, reason)
SELECT g.queue, g.id, g.place, %b::bigint, g.receives + 1, g.size, %b::int, 1, false, %b::boolean, g.grp, g.reason
FROM gone AS g
RETURNING until, receives, reason, grp"""
_LIST = """
SELECT u.id FROM (
    (SELECT id FROM qs.line WHERE queue = %b::int AND id > %b::bigint AND %b::boolean AND receives <= %b::int
        ORDER BY id LIMIT %b::int)
    UNION ALL
    (SELECT id FROM qs.hidden WHERE queue = %b::int AND id > %b::bigint AND state = ANY (%b::smallint[])
        AND receives <= %b::int ORDER BY id LIMIT %b::int)) AS u
ORDER BY u.id LIMIT %b::int"""
_STATS = """
SELECT 0::smallint, count(*), count(*) FILTER (WHERE receives = 0), sum(size) FROM qs.line WHERE queue = %b::int
UNION ALL
SELECT state, count(*), count(*) FILTER (WHERE receives = 0), sum(size) FROM qs.hidden WHERE queue = %b::int
GROUP BY state
UNION ALL
(SELECT -1, 0, stored_at, 0 FROM qs.messages WHERE queue = %b::int ORDER BY id LIMIT 1)"""
_FIRST = -1
"""In the place of a state: the time of the oldest message."""
_OLDEST = """
SELECT id FROM qs.messages WHERE queue = %b::int AND id > %b::bigint AND id <= %b::bigint ORDER BY id LIMIT %b::int"""
REMOVE = "DELETE FROM qs.messages WHERE queue = %b::int AND id = ANY (%b::bigint[]) RETURNING id, ukey"
_LAST = "SELECT last_value FROM qs.mids WHERE is_called"
_HAS = "SELECT FROM qs.messages WHERE queue = %b::int AND id = %b::bigint"
_COPY = """
INSERT INTO qs.messages (queue, id, pushed_at, stored_at, expires_at, priority, grp, headers, payload)
SELECT %b::int, m.id, m.stored_at, m.stored_at, m.expires_at, m.priority, m.grp, m.headers, m.payload
FROM qs.messages AS m WHERE m.queue = %b::int AND m.id = %b::bigint
ON CONFLICT (queue, id) DO NOTHING
RETURNING priority, grp, length(payload) + coalesce(length(headers), 0)"""
_ANY = (1 << 31) - 1
_LISTED: dict[State, tuple[bool, Sequence[int], int]] = {
    State.NEW: (True, (DELAYED, PARKED), 0),
    State.READY: (True, (PARKED,), _ANY),
    State.IN_FLIGHT: (False, (IN_FLIGHT, CLAIMED), _ANY),
    State.DELAYED: (False, (DELAYED,), _ANY),
    State.ALL: (True, (IN_FLIGHT, DELAYED, PARKED, CLAIMED), _ANY),
}
"""For each state: whether its messages are in the line, their states in `hidden`, and the most receives they have."""


def get(shared: Shared, known: Known, mid: int, *, peek: bool, visibility: int | None) -> Message:
    """Implements `Queue.get`. NoSuchMessageError, UnavailableError, NotKnownError."""
    return run(shared, lambda tx: _get(tx, known, mid, peek, visibility))


def read(shared: Shared, known: Known, receipt: Receipt) -> Message:
    """Implements `Queue.read`. NoSuchMessageError, StaleReceiptError, UnavailableError."""
    return run(shared, lambda tx: _read(tx, known, receipt))


def list_mids(shared: Shared, known: Known, state: State, count: int, after: int) -> list[int]:
    """Implements `Queue.list_mids`. UnavailableError."""
    in_line, states, most = _LISTED[state]
    line, hidden = [known.number, after, in_line, most, count], [known.number, after, Int2s(states), most, count]

    def step(tx: Transaction) -> list[Row]:
        shared.end_due(tx)
        return tx.rows(_LIST, [*line, *hidden, count])

    return [row[0] for row in run(shared, step)]


def stats(shared: Shared, known: Known) -> Stats:
    """Implements `Queue.stats`. Reads the whole line, and all that is hidden. UnavailableError."""

    def step(tx: Transaction) -> tuple[list[Row], str]:
        shared.end_due(tx)
        found = tx.rows(_STATS, [known.number] * 3)
        is_visible = any(count for state, count, _, _ in found if state in (0, PARKED))
        return found, limits.limited(tx, known) if is_visible else ""

    found, limited = run(shared, step)
    by_state = {state: (count, new, size or 0) for state, count, new, size in found}
    _, stored_at, _ = by_state.pop(_FIRST, (0, None, 0))
    count = {state: each[0] for state, each in by_state.items()}
    return replace(
        known.counts,
        new=sum([by_state[state][1] for state in (0, DELAYED, PARKED) if state in by_state]),
        ready=count.get(0, 0) + count.get(PARKED, 0),
        in_flight=count.get(IN_FLIGHT, 0) + count.get(CLAIMED, 0),
        delayed=count.get(DELAYED, 0),
        bytes=sum([each[2] for each in by_state.values()]),
        oldest=None if stored_at is None else max(shared.now() - stored_at, 0),
        storage=known.options.storage,
        limited=limited,
    )


def last_mid(shared: Shared, known: Known) -> int:
    """Returns an id that no message of the queue exceeds yet, -1 before there is any message: ids are given for all
    queues together. UnavailableError."""
    found = run(shared, lambda tx: tx.rows(_LAST))
    return int(found[0][0]) if found else -1


def purge(shared: Shared, known: Known, upto: int, count: int) -> int:
    """Implements `Queue.purge`: also messages in claims are removed. UnavailableError, NotKnownError."""
    return run(shared, lambda tx: _purge(tx, known, upto, count))


def copy(shared: Shared, source: Known, mid: int, into: Sequence[Known]) -> None:
    """Implements `Engine.copy`. Ids are those of one sequence: no queue has another message of that id.
    NoSuchMessageError, NoSuchQueueError, QueueFullError, UnavailableError, NotKnownError."""
    run(shared, lambda tx: _copy(tx, mid, source, into))


def _find(tx: Transaction, known: Known, mid: int, *, payload: bool) -> Row:
    """Returns a message as `message_of` takes it, its state, None in the line, and whether the queue is paused.
    payload: whether also that of a message which is not visible. NoSuchMessageError."""
    found = tx.rows(_FIND, [payload, known.number, mid])
    if not found:
        raise NoSuchMessageError(f"queue {known.qid!r} holds no message {mid}")
    return found[0]


def _get(tx: Transaction, known: Known, mid: int, peek: bool, visibility: int | None) -> Message:
    tx.shared.end_due(tx)
    while True:
        *row, state, paused = _find(tx, known, mid, payload=False)
        message = message_of(known, tuple(row))
        if state not in (None, PARKED):
            message.status = "delayed" if state == DELAYED else "in-flight"
            message.visible_at = None if state == CLAIMED else message.visible_at
            message.headers = ()
            return message
        since = too_old_since(known.options, tx.now)
        if (row[9] is not None and row[9] <= tx.now) or (since is not None and row[8] <= since):
            raise NoSuchMessageError(f"queue {known.qid!r} holds no message {mid}: it is too old")
        message.status, message.visible_at = "ready", None
        if peek:
            return message
        paced = limits.is_limited(known)
        if paused or known.options.paused or state == PARKED or (paced and not limits.allowance(tx, known, 1)):
            message.payload, message.headers = None, ()  # nothing is given out, and still shown
            return message
        window = known.options.visibility if visibility is None else visibility
        counted = known.options.max_in_flight is not None
        taken = tx.rows(_TAKE_ONE, [known.number, mid, tx.now + window, tx.shared.server, counted])
        if not taken:
            continue  # another receive was faster
        if paced:
            limits.given(tx, known, 1)
        message.status = "delivered"
        message.visible_at, message.receives, message.reason, group = taken[0]
        order.touch_taken(tx, known, group)
        tx.due(tx.now + window)
        tx.count(known, "delivered")
        if message.receives > 1:
            tx.count(known, "redelivered")
        return message


def _read(tx: Transaction, known: Known, receipt: Receipt) -> Message:
    tx.shared.end_due(tx)
    *row, state, _ = _find(tx, known, receipt.mid, payload=True)
    message = message_of(known, tuple(row))
    if state == CLAIMED:
        raise refusal(known, receipt, True, state)
    if receipt.receives is not None and receipt.receives != message.receives:
        raise StaleReceiptError(
            f"message {receipt.mid} of queue {known.qid!r} has been received {message.receives} times by now, not "
            f"{receipt.receives}"
        )
    if state == PARKED:
        message.visible_at = None
    return message


def _purge(tx: Transaction, known: Known, upto: int, count: int) -> int:
    removed, after = 0, -1
    leavers: list[Leaver] = []
    while removed < count:
        # Not all may be there to be removed: others delete some meanwhile.
        asked = [known.number, after, upto, min(count - removed, _AT_ONCE)]
        mids = [row[0] for row in tx.rows(_OLDEST, asked)]
        if not mids:
            break
        after = mids[-1]
        groups = {taken.mid: taken.grp for taken in take_out(tx, known, mids, claimed=True)}
        gone = tx.rows(REMOVE, [known.number, Int8s(groups)])
        leavers += [Leaver(known, mid, groups[mid], ukey) for mid, ukey in gone]
        removed += len(gone)
    left(tx, leavers)
    tx.count(known, "deleted", removed)
    return removed


def _copy(tx: Transaction, mid: int, source: Known, into: Sequence[Known]) -> None:
    if not tx.rows(_HAS, [source.number, mid]):
        raise NoSuchMessageError(f"queue {source.qid!r} holds no message {mid}")
    lacking = [known for known in dict.fromkeys(into) if not tx.rows(_HAS, [known.number, mid])]
    enter(tx, dict.fromkeys(lacking, 1))
    for known in sorted(lacking, key=lambda each: each.number):
        for priority, group, size in tx.rows(_COPY, [known.number, source.number, mid]):
            line_up(tx, [New(known, mid, Draft(b"", priority=priority, group=group or ""), b"", size)])
            tx.count(known, "pushed")
