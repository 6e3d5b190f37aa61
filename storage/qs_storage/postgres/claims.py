"""Claims on the messages of one queue of the database: a claim hides its messages until its consumer acknowledges or
releases it."""

from collections.abc import Sequence
from typing import NamedTuple

from ..engine import (
    Claim,
    ClaimOrderError,
    Message,
    NoSuchClaimError,
    NoSuchQueueError,
    StaleReceiptError,
    checksum_of,
)
from ..names import check_name, quoted
from ..policy import is_exhausted, too_old_since
from . import limits, order
from .arrays import Bools, Int4s, Int8s, Texts, columns
from .known import FOREVER, IN_FLIGHT, Known, Shared
from .leaving import Hidden, Leaver, left
from .pipeline import Row
from .pushing import LOCK_SHARED
from .running import run
from .settling import Settlement
from .taking import message_of
from .transaction import Transaction

_PAGE = 1000
"""Messages that a claim reads at a time."""
_FOLLOWERS = 100
"""Messages of one group that are read with its first, at least: more if there are few groups."""
_LOCK = "SELECT pg_advisory_xact_lock(2, hashtext(%b::text) # %b::int)"
"""The lock of a consumer: two servers must not make one claim twice."""
_STATE = """
SELECT q.paused,
    coalesce((SELECT acknowledged FROM qs.consumers WHERE queue = q.queue AND consumer = c.name), 0),
    ARRAY(SELECT seq FROM qs.claims WHERE queue = q.queue AND consumer = c.name ORDER BY seq)
FROM qs.queues AS q, (SELECT %b::text AS name) AS c WHERE q.queue = %b::int"""
# OFFSET 0: else PostgreSQL may read all messages of the queue for each row, if it takes the tables for small.
_NEXT = """
SELECT l.id, l.size, l.receives, l.grp FROM qs.line AS l
CROSS JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = l.queue AND m.id = l.id OFFSET 0) AS m
WHERE l.queue = %b::int AND l.id > %b::bigint AND l.id <= %b::bigint
    AND m.stored_at > %b::bigint AND (m.expires_at IS NULL OR m.expires_at > %b::bigint)
ORDER BY l.id LIMIT %b::int FOR UPDATE OF l SKIP LOCKED"""
_OUT = """
SELECT u.grp FROM unnest(%b::int[], %b::text[]) AS u (queue, grp)
WHERE EXISTS (SELECT FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state IN (1, 4))"""
_WAITING = """
SELECT h.id, h.size, h.receives, h.grp FROM unnest(%b::text[], %b::boolean[]) AS g (grp, strict)
CROSS JOIN LATERAL (
    SELECT h.id, h.size, h.receives, h.grp FROM qs.hidden AS h
    CROSS JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = h.queue AND m.id = h.id OFFSET 0) AS m
    WHERE h.queue = %b::int AND h.grp = g.grp AND h.state = 3
        AND NOT (g.strict AND EXISTS (
            SELECT FROM qs.hidden AS d WHERE d.queue = h.queue AND d.grp = h.grp AND d.state = 2 AND d.id < h.id))
        AND h.id <= %b::bigint AND m.stored_at > %b::bigint AND (m.expires_at IS NULL OR m.expires_at > %b::bigint)
    ORDER BY h.id LIMIT %b::int FOR UPDATE OF h SKIP LOCKED) AS h"""
_HIDE = """
WITH gone AS (DELETE FROM qs.line WHERE queue = %b::int AND id = ANY (%b::bigint[]) RETURNING *)
INSERT INTO qs.hidden (queue, id, place, until, receives, size, state, held, counted, grp, reason, consumer, seq)
SELECT g.queue, g.id, g.place, %b::bigint, g.receives + 1, g.size, 4, false, %b::boolean, g.grp, g.reason,
    %b::text, %b::int
FROM gone AS g"""
_CHANGE = """
UPDATE qs.hidden SET state = 4, receives = receives + 1, counted = %b::boolean, consumer = %b::text, seq = %b::int
WHERE queue = %b::int AND id = ANY (%b::bigint[])"""
_MAKE = """
INSERT INTO qs.claims (queue, consumer, seq, since, size, checksum, mids)
VALUES (%b::int, %b::text, %b::int, %b::bigint, %b::bigint, %b::text, %b::bigint[])"""
_DESCRIBED = """
SELECT consumer, seq, cardinality(mids), size, mids[1], mids[cardinality(mids)], checksum, since FROM qs.claims"""
_ONE = _DESCRIBED + " WHERE queue = %b::int AND consumer = %b::text AND seq = %b::bigint"
_ALL = _DESCRIBED + " WHERE queue = %b::int ORDER BY consumer, seq"
_SLICE = """
SELECT c.upto - c.start, c.mids[c.start + 1], c.mids[c.upto] FROM (
    SELECT mids, (cardinality(mids) * p.part / p.parts)::int AS start,
        (cardinality(mids) * (p.part + 1) / p.parts)::int AS upto
    FROM qs.claims, (SELECT %b::bigint AS part, %b::bigint AS parts) AS p
    WHERE queue = %b::int AND consumer = %b::text AND seq = %b::bigint) AS c"""
