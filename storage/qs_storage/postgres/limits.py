"""How many messages a queue may hand out now: at most so many in flight, and so many a second, for all servers
together.

Receives of a queue that has such a limit lock it, one transaction after the other, until their commit: so no two count
the same messages. Other queues pay nothing.
"""

from collections.abc import Iterable

from ..engine import SECOND
from ..pace import Pace
from .arrays import Int4s
from .known import Known
from .transaction import Transaction

_LOCK = "SELECT pg_advisory_xact_lock(6, q) FROM unnest(%b::int[]) AS q"
_OUT = "SELECT count(*) FROM (SELECT FROM qs.hidden WHERE queue = %b::int AND counted LIMIT %b::bigint) AS h"
_COUNT_IN = "UPDATE qs.hidden SET counted = true WHERE queue = %b::int AND state IN (1, 4) AND NOT counted"
_PACE = "SELECT rate, begin, given, spread FROM qs.paces WHERE queue = %b::int"
_KEEP = """
INSERT INTO qs.paces AS p (queue, rate, begin, given, spread)
VALUES (%b::int, %b::text::float8, %b::bigint, %b::int, %b::boolean)
ON CONFLICT (queue) DO UPDATE SET rate = excluded.rate, begin = excluded.begin, given = excluded.given,
    spread = excluded.spread"""
_ANY_VISIBLE = "SELECT 1 FROM qs.line WHERE queue = %b::int LIMIT 1"


def is_limited(known: Known) -> bool:
    return known.options.max_in_flight is not None or known.options.rate is not None


def lock(tx: Transaction, queues: Iterable[Known]) -> None:
    """Locks the limited ones of queues, in one order everywhere. Call it once in a transaction, before `allowance`.
    psycopg.Error."""
    if numbers := sorted({known.number for known in queues if is_limited(known)}):
        tx.ask(_LOCK, [Int4s(numbers)])


def room(tx: Transaction, known: Known, count: int) -> int:
    """Returns how many of `count` messages may be out too, as the bound of messages in flight says. psycopg.Error."""
    most = known.options.max_in_flight
    if most is None:
        return count
    lock(tx, [known])
    if not known.counts_in_flight:
        tx.ask(_COUNT_IN, [known.number])  # those that were handed out before there was a bound
        tx.later(lambda: setattr(known, "counts_in_flight", True))
    return max(min(count, most - _out(tx, known, most)), 0)


def allowance(tx: Transaction, known: Known, count: int) -> int:
    """Returns how many of `count` messages a queue may hand out now. psycopg.Error."""
    lock(tx, [known])
    count = room(tx, known, count)
    if count and known.options.rate is not None:
        pace, now = _pace(tx, known)
        before = pace.state
        count = min(count, pace.room(known.options.rate, now))
        if pace.state != before:
            _keep(tx, known, pace)
        if not count:
            _wake(tx, known, pace)
    return count


def given(tx: Transaction, known: Known, count: int) -> None:
    """Counts messages as handed out, after `allowance`. psycopg.Error."""
    if known.options.rate is None or not count:
        return
    pace, now = _pace(tx, known)
    pace.room(known.options.rate, now)
    pace.count(count)
    _keep(tx, known, pace)
    if not pace.room(known.options.rate, now):
        _wake(tx, known, pace)  # nobody else asks, if others wait already


def limited(tx: Transaction, known: Known) -> str:
    """Returns the option that keeps all visible messages of a queue back, empty if none does: see `Stats.limited`. For
    a queue that has visible messages. psycopg.Error."""
    options = known.options
    if options.max_in_flight is not None and _out(tx, known, options.max_in_flight) >= options.max_in_flight:
        return "max-in-flight"
    if options.rate is not None:
        pace, now = _pace(tx, known)
        if not pace.room(options.rate, now):
            return "rate"
    return "" if tx.rows(_ANY_VISIBLE, [known.number]) else "group-in-flight"


def _out(tx: Transaction, known: Known, most: int) -> int:
    return int(tx.rows(_OUT, [known.number, most])[0][0])


def _pace(tx: Transaction, known: Known) -> tuple[Pace, int]:
    """Returns a queue's pace, and the time for it."""
    found = tx.rows(_PACE, [known.number])
    now = tx.shared.now()
    if not found:
        return Pace(), now
    pace = Pace.of(*found[0])
    begin = pace.state[1]
    # The clocks of two servers differ by some milliseconds: time must not seem to go back.
    return pace, begin if now < begin < now + SECOND else now


def _keep(tx: Transaction, known: Known, pace: Pace) -> None:
    rate, *state = pace.state
    tx.ask(_KEEP, [known.number, repr(rate), *state])


def _wake(tx: Transaction, known: Known, pace: Pace) -> None:
    """Has receives that wait tried again when the rate lets the next message out."""
    at, number = pace.next, max(int(known.options.rate or 0), 1)
    tx.later(lambda: tx.shared.wake_at(known, at, number))
