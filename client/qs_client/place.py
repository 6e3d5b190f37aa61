"""The address of a connection's other side, and the errors about it. The sync and the async connection share the
texts."""

import socket
from dataclasses import dataclass

from qs_schemas.wire import BUS, SERVER

from .errors import (
    Cut,
    Disconnected,
    NoAnswer,
    OtherProgram,
    ProtocolMismatch,
    ServerUnavailable,
    SpeaksHttp,
    SpeaksTls,
    TlsFailed,
    TooLong,
    Unexpected,
    WrongProgram,
)

_UNKNOWN = "whether the request was carried out is not known"


_PLAIN = "leave TLS out, as in qs://HOST:PORT, or check the port"
_SIGNED = "give one that the server's CA has signed: --cert and --client-key, or a context as tls"
_CA = "give the CA that has signed it: tls='ca.pem', --ca or QS_CA"
_ADVICE = (
    ("does not speak TLS", _PLAIN),
    ("this side's certificate", _SIGNED),
    ("client certificate", _SIGNED),
    ("mismatch", "connect by a name or an address that is in the certificate"),
    ("certificate has expired", "renew the certificate of the server, or set the clock of this machine"),
    ("not yet valid", "set the clock of this machine"),
    ("issuer certificate", _CA),
    ("self-signed", _CA),
    ("verify the first certificate", _CA),
)
"""Words in the text of a TLS error, and the advice for the error. The first words that fit count."""

_PROGRAMS = {
    SERVER: "is a queue server, which QueueClient and `qs` speak to",
    BUS: "is a bus, which BusClient and `qs tail` listen to",
}
"""Descriptions of the programs that may answer, by name, each with the clients that speak to it."""

_MAYBE_TLS = " (if it speaks TLS, connect with tls=True or --tls, or to qss://HOST:PORT)"


def _within(seconds: float | None) -> str:
    return "in time" if seconds is None else f"within {seconds:g} s"


