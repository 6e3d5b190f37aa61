"""Receives of one sweep: those of one queue are one statement, and share what it finds."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..engine import Message, NoSuchQueueError, Origin
from ..headers import unpack_headers
from ..policy import too_old_since
from ..remote_engine import Receive
from . import limits, order
from .arrays import Bools, Int4s, Int8s, columns
from .known import LEVELS, Known, Shared, priority_at
from .leaving import Leaver, drop
from .line import LINE_UP, LINED_AS
from .pipeline import Row
from .transaction import Group, Transaction

_MOST = 2000
"""Messages of one statement."""
_ROUNDS = 100
"""How often a receive looks at the line again, because it has taken messages of groups that have more."""
_GROUP = 15
"""The column with the group as it is in the line. Message.group is that of the push."""
_LOCKED = 16
"""The column with how many messages the statement has locked. Those that did not fit are left in the line."""
_RANGES_AS = (Int4s, Int8s, Int8s, Int8s, Int4s, Bools, Int4s)
_HIGHS = [*LEVELS[1:], 1 << 62]
_TAKE_HEAD = """
WITH taken AS MATERIALIZED (
    SELECT l.*, s.until, s.queue, s.turn, s.counted, s.most
    FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::bigint[], %b::int[], %b::boolean[], %b::int[])
        AS s (queue, low, high, until, turn, counted, most)
    CROSS JOIN LATERAL (
        SELECT x.ctid AS row, x.place, x.size FROM qs.line AS x
        WHERE x.queue = s.queue AND x.place >= s.low AND x.place < s.high
            AND EXISTS (SELECT FROM qs.queues AS q WHERE q.queue = s.queue AND NOT q.paused)
        ORDER BY x.place LIMIT %b::int FOR UPDATE OF x SKIP LOCKED) AS l"""
_FIT = """
    LIMIT %b::int),
fit AS (
    SELECT *, sum(size) OVER w AS total, row_number() OVER w AS number FROM taken
    WINDOW w AS (ORDER BY place ROWS UNBOUNDED PRECEDING)),
gone AS (
    DELETE FROM qs.line AS x USING fit AS f WHERE x.ctid = f.row AND (f.number = 1 OR f.total <= %b::bigint)"""
_FIT_EACH = """
    LIMIT %b::int),
fit AS (
    SELECT *, sum(size) OVER w AS total, row_number() OVER w AS number,
        row_number() OVER (PARTITION BY queue ORDER BY place) AS nth FROM taken
    WINDOW w AS (ORDER BY turn, place ROWS UNBOUNDED PRECEDING)),
gone AS (
    DELETE FROM qs.line AS x USING fit AS f
    WHERE x.ctid = f.row AND (f.number = 1 OR f.total <= %b::bigint) AND f.nth <= f.most"""
_TAKE_TAIL = """
    RETURNING x.queue, x.id, x.place, x.receives + 1 AS receives, x.size, x.grp, x.reason, f.until, f.counted),
hid AS (
    INSERT INTO qs.hidden (queue, id, place, until, receives, size, server, state, held, counted, grp, reason)
    SELECT g.queue, g.id, g.place, g.until, g.receives, g.size, %b::int, 1, %b::boolean, g.counted, g.grp, g.reason
    FROM gone AS g)
SELECT g.queue, g.id, g.place, g.until, g.receives, g.size, g.reason, m.pushed_at, m.stored_at, m.expires_at,
    m.grp, m.ukey, m.origin, m.headers, m.payload, g.grp, (SELECT count(*) FROM taken)
