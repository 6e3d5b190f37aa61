"""The settings of every client: where the server is, how long it may take, TLS and a token."""

from dataclasses import replace

from .bounds import seconds, whole
from .security import Tls, Token, security, with_tls


def _checked_tls(tls: Tls, scheme: bool | None) -> Tls:
    """Returns what an address with a scheme says about TLS. Raises ValueError if the scheme contradicts the argument
    tls."""
    if scheme and tls is False:
        raise ValueError("tls is False, but the address asks for TLS: write qs://, or leave tls out")
    asks = tls is not None and tls is not False
    # A context or a path of CAs stays as it is. qss:// alone trusts the CAs of the system, as True does.
    return True if with_tls(scheme, ["tls"] if asks else []) and not asks else tls


class Settings:
    """The settings of every client. They can be changed later, and are checked then, too.

    Ensures: a client never has a setting that a later connection would trip over; what is wrong is refused by the
    statement that sets it. A new value applies from the next connection on, the timeout from the next call on.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        usual: int,
        timeout: float | None,
        max_document: int,
        *,
        tls: Tls,
        token: str | Token | None,
    ) -> None:
        """host, port, usual: as in `located`."""
        # Digits alone are a port without a host, which `located` refuses; the system would take them for an address.
        if isinstance(host, str) and (":" in host or host.isdigit()):
            from qs_schemas.addresses import located  # noqa: PLC0415 - rarely needed at start

            host, port, scheme = located(host, port, usual)
            tls = _checked_tls(tls, scheme)
        self.host = host
        self.port = usual if port is None else port
        self.timeout = timeout
        self.max_document = max_document
        self.security = security(tls, token)

    @property
    def host(self) -> str:
        return self._host

    @host.setter
    def host(self, host: str) -> None:
        if not isinstance(host, str):
            raise TypeError(f"host is a name or an address, not {host!r}")
        if not host:
            raise ValueError("host is empty: give a name or an address")
        if ":" in host:
            from qs_schemas.addresses import server_address  # noqa: PLC0415 - rarely needed at start

            host, port, scheme = server_address(host, 0)
            if port or scheme is not None:
                raise ValueError("host is a name or an address: only a new client takes a port or qs:// with it")
        self._host = host

    @property
    def port(self) -> int:
        return self._port

    @port.setter
    def port(self, port: int) -> None:
        if whole(port, "port", 1, 65535) is None:
            raise TypeError("port is a whole number, not None")
        self._port = port

    @property
    def timeout(self) -> float | None:
        """Seconds in which the other side has to answer; None for no limit."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: float | None) -> None:
        self._timeout = seconds(timeout, "timeout", more_than_none=True)

    @property
    def max_document(self) -> int:
        """The largest document that is read, in bytes."""
        return self._max_document

    @max_document.setter
    def max_document(self, max_document: int) -> None:
        if whole(max_document, "max_document", 1) is None:
            raise TypeError("max_document is a number of bytes, not None")
        self._max_document = max_document

    @property
    def token(self) -> Token | None:
        """The token that connections authenticate with. A new one is used from the next connection on."""
        return self.security.token

    @token.setter
    def token(self, token: str | Token | None) -> None:
        self.security = replace(self.security, token=security(None, token).token)
