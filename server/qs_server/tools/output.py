"""The output of a command: standard output, and its errors as one line on standard error and an exit code.

Exit codes: 1 an error; 2 wrong usage; 130 Ctrl-C; 141 the reader of the output went away (as the shell counts signals).
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator

from qs_schemas.terminal import READER_GONE, silence_stdout
from qs_storage.disk import has_no_room
from qs_storage.engine import StorageError

_FAILED = 1
_WRONG_USAGE = 2
_INTERRUPTED = 130


class UsageError(Exception):
    """Flags that do not go together, or not with the directory."""


def described(error: Exception, path: str | None = None) -> str:
    """Returns a line about an error. path: what it is about if it does not say so."""
    if isinstance(error, MemoryError):
        return "there is not enough memory (a message is in it as a whole, more than once)"
    where = getattr(error, "filename", None) or path
    if not isinstance(error, OSError) or not error.strerror or where is None:
        return str(error)
    return f"{where}: {'the disk is full: ' if has_no_room(error) else ''}{error.strerror}"


def run(program: str, command: Callable[[], int]) -> int:
    """Runs a command, and returns its exit code. program: begins the line of an error."""

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
        silence_stdout()
        return READER_GONE
    except UsageError as error:
        complain(str(error))
        return _WRONG_USAGE
    except (OSError, StorageError, MemoryError) as error:
        complain(described(error))
        return _FAILED


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
    """Gives an OSError in the with block the file name `standard output`."""
    try:
        yield
    except OSError as error:
        silence_stdout()
        raise OSError(error.errno, error.strerror, "standard output") from None


def say(text: str, *, flush: bool = True) -> None:
    """Raises OSError."""
    with to_stdout():
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
