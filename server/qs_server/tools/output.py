"""Writes to standard output. Its errors say that it is standard output that failed, not the queue's directory."""

import contextlib
import os
import sys
from types import TracebackType

STDOUT = "standard output"


class ToStdout:
    """Gives an OSError in the with block the file name `standard output`. A class, as it is entered once a line."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            silence()
            raise OSError(error.errno, error.strerror, STDOUT) from None


def say(text: str, *, flush: bool = True) -> None:
    """Writes to standard output. OSError."""
    with ToStdout():
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()


def silence() -> None:
    """Keeps the interpreter's last flush from failing, and saying so, after the reader has gone or the disk is full."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
