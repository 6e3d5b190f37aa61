"""Pushes of one sweep: all that came together go into the database with a few statements."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..engine import SECOND, Draft, NoSuchQueueError, QueueFullError, StorageError
from ..headers import pack_headers
from ..policy import PLAIN, require_room
from ..remote_engine import Push
from . import order
from .arrays import Array, Blobs, Bools, Int2s, Int4s, Int8s, Texts, columns
from .known import DELAYED, FOREVER, PLAIN_PLACE, Known, place_of
from .line import HIDDEN_AS, HIDE, LINE_UP, LINED_AS
from .transaction import Entrant, Transaction

if TYPE_CHECKING:
    from .pipeline import Answer

KEY_WINDOW = 300 * SECOND
"""The window in which a key counts."""

LOCK_SHARED = "SELECT pg_advisory_xact_lock_shared(1, q) FROM unnest(%b::int[]) AS q"
LOCK = "SELECT pg_advisory_xact_lock(1, q) FROM unnest(%b::int[]) AS q"
"""The lock of a queue: whoever removes it, or counts what it holds, waits for the pushes into it."""
THERE = "SELECT queue FROM qs.queues WHERE queue = ANY (%b::int[])"
HELD = """
SELECT (SELECT count(*) FROM (SELECT FROM qs.line WHERE queue = %b::int LIMIT %b::bigint) AS l)
    + (SELECT count(*) FROM (SELECT FROM qs.hidden WHERE queue = %b::int LIMIT %b::bigint) AS h)"""
_PUSH = """
WITH new AS MATERIALIZED (
    SELECT nextval('qs.mids') AS id, u.queue, u.payload
    FROM unnest(%b::int[], %b::bytea[]) WITH ORDINALITY AS u (queue, payload, number) ORDER BY u.number),
kept AS (
    INSERT INTO qs.messages (queue, id, pushed_at, stored_at, priority, payload)
    SELECT n.queue, n.id, t.now, t.now, 0, n.payload FROM new AS n, (SELECT %b::bigint AS now) AS t),
lined AS (
    INSERT INTO qs.line (queue, place, id, receives, size)
    SELECT n.queue, %b::bigint + n.id, n.id, 0, length(n.payload) FROM new AS n)
SELECT id FROM new ORDER BY id"""
IDS = "SELECT nextval('qs.mids') FROM generate_series(1, %b::int)"
_KEYED = """
SELECT k.queue, k.key, k.id, k.until > %b::bigint AND (
    NOT u.unique_ OR (SELECT count(*) FROM qs.messages AS m WHERE m.queue = k.queue AND m.id = k.id) > 0)
