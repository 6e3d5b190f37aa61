"""Reads TLS and token of the page's own connections to the queue server from files, at the start and on reload."""

from collections.abc import Callable
from dataclasses import replace

from qs_client.security import Security, Token
from qs_serving.errors import start_errors


class Identity:
    """The TLS context and the token of the page. The files are read when it is made, and by `reload`."""

    def __init__(self, read: Callable[[], Security], *, shows_certificate: bool = False) -> None:
        """read: reads the files, raises OSError or ValueError; shows_certificate: whether its TLS shows one.
        StartError, which names the file, if they cannot be used."""
        self._read = read
        self._shows_certificate = shows_certificate
        self.current: Security
        """The TLS context and the token of the page's own connections."""
        self.version = 0
        """Grows each time that the files are read: connections of an older version are to be replaced."""
        self.reload()

    @property
    def about(self) -> str:
        """Describes, for the log, how the page authenticates at the queue server."""
        tls = "in the clear" if self.current.context is None else "with TLS"
        return f"{tls}, {'without a token' if self.current.token is None else 'with a token'}"

    @property
    def is_somebody(self) -> bool:
        """Tells whether the queue server may take the page for more than a client that says nothing: by its token, or
        by a certificate that TLS shows."""
        return self.current.token is not None or self._shows_certificate

    def of_visitor(self, token: Token | None) -> Security:
        """Returns what connections begin with that are a visitor's: the page's TLS and the visitor's token, None for
        none."""
        return replace(self.current, token=token)

    def reload(self) -> None:
        """Reads the files again, for connections that begin from now on. StartError if they cannot be used: then
        everything stays as it was."""
        with start_errors():
            self.current = self._read()
        self.version += 1
