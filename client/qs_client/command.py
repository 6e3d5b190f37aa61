"""The command `qs`: queues from a shell.

Exit codes: 0; 1 an error of the server or the connection; 2 wrong usage; 3 receive or peek found nothing; 4 a
question was not answered with yes; 130 interrupted; 141 the reader of the output has gone (as the shell counts
signals).
"""

import gc
from collections.abc import Sequence

from .command_arguments import command_line

INTERRUPTED = 130
_START = 100_000
"""Objects that may be made before the garbage collector runs: more than a start makes."""


def script() -> int:
    """Runs the command in a process of its own: like `main`, with less work for the garbage collector. The collector
    would go through all modules at the start and again at the end, which took a quarter of the time of a short
    command."""
    gc.set_threshold(_START)
    try:
        return main()
    finally:
        gc.freeze()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code. argv: the arguments, None for those of the process."""
    arguments = command_line(argv)
    try:
        from .command_run import run  # noqa: PLC0415 - help and mistakes are answered without the client

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(script())