FROM unnest(%b::int[], %b::text[], %b::boolean[]) AS u (queue, key, unique_)
CROSS JOIN LATERAL (SELECT * FROM qs.keys AS k WHERE k.queue = u.queue AND k.key = u.key OFFSET 0) AS k"""
# OFFSET 0: see `claims.py`.
_KEY = """
INSERT INTO qs.keys AS k (queue, key, id, until)
SELECT * FROM unnest(%b::int[], %b::text[], %b::bigint[], %b::bigint[])
ON CONFLICT (queue, key) DO UPDATE SET id = excluded.id, until = excluded.until WHERE k.id = ANY (%b::bigint[])
RETURNING queue, key"""
KEEP = """
INSERT INTO qs.messages (queue, id, pushed_at, stored_at, expires_at, priority, grp, ukey, headers, payload)
SELECT * FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::smallint[], %b::text[],
    %b::text[], %b::bytea[], %b::bytea[])"""
KEPT_AS: tuple[type[Array], ...] = (Int4s, Int8s, Int8s, Int8s, Int8s, Int2s, Texts, Texts, Blobs, Blobs)
"""The types of the columns of KEEP."""


class New(NamedTuple):
    """A message that is being pushed. size: bytes of payload and headers."""

    known: Known
    mid: int
    draft: Draft
    headers: bytes
    size: int


def push(tx: Transaction, pushes: Sequence[Push]) -> None:
    """Stores the messages of pushes. psycopg.Error; NoSuchQueueError if another server has removed a queue."""
    wanted: list[tuple[Push, Known]] = []
    for operation in pushes:
        known = tx.shared.queues.get(operation.qid)
        if known is None:
            tx.results.append((operation, NoSuchQueueError(f"there is no queue {operation.qid!r}")))
        else:
            wanted.append((operation, known))
    if not wanted:
        return
    there = lock(tx, [known for _, known in wanted])
    wanted = _fitting(tx, wanted)
    plain = [one for one in wanted if not one[1].options.fair and all(map(_is_plain, one[0].drafts))]
    others = [one for one in wanted if one not in plain] if len(plain) < len(wanted) else []
    given = _push_plain(tx, plain) if plain else None
    if len(there.fetchall()) < len({known.number for _, known in wanted}):
        raise _gone(tx, wanted)
    if given is not None:
        mids = iter([row[0] for row in given])
        for operation, known in plain:
            found = [next(mids) for _ in operation.drafts]
            tx.results.append((operation, found))
            tx.count(known, "pushed", len(found))
            tx.arrive(known, PLAIN_PLACE + found[0], len(found))
    if others:
        _push_others(tx, others)


def _is_plain(draft: Draft) -> bool:
    return not draft[1] and draft[2:] == PLAIN


def lock(tx: Transaction, wanted: Iterable[Known]) -> "Answer":
    """Keeps queues from being removed before the commit, and those with a capacity from being filled. The answer has a
    row for each queue that is there."""
    queues = {known.number: known.options.capacity is not None for known in wanted}
    numbers = sorted(queues)
    if limited := [number for number in numbers if queues[number]]:
        tx.ask(LOCK, [Int4s(limited)])
    if shared := [number for number in numbers if not queues[number]]:
        tx.ask(LOCK_SHARED, [Int4s(shared)])
    return tx.ask(THERE, [Int4s(numbers)])


def _push_plain(tx: Transaction, plain: Sequence[tuple[Push, Known]]) -> "Answer":
    """Stores messages without attributes, in one statement. Returns a cursor with their ids."""
    queues = Int4s(known.number for operation, known in plain for _ in operation.drafts)
    payloads = Blobs(draft[0] for operation, _ in plain for draft in operation.drafts)
    return tx.ask(_PUSH, [queues, payloads, tx.now, PLAIN_PLACE])


def _gone(tx: Transaction, wanted: Sequence[tuple[Push, Known]]) -> StorageError:
    """Returns the error for pushes to a queue that another server has removed. The sweep is divided then, so that only
    the concerned fail."""
    numbers = Int4s(known.number for _, known in wanted)
    there = {row[0] for row in tx.rows(THERE, [numbers])}
    gone = next((known.qid for _, known in wanted if known.number not in there), "")
    return NoSuchQueueError(f"there is no queue {gone!r} any more")


def held(tx: Transaction, known: Known, most: int) -> int:
    """Counts what a queue holds, up to some `most`."""
    return int(tx.rows(HELD, [known.number, most, known.number, most])[0][0])


def _fitting(tx: Transaction, pushes: list[tuple[Push, Known]]) -> list[tuple[Push, Known]]:
    """Returns the pushes for which their queues have room. Others are refused."""
    found: list[tuple[Push, Known]] = []
    counts: dict[Known, int] = {}
    for operation, known in pushes:
        capacity = known.options.capacity
        if capacity is not None:
            if known not in counts:
                counts[known] = held(tx, known, capacity + 1)
            try:
                require_room(known.qid, capacity, partial(counts.__getitem__, known), len(operation.drafts))
            except QueueFullError as error:
                tx.results.append((operation, error))
                continue
            counts[known] += len(operation.drafts)
        found.append((operation, known))
    return found


def _push_others(tx: Transaction, pushes: list[tuple[Push, Known]]) -> None:
    """Stores messages with delays, keys or other attributes."""
    now = tx.now
    drafts = [(known, draft) for operation, known in pushes for draft in operation.drafts]
    ids = sorted(row[0] for row in tx.rows(IDS, [len(drafts)]))
    mids = _by_keys(tx, drafts, ids, now)
    new = []
    for (known, draft), mid, own in zip(drafts, mids, ids, strict=True):
        if mid == own:
            headers = pack_headers(draft.headers)
            new.append(New(known, mid, draft, headers, len(draft.payload) + len(headers)))
    store(tx, new)
    answered = iter(mids)
    for operation, _ in pushes:
        tx.results.append((operation, [next(answered) for _ in operation.drafts]))
    for each in new:
        tx.count(each.known, "pushed")


def _by_keys(tx: Transaction, drafts: list[tuple[Known, Draft]], ids: list[int], now: int) -> list[int]:
    """Returns the id of each draft: its own, or that of the message that had its key first."""
    wanted: dict[tuple[int, str], tuple[int, int]] = {}
    for (known, draft), mid in zip(drafts, ids, strict=True):
        if draft.key is not None:
            wanted.setdefault((known.number, draft.key), (mid, FOREVER if draft.unique else now + KEY_WINDOW))
    found: dict[tuple[int, str], int] = {}
    while wanted:
        asked = [(*name, until == FOREVER) for name, (_, until) in wanted.items()]
        over: list[int] = []
        # Only reads: whoever writes a row that counts makes all others wait who have the same key.
        for queue, key, mid, counts in tx.rows(_KEYED, [now, *columns(asked, (Int4s, Texts, Bools))]):
            if counts:
                found[queue, key] = mid
                del wanted[queue, key]
            else:
                over.append(mid)
        if wanted:
            # In one order everywhere, against deadlocks. Those that others were faster with are read again.
            keyed = sorted((*name, *kept) for name, kept in wanted.items())
            for name in tx.rows(_KEY, [*columns(keyed, (Int4s, Texts, Int8s, Int8s)), Int8s(over)]):
                found[name], _ = wanted.pop(name)
    return [
        mid if draft.key is None else found[known.number, draft.key]
        for (known, draft), mid in zip(drafts, ids, strict=True)
    ]


def store(tx: Transaction, new: Sequence[New]) -> None:
    """Stores new messages with all that they may have, in the line or hidden. Pushes and published batches come here.
    psycopg.Error."""
    if not new:
        return
    now = tx.now
    kept = []
    for known, mid, draft, headers, _ in new:
        ends = None if draft.expires is None else now + draft.expires
        group, key = draft.group or None, draft.key if draft.unique else None
        kept.append((known.number, mid, now, now, ends, draft.priority, group, key, headers or None, draft.payload))
    tx.ask(KEEP, columns(kept, KEPT_AS))
    line_up(tx, new)


def line_up(tx: Transaction, new: Sequence[New], reasons: Sequence[str | None] = ()) -> None:
    """Puts messages whose rows in `messages` are there into the line, or hides them: those with a delay, and those that
    wait for others of their group. reasons: one for each, empty for none. psycopg.Error."""
    lined, hidden = [], []
    for each, reason in zip(new, reasons or [None] * len(new), strict=True):
        known, mid, draft, _, size = each
        group, place = order.group_of(known, draft.group, draft.priority), place_of(draft.priority, mid)
        if draft.delay:
            hidden.append((known.number, mid, place, tx.now + draft.delay, 0, size, DELAYED, group, reason))
            tx.due(tx.now + draft.delay)
        elif group is not None:
            order.enter(tx, known, group, Entrant(mid, draft.priority, size, reason))
        else:
            lined.append((known.number, place, mid, 0, size, None, reason))
            tx.arrive(known, place)
    if lined:
        tx.ask(LINE_UP, columns(lined, LINED_AS))
    if hidden:
        tx.ask(HIDE, columns(hidden, HIDDEN_AS))
