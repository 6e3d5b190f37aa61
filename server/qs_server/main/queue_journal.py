"""The command queue-journal.py: what the journal of a server holds, and how one that is damaged is repaired."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from qs_serving.version import ShowVersion

from ..storage.disk import Disk
from ..storage.engine import StorageError
from ..storage.journal.damage import Examined, FoundCheckpoint, Part, examine
from ..storage.journal.keeper import DIRECTORY
from ..storage.journal.lock import InUseError, is_in_use
from ..storage.journal.recovery import numbers_in
from ..storage.journal.repair import Repaired, repair
from ..storage.journal.salvage import Hole, Piece
from ..tools.journal.commands import add_commands

_PROGRAM = "queue-journal.py"
_INTERRUPTED = 130
_TRIES = 5
"""How often a journal is looked at again that a server has changed meanwhile."""
_CHECK = """\
Says what is in each segment, and what is torn or damaged. Changes nothing, and may be used while the server runs.
Exit codes: 0 a server starts with it, 1 it is damaged or cannot be read, 2 wrong usage, 130 interrupted."""
_REPAIR = """\
Keeps everything that can be read of a journal that is damaged, and sets the files aside as they are, in
DIR/.journal/damaged-TIME. No server may be running. Interrupted, it has lost nothing: give it again.
Exit codes: 0 a server starts with it now, 1 it cannot be repaired, 2 wrong usage, 130 interrupted."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Looks into the journal of a queue server, copies it, and repairs one that is damaged.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=ShowVersion, const="qs")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary, text in (
        ("check", "say what the journal holds, and what is damaged", _CHECK),
        ("repair", "keep what can be read, set damaged files aside", _REPAIR),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=text,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument(
            "--root", default="qs-data", metavar="DIR", help="directory of the queues (default: ./%(default)s)"
        )
        if name == "check":
            command.add_argument("-v", "--verbose", action="store_true", help="list each frame")
    add_commands(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit codes: see `_CHECK` and `_REPAIR`."""
    parsed = _parser().parse_args(arguments)
    directory = os.path.join(parsed.root, DIRECTORY)
    try:
        if not os.path.isdir(directory) and parsed.command != "convert":
            found = (
                f"{parsed.root} is a file" if os.path.isfile(parsed.root) else f"there is no journal in {parsed.root}"
            )
            raise StorageError(f"{found}; --root names the directory of the queues")
        if "run" in parsed:
            return int(parsed.run(parsed))
        if parsed.command == "check":
            return _check(directory, verbose=parsed.verbose)
        return _repair(directory)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except InUseError:
        error = f"a server is using {directory}: stop it first"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try it again at the end
        return 1
    except (OSError, StorageError) as failure:
        error = str(failure)
    sys.stderr.write(f"{_PROGRAM}: {error}\n")
    return 1


def _say(lines: Iterator[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


# -- check ----------------------------------------------------------------------------------------------------------


def _check(directory: str, *, verbose: bool) -> int:
    found, running = _examine(directory)
    _say(_describe(directory, found, verbose=verbose, running=running))
    return 0 if found.refusal is None else 1


def _examine(directory: str) -> tuple[Examined, bool]:
    """And whether a server is running, which goes on meanwhile: what seems wrong is looked at again."""
    for _ in range(_TRIES):
        running = is_in_use(directory)
        try:
            found = examine(directory, Disk())
        except FileNotFoundError:
            if not running:
                raise
            continue
        if found.refusal is None or not running:
            break
    else:
        found = examine(directory, Disk())
    return found, running


def _describe(directory: str, found: Examined, *, verbose: bool, running: bool) -> Iterator[str]:
    size = sum(part.size for part in found.parts)
    server = "a server is running" if running else "no server is running"
    yield f"{directory}: {_count(len(found.parts), 'segment')}, {size} bytes; {server}"
    messages = found.messages()
    for part in found.parts:
        yield from _describe_part(part, messages[part.path], verbose=verbose)
    yield from found.missing
    if found.checkpoint is not None:
        yield _describe_checkpoint(found.checkpoint)
    if found.torn is not None:
        being = "is perhaps being written just now" if running else "is cut off, reported and kept by the next start"
        yield f"torn: the end of {found.torn} {being}"
    if found.refusal is None:
        yield "whole: a server starts with it"
    else:
        yield str(found.refusal)


def _describe_checkpoint(found: FoundCheckpoint) -> str:
    if found.position is None:
        return f"checkpoint: {found.size} bytes, damaged: {found.fault}; a start ignores it, and reads the segments"
    return f"checkpoint: {found.size} bytes, of segment {found.position.segment} up to byte {found.position.start}"


def _describe_part(part: Part, messages: Counter[str], *, verbose: bool) -> Iterator[str]:
    records = sum(len(piece.bodies) for piece in part.pieces)
    listed = ", ".join(f"{qid} {count}" for qid, count in sorted(messages.items())) or "none"
    counts = f"{_count(len(part.pieces), 'frame')}, {_count(records, 'record')}"
    state = " (obsolete)" if part.obsolete else ""
    yield f"segment {part.number}{state}: {part.size} bytes, {counts}, messages: {listed}"
    if part.foreign:
        yield "  damaged: it does not belong to this journal"
    for fault in part.faults:
        yield f"  damaged: {fault}"
    for hole in part.holes:
        yield f"  not whole: {_describe_hole(hole)}"
    if verbose:
        yield from map(_describe_piece, part.pieces)


def _describe_hole(hole: Hole) -> str:
    kept = sum(len(piece.bodies) for piece in hole.pieces)
    records = f"; {_count(kept, 'record')} in there can be read" if kept else ""
    if hole.next is None:
        frames = f"from frame {hole.first} on: "
    elif hole.next == hole.first + 1:
        frames = "" if f"frame {hole.first}" in hole.why else f"frame {hole.first}: "
    else:
        frames = f"frames {hole.first} to {hole.next - 1}: "
    return f"bytes {hole.start} to {hole.end}, {frames}{hole.why}{records}"


def _describe_piece(piece: Piece) -> str:
    kinds = Counter(type(record).__name__.upper() for record in piece.records())
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "no records"
    synced = "" if piece.synced is None else f", durable then: all up to {piece.synced}"
    state = "" if piece.whole else ", not whole"
    return f"  frame {piece.sequence} at byte {piece.start}: {listed}{synced}{state}"


# -- repair ---------------------------------------------------------------------------------------------------------


def _repair(directory: str) -> int:
    if not numbers_in(directory, Disk()) and examine(directory, Disk()).refusal is None:
        raise StorageError(f"there is nothing in {directory}")
    repaired = repair(directory, Disk())
    if repaired is None:
        _say(iter([f"{directory}: whole, nothing to repair"]))
    else:
        _say(_describe_repair(repaired))
    return 0


def _describe_repair(repaired: Repaired) -> Iterator[str]:
    found = repaired.found
    if found.refusal is not None:
        yield f"it was damaged: {found.refusal.what}"
    messages = ", ".join(f"{qid} {count}" for qid, count in sorted(repaired.kept.items())) or "none"
    yield f"kept: {_count(repaired.records, 'record')} in {repaired.segment}; messages: {messages}"
    if repaired.unplaced:
        many = _count(repaired.unplaced, "message")
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
        if part.faults and not part.pieces:
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
    records = _count(known, "record") if every else f"{known} records or more"
    return f"{records}, in {hole.end - hole.start - kept} bytes that cannot be read ({_describe_hole(hole)})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
