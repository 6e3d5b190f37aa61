"""Describes for people what is not whole in a journal."""

from ...storage.journal.salvage import Hole
from ..meter import counted


def describe_hole(hole: Hole) -> str:
    """Says where a hole is, which frames are in it, why, and how much of it can be read."""
    kept = sum(len(piece.bodies) for piece in hole.pieces)
    records = f"; {counted(kept, 'record')} in there can be read" if kept else ""
    if hole.next is None:
        frames = f"from frame {hole.first} on: "
    elif hole.next == hole.first + 1:
        frames = "" if f"frame {hole.first}" in hole.why else f"frame {hole.first}: "
    else:
        frames = f"frames {hole.first} to {hole.next - 1}: "
    return f"bytes {hole.start} to {hole.end}, {frames}{hole.why}{records}"