_SIZE = """
SELECT count(*), coalesce(sum(size), 0) FROM qs.hidden
WHERE queue = %b::int AND consumer = %b::text AND seq = %b::bigint AND id BETWEEN %b::bigint AND %b::bigint
    AND state = 4"""
_PART = """
SELECT h.queue, h.id, h.place, NULL::bigint, h.receives, h.size, h.reason, m.pushed_at, m.stored_at, m.expires_at,
    m.grp, m.ukey, m.origin, m.headers, m.payload
FROM qs.hidden AS h
CROSS JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = h.queue AND m.id = h.id OFFSET 0) AS m
WHERE h.queue = %b::int AND h.consumer = %b::text AND h.seq = %b::bigint AND h.id BETWEEN %b::bigint AND %b::bigint
    AND h.state = 4
ORDER BY h.id"""
_REMOVE = """
WITH gone AS (
    DELETE FROM qs.hidden WHERE queue = %b::int AND consumer = %b::text AND seq <= %b::bigint AND state = 4
    RETURNING queue, id, grp)
DELETE FROM qs.messages AS m USING gone AS g WHERE m.queue = g.queue AND m.id = g.id RETURNING m.id, g.grp, m.ukey"""
_ACKNOWLEDGE = """
WITH gone AS (DELETE FROM qs.claims WHERE queue = %b::int AND consumer = %b::text AND seq <= %b::bigint)
INSERT INTO qs.consumers (queue, consumer, acknowledged) VALUES (%b::int, %b::text, %b::int)
ON CONFLICT (queue, consumer) DO UPDATE SET acknowledged = excluded.acknowledged"""
_END = """
DELETE FROM qs.claims WHERE queue = %b::int AND consumer = %b::text AND seq = %b::bigint RETURNING cardinality(mids)"""
_CLAIMED = """
SELECT h.queue, h.id, h.place, h.until, h.receives, h.size, h.server, h.state, h.held, h.grp, h.reason, m.ukey,
    m.pushed_at, m.stored_at, m.expires_at
FROM qs.hidden AS h
CROSS JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = h.queue AND m.id = h.id OFFSET 0) AS m
WHERE h.queue = %b::int AND h.consumer = %b::text AND h.seq = %b::bigint AND h.state = 4
ORDER BY h.id FOR UPDATE OF h"""


class _Consumer(NamedTuple):
    """The state of a consumer. paused: its queue's; acked: its last acknowledged claim, 0 without any; opened: its open
    claims, increasing."""

    paused: bool
    acked: int
    opened: list[int]

    @property
    def last(self) -> int:
        return max([self.acked, *self.opened])


