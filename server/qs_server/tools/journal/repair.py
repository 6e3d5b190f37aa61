"""`queue-journal.py repair`: keeps what can be read of a damaged journal, and says what was lost."""

from argparse import Namespace
from collections.abc import Iterator

from qs_storage.disk import Disk
from qs_storage.engine import StorageError
from qs_storage.journal.damage import Examined, examine
from qs_storage.journal.recovery import numbers_in
from qs_storage.journal.repair import Repaired
from qs_storage.journal.repair import repair as repair_journal
from qs_storage.journal.salvage import Hole
from qs_storage.names import JOURNAL

from ..meter import counted
from ..output import say
from .check import describe_hole


def repair(arguments: Namespace) -> int:
    """Returns the exit code. StorageError, OSError."""
    directory = f"{arguments.root}/{JOURNAL}"
    if not numbers_in(directory, Disk()) and examine(directory, Disk()).refusal is None:
        raise StorageError(f"there is nothing in {directory}")
    repaired = repair_journal(directory, Disk())
    if repaired is None:
        say(f"{directory}: whole, nothing to repair\n")
    else:
        say("".join(f"{line}\n" for line in _describe(repaired)))
    return 0


def _describe(repaired: Repaired) -> Iterator[str]:
    found = repaired.found
    if found.refusal is not None:
        yield f"it was damaged: {found.refusal.what}"
    messages = ", ".join(f"{qid} {count}" for qid, count in sorted(repaired.kept.items())) or "none"
    first, *others = repaired.segments
    more = f" and {counted(len(others), 'segment')} after it" if others else ""
    yield f"kept: {counted(repaired.records, 'record')} in {first}{more}; messages: {messages}"
    if repaired.unplaced:
        many = counted(repaired.unplaced, "message")
        yield f"kept as files: {many}, of queues whose names are lost, in {repaired.aside}/queue-number-…"
    yield from (f"lost: {line}" for line in _losses(found))
    yield f"what was there: {repaired.aside}"
    yield "the next start of the server takes up what was kept; messages whose deletion is lost are delivered again"


def _losses(found: Examined) -> Iterator[str]:
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
    return f"{records}, in {hole.end - hole.start - kept} bytes that cannot be read ({describe_hole(hole)})"
