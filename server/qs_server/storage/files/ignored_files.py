"""Logs which files in a queue's directory are ignored, as somebody may have meant them to be messages."""

import logging
import os

_logger = logging.getLogger(__name__)
MOST = 20
"""Files of one queue that the log names: a directory may hold thousands of others by mistake."""


class IgnoredFiles:
    """Logs the files of one directory that are ignored, each once for as long as the queue is open."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._logged: set[str] = set()

    def log(self, name: str) -> None:
        """Logs a name, unless it begins with a dot (those belong to servers and editors), is gone, has been logged, or
        is one of too many."""
        path = f"{self._directory}/{name}"
        if name.startswith(".") or name in self._logged or len(self._logged) > MOST or not os.path.lexists(path):
            return
        self._logged.add(name)
        if len(self._logged) > MOST:
            _logger.warning(
                "%s holds more than %d files that are no messages; no more are named", self._directory, MOST
            )
        else:
            _logger.warning(
                "%s is no message, and is ignored: the name of one is a number (microseconds since the Epoch), as in "
                "1760000000000000",
                path,
            )
