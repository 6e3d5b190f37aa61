"""The command `qs-dir`: works on a queue's directory from a shell, without a server.

Exit codes: 0; 1 an error; 2 wrong usage; 3 sink took fewer than it was to; 130 Ctrl-C, 143 SIGTERM; 141 the reader
of the output went away.
"""

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from .arguments import command_line
from .ends import open_end
from .ls import ls
from .output import run
from .owner import become_owner
from .pump import pump
from .purge import purge
from .sink import sink

_COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "pump": partial(pump, open_end=open_end),
    "sink": partial(sink, open_end=open_end),
    "ls": ls,
    "purge": purge,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. argv: None for the process's arguments."""
    arguments = command_line(argv)

    def command() -> int:
        directory = arguments.directory
        become_owner([os.path.dirname(os.path.abspath(directory)), directory])
        return _COMMANDS[arguments.command](arguments)

    return run("qs-dir", command)


if __name__ == "__main__":
    raise SystemExit(main())