FROM gone AS g
CROSS JOIN LATERAL (SELECT * FROM qs.messages AS m WHERE m.queue = g.queue AND m.id = g.id OFFSET 0) AS m"""
# OFFSET 0: see `claims.py`.
_TAKE = _TAKE_HEAD + _FIT + _TAKE_TAIL
"""For one queue: what is read first is taken, and nothing more is read."""
_TAKE_OLDEST = _TAKE_HEAD + "\n    ORDER BY s.turn, l.place" + _FIT_EACH + _TAKE_TAIL
"""For several: some are read of each, and the first of all are taken, of each queue no more than its limits let out."""
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
        self.wanted = 0
        self.found: list[Row] = []
        self.handed: dict[Known, int] = {}


def take(tx: Transaction, receives: Sequence[Receive]) -> None:
    """Receives messages. Operations that find none are left without a result. psycopg.Error."""
    takings: dict[tuple[Any, ...], _Taking] = {}
    full: list[_Taking] = []
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
        taking = takings.get(wanted)
        if taking is None or taking.wanted + operation.count > _MOST:
            # Nobody is told that there is nothing because others of the sweep want more than one statement takes.
            if taking is not None:
                full.append(taking)
            taking = takings[wanted] = _Taking(queues, operation)
        taking.operations.append(operation)
        taking.wanted += operation.count
    all_takings = [*full, *takings.values()]
    limits.lock(tx, {known for taking in all_takings for known in taking.queues})
    for taking in all_takings:
        _take(tx, taking)


def _take(tx: Transaction, taking: _Taking) -> None:
    operations = taking.operations
    wanted = min(taking.wanted, _MOST)
    room = sum([operation.max_bytes for operation in operations])
    rooms = {known: limits.allowance(tx, known, wanted) for known in taking.queues if limits.is_limited(known)}
    for _ in range(_ROUNDS):
        found, over = _read(tx, taking, wanted, room, rooms)
        for row in found:
            order.touch_taken(tx, tx.shared.numbers[row[0]], row[_GROUP])
        if over:
            drop(tx, [_leaver(tx.shared, row) for row in over], idle=False)
        followers = order.arrange(tx, patient=bool(over))
        found = _before(tx, taking, found, followers)
        taking.found += found
        wanted -= len(found)
        room -= sum([row[5] for row in found])
        for row in found:
            known = tx.shared.numbers[row[0]]
            if known in rooms:
                rooms[known] -= 1
        more = followers or over or (found and rooms and len(taking.queues) > 1)
        if not more or wanted <= 0 or room <= 0:
            break
    _hand_out(tx, taking)
    for known in rooms:
        limits.given(tx, known, taking.handed.get(known, 0))


def _before(tx: Transaction, taking: _Taking, found: list[Row], followers: Mapping[Group, int]) -> list[Row]:
    """Returns the first of these messages, those that come before what has come into the line because they were taken.
    Puts the others back. followers: from `order.arrange`."""
    turns = {known: turn if taking.given else 0 for turn, known in enumerate(taking.queues)}
    first = (len(turns), 0)
    for at, row in enumerate(found):
        known = tx.shared.numbers[row[0]]
        if (turns[known], row[2]) > first:
            _put_back(tx, found[at:])
            return found[:at]
        if (place := followers.get((known, row[_GROUP]))) is not None:
            first = min(first, (turns[known], place))
    return found


def _ranges(
    tx: Transaction, taking: _Taking, wanted: int, rooms: Mapping[Known, int]
) -> tuple[list[tuple[int, int, int, int, int, bool, int]], list[Known]]:
    """Returns which parts of the line have to be read, each with what the statement has to know of its queue, and the
    queues whose whole line is read. rooms: how many the limits of queues let out."""
    ranges: list[tuple[int, int, int, int, int, bool, int]] = []
    wholes: list[Known] = []
    for turn, known in enumerate(taking.queues):
        options = known.options
        most = min(wanted, rooms.get(known, wanted))
        if most <= 0:
            continue
        until = tx.now + (options.visibility if taking.visibility is None else taking.visibility)
        counted = options.max_in_flight is not None
        lows, whole = known.floors.ranges(tx.arrived.get(known, {}))
        if whole:
            wholes.append(known)
        for low, high in zip(lows, _HIGHS, strict=True):
            ranges.append((known.number, low, high, until, turn if taking.given else 0, counted, most))
    return ranges, wholes


def _read(
    tx: Transaction, taking: _Taking, wanted: int, room: int, rooms: Mapping[Known, int]
) -> tuple[list[Row], list[Row]]:
    """Takes messages out of the line. rooms: how many the limits of queues let out. Returns those that may be handed
    out in their order, and those that are over."""
    changes = {known: known.floors.changes for known in taking.queues}
    ranges, wholes = _ranges(tx, taking, wanted, rooms)
    if not ranges:
        return [], []
    wanted = min(wanted, sum([rooms.get(known, wanted) for known in taking.queues]))
    began = time.monotonic()
    parameters = [*columns(ranges, _RANGES_AS), wanted, wanted, room, tx.shared.server, taking.held]
    statement = _TAKE if len(taking.queues) == 1 else _TAKE_OLDEST
    read = tx.rows(statement, parameters)
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
    if len(taking.queues) == 1 and read and (left := read[0][_LOCKED] - len(read)):
        # Other receives have passed those that are left, as they were locked: nobody may think that they are gone.
        tx.arrive(taking.queues[0], read[-1][2] + 1, left)
    found: list[Row] = []
    over: list[Row] = []
    for row in read:
        (over if _is_over(tx.shared.numbers[row[0]], row, tx.now) else found).append(row)
    return found, over


def _is_over(known: Known, row: Row, now: int) -> bool:
    """Tells whether a message is not handed out any more, because of its own end or its queue's retention."""
    since = too_old_since(known.options, now)
    return (row[9] is not None and row[9] <= now) or (since is not None and row[8] <= since)


def _leaver(shared: Shared, row: Row) -> Leaver:
    return Leaver(shared.numbers[row[0]], row[1], row[_GROUP], row[11])


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
            taking.handed[known] = taking.handed.get(known, 0) + 1
            tx.count(known, "delivered")
            if row[4] > 1:
                tx.count(known, "redelivered")
            tx.due(row[3])
            at += 1
        if messages:
            tx.results.append((operation, messages))
    if at < len(found):
        _put_back(tx, found[at:])


def _put_back(tx: Transaction, rows: Sequence[Row]) -> None:
    """Makes messages visible again that were taken, and fit into no answer."""
    tx.ask(_PUT_BACK, columns([row[:2] for row in rows], (Int4s, Int8s)))
    lined = []
    for row in rows:
        queue, mid, place, _, receives, size, reason = row[:7]
        known = tx.shared.numbers[queue]
        lined.append((queue, place, mid, receives - 1, size, row[_GROUP], reason))
        tx.arrive(known, place)
        order.touch_taken(tx, known, row[_GROUP])
    tx.ask(LINE_UP, columns(lined, LINED_AS))
    order.arrange(tx, patient=False)  # if others of a group have followed, this transaction has the group's lock


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
