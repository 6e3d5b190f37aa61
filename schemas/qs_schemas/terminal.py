"""Chooses colours for people at a terminal, and handles standard output that cannot be written.

A pipe, a file, `NO_COLOR` (no-color.org) and `TERM=dumb` get plain text: programs read these, and a colour would be
part of the words.
"""

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

BOLD = "1"
RED = "1;31"
CYAN = "36"
"""Parameters of the control sequence SGR of ECMA-48."""

READER_GONE = 141
"""The exit code of a command whose reader has gone: that of one that SIGPIPE has ended, as the shell counts signals."""
_HEADING = re.compile(r"\Ausage:|^\S[^\n]*:$", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*|^    [a-z][\w-]*(?=[ \n])", re.MULTILINE)
"""A flag, or a subcommand at the beginning of its line."""


def has_colours(stream: Any, environ: Mapping[str, str] = os.environ) -> bool:
    """Tells whether text that is written to a stream may have colours. stream: a text or binary file, or None."""
    if stream is None or environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
        return False
    return bool(stream.isatty())


def paint(text: str, style: str) -> str:
    """Returns the text in a style, one of the constants of this module."""
    return f"\x1b[{style}m{text}\x1b[0m"


def paint_help(text: str) -> str:
    """Returns the text of --help with its headings in bold, and with flags and commands in colour."""
    text = _FLAG.sub(lambda found: paint(found[0], CYAN), text)
    return _HEADING.sub(lambda found: paint(found[0], BOLD), text)


def silence_stdout() -> None:
    """Redirects standard output to /dev/null. Call this after the pipe's reader has gone, or the disk is full."""
    # The interpreter flushes standard output once more when it ends. That would fail again, with a traceback and
    # another exit code.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