def endpoint(host: str, port: int) -> str:
    """Returns HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Place:
    """The other side of a connection, and the errors about it. The sync and the async clients have the same texts.

    name: HOST:PORT; what: the kind of server expected; start: the command that starts one; client: the class whose
    max_document applies; program: how the one expected names itself; usual: its port, unless it was started with
    another.

    Ensures: each text names the address, says whether the request may have been carried out if that is in doubt, and
    what to do next. An error that waiting does not cure is a ProtocolMismatch: clients stop trying after it.
    """

    name: str
    what: str = "queue server"
    start: str = "queue-server.py"
    client: str = "QueueClient"
    program: str = SERVER
    usual: int = 9876

    def cannot_connect(self, error: Exception) -> ServerUnavailable:
        """Makes the error for a connection that cannot be made."""
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)  # without "[Errno 111]"
        return ServerUnavailable(
            f"no {self.what} at {self.name} ({reason}): start one with {self.start}, or give the address of one"
        )

    def connect_timed_out(self) -> NoAnswer:
        """Makes the error for an attempt to connect that gets no answer."""
        return NoAnswer(f"{self.name} does not answer: check the address and the firewalls")

    def no_answer(self, seconds: float | None) -> NoAnswer:
        """Makes the error for a request without an answer in that time. None: the system's own limit was reached."""
        return NoAnswer(
            f"no answer from {self.name} {_within(seconds)}, and {_UNKNOWN}: "
            "check that the server is not stuck, or raise the timeout"
        )

    def handshake_failed(self, error: OSError) -> ServerUnavailable:
        """Makes the error for a TLS session that does not begin."""
        if isinstance(error, TlsFailed):
            return self._tls_failed(error)
        if isinstance(error, TimeoutError):
            return NoAnswer(f"{self.name} does not answer to TLS: check that it speaks TLS, and is not stuck")
        return ServerUnavailable(f"{self.name} broke the connection ({error.strerror or error}): does it speak TLS?")

    def _tls_failed(self, error: TlsFailed) -> ServerUnavailable:
        text = str(error)
        advice = next((advice for words, advice in _ADVICE if words in text), "check the TLS settings of both sides")
        kind = ProtocolMismatch if advice is _PLAIN else ServerUnavailable
        return kind(f"no TLS connection to {self.name}: {text}: {advice}")

    def lost(self, how: str, *, maybe_tls: bool = False) -> ServerUnavailable:
        """Makes the error for a connection that ended. how: as in `closed the connection`; maybe_tls: the server has
        said nothing at all, as one does that waits for TLS."""
        return ServerUnavailable(
            f"{self.name} {how} before it answered, and {_UNKNOWN}: check that the server runs, then call again"
            f"{_MAYBE_TLS if maybe_tls else ''}"
        )

    def broken(self, error: OSError, *, maybe_tls: bool = False) -> ServerUnavailable:
        """Makes the error for a connection that the system reports as broken. maybe_tls: as for `lost`."""
        if isinstance(error, TlsFailed):
            return self._tls_failed(error)
        return self.lost(f"broke the connection ({error.strerror or error})", maybe_tls=maybe_tls)

    def protocol_error(self, error: Unexpected) -> ServerUnavailable:
        """Makes the error for a stream that is out of step. A request that was cut off can be sent again; unreadable
        data will be no better next time."""
        if isinstance(error, Cut):
            return ServerUnavailable(
                f"the network cut off a request to {self.name} ({error}), so it was not carried out: call again"
            )
        if isinstance(error, SpeaksTls):
            return ProtocolMismatch(f"{self.name} speaks TLS: connect with tls=True or --tls, or to qss://{self.name}")
        if isinstance(error, SpeaksHttp | OtherProgram):
            found = "is an HTTP server" if isinstance(error, SpeaksHttp) else _PROGRAMS.get(str(error), f"is a {error}")
            return WrongProgram(
                f"{self.name} {found}, and no {self.what}: connect to the port of the {self.what}, which is "
                f"{self.usual} unless it was started with another"
            )
        if isinstance(error, TooLong):
            return ProtocolMismatch(
                f"{self.name} sent more than this client takes ({error}): give {self.client} a larger max_document"
            )
        return ProtocolMismatch(
            f"{self.name} does not speak the protocol of this client ({error}): is it a {self.what}?"
        )

    def closed(self) -> Disconnected:
        """Makes the error for a connection that this program has closed."""
        return Disconnected(f"the connection to {self.name} was closed by disconnect() before an answer came")

    def given_up(self) -> ServerUnavailable:
        """Makes the error for a connection that this side has closed after an error of another call."""
        return ServerUnavailable(
            f"the connection to {self.name} was lost in another call of this program, or that got no answer in time; "
            "the next call opens a new one"
        )


@dataclass(frozen=True, slots=True)
class BusPlace(Place):
    """A bus at the other side. Messages that are lost on the way are delivered again, so nothing is in doubt."""

    what: str = "bus"
    start: str = "./scripts/run or queue-bus.py"
    client: str = "BusClient"
    program: str = BUS
    usual: int = 9878

    def no_answer(self, seconds: float | None) -> NoAnswer:
        """Makes the error for a subscription that was not taken in that time. The bus has to ask its queue server
        first."""
        return NoAnswer(
            f"the bus at {self.name} did not take the subscription {_within(seconds)}: check that its queue "
            "server runs and that the bus is not stuck, or raise the timeout"
        )

    def lost(self, how: str, *, maybe_tls: bool = False) -> ServerUnavailable:
        """Makes the error for a connection that ended. The arguments are those of `Place.lost`."""
        return ServerUnavailable(f"the bus at {self.name} {how}: check that it runs{_MAYBE_TLS if maybe_tls else ''}")


_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds of silence, seconds between probes, probes without an answer: a dead machine is noticed in 30 s. A
subscription sends nothing while it waits, and would wait for ever otherwise."""


def tune(sock: socket.socket) -> None:
    """Sets the options of every connection. NODELAY: requests are small, and their answers are awaited, so nothing is
    gained by holding a request back until it fills a packet."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:  # platforms differ
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
