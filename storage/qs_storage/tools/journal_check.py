"""Describes a journal and its torn or damaged parts, and what a repair has kept and lost.

`check` changes nothing. `repair` is `repair_journal` with a description of what it has done.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ..disk import Disk
from ..engine import StorageError
from ..journal.log.lock import is_in_use
from ..journal.log.opening import numbers_in
from ..journal.log.records import BadRecordError, name_of
from ..journal.rescue.damage import Contents, ExaminedJournal, FoundCheckpoint, SegmentFile, examine
from ..journal.rescue.repair import Repaired
from ..journal.rescue.repair import repair as repair_journal
from ..journal.rescue.salvage import Hole, Piece
from . import counted

_TRIES = 5
"""Reads of a journal that a server changes meanwhile."""


# -- check ------------------------------------------------------------------------------------------------------------


class Checked(NamedTuple):
    """The result of a check. lines: the description, which reads the journal on the way; whole: True if a server starts
    with the journal."""

    lines: Iterator[str]
    whole: bool


class _Read(NamedTuple):
    """A journal that was read. contents: the contents of each segment; running: True if a server uses the journal."""

    found: ExaminedJournal
    contents: list[Contents]
    running: bool


def check(directory: str, *, verbose: bool) -> Checked:
    """Examines the journal in a directory. verbose: True to describe each frame too. StorageError, OSError."""
    read = _read(directory)
    return Checked(_describe(directory, read, verbose=verbose), read.found.refusal is None)


def _read(directory: str) -> _Read:
    """Reads the journal. Reads it again if it seems damaged while a server runs, because the server may remove segments
    meanwhile, or use them again. StorageError, OSError."""
    read: _Read | None = None
    for _ in range(_TRIES):
        running = is_in_use(directory)
        try:
            found = examine(directory, Disk())
            read = _Read(found, [found.contents(part) for part in found.parts], running)
        except (FileNotFoundError, BadRecordError):
            if not running:
                raise
            continue
        if found.refusal is None or not running:
            return read
        # Then it is not damaged: a segment was given up while the others were read.
        if not all(os.path.lexists(part.path) for part in found.parts):
            read = None
    if read is None:
        raise StorageError(
            f"the server removes segments of {directory} faster than they can be read: check a backup, which "
            "'queue-journal.py backup' makes of a running server"
        )
    return read


def _describe(directory: str, read: _Read, *, verbose: bool) -> Iterator[str]:
    found, running = read.found, read.running
    size = sum(part.size for part in found.parts)
    server = "a server is running" if running else "no server is running"
    yield f"{directory}: {counted(len(found.parts), 'segment')}, {counted(size, 'byte')}; {server}"
    for part, contents in zip(found.parts, read.contents, strict=True):
        yield from _describe_part(part, contents, verbose=verbose)
    yield from found.missing
    if found.checkpoint is not None:
        yield _describe_checkpoint(found.checkpoint)
    if found.torn is not None:
        being = "is perhaps being written just now" if running else "is cut off, reported and kept by the next start"
        yield f"torn: the end of {found.torn} {being}"
    yield "whole: a server starts with it" if found.refusal is None else str(found.refusal)


def _describe_checkpoint(found: FoundCheckpoint) -> str:
    if found.position is None:
        return f"checkpoint: {found.size} bytes, damaged: {found.fault}; a start ignores it, and reads the segments"
    return f"checkpoint: {found.size} bytes, of segment {found.position.segment} up to byte {found.position.start}"


def _describe_part(part: SegmentFile, contents: Contents, *, verbose: bool) -> Iterator[str]:
    counts = f"{counted(contents.frames, 'frame')}, {counted(contents.records, 'record')}"
    state = " (obsolete)" if part.obsolete else ""
    messages = _by_name(contents.messages) or "none"
    yield f"segment {part.number}{state}: {part.size} bytes, {counts}, messages: {messages}"
    if part.foreign:
        yield "  damaged: it does not belong to this journal"
    for fault in part.faults:
        yield f"  damaged: {fault}"
    for hole in part.holes:
        yield f"  not whole: {_describe_hole(hole)}"
    if verbose:
        yield from map(_describe_piece, part.pieces())


def _describe_piece(piece: Piece) -> str:
    listed = _by_name(Counter(name_of(record.KIND) for record in piece.records())) or "no records"
    synced = "" if piece.synced is None else f", durable then: all up to {piece.synced}"
    state = "" if piece.whole else ", not whole"
    return f"  frame {piece.sequence} at byte {piece.start}: {listed}{synced}{state}"


def _by_name(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _describe_hole(hole: Hole) -> str:
    """Describes a hole: bytes, frames, reason, readable records."""
    kept = sum(len(piece.starts) for piece in hole.pieces)
    records = f"; {counted(kept, 'record')} in there can be read" if kept else ""
    if hole.next is None:
        frames = f"from frame {hole.first} on: "
    elif hole.next == hole.first + 1:
        frames = "" if f"frame {hole.first}" in hole.why else f"frame {hole.first}: "
    else:
        frames = f"frames {hole.first} to {hole.next - 1}: "
    return f"bytes {hole.start} to {hole.end}, {frames}{hole.why}{records}"


# -- repair -----------------------------------------------------------------------------------------------------------


def repair(directory: str) -> Iterator[str]:
    """Repairs the journal in a directory. Yields lines that describe the result. StorageError, OSError."""
    if not numbers_in(directory, Disk()) and examine(directory, Disk()).refusal is None:
        raise StorageError(f"there is nothing in {directory}")
    repaired = repair_journal(directory, Disk())
    if repaired is None:
        yield f"{directory}: whole, nothing to repair"
    else:
        yield from _describe_repair(repaired)


def _describe_repair(repaired: Repaired) -> Iterator[str]:
    found = repaired.found
    if found.refusal is not None:
        yield f"it was damaged: {found.refusal.what}"
    first, *others = repaired.segments
    more = f" and {counted(len(others), 'segment')} after it" if others else ""
    messages = _by_name(repaired.counts.messages) or "none"
    yield f"kept: {counted(repaired.records, 'record')} in {first}{more}; messages: {messages}"
    if repaired.counts.unplaced:
        many = counted(repaired.counts.unplaced, "message")
        yield f"kept as files: {many}, of queues whose names are lost, in {repaired.aside}/queue-number-…"
    yield from (f"lost: {line}" for line in _losses(repaired))
    yield f"what was there: {repaired.aside}"
    yield "the next start of the server takes up what was kept; messages whose deletion is lost are delivered again"


def _losses(repaired: Repaired) -> Iterator[str]:
    found = repaired.found
    if repaired.counts.lost:
        yield f"{counted(repaired.counts.lost, 'message')} that had moved or were copies: their payloads cannot be read"
    for part in found.parts:
        if part.foreign:
            yield f"nothing of {part.path}, which does not belong to this journal"
        if part.obsolete or part.foreign:
            continue
        if part.faults and part.last is None:
            yield f"all of {part.path}, {part.size} bytes: {part.faults[0]}"
        for hole in part.holes:
            yield f"{part.path}: {_describe_loss(hole)}"
    yield from found.missing
    holes = any(part.holes or part.faults for part in found.parts if not part.foreign)
    if not holes and not found.missing:
        yield "nothing"


def _describe_loss(hole: Hole) -> str:
    kept = sum(piece.size for piece in hole.pieces)
    lost = [piece.lost for piece in hole.pieces]
    known = sum(number for number in lost if number is not None)
    every = hole.next is not None and None not in lost and len(hole.pieces) == hole.next - hole.first
    records = counted(known, "record") if every else f"{known} records or more"
    return f"{records}, in {hole.end - hole.start - kept} bytes that cannot be read ({_describe_hole(hole)})"
