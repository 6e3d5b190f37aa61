"""Runs the processes `qs-dir` and `queue-journal.py`: handles standard output, errors as one line and an exit code, a
line of progress on a terminal, and the user that the process acts as.

Exit codes: 1 an error; 2 wrong usage; 130 Ctrl-C; 141 the reader of the output went away (as the shell counts signals).
"""

import contextlib
import io
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Self

from qs_schemas.terminal import READER_GONE, silence_stdout
from qs_storage.disk import has_no_room
from qs_storage.engine import StorageError
from qs_storage.tools import counted

_FAILED = 1
_WRONG_USAGE = 2
_INTERRUPTED = 130
_CLEAR = "\r\x1b[K"
"""Clears the line of a terminal."""


class UsageError(Exception):
    """Reports flags that contradict each other, or that do not fit the directory."""


def run(program: str, command: Callable[[], int]) -> int:
    """Runs a command, and returns the exit code. program: the name at the beginning of an error line."""
    try:
        if sys.stdout is None:  # checked before any work whose result nobody would see
            raise UsageError("standard output is closed: redirect it to a file, or to /dev/null")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="surrogateescape")  # a directory's name need not be text
        return command()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        silence_stdout()  # Python would try to write the rest at its end, and print a traceback
        return READER_GONE
    except UsageError as error:
        code, text = _WRONG_USAGE, str(error)
    except (OSError, StorageError, MemoryError) as error:
        code, text = _FAILED, described(error)
    to_stderr(f"{program}: {' '.join(text.split())}\n")
    return code


def described(error: Exception, path: str | None = None) -> str:
    """Returns a line about an error. path: the file or directory that the error is about, for an error that names
    none."""
    if isinstance(error, MemoryError):
        return "there is not enough memory (a message is in it as a whole, more than once)"
    where = getattr(error, "filename", None) or path
    if not isinstance(error, OSError) or not error.strerror or where is None:
        return str(error)
    return f"{where}: {'the disk is full: ' if has_no_room(error) else ''}{error.strerror}"


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
    """Changes the file name of an OSError in the with block to `standard output`."""
    try:
        yield
    except OSError as error:
        silence_stdout()  # as above: the error is reported once, in one line
        raise OSError(error.errno, error.strerror, "standard output") from None


def say(lines: Iterable[str]) -> None:
    """Prints lines as they come. Raises an OSError with the file name `standard output` if a line cannot be written.
    Errors of the iterable are raised unchanged."""
    for line in lines:
        with to_stdout():
            sys.stdout.write(f"{line}\n")
    with to_stdout():
        sys.stdout.flush()


def to_stderr(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


class Meter:
    """Counts messages and shows their rate, in a line that is renewed each second on a terminal, and in a last line. As
    a context manager, clears the renewed line at the end."""

    def __init__(self, done: str, *, live: bool = True, what: str = "message") -> None:
        """Begins to count. done: a verb, as in `stored`; live: True to show a renewed line on a terminal; what: the
        noun for the things that are counted."""
        self.messages = 0
        self.bytes = 0
        self._done = done
        self._what = what
        self._live = live and sys.stderr is not None and sys.stderr.isatty()
        self._first = self._last = self._shown_at = time.monotonic()
        self._shown = 0
        self._on_line = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.clear()

    def add(self, count: int, size: int = 0) -> None:
        """Counts messages. size: the bytes of these messages together."""
        self._last = time.monotonic()
        if not self.messages:
            self._first = self._last
        self.messages += count
        self.bytes += size
        self.tick()

    def tick(self) -> None:
        """Renews the line if a second has passed. Cheap enough to be called after each wait."""
        if not self._live or (now := time.monotonic()) - self._shown_at < 1:
            return
        rate = (self.messages - self._shown) / (now - self._shown_at)
        self._shown, self._shown_at = self.messages, now
        to_stderr(f"{_CLEAR}{self._done} {counted(self.messages, self._what)}, {rate:.0f} a second")
        self._on_line = True

    def clear(self) -> None:
        """Clears the line for other output."""
        if self._on_line:
            self._on_line = False
            to_stderr(_CLEAR)

    def restart(self) -> None:
        """Clears the line, and counts from 0 again."""
        self.clear()
        self.messages = self.bytes = self._shown = 0

    def summary(self, more: str = "") -> None:
        """Writes the last line, with the rate from the first message to the last. more: text for the end of the
        line."""
        self.clear()
        took = self._last - self._first
        text = f"{self._done} {counted(self.messages, self._what)}, {counted(self.bytes, 'byte')}"
        if took > 0:  # between the first message and the last there is one interval less than there are messages
            text += f", in {took:.2f} s: {(self.messages - 1) / took:.0f} a second"
        to_stderr(f"{text}{more}\n")


def become_owner(paths: Iterable[str]) -> None:
    """Changes the user of a process that runs as root: takes the first owner of these paths that is not root,
    permanently. For a link, both the owner of the link and the owner of its target count. Ignores paths that do not
    exist, which the tool itself reports. Raises StorageError if the user cannot be changed.

    The owner of a directory may put anything into it, also while a tool is at work: a link in place of a file or of a
    directory. Root would follow it to any file of the machine, whatever was checked before. As the owner, a tool can do
    no more than the owner could do without the tool, and its new files belong to the owner, whose server has to read
    them.
    """
    if os.geteuid() != 0:
        return
    for path in paths:
        for look in (os.lstat, os.stat):
            with suppress(OSError):
                found = look(path)
                if found.st_uid != 0:
                    _become(found, path)
                    return


def _become(owner: os.stat_result, path: str) -> None:
    try:
        user = pwd.getpwuid(owner.st_uid)
        group, groups = user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:  # a user of another machine, or of a container
        group, groups = owner.st_gid, [owner.st_gid]
    try:
        os.setgroups(groups)  # in this order: as another user, the process may not change its groups
        os.setgid(group)
        os.setuid(owner.st_uid)
    except OSError as error:
        raise StorageError(
            f"{path} belongs to the user {owner.st_uid}, and root cannot act as that user ({error.strerror}): give the "
            "command as that user"
        ) from None
