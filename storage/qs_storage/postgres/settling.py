"""The ends of windows: messages that are deleted, released, extended, rejected, or whose time is over."""

from collections.abc import Sequence

from ..engine import (
    SECOND,
    NoSuchMessageError,
    NoSuchQueueError,
    Receipt,
    StaleReceiptError,
    StorageError,
    not_in_flight,
)
from ..policy import backoff_of, is_exhausted, too_old_since
from ..remote_engine import Delete, Extend, Reject, Release
from . import order
from .arrays import Bools, Int2s, Int4s, Int8s, Texts, columns
from .known import CLAIMED, DELAYED, FOREVER, IN_FLIGHT, PARKED, Known
from .leaving import Hidden, Leaver, drop, left
from .letters import bury
from .line import LINE_UP, LINED_AS
from .transaction import Transaction

Settle = Release | Reject | Extend
_MOST_RECEIVES = (1 << 31) - 1
"""No message has so many, and a receipt may say more."""
_DELETE = """
WITH u AS MATERIALIZED (
    SELECT * FROM unnest(%b::int[], %b::bigint[], %b::int[]) WITH ORDINALITY AS u (queue, id, receives, number)),
h AS (
    DELETE FROM qs.hidden AS h USING u
    WHERE h.queue = u.queue AND h.id = u.id AND h.state <> 4
        AND (u.receives < 0 OR h.receives = u.receives)
    RETURNING u.number, h.queue, h.id, h.grp),
m AS (
    DELETE FROM qs.messages AS m USING h WHERE m.queue = h.queue AND m.id = h.id RETURNING h.number, h.grp, m.ukey)
SELECT number, grp, ukey FROM m"""
_DELETE_VISIBLE = """
WITH u AS MATERIALIZED (
    SELECT * FROM unnest(%b::int[], %b::bigint[], %b::int[]) WITH ORDINALITY AS u (queue, id, receives, number)),
l AS (
    DELETE FROM qs.line AS l USING u
    WHERE l.queue = u.queue AND l.id = u.id AND (u.receives < 0 OR l.receives = u.receives)
    RETURNING u.number, l.queue, l.id, l.grp),
m AS (
    DELETE FROM qs.messages AS m USING l WHERE m.queue = l.queue AND m.id = l.id RETURNING l.number, l.grp, m.ukey)
SELECT number, grp, ukey FROM m"""
_WHERE = """
SELECT u.number, h.state FROM unnest(%b::int[], %b::bigint[]) WITH ORDINALITY AS u (queue, id, number)
JOIN qs.messages AS m ON m.queue = u.queue AND m.id = u.id
LEFT JOIN qs.hidden AS h ON h.queue = u.queue AND h.id = u.id"""
# OFFSET 0: see `claims.py`.
_LOOK = """
SELECT u.number, h.queue, h.id, h.place, h.until, h.receives, h.size, h.server, h.state, h.held, h.grp, h.reason,
    m.ukey, m.pushed_at, m.stored_at, m.expires_at
FROM unnest(%b::int[], %b::bigint[]) WITH ORDINALITY AS u (queue, id, number)
JOIN qs.hidden AS h ON h.queue = u.queue AND h.id = u.id
CROSS JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = u.queue AND m.id = u.id OFFSET 0) AS m
FOR UPDATE OF h"""
_LOOK_VISIBLE = """
SELECT u.number, l.queue, l.id, l.place, 0::bigint, l.receives, l.size, NULL::int, 0::smallint, false, l.grp, l.reason,
    m.ukey, m.pushed_at, m.stored_at, m.expires_at
FROM unnest(%b::int[], %b::bigint[]) WITH ORDINALITY AS u (queue, id, number)
JOIN qs.line AS l ON l.queue = u.queue AND l.id = u.id
CROSS JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = u.queue AND m.id = u.id OFFSET 0) AS m
FOR UPDATE OF l"""
_DUE = """
SELECT h.queue, h.id, h.place, h.until, h.receives, h.size, h.server, h.state, h.held, h.grp, h.reason, m.ukey,
    m.pushed_at, m.stored_at, m.expires_at
FROM (
    SELECT * FROM qs.hidden WHERE until >= %b::bigint AND until <= %b::bigint ORDER BY until LIMIT %b::int
    FOR UPDATE SKIP LOCKED) AS h
LEFT JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = h.queue AND m.id = h.id OFFSET 0) AS m ON true"""
_DISCARD = """
DELETE FROM qs.hidden AS h USING unnest(%b::int[], %b::bigint[]) AS u (queue, id)
WHERE h.queue = u.queue AND h.id = u.id AND (
    (SELECT count(*) FROM qs.messages AS m WHERE m.queue = u.queue AND m.id = u.id) = 0
    OR (SELECT count(*) FROM qs.queues AS q WHERE q.queue = u.queue) = 0)
RETURNING h.queue, h.grp"""
"""Rows that stand for no message: those of a queue that was removed, or whose removal was broken off."""
_NEXT = "SELECT until FROM qs.hidden WHERE until > %b::bigint AND until < %b::bigint ORDER BY until LIMIT 1"
_SHOW = """
DELETE FROM qs.hidden AS h USING unnest(%b::int[], %b::bigint[]) AS u (queue, id)
WHERE h.queue = u.queue AND h.id = u.id"""
_CHANGE = """
UPDATE qs.hidden AS h SET until = u.until, receives = u.receives, state = u.state, held = u.held, reason = u.reason,
    counted = h.counted AND u.state IN (1, 4)
FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::int[], %b::smallint[], %b::boolean[], %b::text[])
    AS u (queue, id, until, receives, state, held, reason)
WHERE h.queue = u.queue AND h.id = u.id"""
_CHANGED_AS = (Int4s, Int8s, Int8s, Int4s, Int2s, Bools, Texts)


