"""Reads TLS and token of the bus's own connections to the queue server from files, at the start and on reload."""

from collections.abc import Callable

from qs_client.place import endpoint
from qs_client.security import PLAIN, Security
from qs_serving.errors import start_errors


class ServerSecurity:
    """The TLS context and the token of the bus. The files are read when it is made, and by `reload`."""

    def __init__(self, read: Callable[[], Security]) -> None:
        """read: reads the files, raises OSError or ValueError. StartError, which names the file, if they cannot be
        used."""
        self._read = read
        self._current = self._load()

    def __call__(self) -> Security:
        """Returns what the next connection begins with."""
        return self._current

    @property
    def used(self) -> bool:
        """Tells whether there is TLS or a token."""
        return self._current != PLAIN

    def describe(self, server: tuple[str, int]) -> list[str]:
        """Returns a line that says how the bus speaks to the queue server at this host and port."""
        tls = "in the clear" if self._current.context is None else "with TLS"
        who = "without a token" if self._current.token is None else "with a token"
        return [f"queue server {endpoint(*server)}: {tls}, {who}"]

    def reload(self) -> None:
        """Reads the files again, for connections that begin from now on. StartError if they cannot be used: then
        everything stays as it was."""
        self._current = self._load()

    def _load(self) -> Security:
        with start_errors():
            return self._read()