class PostgresClaims:
    """Makes and ends the claims on one queue: implements Claims.

    Ensures:
    1. A claim has the same messages each time it is read, until it ends, for every server.
    2. A message is in one claim at most: a claimed message is a row of `hidden`, which no receive reads.
    3. Each call can be repeated: the number of the claim says which one is meant. Calls of one consumer wait for each
       other.

    Never ends a claim by itself. A claim keeps the ids that it was made with, as its parts are those of these ids, even
    when an operator purges some of them. Every method may raise BadQueueNameError for the consumer's name,
    NoSuchQueueError, UnavailableError and NotKnownError."""

    most = 100_000
    """The most messages in one claim: a transaction of some seconds."""

    def __init__(self, shared: Shared, known: Known) -> None:
        self._shared = shared
        self._known = known

    def claim(self, consumer: str, seq: int, count: int, max_bytes: int | None, upto: int | None) -> Claim:
        """Implements `Claims.claim`. StaleReceiptError if claim seq is acknowledged, ClaimOrderError if an earlier one
        is missing, NoSuchClaimError if it was released."""
        check_name("consumer", consumer)
        known = self._known
        bounds = _Bounds(min(count, self.most), max_bytes, FOREVER if upto is None else upto)

        def step(tx: Transaction) -> Claim:
            tx.shared.end_due(tx)  # what is due may be claimed too
            state = _state(tx, known, consumer)
            if seq in state.opened:
                return Claim(*tx.rows(_ONE, [known.number, consumer, seq])[0])
            _check_next(known, consumer, state, seq)
            chosen = [] if state.paused or known.options.paused else _choose(tx, known, bounds)
            mids, size = [each.mid for each in chosen], sum([each.size for each in chosen])
            checksum = checksum_of(mids)
            if mids:
                lined = Int8s(each.mid for each in chosen if not each.waits)
                counted = known.options.max_in_flight is not None
                tx.ask(_HIDE, [known.number, lined, FOREVER, counted, consumer, seq])
                if waiting := Int8s(each.mid for each in chosen if each.waits):
                    tx.ask(_CHANGE, [counted, consumer, seq, known.number, waiting])
                for group in {each.group for each in chosen}:
                    order.touch_taken(tx, known, group)
                tx.ask(_MAKE, [known.number, consumer, seq, tx.now, size, checksum, Int8s(mids)])
                tx.count(known, "delivered", len(mids))
                tx.count(known, "redelivered", sum([each.receives > 0 for each in chosen]))
            first, last = (mids[0], mids[-1]) if mids else (None, None)
            return Claim(consumer, seq, len(mids), size, first, last, checksum, tx.now)

        return run(self._shared, step)

    def part(
        self, consumer: str, seq: int, part: tuple[int, int], count: int, max_bytes: int
    ) -> Sequence[Message] | None:
        """Implements `Claims.part`. NoSuchClaimError."""
        check_name("consumer", consumer)
        known = self._known

        def step(tx: Transaction) -> list[Row] | None:
            found = tx.rows(_SLICE, [*part, known.number, consumer, seq])
            if not found:
                raise _no_claim(known, consumer, seq)
            length, first, last = found[0]
            if length > count:
                return None
            if not length:
                return []
            slice_ = [known.number, consumer, seq, first, last]
            left_, size = tx.rows(_SIZE, slice_)[0]
            return None if left_ > 1 and size > max_bytes else tx.rows(_PART, slice_)

        rows = run(self._shared, step)
        return None if rows is None else [message_of(known, row) for row in rows]

    def open_before(self, consumer: str, seq: int) -> Sequence[int]:
        """Implements `Claims.open_before`. ClaimOrderError."""
        check_name("consumer", consumer)
        return run(self._shared, lambda tx: _open_before(tx, self._known, consumer, seq)[1])

    def acknowledge(self, consumer: str, seq: int) -> int:
        """Implements `Claims.acknowledge`. ClaimOrderError."""
        check_name("consumer", consumer)
        known = self._known

        def step(tx: Transaction) -> int:
            state, _ = _open_before(tx, known, consumer, seq)
            if seq <= state.acked:
                return 0
            gone = tx.rows(_REMOVE, [known.number, consumer, seq])
            tx.ask(_ACKNOWLEDGE, [known.number, consumer, seq, known.number, consumer, seq])
            left(tx, [Leaver(known, *row) for row in gone])
            tx.count(known, "deleted", len(gone))
            return len(gone)

        return run(self._shared, step)

    def release(self, consumer: str, seq: int) -> int:
        """Implements `Claims.release`. Messages that were received too often are left to the end of windows, which
        moves them to the dead-letter queue in slices. NoSuchClaimError."""
        check_name("consumer", consumer)
        known = self._known

        def step(tx: Transaction) -> int:
            state = _state(tx, known, consumer)
            if seq not in state.opened:
                raise _no_claim(known, consumer, seq)
            settlement = Settlement(tx)
            rows = [Hidden(*row) for row in tx.rows(_CLAIMED, [known.number, consumer, seq])]
            for row in rows:
                if is_exhausted(known.options, row.receives):
                    settlement.hide(row, tx.now, row.receives, IN_FLIGHT, row.reason)
                else:
                    settlement.return_(row, 0, None)
            settlement.write()
            tx.count(known, "released", len(rows))
            return int(tx.rows(_END, [known.number, consumer, seq])[0][0])

        return run(self._shared, step)

    def all(self) -> list[Claim]:
        """Implements `Claims.all`."""
        return [Claim(*row) for row in run(self._shared, lambda tx: tx.rows(_ALL, [self._known.number]))]


class _Chosen(NamedTuple):
    """A message for a claim, locked. waits: True if it is not in the line, but waits for others of its group."""

    mid: int
    size: int
    receives: int
    group: str | None
    waits: bool


