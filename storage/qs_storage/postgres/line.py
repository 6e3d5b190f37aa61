"""The statements that put messages into the line, or hide them."""

from .arrays import Array, Int2s, Int4s, Int8s, Texts

LINE_UP = """
INSERT INTO qs.line (queue, place, id, receives, size, grp, reason)
SELECT * FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::int[], %b::int[], %b::text[], %b::text[])"""
HIDE = """
INSERT INTO qs.hidden (queue, id, place, until, receives, size, state, held, grp, reason)
SELECT u.queue, u.id, u.place, u.until, u.receives, u.size, u.state, false, u.grp, u.reason
FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::bigint[], %b::int[], %b::int[], %b::smallint[], %b::text[],
    %b::text[]) AS u (queue, id, place, until, receives, size, state, grp, reason)"""

LINED_AS: tuple[type[Array], ...] = (Int4s, Int8s, Int8s, Int4s, Int4s, Texts, Texts)
HIDDEN_AS: tuple[type[Array], ...] = (Int4s, Int8s, Int8s, Int8s, Int4s, Int4s, Int2s, Texts, Texts)
"""The types of the columns of LINE_UP and HIDE."""
