"""Moves messages to dead-letter queues, and back."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from ..engine import Draft, NoSuchQueueError, Origin, Queue, StorageError
from ..policy import other_storage
from .arrays import Int4s, Int8s, Texts, columns
from .entering import enter
from .known import Known, Shared, options_from, priority_at
from .leaving import Hidden, Leaver, Taken, left, take_out
from .pushing import IDS, New, line_up
from .running import run
from .transaction import Transaction

_MOST = 1000
"""Dead letters that one transaction moves back."""
_MAKE = """
INSERT INTO qs.queues (qid, paused, options) VALUES (%b::text, false, '{}')
ON CONFLICT (qid) DO NOTHING RETURNING queue, qid, options, nextval('qs.changes')"""
_FOUND = "SELECT queue, qid, options, 0 FROM qs.queues WHERE qid = %b::text"
_UNHIDE = "DELETE FROM qs.hidden WHERE queue = %b::int AND id = %b::bigint"
_UNLINE = "DELETE FROM qs.line WHERE queue = %b::int AND id = %b::bigint"
_MOVE = """
INSERT INTO qs.messages (queue, id, pushed_at, stored_at, priority, grp, origin, headers, payload)
SELECT u.target, u.new, u.pushed_at, %b::bigint, m.priority, m.grp, u.origin::jsonb, m.headers, m.payload
FROM unnest(%b::int[], %b::bigint[], %b::int[], %b::bigint[], %b::bigint[], %b::text[])
    AS u (source, id, target, new, pushed_at, origin)
JOIN qs.messages AS m ON m.queue = u.source AND m.id = u.id"""
_REMOVE = "DELETE FROM qs.messages WHERE queue = %b::int AND id = ANY (%b::bigint[])"
_LETTERS = """
SELECT m.id, m.origin ->> 0 FROM qs.messages AS m
WHERE m.queue = %b::int AND m.id > %b::bigint AND m.origin IS NOT NULL
    AND coalesce((SELECT h.state FROM qs.hidden AS h WHERE h.queue = m.queue AND h.id = m.id), 0) <> 4
ORDER BY m.id LIMIT %b::int"""
_THESE_LETTERS = """
SELECT m.id, m.origin ->> 0 FROM qs.messages AS m
WHERE m.queue = %b::int AND m.id = ANY (%b::bigint[]) AND m.origin IS NOT NULL
    AND coalesce((SELECT h.state FROM qs.hidden AS h WHERE h.queue = m.queue AND h.id = m.id), 0) <> 4
ORDER BY m.id LIMIT %b::int"""


class _Move(NamedTuple):
    """A message that moves. origin: as text, None for one that is no dead letter any more."""

    message: Taken
    target: Known
    pushed_at: int
    origin: str | None


def bury(tx: Transaction, known: Known, row: Hidden, reason: str) -> None:
    """Moves a message to the dead-letter queue of its queue, which is made if it is missing. row: with the reason that
    goes with the message; reason: `receives` or `rejected`. StorageError if that queue cannot take it: then nothing has
    changed. psycopg.Error."""
    name = known.options.dead_letter
    target = tx.made.get(name) or tx.shared.queues.get(name) or _find_or_make(tx, name)
    if target is known:  # `set-queue` refuses such a name
        raise StorageError("it is the same queue")
    try:
        enter(tx, {target: 1})
    except NoSuchQueueError:  # another server has removed it
        target = _find_or_make(tx, name)
        enter(tx, {target: 1})
    origin = Origin(known.qid, row.mid, row.receives, tx.now, reason, row.pushed_at)
    tx.ask(_UNHIDE if row.state else _UNLINE, [known.number, row.mid])
    message = Taken(row.mid, row.place, row.size, row.grp, row.reason)
    _move(tx, known, [_Move(message, target, row.pushed_at, json.dumps(origin))])
    left(tx, [Leaver(known, row.mid, row.grp, row.ukey)])
    tx.count(known, "dead")
    if reason == "rejected":
        tx.count(known, "rejected")


def _find_or_make(tx: Transaction, qid: str) -> Known:
    """Returns a queue that this server does not know yet, and makes it if it is not there. psycopg.Error."""
    shared = tx.shared
    while not (found := tx.rows(_MAKE, [qid]) or tx.rows(_FOUND, [qid])):
        pass  # removed between the two
    number, _, options, _ = found[0]
    known = shared.numbers.get(number) or Known(number, qid, options_from(options, "postgres"))
    tx.later(lambda: shared.made(known))
    tx.made[qid] = known
    return known


class PostgresRedrive:
    """Moves the dead letters of one queue: implements Redrive.

    Ensures that a letter is in exactly one queue: a move is one transaction. Leaves those in claims."""

    def __init__(self, shared: Shared, known: Known) -> None:
        self._shared = shared
        self._known = known

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """Implements `Redrive.letters`. UnavailableError."""
        number = self._known.number
        if mids:
            asked = [number, Int8s(sorted(set(mids))), count]
            return [(mid, qid) for mid, qid in run(self._shared, lambda tx: tx.rows(_THESE_LETTERS, asked))]
        return [(mid, qid) for mid, qid in run(self._shared, lambda tx: tx.rows(_LETTERS, [number, -1, count]))]

    def move(self, letters: Sequence[tuple[int, Queue]]) -> list[tuple[int, int]]:
        """Implements `Redrive.move`: letters that others remove or claim meanwhile are left out. QueueFullError,
        NoSuchQueueError, UnsupportedError, UnavailableError, NotKnownError."""
        targets: dict[int, Known] = {}
        for mid, queue in letters[:_MOST]:
            known = getattr(queue, "known", None)
            if not isinstance(known, Known):
                raise other_storage(self._known.options.storage, queue.options.storage)
            targets[mid] = known
        return run(self._shared, lambda tx: self._move(tx, targets))

    def _move(self, tx: Transaction, targets: dict[int, Known]) -> list[tuple[int, int]]:
        wanted = list(targets.values())
        enter(tx, {known: wanted.count(known) for known in dict.fromkeys(wanted)})
        taken = take_out(tx, self._known, list(targets), claimed=False)
        new = _move(tx, self._known, [_Move(each, targets[each.mid], tx.now, None) for each in taken])
        left(tx, [Leaver(self._known, each.mid, each.grp, None) for each in taken])
        return [(each.mid, mid) for each, mid in zip(taken, new, strict=True)]


def _move(tx: Transaction, source: Known, moves: Sequence[_Move]) -> list[int]:
    """Moves messages that were taken out of the line and out of `hidden`, each to the end of a queue, visible and never
    received. Returns their new ids. psycopg.Error."""
    if not moves:
        return []
    ids = sorted(row[0] for row in tx.rows(IDS, [len(moves)]))
    table = [
        (source.number, message.mid, target.number, new, pushed_at, origin)
        for (message, target, pushed_at, origin), new in zip(moves, ids, strict=True)
    ]
    tx.ask(_MOVE, [tx.now, *columns(table, (Int4s, Int8s, Int4s, Int8s, Int8s, Texts))])
    tx.ask(_REMOVE, [source.number, Int8s(each.message.mid for each in moves)])
    arriving = [
        New(target, new, Draft(b"", priority=priority_at(message.place), group=message.grp or ""), b"", message.size)
        for (message, target, _, _), new in zip(moves, ids, strict=True)
    ]
    line_up(tx, arriving, [each.message.reason for each in moves])
    for each in moves:
        tx.count(each.target, "pushed")
    return ids
