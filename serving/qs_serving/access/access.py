"""Keeps the access file of a server as it was last read: who may do what."""

import logging
from collections.abc import Callable

from ..errors import StartError
from .access_file import AccessFileError, AccessTable, read_access_file
from .failures import Failures

_logger = logging.getLogger(__name__)


class Access:
    """The access file of a server. It is read when this is made, and by `reload`."""

    def __init__(self, path: str) -> None:
        """StartError if the file cannot be used."""
        self.path = path
        self.failures = Failures()
        self.changed: Callable[[], None] = lambda: None
        """Called in the loop after the file has been read again."""
        self.table = self._read()

    @property
    def about(self) -> str:
        """A line that says what is in the file."""
        current = self.table
        anonymous = "nothing but authenticate" if current.anonymous is None else "what [anonymous] lists"
        return (
            f"access file {self.path}: {len(current.principals)} principals, {len(current.tokens)} tokens, "
            f"{len(current.certificates)} certificate names; who has said nothing may do {anonymous}"
        )

    def reload(self) -> None:
        """Reads the file again. StartError if it cannot be used: then everything stays as it was."""
        self.table = self._read()
        self.changed()

    def _read(self) -> AccessTable:
        try:
            table, warnings = read_access_file(self.path)
        except AccessFileError as error:
            raise StartError(str(error)) from None
        for line in warnings:
            _logger.warning("%s", line)
        return table
