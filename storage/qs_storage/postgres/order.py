"""Groups: which of their messages stand in the line, and which wait.

Only those messages of a group are in the line that may be handed out now, its oldest: together with those that are out,
no more than may be. So the line has nothing that a receive would have to pass over, and a receive has nothing to count.
All other visible messages of the group are hidden (PARKED), until `arrange` puts the next one into the line.

A transaction first changes messages, and notes the groups that this concerns (`enter`, `touch`). Then it takes the
locks of all of these, in one order, and puts each group right. So whoever holds a group's lock sees what the holders
before have committed, and transactions seldom wait for each other in a circle.
"""

from collections.abc import Collection, Iterable, Sequence
from zlib import crc32

from .arrays import Bools, Int4s, Int8s, Texts, columns
from .known import FOREVER, PARKED, Known, level_of, number_at, place_of
from .line import HIDDEN_AS, HIDE, LINE_UP, LINED_AS
from .transaction import Entrant, Group, Transaction

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
SELECT l.ids, l.places, o.number, p.ids, p.places,
    (SELECT h.id FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 2 ORDER BY h.id LIMIT 1)
FROM unnest(%b::int[], %b::text[], %b::int[], %b::int[]) WITH ORDINALITY AS u (queue, grp, most, wide, number)
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(x.id), '{}') AS ids, coalesce(array_agg(x.place), '{}') AS places
    FROM qs.line AS x WHERE x.queue = u.queue AND x.grp = u.grp) AS l
CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM (
        SELECT FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 1 LIMIT u.most) AS f)
    + (SELECT count(*) FROM (
        SELECT FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 4 LIMIT u.most) AS c)
    AS number) AS o
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(y.id), '{}') AS ids, coalesce(array_agg(y.place), '{}') AS places FROM (
        SELECT h.id, h.place FROM qs.hidden AS h WHERE h.queue = u.queue AND h.grp = u.grp AND h.state = 3
        ORDER BY h.id LIMIT greatest(least(u.most - o.number, u.wide) - cardinality(l.ids), 1)) AS y) AS p
ORDER BY u.number"""
"""What there is of groups: in the line; in flight or claimed; the oldest of those that wait, and of those delayed."""
_PROMOTE = """
WITH u AS MATERIALIZED (SELECT * FROM unnest(%b::int[], %b::bigint[], %b::bigint[]) AS u (queue, id, turn)),
gone AS (
    DELETE FROM qs.hidden AS h USING (
        SELECT h.ctid AS row, u.turn FROM u JOIN qs.hidden AS h ON h.queue = u.queue AND h.id = u.id
        WHERE h.state = 3 FOR UPDATE OF h SKIP LOCKED) AS w
    WHERE h.ctid = w.row
    RETURNING h.*, coalesce(w.turn, nextval('qs.mids')) AS turn)
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


def group_of(known: Known, group: str | None, priority: int) -> str | None:
    """Returns the group in the rows of a message. group: as pushed, or from rows of any queue."""
    if group and not is_turn(group):
        return group
    return f"{_TURN}{priority}" if known.options.fair else None


def is_turn(group: str) -> bool:
    """Tells whether a group stands for messages of a fair queue that have none: these do not wait for each other."""
    return group.startswith(_TURN)


def most_of(known: Known, group: str) -> int:
    """Returns how many messages of a group may be out."""
    return _ANY if is_turn(group) else min(known.options.group_in_flight or 1, _ANY)


def enter(tx: Transaction, known: Known, group: str, entrant: Entrant) -> None:
    """Notes a new message: `arrange` puts it into the line, or hides it."""
    tx.groups.setdefault((known, group), []).append(entrant)


def touch(tx: Transaction, known: Known, group: str) -> None:
    """Notes a group of which a message has left, or has become visible or delayed."""
    tx.groups.setdefault((known, group), [])


def touch_left(tx: Transaction, known: Known, group: str | None) -> None:
    """Notes the group of a message that has left its queue. group: from its rows, None if that is not known."""
    if group is not None:
        touch(tx, known, group)
    elif known.options.fair:
        for priority in range(10):
            touch(tx, known, f"{_TURN}{priority}")


