"""The consequences for others when messages leave a queue: unique keys are free again, and groups move on."""

from collections.abc import Sequence
from typing import NamedTuple

from . import order
from .arrays import Int4s, Int8s, Texts, columns
from .known import Known
from .transaction import Transaction

_DROP = """
WITH u AS MATERIALIZED (SELECT * FROM unnest(%b::int[], %b::bigint[]) AS u (queue, id)),
h AS (
    DELETE FROM qs.hidden WHERE ctid = ANY (ARRAY(
        SELECT h.ctid FROM u JOIN qs.hidden AS h ON h.queue = u.queue AND h.id = u.id
        WHERE NOT %b::boolean OR h.state NOT IN (1, 4) FOR UPDATE OF h SKIP LOCKED))
    RETURNING queue, id),
l AS (
    DELETE FROM qs.line WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM u JOIN qs.line AS l ON l.queue = u.queue AND l.id = u.id FOR UPDATE OF l SKIP LOCKED))
    RETURNING queue, id)
DELETE FROM qs.messages AS m USING (SELECT * FROM h UNION ALL SELECT * FROM l) AS g
WHERE m.queue = g.queue AND m.id = g.id RETURNING m.queue, m.id"""
_FREE = """
DELETE FROM qs.keys AS k USING unnest(%b::int[], %b::text[], %b::bigint[]) AS u (queue, key, id)
WHERE k.queue = u.queue AND k.key = u.key AND k.id = u.id"""

_OUT_OF_LINE = """
DELETE FROM qs.line WHERE queue = %b::int AND id = ANY (%b::bigint[]) RETURNING id, place, size, grp, reason"""
_OUT_OF_HIDING = """
DELETE FROM qs.hidden WHERE queue = %b::int AND id = ANY (%b::bigint[]) AND (state <> 4 OR %b::boolean)
RETURNING id, place, size, grp, reason"""


class Leaver(NamedTuple):
    """A message that leaves its queue. grp: as in its row of the line or of `hidden`; ukey: as in `messages`."""

    known: Known
    mid: int
    grp: str | None
    ukey: str | None


class Hidden(NamedTuple):
    """A message, locked for this transaction: its row of `hidden`, or of `line` with the state 0, and what of
    `messages` decides its future."""

    queue: int
    mid: int
    place: int
    until: int
    receives: int
    size: int
    server: int | None
    state: int
    held: bool
    grp: str | None
    reason: str | None
    ukey: str | None
    pushed_at: int
    stored_at: int
    expires_at: int | None


class Taken(NamedTuple):
    """A message that was taken out of the line, or out of `hidden`, for this transaction."""

    mid: int
    place: int
    size: int
    grp: str | None
    reason: str | None


def take_out(tx: Transaction, known: Known, mids: Sequence[int], *, claimed: bool) -> list[Taken]:
    """Takes messages out of the line and out of `hidden`, and leaves their rows in `messages` to the caller. claimed:
    whether also those in claims. Returns those that were there, in the order of their ids. psycopg.Error."""
    found: list[Taken] = []
    rest = Int8s(sorted(mids))
    # Once more the line: others may put a message back between the two statements.
    for hidden in (False, True, False):
        if rest:
            rows = (
                tx.rows(_OUT_OF_HIDING, [known.number, rest, claimed])
                if hidden
                else tx.rows(_OUT_OF_LINE, [known.number, rest])
            )
            found += [Taken(*row) for row in rows]
            gone = {row[0] for row in rows}
            rest = Int8s(mid for mid in rest if mid not in gone)
    return sorted(found)


def drop(tx: Transaction, leavers: Sequence[Leaver], *, idle: bool) -> int:
    """Removes messages whose time is over, wherever they are, with all consequences. Leaves those that somebody else
    receives or removes at this moment. idle: True to leave those that are in flight or in a claim by now, too.
    Returns how many were removed. psycopg.Error."""
    asked = columns([(each.known.number, each.mid) for each in leavers], (Int4s, Int8s))
    gone = {(queue, mid) for queue, mid in tx.rows(_DROP, [*asked, idle])}
    dropped = [each for each in leavers if (each.known.number, each.mid) in gone]
    left(tx, dropped)
    for each in dropped:
        tx.count(each.known, "retired")
    return len(dropped)


def left(tx: Transaction, leavers: Sequence[Leaver]) -> None:
    """Draws the consequences after messages were removed. psycopg.Error."""
    if keyed := [(each.known.number, each.ukey, each.mid) for each in leavers if each.ukey is not None]:
        tx.ask(_FREE, columns(keyed, (Int4s, Texts, Int8s)))
    for each in leavers:
        order.touch_left(tx, each.known, each.grp)
    for known in {each.known for each in leavers if each.known.options.max_in_flight is not None}:
        tx.wake(known)
