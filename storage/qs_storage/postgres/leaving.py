"""The consequences for others when messages leave a queue: unique keys are free again, and groups move on."""

from collections.abc import Sequence
from typing import NamedTuple

from . import order
from .arrays import Int4s, Int8s, Texts, columns
from .known import Known
from .transaction import Transaction

_DROP = """
WITH u AS MATERIALIZED (SELECT * FROM unnest(%b::int[], %b::bigint[]) AS u (queue, id)),
h AS (DELETE FROM qs.hidden AS h USING u WHERE h.queue = u.queue AND h.id = u.id),
l AS (DELETE FROM qs.line AS l USING u WHERE l.queue = u.queue AND l.id = u.id)
DELETE FROM qs.messages AS m USING u WHERE m.queue = u.queue AND m.id = u.id"""
_FREE = """
DELETE FROM qs.keys AS k USING unnest(%b::int[], %b::text[], %b::bigint[]) AS u (queue, key, id)
WHERE k.queue = u.queue AND k.key = u.key AND k.id = u.id"""


class Leaver(NamedTuple):
    """A message that leaves its queue. grp, ukey: as in its row of `messages`."""

    known: Known
    mid: int
    grp: str | None
    ukey: str | None


class Hidden(NamedTuple):
    """A hidden message, locked for this transaction: its row of `hidden`, and what of `messages` decides its future."""

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


def drop(tx: Transaction, leavers: Sequence[Leaver]) -> None:
    """Removes messages wherever they are, with all consequences. psycopg.Error."""
    tx.ask(_DROP, columns([(each.known.number, each.mid) for each in leavers], (Int4s, Int8s)))
    left(tx, leavers)


def left(tx: Transaction, leavers: Sequence[Leaver]) -> None:
    """Draws the consequences after messages were removed. psycopg.Error."""
    if keyed := [(each.known.number, each.ukey, each.mid) for each in leavers if each.ukey is not None]:
        tx.ask(_FREE, columns(keyed, (Int4s, Texts, Int8s)))
    if grouped := [(each.known, each.grp) for each in leavers if each.grp is not None]:
        order.promote(tx, grouped)
    for known in {each.known for each in leavers if each.known.options.max_in_flight is not None}:
        tx.wake(known)
