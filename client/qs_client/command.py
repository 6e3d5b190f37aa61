"""The command `qs`: queues from a shell.

Exit codes: 0; 1 an error of the server or the connection; 2 wrong usage; 3 receive or peek found nothing; 130
interrupted; 141 the reader of the output has gone (as the shell counts signals).
"""

from collections.abc import Sequence

from .command_arguments import command_line

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code. argv: the arguments, None for those of the process."""
    arguments = command_line(argv)
    try:
        from .command_run import run  # noqa: PLC0415 - help and mistakes are answered without the client

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
