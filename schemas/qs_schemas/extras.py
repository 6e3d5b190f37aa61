"""Names the extra of qsbus that brings a missing package.

`pip install qsbus` is small: the clients and `qs`. A command that needs another package ends with one line that says
what to type. A traceback would name a package that the user has never heard of.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

USAGE = 2
"""The exit code, that of a wrong flag: starting again does not help, and systemd's units do not try to."""


def install(extra: str) -> str:
    """Returns the command line that installs an extra."""
    # pip takes the extra of the qsbus that is installed, so the line is the same for a checkout and for a package.
    return f"pip install 'qsbus[{extra}]'"


class NotInstalledError(ModuleNotFoundError):
    """Reports that a package of an extra is not installed. The text names the package, and says what to type."""

    def __init__(self, extra: str, missing: ModuleNotFoundError) -> None:
        super().__init__(f"{missing.name} is not installed: {install(extra)}", name=missing.name)


@contextmanager
def importing(extra: str, program: str) -> Iterator[None]:
    """Ends the process with one line if the with block imports a package that is not installed. extra: the extra that
    brings the package; program: the name of the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("qs_"):  # of qs itself: no extra brings it
            raise
        sys.stderr.write(f"{program}: {NotInstalledError(extra, error)}\n")
        raise SystemExit(USAGE) from None
