"""Where a connection leads: its HOST:PORT, what is expected to answer there, and every trouble with it in words that
say what to do. One set of texts for the sync and the async connection."""

import socket
from dataclasses import dataclass

from .errors import NoAnswer, ProtocolMismatch, ServerUnavailable
from .stream_errors import Cut, TooLong, Unexpected

_UNKNOWN = "whether a request was carried out is not known"


def endpoint(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Place:
    """name: HOST:PORT; what: is expected to answer there; start: how to have one; client: whose max_document it is."""

    name: str
    what: str = "queue server"
    start: str = "queue-server.py"
    client: str = "QueueClient"

    def cannot_connect(self, error: Exception) -> ServerUnavailable:
        """No connection can be made."""
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return ServerUnavailable(
            f"no {self.what} at {self.name} ({reason}): start one with {self.start}, or give the address of one"
        )

    def connect_timed_out(self) -> NoAnswer:
        """Nothing answers the attempt to connect."""
        return NoAnswer(f"{self.name} does not answer: check the address, and that no firewall is between")

    def no_answer(self, seconds: float | None) -> NoAnswer:
        """A request was not answered in that time. None: the system's own limits were reached."""
        span = "in time" if seconds is None else f"within {seconds:g} s"
        return NoAnswer(
            f"no answer from {self.name} {span}, and whether the request was carried out is not "
            "known: see that the server is not stuck, or raise the timeout"
        )

    def lost(self, how: str) -> ServerUnavailable:
        """The connection ended. how: as in `it closed the connection`."""
        return ServerUnavailable(
            f"{self.name} {how} before it answered, and {_UNKNOWN}: see that the server runs, then call again"
        )

    def broken(self, error: OSError) -> ServerUnavailable:
        """The system says that the connection is over."""
        return self.lost(f"broke the connection ({error.strerror or error})")

    def protocol_error(self, error: Unexpected) -> ServerUnavailable:
        """The stream is out of step. A request that was cut off can be sent again; what came and cannot be read, will
        not be otherwise next time."""
        if isinstance(error, Cut):
            return ServerUnavailable(
                f"a request did not reach {self.name} whole ({error}), so it was not carried out: the network cut it "
                "off; call again"
            )
        if isinstance(error, TooLong):
            return ProtocolMismatch(
                f"{self.name} sent more than this client takes ({error}): give {self.client} a larger max_document"
            )
        return ProtocolMismatch(
            f"{self.name} does not speak the protocol as this client does ({error}): is it a {self.what}?"
        )

    def closed(self) -> ServerUnavailable:
        """This side has closed the connection."""
        return ServerUnavailable(f"the connection to {self.name} was closed by disconnect() before an answer came")


@dataclass(frozen=True, slots=True)
class BusPlace(Place):
    """Where a bus is. What was lost there comes again, so nothing is left in doubt."""

    what: str = "bus"
    start: str = "./scripts/run or queue-bus.py"
    client: str = "BusClient"

    def no_answer(self, seconds: float | None) -> NoAnswer:
        """The subscription was not taken in that time. The bus has to ask its queue server before it does."""
        span = "in time" if seconds is None else f"within {seconds:g} s"
        return NoAnswer(
            f"the bus at {self.name} did not take the subscription {span}: see that its queue server runs, and that "
            "the bus is not stuck, or raise the timeout"
        )

    def lost(self, how: str) -> ServerUnavailable:
        """The connection ended. how: as in `it closed the connection`."""
        return ServerUnavailable(f"the bus at {self.name} {how}: see that it runs")


_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds of silence, seconds between probes, probes without an answer: a machine that has gone is known in 30 s."""


def tune(sock: socket.socket) -> None:
    """Options of every connection. NODELAY: a request is small and its answer is waited for."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:  # not every platform has them all
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
