"""Receives of one sweep: those of one queue are one statement, and share what it finds."""

import time
from collections.abc import Sequence
from typing import Any

from ..engine import Message, NoSuchQueueError, Origin
from ..headers import unpack_headers
from ..policy import too_old_since
from ..remote_engine import Receive
from . import order
from .arrays import Int4s, Int8s, columns
from .known import LEVELS, Known, Shared, priority_at
from .leaving import Leaver, drop
from .links import Row
from .pushing import LINE_UP, LINED_AS
from .transaction import Transaction

_MOST = 2000
"""Messages of one statement."""
_HIGHS = [*LEVELS[1:], 1 << 62]
_TAKE_HEAD = """
WITH taken AS MATERIALIZED (
    SELECT l.*, s.until FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::bigint[], %b::int[])
        AS s (queue, low, high, until, turn)
    CROSS JOIN LATERAL (
        SELECT x.ctid AS row, x.place, x.size FROM qs.line AS x
        WHERE x.queue = s.queue AND x.place >= s.low AND x.place < s.high
            AND EXISTS (SELECT FROM qs.queues AS q WHERE q.queue = s.queue AND NOT q.paused)
        ORDER BY x.place LIMIT %b::int FOR UPDATE OF x SKIP LOCKED) AS l"""
_TAKE_TAIL = """
    LIMIT %b::int),
fit AS (
    SELECT *, sum(size) OVER w AS total, row_number() OVER w AS number FROM taken
    WINDOW w AS (ORDER BY place ROWS UNBOUNDED PRECEDING)),
gone AS (
    DELETE FROM qs.line AS x USING fit AS f WHERE x.ctid = f.row AND (f.number = 1 OR f.total <= %b::bigint)
    RETURNING x.queue, x.id, x.place, x.receives + 1 AS receives, x.size, x.grp, x.reason, f.until),
hid AS (
    INSERT INTO qs.hidden (queue, id, place, until, receives, size, server, state, held, grp, reason)
    SELECT g.queue, g.id, g.place, g.until, g.receives, g.size, %b::int, 1, %b::boolean, g.grp, g.reason FROM gone AS g)
SELECT g.queue, g.id, g.place, g.until, g.receives, g.size, g.reason, m.pushed_at, m.stored_at, m.expires_at,
    m.grp, m.ukey, m.origin, m.headers, m.payload
FROM gone AS g JOIN qs.messages AS m ON m.queue = g.queue AND m.id = g.id"""
_TAKE = _TAKE_HEAD + _TAKE_TAIL
"""For one queue: what is read first is taken, and nothing more is read."""
_TAKE_OLDEST = _TAKE_HEAD + "\n    ORDER BY s.turn, l.place" + _TAKE_TAIL
"""For several: some are read of each, and the first of all are taken."""
_PUT_BACK = """
DELETE FROM qs.hidden AS h USING unnest(%b::int[], %b::bigint[]) AS u (queue, id)
WHERE h.queue = u.queue AND h.id = u.id"""


class _Taking:
    """Receives that one statement serves: of the same queues, with the same windows."""

    def __init__(self, queues: Sequence[Known], first: Receive) -> None:
        self.queues = queues
        self.visibility = first.visibility
        self.held = first.held
        self.given = first.given
        self.operations: list[Receive] = []
        self.found: list[Row] = []


def take(tx: Transaction, receives: Sequence[Receive]) -> None:
    """Receives messages. Operations that find none are left without a result. psycopg.Error."""
    takings: dict[tuple[Any, ...], _Taking] = {}
    for operation in receives:
        try:
            queues = [tx.shared.known(qid) for qid in operation.qids]
        except NoSuchQueueError as error:
            tx.results.append((operation, error))
            continue
        if operation.stopped or operation.count <= 0:
            tx.results.append((operation, []))
            for known in queues:  # whoever waits behind it is woken in its place
                tx.wake(known)
            continue
        wanted = (*operation.qids, operation.visibility, operation.held, operation.given)
        taking = takings.setdefault(wanted, _Taking(queues, operation))
        taking.operations.append(operation)
    for taking in takings.values():
        _take(tx, taking)


def _take(tx: Transaction, taking: _Taking) -> None:
    operations = taking.operations
    wanted = min(sum([operation.count for operation in operations]), _MOST)
    room = sum([operation.max_bytes for operation in operations])
    while wanted > 0:
        found, over = _read(tx, taking, wanted, room)
        taking.found += found
        if not over:
            break
        drop(tx, [_leaver(tx.shared, row) for row in over])
        for row in over:
            tx.count(tx.shared.numbers[row[0]], "retired")
        wanted -= len(found)
    _hand_out(tx, taking)


