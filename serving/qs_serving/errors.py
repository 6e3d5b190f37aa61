"""Defines the errors that end a process with one line.

This module needs no trio, so that a command reads its flags and shows its help without the extras.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class StartError(Exception):
    """Reports that the process cannot start. The text says why, and what to do, in one line."""


class StopError(Exception):
    """Reports that the process has stopped, but not cleanly. The text says in one line what is wrong."""


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
