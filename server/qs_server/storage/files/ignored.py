"""Says which files in a queue's directory are no messages: somebody may have meant them to be."""

import logging
import os

_logger = logging.getLogger(__name__)
MOST = 20
"""Files of one queue that the log names: a directory may hold thousands of others by mistake."""


class ForeignNames:
    """Names the files of one directory that are ignored, each once for as long as the queue is open."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._named: set[str] = set()

    def note(self, name: str) -> None:
        """Logs a name that is no message's, unless it begins with a dot (those belong to servers and editors), is gone,
        has been logged, or is one of too many."""
        if name.startswith(".") or name in self._named or len(self._named) > MOST:
            return
        path = f"{self._directory}/{name}"
        if not os.path.lexists(path):
            return
        self._named.add(name)
        if len(self._named) > MOST:
            _logger.warning(
                "%s holds more than %d files that are no messages; no more are named", self._directory, MOST
            )
        else:
            _logger.warning(
                "%s is no message, and is ignored: the name of one is a number (microseconds since the Epoch), as in "
                "1760000000000000",
                path,
            )