def _read(tx: Transaction, taking: _Taking, wanted: int, room: int) -> tuple[list[Row], list[Row]]:
    """Takes messages out of the line. Returns those that may be handed out in their order, and those that are over."""
    limited = [known for known in taking.queues if known.options.max_in_flight or known.options.rate]
    for known in limited:
        wanted = min(wanted, order.allowance(tx, known, wanted))
    if wanted <= 0:
        return [], []
    read = _ask(tx, taking, wanted, room)
    found: list[Row] = []
    over: list[Row] = []
    for row in read:
        since = too_old_since(tx.shared.numbers[row[0]].options, tx.now)
        is_over = (row[9] is not None and row[9] <= tx.now) or (since is not None and row[8] <= since)
        (over if is_over else found).append(row)
    for known in limited:
        order.given(tx, known, sum([row[0] == known.number for row in found]))
    return found, over


def _ask(tx: Transaction, taking: _Taking, wanted: int, room: int) -> list[Row]:
    """Takes messages out of the lines of some queues, in their order."""
    ranges: list[tuple[int, int, int, int, int]] = []
    wholes: list[Known] = []
    changes = {known: known.floors.changes for known in taking.queues}
    for turn, known in enumerate(taking.queues):
        until = tx.now + (known.options.visibility if taking.visibility is None else taking.visibility)
        lows, whole = known.floors.ranges(tx.arrived.get(known, {}))
        if whole:
            wholes.append(known)
        for low, high in zip(lows, _HIGHS, strict=True):
            ranges.append((known.number, low, high, until, turn if taking.given else 0))
    began = time.monotonic()
    statement = _TAKE_OLDEST if len(taking.queues) > 1 else _TAKE
    bounds = (wanted, wanted, room, tx.shared.server, taking.held)
    read = tx.rows(statement, [*columns(ranges, (Int4s, Int8s, Int8s, Int8s, Int4s)), *bounds])
    seconds = time.monotonic() - began
    turns = {known.number: turn if taking.given else 0 for turn, known in enumerate(taking.queues)}
    read.sort(key=lambda row: (turns[row[0]], row[2]))
    places: dict[Known, list[int]] = {known: [] for known in taking.queues}
    for row in read:
        places[tx.shared.numbers[row[0]]].append(row[2])

    def note() -> None:
        for known in wholes:
            known.floors.looked(seconds)
        for known, gone in places.items():
            known.floors.taken(gone, changes[known])

    tx.later(note)
    return read


def _leaver(shared: Shared, row: Row) -> Leaver:
    return Leaver(shared.numbers[row[0]], row[1], row[10], row[11])


def _hand_out(tx: Transaction, taking: _Taking) -> None:
    """Gives what was found to the receives, in their order, and puts the rest back."""
    found, at = taking.found, 0
    for operation in taking.operations:
        messages: list[Message] = []
        room = operation.max_bytes
        while at < len(found) and len(messages) < operation.count:
            row = found[at]
            room -= row[5] + len(row[6] or "")
            if room < 0 and messages:
                break
            known = tx.shared.numbers[row[0]]
            messages.append(message_of(known, row))
            tx.count(known, "delivered")
            if row[4] > 1:
                tx.count(known, "redelivered")
            tx.due(row[3])
            at += 1
        if messages:
            tx.results.append((operation, messages))
    if left := found[at:]:
        tx.ask(_PUT_BACK, columns([row[:2] for row in left], (Int4s, Int8s)))
        lined = [(row[0], row[2], row[1], row[4] - 1, row[5], row[10], row[6]) for row in left]
        tx.ask(LINE_UP, columns(lined, LINED_AS))
        for row in left:
            tx.arrive(tx.shared.numbers[row[0]], row[2])


def message_of(known: Known, row: Row) -> Message:
    """Returns a message that is handed out. row: of the statement that took it."""
    message = Message(known.qid, row[1], "delivered", row[4], row[7], row[3], row[14])
    message.priority = priority_at(row[2])
    message.reason = row[6]
    message.expires_at = row[9]
    message.group = row[10] or ""
    if row[12] is not None:
        message.origin = Origin(*row[12])
    if row[13] is not None:
        message.headers = unpack_headers(row[13])
    return message