class _Bounds(NamedTuple):
    """The bounds of a claim: see `Claims.claim`."""

    most: int
    max_bytes: int | None
    upto: int


def _state(tx: Transaction, known: Known, consumer: str) -> _Consumer:
    """Returns a consumer's state, which nobody else changes until the commit. NoSuchQueueError."""
    tx.ask(LOCK_SHARED, [Int4s([known.number])])
    tx.ask(_LOCK, [consumer, known.number])
    found = tx.rows(_STATE, [consumer, known.number])
    if not found:
        raise NoSuchQueueError(f"there is no queue {known.qid!r} any more")
    return _Consumer(*found[0])


def _check_next(known: Known, consumer: str, state: _Consumer, seq: int) -> None:
    """Checks that seq is the number of the next claim, if it is not an open one."""
    following = state.last + 1
    if seq <= state.acked:
        raise StaleReceiptError(
            f"claim {seq} of consumer {quoted(consumer)} on queue {known.qid!r} is acknowledged: the next one is "
            f"{following}"
        )
    if seq < following:
        raise NoSuchClaimError(f"claim {seq} of consumer {quoted(consumer)} on queue {known.qid!r} was released")
    if seq > following:
        raise ClaimOrderError(
            f"consumer {quoted(consumer)} has made {state.last} claims on queue {known.qid!r}: the next one is "
            f"{following}, not {seq}"
        )


def _open_before(tx: Transaction, known: Known, consumer: str, seq: int) -> tuple[_Consumer, list[int]]:
    """Returns a consumer's state, and its open claims before seq. ClaimOrderError."""
    state = _state(tx, known, consumer)
    if seq > state.last:
        raise ClaimOrderError(
            f"consumer {quoted(consumer)} has made {state.last} claims on queue {known.qid!r}: there is no claim {seq} "
            "to acknowledge"
        )
    return state, [number for number in state.opened if number < seq]


def _no_claim(known: Known, consumer: str, seq: int) -> NoSuchClaimError:
    return NoSuchClaimError(
        f"consumer {quoted(consumer)} has no claim {seq} on queue {known.qid!r}: it was never made, is acknowledged, "
        "or was released"
    )


def _choose(tx: Transaction, known: Known, bounds: _Bounds) -> list[_Chosen]:
    """Returns the oldest visible messages within the bounds, locked, in the order of their ids."""
    count, total, after = bounds.most, 0, -1
    count = limits.room(tx, known, count)
    since = too_old_since(known.options, tx.now)
    ends = bounds.upto, -1 if since is None else since, tx.now
    chosen: list[_Chosen] = []
    seen: set[str] = set()
    full = False
    while len(chosen) < count and not full:
        wanted = min(count - len(chosen), _PAGE)
        page = [_Chosen._make((*row, False)) for row in tx.rows(_NEXT, [known.number, after, *ends, wanted])]
        for each in _with_groups(tx, known, page, seen, [*ends, count - len(chosen)]):
            over = bounds.max_bytes is not None and chosen and total + each.size > bounds.max_bytes
            full = bool(over) or len(chosen) == count
            if full:
                break
            chosen.append(each)
            total += each.size
        if len(page) < wanted:
            break
        after = page[-1].mid
    return sorted(chosen)


def _with_groups(
    tx: Transaction, known: Known, page: list[_Chosen], seen: set[str], bounds: Sequence[int]
) -> list[_Chosen]:
    """Returns those messages of a page of the line that a claim may have, and with the first of a group those that wait
    for it: none while others have messages of the group. Who has locked the first of a group is the only one to hand
    out others of it. seen: the groups of earlier pages; bounds: the last parameters of _WAITING, at the end how many
    messages are wanted."""
    groups = {each.group for each in page if each.group is not None}
    if not groups:
        return page
    strict = {group: not order.is_turn(group) for group in groups}
    asked = [(known.number, group) for group, is_strict in strict.items() if is_strict]
    out = {row[0] for row in tx.rows(_OUT, columns(asked, (Int4s, Texts)))} if asked else set()
    free = [(group, strict[group] and order.most_of(known, group) == 1) for group in sorted(groups - out - seen)]
    seen |= groups
    waiting: list[_Chosen] = []
    if free:
        *ends, most = bounds
        given = [*columns(free, (Texts, Bools)), known.number, *ends, max(most // len(free), _FOLLOWERS)]
        waiting = [_Chosen._make((*row, True)) for row in tx.rows(_WAITING, given)]
    return sorted([*[each for each in page if each.group not in out], *waiting])
