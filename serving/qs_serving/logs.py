"""Writes the log to standard error: as text, as lines for systemd's log, or as JSON lines (`--log-format`).

The program that has started the server keeps, rotates and bounds the log: a server opens no log file.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType

FORMATS = ("text", "json")
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
_TEXT = "%(levelname)s %(name)s: %(message)s"
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
"""The least level of each priority of the journal. systemd reads the priority from the beginning of a line, as in
`<4>`."""
_DEBUG = 7


class _JsonLines(logging.Formatter):
    """Writes each record as one JSON object in one line, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns a JSON object with time (ISO 8601, UTC), level, logger and message, and with the exception if there
        is one."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _JournalLines(logging.Formatter):
    """Writes lines for systemd's log: each begins with the priority, and has no time, which systemd adds."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line or, with a traceback, several lines, each of which is an entry in systemd's log."""
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), _DEBUG)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


class RareLine:
    """Logs an event that clients can cause very often: the first time at once, then at most once in a while, with the
    count of the events that were left out. A log that clients can fill is a way to fill a disk."""

    def __init__(
        self, logger: logging.Logger, level: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """seconds: the least time between two lines."""
        self._logger = logger
        self._level = level
        self._seconds = seconds
        self._clock = clock
        self._next = 0.0
        self._unlogged = 0

    def log(self, text: str, *values: object) -> None:
        """Logs the text with its values. If a line was logged just before, only counts the event for the next line."""
        now = self._clock()
        if now < self._next:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} times more since the last such line)" if self._unlogged else ""
        self._next, self._unlogged = now + self._seconds, 0
        self._logger.log(self._level, text + more, *values)


def log_to_stderr(verbose: int, form: str, environ: Mapping[str, str] = os.environ) -> None:
    """Begins the log. verbose: 0 for warnings, 1 for other events, 2 for connections too; form: one of `FORMATS`;
    environ: the environment, which says whether standard error goes to systemd's log."""
    if form == "json":
        formatter: logging.Formatter = _JsonLines()
        # Python writes warnings and tracebacks as text, where a reader of JSON lines stumbles over them.
        logging.captureWarnings(True)
        sys.excepthook = _log_traceback
    elif _is_journal(environ):
        formatter = _JournalLines(_TEXT)
    else:
        formatter = logging.Formatter(f"%(asctime)s {_TEXT}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=_LEVELS[min(verbose, len(_LEVELS) - 1)], handlers=[handler])


def error_line(program: str, text: str) -> str:
    """Returns a line for standard error that says why a command ends, in the form of the log and with the line end."""
    # Formats without the handler's lock, because a signal handler calls this too: the signal may have come while a line
    # was being logged.
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _JsonLines):
            return f"{handler.format(logging.LogRecord(program, logging.ERROR, '', 0, text, None, None))}\n"
        if isinstance(handler.formatter, _JournalLines):
            return f"<3>{program}: {text}\n"
    return f"{program}: {text}\n"


def _log_traceback(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Logs the exception that ends the process. Without this, Python would print the exception as text."""
    logging.getLogger("qs").critical("the process ends", exc_info=(kind, error, traceback))


def _is_journal(environ: Mapping[str, str]) -> bool:
    """Tells whether standard error goes to systemd's log, by the device and inode that systemd names in
    JOURNAL_STREAM."""
    stream = environ.get("JOURNAL_STREAM")
    if not stream:
        return False
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or not a file
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"
