"""Runs the command queue-journal.py and its subcommands. `qs_storage.tools` does the work; this module has the flags
and the texts."""

import argparse
import os
from collections.abc import Callable, Sequence

from qs_schemas.command_line import CommandParser, add_standard_flags
from qs_storage.disk import Disk, check_directory
from qs_storage.engine import StorageError, wall_clock
from qs_storage.journal.log.lock import InUseError
from qs_storage.names import JOURNAL
from qs_storage.tools import counted
from qs_storage.tools.convert import Conversion, Lost, export
from qs_storage.tools.journal_backup import backup
from qs_storage.tools.journal_check import check, repair

from .tool_process import Meter, become_owner, run, say

_PROGRAM = "queue-journal.py"
_CHECK = """\
Lists the contents of each segment, and all torn or damaged parts. Changes nothing; can be used while the server runs.

Exit codes: 0 a server starts with it, 1 it is damaged or cannot be read, 2 wrong usage, 130 interrupted."""
_REPAIR = """\
Keeps all readable records of a damaged journal, and sets the old files aside, unchanged, in DIR/.journal/damaged-TIME.
No server may be running. If the command is interrupted, nothing is lost: give it again.

Exit codes: 0 a server starts with it now, 1 it cannot be repaired, 2 wrong usage, 130 interrupted."""
_EXPORT = """\
Writes the messages of a journal to files in the layout of vsqs, with a directory in DIR for each queue:
`queue-server.py --root DIR` can serve them. Files have no priorities, groups and lifetimes: the command says what they
do not have. Does not change the journal, and overwrites nothing. If the command is interrupted, give it again. No
server may be running; `qs export` exports a queue of a running server.

Exit codes: 0 done, 1 not all could be written, 2 wrong usage, 130 interrupted."""
_BACKUP = """\
Copies a journal and the queues' options to DIR, as they are at one moment; the server may be running. On the same file
system, full segments become hard links. A server can start with the backup.

Exit codes: 0 done, 1 failed, there is no backup, 2 wrong usage, 130 interrupted."""
_CONVERT = """\
Changes the storage of a queue: journal or files. Messages keep their headers, order, counts and windows, but dead
letters lose their origins: move them back before. Files have no priorities, groups and lifetimes: the command says what
they do not have. No server may be running, and no program may use the queue's directory. If the command is interrupted,
nothing is lost: give it again.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code, which the help of each subcommand explains."""
    parsed = make_parser().parse_args(arguments)
    before = os.umask(0o077)  # like the server's default: only its user may read payloads
    try:
        return run(_PROGRAM, lambda: _run(parsed))
    finally:
        os.umask(before)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.run in (_check, _repair, _convert):  # the others write elsewhere, where perhaps only root may write
        become_owner([parsed.root])
    directory = os.path.join(parsed.root, JOURNAL)
    check_directory(directory)
    if not os.path.isdir(directory) and parsed.run is not _convert:
        found = f"{parsed.root} is a file" if os.path.isfile(parsed.root) else f"there is no journal in {parsed.root}"
        raise StorageError(f"{found}; --root names the directory of the queues")
    try:
        return int(parsed.run(parsed))
    except InUseError:
        raise StorageError(f"a server is using {directory}: stop it first") from None


def _check(parsed: argparse.Namespace) -> int:
    checked = check(f"{parsed.root}/{JOURNAL}", verbose=parsed.verbose)
    say(checked.lines)
    return 0 if checked.whole else 1


def _repair(parsed: argparse.Namespace) -> int:
    say(repair(f"{parsed.root}/{JOURNAL}"))
    return 0


def _export(parsed: argparse.Namespace) -> int:
    with Meter("exported") as meter:
        for done in export(parsed.root, parsed.to, parsed.queues, meter.add):
            meter.restart()
            known = f", {done.there} of them were there already" if done.there else ""
            say([f"{parsed.to}/{done.directory}: {counted(done.messages, 'message')}{known}", *_lines_of(done.lost)])
    return 0


def _backup(parsed: argparse.Namespace) -> int:
    with Meter("copied", what="segment") as meter:
        done = backup(parsed.root, parsed.to, meter.add)
    segments = f"{counted(done.segments, 'segment')}, {done.size} bytes; hard links: {done.linked}"
    say([f"{done.path}: {segments}; complete up to frame {done.frame}"])
    if done.others:
        say([f"without the messages of queues that are not in the journal: {', '.join(done.others)}"])
    return 0


def _convert(parsed: argparse.Namespace) -> int:
    with Meter("moved") as meter:
        conversion = Conversion(parsed.root, parsed.queue, Disk(), wall_clock, meter.add)
        moved = conversion.run(parsed.to)
    done = f"queue {parsed.queue!r} has the storage {parsed.to} now: {counted(moved, 'message')}"
    say([done, *_lines_of(conversion.lost)])
    return 0


def _lines_of(lost: Lost) -> list[str]:
    """Returns a line that says what files do not have of the messages and the queue; none if they have all."""
    of_messages = [f"{name} ({counted(number, 'message')})" for name, number in lost.messages.items()]
    of_queue = [f"the option {name}" for name in lost.options]
    return [f"files cannot keep: {', '.join(of_messages + of_queue)}"] if lost else []


def make_parser() -> argparse.ArgumentParser:
    about = "Checks, repairs, copies, exports and converts the journal of a queue server."
    parser = CommandParser(prog=_PROGRAM, description=about)
    add_standard_flags(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], summary: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=text)
        added.add_argument(
            "--root", default="qs-data", metavar="DIR", help="directory of the queues (default: ./%(default)s)"
        )
        added.set_defaults(run=run)
        return added

    added = add("check", _check, "list the contents of the journal, and all damage", _CHECK)
    added.add_argument("-v", "--verbose", action="store_true", help="list each frame")
    add("repair", _repair, "keep all readable records, set damaged files aside", _REPAIR)
    added = add("export", _export, "write messages to files", _EXPORT)
    added.add_argument("queues", metavar="QUEUE", nargs="*", help="only these (default: all)")
    added.add_argument("--to", required=True, metavar="DIR", help="directory to write to; made if it is missing")
    added = add("backup", _backup, "copy the journal of a server, which may be running", _BACKUP)
    added.add_argument("--to", required=True, metavar="DIR", help="directory of the backup; must not exist")
    added = add("convert", _convert, "change the storage of a queue", _CONVERT)
    added.add_argument("queue", metavar="QUEUE", help="its name")
    added.add_argument("--to", required=True, metavar="STORAGE", choices=["journal", "files"], help="journal or files")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
