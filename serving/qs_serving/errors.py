"""The errors that end a process with one line.

A file of their own, as they need no trio: so the flags of a command are read, and help is shown, without the extras.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class StartError(Exception):
    """The process cannot start. The text says why, and what to do, in one line."""


class StopError(Exception):
    """The process has stopped, but not cleanly. The text says in one line what is wrong."""


@contextmanager
def start_errors() -> Iterator[None]:
    """Turns errors of reading files into StartError: an OSError into a line with the name of the file, and a ValueError
    into its own text."""
    try:
        yield
    except OSError as error:
        raise StartError(f"cannot read {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise StartError(str(error)) from None
