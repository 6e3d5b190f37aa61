"""The command `qs-dir`: what a person at a shell does with a queue's directory, without a server. Here: how it ends.

Exit codes: 0; 1 an error; 2 wrong usage; 3 sink took fewer than it was to; 130 Ctrl-C, 143 SIGTERM; 141 whoever read
the output went away (as the shell counts signals).
"""

import sys
from collections.abc import Sequence

from ..storage.engine import StorageError
from .arguments import command_line
from .errors import CutShortError, UsageError, described
from .output import silence

_FAILED = 1
_WRONG_USAGE = 2
_INTERRUPTED = 130
_READER_GONE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code. argv: the arguments, None for those of the process."""
    arguments = command_line(argv)
    try:
        if sys.stdout is None:  # said before anything is done that would then be told to nobody
            raise UsageError("standard output is closed: redirect it to a file, or to /dev/null")
        code: int = arguments.run(arguments)
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        silence()
        return _READER_GONE
    except UsageError as error:
        _complain(str(error))
        return _WRONG_USAGE
    except (OSError, StorageError, CutShortError, MemoryError) as error:
        _complain(described(error))
        return _FAILED


def _complain(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"qs-dir: {' '.join(text.split())}\n")


if __name__ == "__main__":
    raise SystemExit(main())
