"""The end of a command: its errors become one line on standard error and an exit code.

Exit codes: 1 an error; 2 wrong usage; 130 Ctrl-C; 141 whoever read the output went away (as the shell counts signals).
"""

import io
import sys
from collections.abc import Callable

from ..storage.engine import StorageError
from .errors import UsageError, described
from .output import silence

_FAILED = 1
_WRONG_USAGE = 2
_INTERRUPTED = 130
_READER_GONE = 141


def run(program: str, command: Callable[[], int]) -> int:
    """Runs a command, and returns its exit code. program: the name with which a line about an error begins."""

    def complain(text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(f"{program}: {' '.join(text.split())}\n")

    try:
        if sys.stdout is None:  # said before anything is done of which nobody would then be told
            raise UsageError("standard output is closed: redirect it to a file, or to /dev/null")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="surrogateescape")  # a directory's name need not be text
        return command()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        silence()
        return _READER_GONE
    except UsageError as error:
        complain(str(error))
        return _WRONG_USAGE
    except (OSError, StorageError, MemoryError) as error:
        complain(described(error))
        return _FAILED