def touch_taken(tx: Transaction, known: Known, group: str | None) -> None:
    """Notes the group of a message that was handed out, if another one of it may follow at once."""
    if group is not None and most_of(known, group) > 1:
        touch(tx, known, group)


# -- putting groups right


def arrange(tx: Transaction, *, patient: bool = True) -> dict[Group, int]:
    """Puts the groups right that the transaction has noted. patient: False to leave groups to `catch_up` whose locks
    others hold: for a transaction that has locked other things since it had the locks of groups. Returns the groups of
    which something has come into the line, each with the place of the first. psycopg.Error."""
    moved: dict[Group, int] = {}
    while tx.groups:
        noted, tx.groups = tx.groups, {}
        groups = _lock(tx, noted) if patient else _try_lock(tx, noted)
        for at in range(0, len(groups), _AT_ONCE):
            moved |= _arrange(tx, [(group, noted[group]) for group in groups[at : at + _AT_ONCE]])
    return moved


def catch_up(tx: Transaction) -> None:
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


def _lock(tx: Transaction, groups: Iterable[Group]) -> list[Group]:
    queues, hashes = _locks(groups)
    tx.ask(_LOCK_QUEUES, columns(queues, (Int4s, Bools)))
    if hashes:
        tx.ask(_LOCK_GROUPS, [Int4s(sorted(set(hashes.values())))])
    return list(groups)


def _try_lock(tx: Transaction, groups: Iterable[Group]) -> list[Group]:
    """Locks groups that nobody else has locked, and returns them. The others are noted as left behind."""
    queues, hashes = _locks(groups)
    whole = {row[0] for row in tx.rows(_TRY_QUEUES, columns(queues, (Int4s, Bools)))}
    single = {row[0] for row in tx.rows(_TRY_GROUPS, [Int4s(sorted(set(hashes.values())))])} if hashes else set()
    locked = [group for group in groups if group[0].number in whole and hashes.get(group) in {None, *single}]
    if left := set(groups).difference(locked):
        _fall_behind(tx, left)
    return locked


def _fall_behind(tx: "Transaction", groups: Collection[Group]) -> None:
    """Leaves groups to `catch_up`."""
    tx.later(lambda: tx.shared.fall_behind(groups))
    tx.due(tx.now)


def _arrange(tx: Transaction, groups: Sequence[tuple[Group, list[Entrant]]]) -> dict[Group, int]:
    """Puts groups right that are locked. Returns those of which something has come into the line, with the place of
    the first."""
    asked = [(known.number, name, most_of(known, name), _width(known)) for (known, name), _ in groups]
    summary = tx.rows(_SUMMARY, columns(asked, (Int4s, Texts, Int4s, Int4s)))
    plans = [_Plan(*group, entrants, *row) for (group, entrants), row in zip(groups, summary, strict=True)]
    _demote(tx, [plan for plan in plans if plan.extra])
    places = _promote(tx, plans)
    lined: list[tuple[object, ...]] = []
    hidden: list[tuple[object, ...]] = []
    for plan in plans:
        wanted = set(plan.wanted)
        for mid, priority, size, reason in plan.entrants:
            place = place_of(priority, mid)
            if mid in wanted:
                lined.append((plan.known.number, place, mid, 0, size, plan.name, reason))
                tx.arrive(plan.known, place)
                places.setdefault((plan.known, plan.name), place)
            else:
                hidden.append((plan.known.number, mid, place, FOREVER, 0, size, PARKED, plan.name, reason))
        if plan.demoted:  # others that wait may be older than what is in the line now, too
            touch(tx, plan.known, plan.name)
    if lined:
        tx.ask(LINE_UP, columns(lined, LINED_AS))
    if hidden:
        tx.ask(HIDE, columns(hidden, HIDDEN_AS))
    return places


