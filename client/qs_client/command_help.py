"""`qs help`, and `qs` alone: the commands, each with an example."""

import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

from qs_schemas.terminal import has_colours, paint_help

if TYPE_CHECKING:
    from .command_output import Output

# A test runs each through the parser, so an example is always a command that works.
_EXAMPLES = {
    "push": "qs push orders 'two apples'",
    "receive": "qs receive orders --wait 20 --delete",
    "work": "qs work jobs thumbnails:make --processes 4",
    "tail": "qs tail orders",
    "peek": "qs peek orders",
    "delete": "qs delete orders 1760000000000000",
    "release": "qs release orders 1760000000000000 --delay 60",
    "reject": "qs reject orders 1760000000000000 --reason 'no such customer'",
    "ls": "qs ls --long",
    "figures": "qs figures 'journal_*'",
    "claims": "qs claims orders",
    "stats": "qs stats orders",
    "new": "qs new orders",
    "set": "qs set orders --dead-letter failed --max-receives 5",
    "options": "qs options orders",
    "rm": "qs rm orders",
    "purge": "qs purge orders",
    "pause": "qs pause orders",
    "resume": "qs resume orders",
    "redrive": "qs redrive failed",
    "export": "qs export orders backup/orders",
    "ping": "qs ping",
    "check": "qs check order.xml --schema order",
    "token": "qs token",
    "help": "qs help push",
}
_HEAD = """\
usage: qs COMMAND ...

commands:
"""
_TAIL = """\
'qs help COMMAND' shows the flags of a command, 'qs --help' those of all.
"""


def overview(commands: Iterable[tuple[str, str]]) -> str:
    """Returns the text of `qs help`. commands: name and summary of each, in their order."""
    width = max(map(len, _EXAMPLES))
    lines = [f"    {name:{width}}  {summary}\n{' ' * (width + 8)}{_EXAMPLES[name]}\n" for name, summary in commands]
    return f"{_HEAD}{''.join(lines)}\n{_TAIL}"


def show_help(arguments: Namespace, out: "Output") -> int:
    """Prints the commands, or the help of a named one."""
    if arguments.topic is not None:
        arguments.parser.parse_args([arguments.topic, "--help"])  # exits, also with what was meant by a slip
    text = overview(arguments.commands)
    out.text(paint_help(text) if has_colours(sys.stdout) else text)
    return 0