class Settlement:
    """Gathers what becomes of hidden messages, and does it with one statement of each kind. For one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._shown: list[tuple[Hidden, int, str | None]] = []
        self._changed: list[tuple[object, ...]] = []
        self._dropped: list[Leaver] = []

    def show(self, row: Hidden, receives: int, reason: str | None) -> None:
        """Puts a message back into the line, or among those that wait for others of its group."""
        if row.grp is None:
            self._shown.append((row, receives, reason))
        else:
            self._changed.append((row.queue, row.mid, FOREVER, receives, PARKED, False, reason))
            order.touch(self._tx, self._tx.shared.numbers[row.queue], row.grp)

    def hide(self, row: Hidden, until: int, receives: int, state: int, reason: str | None) -> None:
        """Keeps a message hidden until another time."""
        held = row.held and state == IN_FLIGHT
        self._changed.append((row.queue, row.mid, until, receives, state, held, reason))
        self._tx.due(until)
        if state != row.state:
            known = self._tx.shared.numbers[row.queue]
            order.touch_left(self._tx, known, row.grp)
            if known.options.max_in_flight is not None:
                self._tx.wake(known)

    def drop(self, row: Hidden) -> None:
        """Removes a message."""
        self._dropped.append(Leaver(self._tx.shared.numbers[row.queue], row.mid, row.grp, row.ukey))

    def return_(
        self, row: Hidden, delay: int | None, reason: str | None, *, counts: bool = True, ended_at: int | None = None
    ) -> int | None:
        """Decides what becomes of a message that was released, or whose time is over. Returns the time from which it is
        visible, None for now or never. delay: None for the queue's back-off; ended_at: when the time was over, from
        which a back-off counts, None for now."""
        known, now = self._tx.shared.numbers[row.queue], self._tx.now
        reason = row.reason if reason is None else reason
        receives = row.receives if counts or row.state != IN_FLIGHT else max(row.receives - 1, 0)
        since = too_old_since(known.options, now)
        if is_exhausted(known.options, receives):
            body = row._replace(reason=reason, receives=receives)
            if known.moves.attempt(lambda: bury(self._tx, known, body, "receives")):
                return None
        if (row.expires_at is not None and row.expires_at <= now) or (since is not None and row.stored_at <= since):
            self.drop(row)
            return None
        if delay is None:
            delay = backoff_of(known.options, row.mid, receives) if row.state == IN_FLIGHT and counts else 0
        until = delay + (now if ended_at is None else ended_at)
        if delay <= 0 or until <= now:
            self.show(row, receives, reason)
            return None
        self.hide(row, until, receives, DELAYED, reason)
        return until

    def write(self) -> None:
        """Does what was gathered. psycopg.Error."""
        tx, numbers = self._tx, self._tx.shared.numbers
        if self._shown:
            tx.ask(_SHOW, columns([(row.queue, row.mid) for row, _, _ in self._shown], (Int4s, Int8s)))
            lined = [
                (row.queue, row.place, row.mid, receives, row.size, row.grp, reason)
                for row, receives, reason in self._shown
            ]
            tx.ask(LINE_UP, columns(lined, LINED_AS))
            for row, _, _ in self._shown:
                self._tx.arrive(numbers[row.queue], row.place)
        if self._changed:
            tx.ask(_CHANGE, columns(self._changed, _CHANGED_AS))
        if self._dropped:
            drop(tx, self._dropped, idle=False)


# -- deleting


def delete(tx: Transaction, deletes: Sequence[Delete]) -> None:
    """Removes messages. psycopg.Error."""
    wanted: list[tuple[Known, Receipt]] = []
    operations: list[tuple[Delete, int]] = []
    for operation in deletes:
        known = tx.shared.queues.get(operation.qid)
        if known is None:
            tx.results.append((operation, NoSuchQueueError(f"there is no queue {operation.qid!r}")))
            continue
        operations.append((operation, len(wanted)))
        wanted += [(known, receipt) for receipt in operation.receipts]
    if not wanted:
        tx.results += [(operation, []) for operation, _ in operations]
        return
    table = [
        (known.number, mid, -1 if receives is None else min(receives, _MOST_RECEIVES))
        for known, (mid, receives) in wanted
    ]
    gone = {row[0] - 1: row for row in tx.rows(_DELETE, columns(table, (Int4s, Int8s, Int4s)))}
    errors: dict[int, StorageError] = {}
    if len(gone) < len(wanted):
        visible = [at for at in range(len(table)) if at not in gone]
        found = tx.rows(_DELETE_VISIBLE, columns([table[at] for at in visible], (Int4s, Int8s, Int4s)))
        gone |= {visible[row[0] - 1]: row for row in found}
        errors = _refusals(tx, wanted, [at for at in range(len(wanted)) if at not in gone])
    leavers = [
        Leaver(wanted[at][0], wanted[at][1].mid, row[1], row[2])
        for at, row in gone.items()
        if row[1] is not None or row[2] is not None or wanted[at][0].options.max_in_flight is not None
    ]
    if leavers:
        left(tx, leavers)
    for at in gone:
        tx.count(wanted[at][0], "deleted")
    for operation, first in operations:
        tx.results.append((operation, [errors.get(first + at) for at in range(len(operation.receipts))]))


def _refusals(
    tx: Transaction, wanted: Sequence[tuple[Known, Receipt]], which: Sequence[int]
) -> dict[int, StorageError]:
    """Returns why messages were not deleted."""
    if not which:
        return {}
    asked = columns([(wanted[at][0].number, wanted[at][1].mid) for at in which], (Int4s, Int8s))
    states = {which[number - 1]: state for number, state in tx.rows(_WHERE, asked)}
    return {at: refusal(wanted[at][0], wanted[at][1], at in states, states.get(at)) for at in which}


def refusal(known: Known, receipt: Receipt, exists: bool, state: int | None) -> StorageError:
    """Returns why a message is not what its receipt says. state: of the hidden message, None for a visible one."""
    if not exists:
        return NoSuchMessageError(f"there is no message {receipt.mid} in queue {known.qid!r}")
    if state == CLAIMED:
        return StaleReceiptError(f"message {receipt.mid} of queue {known.qid!r} is in a claim")
    if state == IN_FLIGHT:
        return StaleReceiptError(f"message {receipt.mid} of queue {known.qid!r} was received again since")
    return not_in_flight(known.qid, receipt.mid)


# -- releasing, extending, rejecting


def settle(tx: Transaction, operations: Sequence[Settle]) -> None:
    """Releases, extends and rejects. psycopg.Error."""
    wanted: list[tuple[Settle, Known]] = []
    for operation in operations:
        known = tx.shared.queues.get(operation.qid)
        if known is None:
            tx.results.append((operation, NoSuchQueueError(f"there is no queue {operation.qid!r}")))
        else:
            wanted.append((operation, known))
    if not wanted:
        return
    settlement = Settlement(tx)
    asked = columns([(known.number, operation.receipt.mid) for operation, known in wanted], (Int4s, Int8s))
    found = {row[0] - 1: Hidden(*row[1:]) for row in tx.rows(_LOOK, asked)}
    rejected = [at for at, (each, _) in enumerate(wanted) if at not in found and isinstance(each, Reject)]
    if rejected:  # also what is visible can be rejected
        asked = columns([(wanted[at][1].number, wanted[at][0].receipt.mid) for at in rejected], (Int4s, Int8s))
        found |= {rejected[row[0] - 1]: Hidden(*row[1:]) for row in tx.rows(_LOOK_VISIBLE, asked)}
    done: set[tuple[int, int]] = set()
    for at, (operation, known) in enumerate(wanted):
        row = found.get(at)
        try:
            if row is None or (row.queue, row.mid) in done:
                raise _missing(tx, known, operation.receipt)
            result = _settle_one(tx, settlement, known, operation, row)
            done.add((row.queue, row.mid))
        except StorageError as error:
            tx.results.append((operation, error))
        else:
            tx.results.append((operation, result))
    settlement.write()


def _missing(tx: Transaction, known: Known, receipt: Receipt) -> StorageError:
    """Returns the error for a message that is not hidden. One that another request of the sweep has just settled is
    taken for visible."""
    exists = bool(tx.rows(_WHERE, columns([(known.number, receipt.mid)], (Int4s, Int8s))))
    return refusal(known, receipt, exists, None)


def _settle_one(
    tx: Transaction,
    settlement: Settlement,
    known: Known,
    operation: Settle,
    row: Hidden,
) -> int | None:
    receives = operation.receipt.receives
    is_ours = row.state == IN_FLIGHT and receives in (None, row.receives)
    if row.state in (IN_FLIGHT, DELAYED) and row.until <= tx.now and not isinstance(operation, Reject):
        raise not_in_flight(known.qid, row.mid)  # its time is over: it is visible, or will be in a moment
    if isinstance(operation, Release):
        if not is_ours and not (row.state == DELAYED and receives is None):
            raise refusal(known, operation.receipt, True, row.state)
        visible_at = settlement.return_(row, operation.delay, operation.reason, counts=operation.counts)
        if row.state == IN_FLIGHT:
            tx.count(known, "released")
        return visible_at
    if isinstance(operation, Extend):
        if not is_ours:
            raise refusal(known, operation.receipt, True, row.state)
        window = known.options.visibility if operation.visibility is None else operation.visibility
        until = tx.now + window
        if window > 0:
            settlement.hide(row, until, row.receives, IN_FLIGHT, row.reason)
        else:  # ended here: who receives next must not meet the upkeep at it
            tx.count(known, "expired")
            settlement.return_(row, None, None)
        return until
    if row.state == CLAIMED or receives not in {None, row.receives}:
        raise refusal(known, operation.receipt, True, row.state)
    body = row if operation.reason is None else row._replace(reason=operation.reason)
    known.moves.reject(row.mid, lambda: bury(tx, known, body, "rejected"))
    return None


# -- what is due


def end_due(tx: Transaction, since: int, count: int) -> tuple[int, int | None]:
    """Ends windows and delays that are over, at most count. since: the earliest end that is looked for. Returns their
    number, and the next end, None if more is due now and this has ended some. psycopg.Error."""
    now = tx.now
    rows = tx.rows(_DUE, [since, now, count])
    settlement = Settlement(tx)
    strays: list[Hidden] = []
    for row in map(Hidden._make, rows):
        known = tx.shared.numbers.get(row.queue)
        if known is None or row.stored_at is None:  # without a row of `messages`
            strays.append(row)
            continue
        if row.state == IN_FLIGHT:
            tx.count(known, "expired")
        settlement.return_(row, None, None, ended_at=row.until)
    settlement.write()
    ended = len(rows) - len(strays) + (_discard(tx, strays) if strays else 0)
    if len(rows) >= count:
        # Those of a queue that this server does not know yet are left, and looked at again when it may know it.
        return ended, None if ended else now + SECOND
    following = tx.rows(_NEXT, [now, 1 << 62])
    return ended, following[0][0] if following else 1 << 62


def _discard(tx: Transaction, strays: Sequence[Hidden]) -> int:
    """Removes rows of `hidden` that stand for no message: else they would be the first ones that are due for ever.
    Returns how many. psycopg.Error."""
    gone = tx.rows(_DISCARD, columns([(row.queue, row.mid) for row in strays], (Int4s, Int8s)))
    for number, group in gone:
        known = tx.shared.numbers.get(number)
        if known is not None:
            order.touch_left(tx, known, group)
            if known.options.max_in_flight is not None:
                tx.wake(known)
    return len(gone)