class _Plan:
    """Decides which messages of a group have to be in the line: the oldest, as many as may be out. In a fair queue only
    the first, as the next one gets its turn later. And none before an older one of a lower priority is taken, which
    would come after it.

    lined, line_places: those that are there; out: how many are in flight or claimed; parked, parked_places: those that
    wait; delayed: the oldest that is delayed."""

    def __init__(  # noqa: PLR0917
        self,
        known: Known,
        name: str,
        entrants: Sequence[Entrant],
        lined: Sequence[int],
        line_places: Sequence[int],
        out: int,
        parked: Sequence[int],
        parked_places: Sequence[int],
        delayed: int | None,
    ) -> None:
        self.known, self.name, self.entrants = known, name, entrants
        self.parked = set(parked)
        self.kept_turn: int | None = None
        self.demoted = False
        self._lined = set(lined)
        self._room = min(most_of(known, name) - out, _width(known))
        levels = dict(zip([*lined, *parked], map(level_of, [*line_places, *parked_places]), strict=True))
        levels |= {entrant.mid: level_of(place_of(entrant.priority, 0)) for entrant in entrants}
        # A strict order: what was given back and is delayed keeps the younger ones back.
        strict = delayed is not None and most_of(known, name) == 1
        self._levels = [(mid, levels[mid]) for mid in sorted(levels) if not strict or mid < (delayed or 0)]
        self._decide()

    def _decide(self) -> None:
        self.wanted: list[int] = []
        """The messages that have to be in the line."""
        before = 0
        for mid, level in self._levels[: max(self._room, 0)]:
            if level < before:
                break
            self.wanted.append(mid)
            before = level
        self.extra = sorted(self._lined.difference(self.wanted))
        """Those that are in the line, and must not be."""

    def note_received(self, mids: Collection[int]) -> None:
        """Notes messages of the line that somebody is receiving just now."""
        self._room -= len(mids)
        self._levels = [(mid, level) for mid, level in self._levels if mid not in mids]
        self._lined.difference_update(mids)
        extra = self.extra
        self._decide()
        self.extra = extra

    def turn(self, mid: int) -> int | None:
        """Returns the number for the place of a message, None for a new turn. A group keeps its turn when an older
        message of it has come back."""
        return self.kept_turn if self.known.options.fair else mid


def _width(known: Known) -> int:
    """Returns how many messages of a group may be in the line."""
    return 1 if known.options.fair else _ANY


def _demote(tx: Transaction, plans: Sequence[_Plan]) -> None:
    """Takes messages out of the line that must not be there."""
    if not plans:
        return
    asked = [(plan.known.number, mid) for plan in plans for mid in plan.extra]
    done = {(queue, mid): place for queue, mid, place in tx.rows(_DEMOTE, [*columns(asked, (Int4s, Int8s)), FOREVER])}
    for plan in plans:
        places = {mid: done.get((plan.known.number, mid)) for mid in plan.extra}
        plan.kept_turn = min([number_at(place) for place in places.values() if place is not None], default=None)
        plan.demoted = plan.kept_turn is not None
        if received := {mid for mid, place in places.items() if place is None}:
            plan.note_received(received)


def _promote(tx: Transaction, plans: Sequence[_Plan]) -> dict[Group, int]:
    """Puts messages into the line that wait. Returns the groups, each with the place of its first one."""
    asked = [(plan.known.number, mid, plan.turn(mid)) for plan in plans for mid in plan.wanted if mid in plan.parked]
    if not asked:
        return {}
    done = {(queue, mid): place for queue, mid, place in tx.rows(_PROMOTE, columns(asked, (Int4s, Int8s, Int8s)))}
    found: dict[Group, int] = {}
    if len(done) < len(asked):  # somebody is removing one that waits: then the next one comes
        _fall_behind(tx, {(plan.known, plan.name) for plan in plans if plan.parked.intersection(plan.wanted)})
    for plan in plans:
        for mid in plan.wanted:
            if (place := done.get((plan.known.number, mid))) is not None:
                tx.arrive(plan.known, place)
                found.setdefault((plan.known, plan.name), place)
    return found
