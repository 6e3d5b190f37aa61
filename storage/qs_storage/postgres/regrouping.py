"""Puts the groups of a queue right when its options say something else of them than before.

It looks at all messages of the queue, and holds up everybody who needs its groups. So it does nothing for other
options."""

from ..engine import Options
from . import order
from .known import Known
from .transaction import Transaction

_LOCK = "SELECT pg_advisory_xact_lock(4, %b::int)"
_GROUPS = """
SELECT grp FROM qs.line WHERE queue = %b::int AND grp IS NOT NULL
UNION SELECT grp FROM qs.hidden WHERE queue = %b::int AND grp IS NOT NULL"""
_INTO_TURNS = (
    """
WITH gone AS (DELETE FROM qs.line WHERE queue = %b::int AND grp IS NULL RETURNING *)
INSERT INTO qs.hidden (queue, id, place, until, receives, size, state, held, grp, reason)
SELECT g.queue, g.id, g.place, 1::bigint << 62, g.receives, g.size, 3, false,
    chr(1) || (9 - (g.place >> 56))::text, g.reason
FROM gone AS g""",
    """
UPDATE qs.hidden SET grp = chr(1) || (9 - (place >> 56))::text
WHERE queue = %b::int AND grp IS NULL AND state <> 3""",
)
"""Messages without a group take turns, those of a priority as one group: see `order.py`."""
_OUT_OF_TURNS = (
    """
UPDATE qs.line SET place = ((place >> 56) << 56) | id, grp = CASE WHEN grp >= chr(2) THEN grp END
WHERE queue = %b::int AND grp IS NOT NULL""",
    """
WITH gone AS (
    DELETE FROM qs.hidden WHERE queue = %b::int AND grp >= chr(1) AND grp < chr(2) AND state = 3 RETURNING *)
INSERT INTO qs.line (queue, place, id, receives, size, grp, reason)
SELECT g.queue, ((g.place >> 56) << 56) | g.id, g.id, g.receives, g.size, NULL, g.reason FROM gone AS g""",
    """
UPDATE qs.hidden SET place = ((place >> 56) << 56) | id, grp = NULL
WHERE queue = %b::int AND grp >= chr(1) AND grp < chr(2)""",
)
"""They stand in the line by their age again, and so do the first messages of groups."""


def regroup(tx: Transaction, known: Known, options: Options) -> None:
    """Puts the groups of a queue right, if these options of it need that. Call it before `known` has the options.
    psycopg.Error."""
    before = known.options
    if (before.group_in_flight or 1, before.fair) == (options.group_in_flight or 1, options.fair):
        return
    tx.ask(_LOCK, [known.number])
    if options.fair != before.fair:
        for statement in _INTO_TURNS if options.fair else _OUT_OF_TURNS:
            tx.ask(statement, [known.number])
    changed = Known(known.number, known.qid, options)
    for (group,) in tx.rows(_GROUPS, [known.number, known.number]):
        order.touch(tx, changed, group)
