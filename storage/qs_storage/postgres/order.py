"""Groups: which of their messages stand in the line, and which wait.

At most one message of a group is in the line, its oldest, and only while another one of the group may be handed out:
the line has nothing that a receive would have to pass over, however many messages wait. All other visible messages of
the group are hidden (PARKED), until `arrange` puts the next one into the line.

A transaction first changes messages, and notes the groups that this concerns (`enter`, `touch`). Then it takes the
locks of all of these, in one order, and puts each group right. So whoever holds a group's lock sees what the holders
before have committed, and transactions seldom wait for each other in a circle.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from .arrays import Bools, Int4s, Int8s, Texts, columns
from .known import FOREVER, PARKED, Known, number_at, place_of
from .line import HIDDEN_AS, HIDE, LINE_UP, LINED_AS

if TYPE_CHECKING:
    from .transaction import Transaction

Group = tuple[Known, str]
_TURN = "\x01"
"""Begins the names of groups that no client can name: in a fair queue, the messages of a priority without a group take
turns with the groups as if they were one, of which any number may be out."""
_ANY = 1 << 30
_MANY = 200
"""Groups of a queue that are locked one by one. For more, the whole queue is locked: PostgreSQL has room for some
thousand locks in all."""
_AT_ONCE = 1000
"""Groups of one statement."""

_LOCK_QUEUES = """
SELECT CASE WHEN u.whole THEN pg_advisory_xact_lock(4, u.queue) ELSE pg_advisory_xact_lock_shared(4, u.queue) END
FROM unnest(%b::int[], %b::boolean[]) AS u (queue, whole)"""
_LOCK_GROUPS = "SELECT pg_advisory_xact_lock(5, g) FROM unnest(%b::int[]) AS g"
_TRY_QUEUES = """
SELECT u.queue FROM unnest(%b::int[], %b::boolean[]) AS u (queue, whole)
WHERE CASE WHEN u.whole THEN pg_try_advisory_xact_lock(4, u.queue)
    ELSE pg_try_advisory_xact_lock_shared(4, u.queue) END"""
_TRY_GROUPS = "SELECT g FROM unnest(%b::int[]) AS g WHERE pg_try_advisory_xact_lock(5, g)"
_SUMMARY = """
SELECT ARRAY(SELECT l.id FROM qs.line AS l WHERE l.queue = u.queue AND l.grp = u.grp),
    (SELECT count(*) FROM (
        SELECT FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 1 LIMIT u.most) AS o)
    + (SELECT count(*) FROM (
        SELECT FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 4 LIMIT u.most) AS c),
    (SELECT h.id FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 2 ORDER BY h.id LIMIT 1),
    (SELECT h.id FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 3 ORDER BY h.id LIMIT 1)
FROM unnest(%b::int[], %b::text[], %b::int[]) WITH ORDINALITY AS u (queue, grp, most, number) ORDER BY u.number"""
_PROMOTE = """
WITH u AS MATERIALIZED (SELECT * FROM unnest(%b::int[], %b::bigint[], %b::bigint[]) AS u (queue, id, turn)),
gone AS (
    DELETE FROM qs.hidden AS h USING u WHERE h.queue = u.queue AND h.id = u.id AND h.state = 3
    RETURNING h.*, coalesce(u.turn, nextval('qs.mids')) AS turn)
INSERT INTO qs.line (queue, place, id, receives, size, grp, reason)
SELECT g.queue, ((g.place >> 56) << 56) | g.turn, g.id, g.receives, g.size, g.grp, g.reason FROM gone AS g
RETURNING queue, id, place"""
_DEMOTE = """
WITH gone AS (
    DELETE FROM qs.line WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM unnest(%b::int[], %b::bigint[]) AS u (queue, id)
        JOIN qs.line AS l ON l.queue = u.queue AND l.id = u.id FOR UPDATE OF l SKIP LOCKED))
    RETURNING *)
