"""`queue-journal.py check`: describes a journal, and what in it is torn or damaged. Changes nothing."""

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from qs_storage.disk import Disk
from qs_storage.engine import StorageError
from qs_storage.journal.damage import Contents, Examined, FoundCheckpoint, Part, examine
from qs_storage.journal.lock import is_in_use
from qs_storage.journal.records import BadRecordError
from qs_storage.journal.salvage import Hole, Piece
from qs_storage.names import JOURNAL

from ..meter import counted
from ..output import say

_TRIES = 5
"""Reads of a journal that a server changes meanwhile."""


def check(arguments: Namespace) -> int:
    """Returns the exit code. StorageError, OSError."""
    directory = f"{arguments.root}/{JOURNAL}"
    read = _read(directory)
    for line in _describe(directory, read, verbose=arguments.verbose):
        say(f"{line}\n", flush=False)
    say("")
    return 0 if read.found.refusal is None else 1


class _Read(NamedTuple):
    """A journal that was read. contents: of each segment; running: True if a server uses it."""

    found: Examined
    contents: list[Contents]
    running: bool


def _read(directory: str) -> _Read:
    """Reads the journal, again if it seems damaged while a server runs: segments that it removes meanwhile are missing,
    or are used again. StorageError, OSError."""
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


def _describe_part(part: Part, contents: Contents, *, verbose: bool) -> Iterator[str]:
    listed = ", ".join(f"{qid} {count}" for qid, count in sorted(contents.messages.items())) or "none"
    counts = f"{counted(contents.frames, 'frame')}, {counted(contents.records, 'record')}"
    state = " (obsolete)" if part.obsolete else ""
    yield f"segment {part.number}{state}: {part.size} bytes, {counts}, messages: {listed}"
    if part.foreign:
        yield "  damaged: it does not belong to this journal"
    for fault in part.faults:
        yield f"  damaged: {fault}"
    for hole in part.holes:
        yield f"  not whole: {describe_hole(hole)}"
    if verbose:
        yield from map(_describe_piece, part.pieces())


def _describe_piece(piece: Piece) -> str:
    kinds = Counter(type(record).__name__.upper() for record in piece.records())
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "no records"
    synced = "" if piece.synced is None else f", durable then: all up to {piece.synced}"
    state = "" if piece.whole else ", not whole"
    return f"  frame {piece.sequence} at byte {piece.start}: {listed}{synced}{state}"


def describe_hole(hole: Hole) -> str:
    """Describes a hole: place, frames, reason, readable records."""
    kept = sum(len(piece.starts) for piece in hole.pieces)
    records = f"; {counted(kept, 'record')} in there can be read" if kept else ""
    if hole.next is None:
        frames = f"from frame {hole.first} on: "
    elif hole.next == hole.first + 1:
        frames = "" if f"frame {hole.first}" in hole.why else f"frame {hole.first}: "
    else:
        frames = f"frames {hole.first} to {hole.next - 1}: "
    return f"bytes {hole.start} to {hole.end}, {frames}{hole.why}{records}"
