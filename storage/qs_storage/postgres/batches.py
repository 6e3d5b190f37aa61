"""Batches of the producers of one queue of the database: staged part by part, published as a whole, and never twice."""

from collections.abc import Sequence

from ..engine import BatchOrderError, Draft, NoSuchPartError
from ..headers import pack_headers
from ..names import check_name, quoted
from .arrays import Blobs, Int2s, Int8s, Texts, columns
from .entering import enter
from .known import Known, Shared
from .pushing import New, line_up
from .running import run
from .transaction import Transaction

_CHUNK = 5000
"""Messages that are published with one statement."""
_LOCK = "SELECT pg_advisory_xact_lock(3, hashtext(%b::text) # %b::int)"
_LOCK_SHARED = "SELECT pg_advisory_xact_lock_shared(3, hashtext(%b::text) # %b::int)"
"""The lock of a producer: a publication waits for what is being staged."""
_PUBLISHED = "SELECT published FROM qs.producers WHERE queue = %b::int AND producer = %b::text"
_GREATEST = "SELECT max(batch) FROM qs.staged WHERE queue = %b::int AND producer = %b::text"
_STAGE = """
INSERT INTO qs.staged (queue, producer, batch, part, attempt, staged_at, expires_at, priority, grp, headers, payload)
SELECT %b::int, %b::text, %b::bigint, %b::bigint, %b::bigint, %b::bigint,
    u.expires_at, u.priority, u.grp, u.headers, u.payload
FROM unnest(%b::bigint[], %b::smallint[], %b::text[], %b::bytea[], %b::bytea[])
    WITH ORDINALITY AS u (expires_at, priority, grp, headers, payload, number) ORDER BY u.number"""
_COUNTS = """
SELECT part, attempt, count(payload) FROM qs.staged
WHERE queue = %b::int AND producer = %b::text AND batch = %b::bigint GROUP BY part, attempt"""
_CHUNK_END = """
SELECT max(s.number) FROM (
    SELECT number FROM qs.staged
    WHERE queue = %b::int AND producer = %b::text AND batch = %b::bigint AND part = %b::bigint AND attempt = %b::bigint
        AND number > %b::bigint
    ORDER BY number LIMIT %b::int) AS s"""
_PUBLISH = """
INSERT INTO qs.messages (queue, id, pushed_at, stored_at, expires_at, priority, grp, headers, payload)
SELECT s.queue, nextval('qs.mids'), t.now, t.now, s.expires_at, s.priority, s.grp, s.headers, s.payload FROM (
    SELECT * FROM qs.staged
    WHERE queue = %b::int AND producer = %b::text AND batch = %b::bigint AND part = %b::bigint AND attempt = %b::bigint
        AND number > %b::bigint AND number <= %b::bigint AND payload IS NOT NULL
    ORDER BY number) AS s, (SELECT %b::bigint AS now) AS t
RETURNING id, priority, grp, length(payload) + coalesce(length(headers), 0)"""
_DROP = "DELETE FROM qs.staged WHERE queue = %b::int AND producer = %b::text AND batch <= %b::bigint"
_NOTE = """
INSERT INTO qs.producers (queue, producer, published) VALUES (%b::int, %b::text, %b::bigint)
ON CONFLICT (queue, producer) DO UPDATE SET published = excluded.published"""


class PostgresBatches:
    """Stages and publishes the batches of one queue: implements Batches.

    Ensures:
    1. Nobody sees a staged message before its batch is published, and then all of the batch is visible at once.
    2. A batch is published at most once, with one attempt at each part, by whichever server.
    3. Staging and publishing can be repeated: what is published already is left as it is.

    Payloads are copied within the database, and never come here. A part without messages is a row of `staged` without a
    payload. Every method may raise BadQueueNameError for the producer's name, NoSuchQueueError, UnavailableError and
    NotKnownError."""

    def __init__(self, shared: Shared, known: Known) -> None:
        self._shared = shared
        self._known = known

    def stage(self, producer: str, name: tuple[int, int, int], drafts: Sequence[Draft]) -> None:
        """Implements `Batches.stage`: does nothing if the batch is published."""
        check_name("producer", producer)
        known = self._known

        def step(tx: Transaction) -> None:
            tx.ask(_LOCK_SHARED, [producer, known.number])
            enter(tx, {known: 0})
            if name[0] <= _last(tx, known, producer):
                return
            table: list[tuple[object, ...]] = [
                (
                    None if draft.expires is None else tx.now + draft.expires,
                    draft.priority,
                    draft.group or None,
                    pack_headers(draft.headers) or None,
                    draft.payload,
                )
                for draft in drafts
            ] or [(None, 0, None, None, None)]
            staged = columns(table, (Int8s, Int2s, Texts, Blobs, Blobs))
            tx.ask(_STAGE, [known.number, producer, *name, tx.now, *staged])

        run(self._shared, step)

    def publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> int:
        """Implements `Batches.publish`. BatchOrderError, NoSuchPartError, QueueFullError."""
        check_name("producer", producer)
        return run(self._shared, lambda tx: _publish(tx, self._known, producer, batch, sorted(parts)))


def _last(tx: Transaction, known: Known, producer: str) -> int:
    """Returns the last published batch, -1 without any."""
    found = tx.rows(_PUBLISHED, [known.number, producer])
    return int(found[0][0]) if found else -1


def _publish(tx: Transaction, known: Known, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> int:
    whose = known.number, producer
    tx.ask(_LOCK, [producer, known.number])
    last = _last(tx, known, producer)
    if batch <= last:
        return 0
    # A number by mistake would make the producer's later batches "published" for good: nobody would get them.
    greatest = max(0, last, tx.rows(_GREATEST, whose)[0][0] or 0)
    if batch > greatest + 1:
        raise BatchOrderError(
            f"batch {batch} of producer {quoted(producer)} on queue {known.qid!r} is more than one past the greatest "
            f"that was staged or published: {greatest + 1} is the greatest to publish now"
        )
    if not parts:
        return 0
    counts = {(part, attempt): count for part, attempt, count in tx.rows(_COUNTS, [*whose, batch])}
    for part, attempt in parts:
        if (part, attempt) not in counts:
            raise NoSuchPartError(
                f"producer {quoted(producer)} has not staged part {part} of batch {batch}, attempt {attempt}, on "
                f"queue {known.qid!r}"
            )
    count = int(sum([counts[each] for each in parts]))
    enter(tx, {known: count})
    for part, attempt in parts:
        _publish_part(tx, known, [*whose, batch, part, attempt])
    tx.ask(_DROP, [*whose, batch])
    tx.ask(_NOTE, [*whose, batch])
    tx.count(known, "pushed", count)
    return count


def _publish_part(tx: Transaction, known: Known, name: Sequence[object]) -> None:
    """Copies the staged messages of an attempt at a part, in their order. name: the first columns of its rows."""
    after = -1
    while (upto := tx.rows(_CHUNK_END, [*name, after, _CHUNK])[0][0]) is not None:
        rows = sorted(tx.rows(_PUBLISH, [*name, after, upto, tx.now]))
        new = [
            New(known, mid, Draft(b"", priority=priority, group=group or ""), b"", size)
            for mid, priority, group, size in rows
        ]
        if new:
            line_up(tx, new)
        after = upto