INSERT INTO qs.hidden (queue, id, place, until, receives, size, state, held, grp, reason)
SELECT g.queue, g.id, g.place, %b::bigint, g.receives, g.size, 3, false, g.grp, g.reason FROM gone AS g
RETURNING queue, id, place"""
"""A row that somebody else has locked is being received: it stays."""


class Entrant(NamedTuple):
    """A new message of a group, which is visible. size: bytes of payload and headers."""

    mid: int
    priority: int
    size: int
    reason: str | None


# -- what a transaction notes


def group_of(known: Known, group: str | None, priority: int) -> str | None:
    """Returns the group in the rows of a message. group: as pushed, or from rows of any queue."""
    if group and not group.startswith(_TURN):
        return group
    return f"{_TURN}{priority}" if known.options.fair else None


def is_turn(group: str) -> bool:
    """Tells whether a group stands for messages of a fair queue that have none: these do not wait for each other."""
    return group.startswith(_TURN)


def most_of(known: Known, group: str) -> int:
    """Returns how many messages of a group may be out."""
    return _ANY if is_turn(group) else known.options.group_in_flight or 1


def enter(tx: "Transaction", known: Known, group: str, entrant: Entrant) -> None:
    """Notes a new message: `arrange` puts it into the line, or hides it."""
    tx.groups.setdefault((known, group), []).append(entrant)


def touch(tx: "Transaction", known: Known, group: str) -> None:
    """Notes a group of which a message has left, or has become visible or delayed."""
    tx.groups.setdefault((known, group), [])


def touch_left(tx: "Transaction", known: Known, group: str | None) -> None:
    """Notes the group of a message that has left its queue. group: from its rows, None if that is not known."""
    if group is not None:
        touch(tx, known, group)
    elif known.options.fair:
        for priority in range(10):
            touch(tx, known, f"{_TURN}{priority}")


def touch_taken(tx: "Transaction", known: Known, group: str | None) -> None:
    """Notes the group of a message that was handed out, if another one of it may follow at once."""
    if group is not None and most_of(known, group) > 1:
        touch(tx, known, group)


# -- putting groups right


def arrange(tx: "Transaction", *, patient: bool = True) -> bool:
    """Puts the groups right that the transaction has noted. patient: False to leave groups to `catch_up` whose locks
    others hold: for a transaction that has locked other things since it had the locks of groups. Returns whether
    something has come into the line. psycopg.Error."""
    noted, tx.groups = tx.groups, {}
    if not noted:
        return False
    groups = _lock(tx, noted) if patient else _try_lock(tx, noted)
    moved = False
    for at in range(0, len(groups), _AT_ONCE):
        moved |= _arrange(tx, [(group, noted[group]) for group in groups[at : at + _AT_ONCE]])
    return moved


def catch_up(tx: "Transaction") -> None:
    """Notes the groups that were left by an impatient `arrange`."""
    behind = dict(tx.shared.behind)
    for known, group in behind:
        touch(tx, known, group)
    if behind:
        tx.later(lambda: tx.shared.caught_up(behind))


def _hash(group: Group) -> int:
    known, name = group
    return crc32(f"{known.number}:{name}".encode()) - (1 << 31)


def _locks(groups: Iterable[Group]) -> tuple[list[tuple[int, bool]], dict[Group, int]]:
    """Returns the locks of queues, each with whether it is for the whole queue, and those of single groups."""
    counts: dict[int, int] = {}
    for known, _ in groups:
        counts[known.number] = counts.get(known.number, 0) + 1
    queues = sorted([(number, count > _MANY) for number, count in counts.items()])
    return queues, {group: _hash(group) for group in groups if counts[group[0].number] <= _MANY}


def _lock(tx: "Transaction", groups: Iterable[Group]) -> list[Group]:
    queues, hashes = _locks(groups)
    tx.ask(_LOCK_QUEUES, columns(queues, (Int4s, Bools)))
    if hashes:
        tx.ask(_LOCK_GROUPS, [Int4s(sorted(set(hashes.values())))])
    return list(groups)


def _try_lock(tx: "Transaction", groups: Iterable[Group]) -> list[Group]:
    """Locks groups that nobody else has locked, and returns them. The others are noted as left behind."""
    queues, hashes = _locks(groups)
    whole = {row[0] for row in tx.rows(_TRY_QUEUES, columns(queues, (Int4s, Bools)))}
    single = {row[0] for row in tx.rows(_TRY_GROUPS, [Int4s(sorted(set(hashes.values())))])} if hashes else set()
    locked = [group for group in groups if group[0].number in whole and hashes.get(group) in {None, *single}]
    if left := set(groups).difference(locked):
        tx.later(lambda: tx.shared.fall_behind(left))
        tx.due(tx.now)
    return locked


def _arrange(tx: "Transaction", groups: Sequence[tuple[Group, list[Entrant]]]) -> bool:
    """Puts groups right that are locked. Returns whether something has come into the line."""
    asked = [(known.number, name, most_of(known, name)) for (known, name), _ in groups]
    plans = [
        _Plan(known, most_of(known, name), entrants, *row)
        for ((known, name), entrants), row in zip(
            groups, tx.rows(_SUMMARY, columns(asked, (Int4s, Texts, Int4s))), strict=True
        )
    ]
    _demote(tx, [plan for plan in plans if plan.extra])
    parked = [plan for plan in plans if plan.head is not None and plan.head == plan.parked]
    promoted = []
    if parked:
        wanted = [(plan.known.number, plan.head, plan.turn) for plan in parked]
        promoted = tx.rows(_PROMOTE, columns(wanted, (Int4s, Int8s, Int8s)))
        known_by = {plan.known.number: plan.known for plan in parked}
        for queue, _, place in promoted:
            tx.arrive(known_by[queue], place)
    lined: list[tuple[object, ...]] = []
    hidden: list[tuple[object, ...]] = []
    for ((known, name), entrants), plan in zip(groups, plans, strict=True):
        for mid, priority, size, reason in entrants:
            place = place_of(priority, mid)
            if mid == plan.head:
                lined.append((known.number, place, mid, 0, size, name, reason))
                tx.arrive(known, place)
            else:
                hidden.append((known.number, mid, place, FOREVER, 0, size, PARKED, name, reason))
    if lined:
        tx.ask(LINE_UP, columns(lined, LINED_AS))
    if hidden:
        tx.ask(HIDE, columns(hidden, HIDDEN_AS))
    return bool(promoted or lined)


class _Plan:
    """Decides which message of a group has to be in the line.

    lined: those that are there; out: how many are in flight or claimed; delayed, parked: the oldest of those."""

    def __init__(  # noqa: PLR0917
        self,
        known: Known,
        most: int,
        entrants: Sequence[Entrant],
        lined: Sequence[int],
        out: int,
        delayed: int | None,
        parked: int | None,
    ) -> None:
        self.known = known
        self.parked = parked
        self.kept_turn: int | None = None
        self._room = most - out
        ready = [*lined, *[entrant.mid for entrant in entrants], *([] if parked is None else [parked])]
        head = min(ready, default=None)
        # A strict order: what was given back and is delayed keeps the younger ones back.
        waits = most == 1 and delayed is not None and head is not None and delayed < head
        self.head = None if waits or self._room <= 0 else head
        """The message that has to be in the line, None if none may."""
        self.extra = [mid for mid in lined if mid != self.head]
        """Those that are in the line, and must not be."""

    def note_received(self, count: int) -> None:
        """Notes messages of the line that somebody is receiving just now."""
        if self._room <= count:
            self.head = None

    @property
    def turn(self) -> int | None:
        """The number in the place of `head`, None for a new turn. A group keeps its turn when an older message of it
        has come back."""
        return self.kept_turn if self.known.options.fair else self.head


def _demote(tx: "Transaction", plans: Sequence[_Plan]) -> None:
    """Takes messages out of the line that must not be there."""
    if not plans:
        return
    wanted = [(plan.known.number, mid) for plan in plans for mid in plan.extra]
    done = {(queue, mid): place for queue, mid, place in tx.rows(_DEMOTE, [*columns(wanted, (Int4s, Int8s)), FOREVER])}
    for plan in plans:
        places = [done[plan.known.number, mid] for mid in plan.extra if (plan.known.number, mid) in done]
        plan.kept_turn = min([number_at(place) for place in places], default=None)
        plan.note_received(len(plan.extra) - len(places))
