"""The load: documents made beforehand, blocking sockets, and lines counted.

The load does as little work as possible, so that the server is measured and not a client. `Client` is one connection
whose caller waits; `Connection` and `drive` are many connections in one process, each with a script that says what it
sends. All servers are measured with this loop, so that only the server differs.
"""

import re
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Protocol

_OPEN = b'<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="request">'
_TIMEOUT = 60
_CHUNK = 1 << 20
_MID = re.compile(rb'mid="(\d+)"|<mid[^>]*>(\d+)<')


def document(op: bytes, beside: bytes = b"", attributes: bytes = b"") -> bytes:
    """Returns a request as a client of any language would send it."""
    return _OPEN + b"<op" + attributes + b"><" + op + b"/></op>" + beside + b"</qs>\r\n"


def push_document(qid: str, size: int) -> bytes:
    """Returns a push of that many bytes of plain text."""
    return document(b"push-message", b"<qid>%s</qid><payload>%s</payload>" % (qid.encode(), b"x" * size))


class Client:
    """A connection with a blocking socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, _TIMEOUT)
        # A request goes out at once, and does not wait for the confirmation of the one before.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def lines(self, request: bytes, count: int = 1) -> bytes:
        """Sends the bytes and waits for that many answers. Raises RuntimeError if one is an error."""
        self.socket.sendall(request)
        answer = self._more(b"")
        while answer.count(b"\n") < count:
            answer = self._more(answer)
        if b'type="error"' in answer:
            raise RuntimeError(answer.decode())
        return answer

    def same(self, request: bytes) -> None:
        """Sends the bytes, and waits for as many bytes."""
        self.socket.sendall(request)
        missing = len(request)
        while missing:
            data = self.socket.recv(_CHUNK)
            if not data:
                raise RuntimeError("the connection was closed")
            missing -= len(data)

    def next_line(self) -> bytes:
        """Reads one line that comes without a request, with nothing after it. Raises RuntimeError if it is an error."""
        return self.lines(b"")

    def answers(self) -> int:
        """Reads the bytes that have come, and returns how many answers have ended in them. Raises RuntimeError if one
        is an error."""
        data = self._more(b"")
        if b'type="error"' in data:
            raise RuntimeError(data.decode())
        return data.count(b"\n")

    def _more(self, before: bytes) -> bytes:
        data = self.socket.recv(_CHUNK)
        if not data:
            raise RuntimeError(f"the connection was closed after {before!r}")
        return before + data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TlsClient(Client):
    """A blocking connection over TLS. An answer is one record, so a read gives all of it."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        super().__init__(address)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")


def mid_in(answer: bytes) -> bytes:
    """Returns the first message id of an answer."""
    found = _MID.search(answer)
    if found is None:
        raise RuntimeError(f"no message in {answer!r}")
    return found[1] or found[2]


def rate(seconds: float, once: Callable[[], object], worth: int = 1) -> float:
    """Returns the calls of `once` a second, times the worth of a call."""
    calls = 0
    started = now = time.perf_counter()
    until = started + seconds
    while now < until:
        once()
        calls += 1
        now = time.perf_counter()
    return calls * worth / (now - started)


def rate_of_many(clients: Sequence[Client], request: bytes, seconds: float) -> float:
    """Returns requests a second when each client has one under way all the time. In one thread: it waits while the
    server works."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.socket.sendall(request)
        done = 0
        under_way = len(clients)
        started = time.perf_counter()
        until = started + seconds
        ended = started
        while under_way:
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError(f"no answer in {_TIMEOUT} s")
            for key, _ in ready:
                client = key.data
                answer = client.socket.recv(_CHUNK)
                if b'type="response"' not in answer or not answer.endswith(b"\n"):
                    raise RuntimeError(f"expected one complete answer, got {answer!r}")
                done += 1
                ended = time.perf_counter()
                if ended < until:
                    client.socket.sendall(request)
                else:
                    under_way -= 1
    return done / (ended - started)


Exchange = tuple[bytes, int]
"""Bytes to send, and how many lines end in the answer."""


class Script(Protocol):
    """The requests of a raw connection: is sent the answer, and returns the next request."""

    worth: int
    """Messages that a round handles."""

    def round(self) -> Iterator[Exchange]:
        """Yields the exchanges of one round; is sent the bytes of their answers."""
        ...


_REFUSED = (
    b'type="error"',
    b"-ERR",
    b"OUT_OF_MEMORY",
    b"INTERNAL_ERROR",
    b"JOB_TOO_BIG",
    b"NOT_FOUND",
    b"EXPECTED_CRLF",
)


class Pushes:
    """Sends the same bytes again and again. lines: how many end in the answer; worth: messages in them."""

    def __init__(self, request: bytes, lines: int, worth: int) -> None:
        self.worth = worth
        self._exchange = (request, lines)

    def round(self) -> Iterator[Exchange]:
        yield self._exchange


class Connection:
    """A socket, and its position in its script."""

    def __init__(self, address: tuple[str, int], script: Script) -> None:
        self.socket = socket.create_connection(address, _TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._script = script
        self._round: Generator[Exchange, bytes, None]
        self._missing = 0
        self._answer: list[bytes] = []
        self.began = 0.0

    def begin(self, now: float) -> None:
        """Sends the first request of a round."""
        self.began = now
        self._round = self._script.round()  # type: ignore[assignment]
        self._send(*next(self._round))

    def _send(self, request: bytes, lines: int) -> None:
        self._missing = lines
        self._answer.clear()
        self.socket.sendall(request)

    def took(self) -> bool:
        """Reads the bytes that have come, and sends the next request if the answer is whole. Returns True when the
        round is over."""
        data = self.socket.recv(_CHUNK)
        if not data:
            raise RuntimeError("the connection was closed")
        for word in _REFUSED:
            if word in data:
                raise RuntimeError(data[:500].decode(errors="replace"))
        self._answer.append(data)
        self._missing -= data.count(b"\n")
        if self._missing > 0:
            return False
        try:
            request, lines = self._round.send(b"".join(self._answer))
        except StopIteration:
            return True
        self._send(request, lines)
        return False


def drive(connections: list[Connection], ended: Callable[[float, float], bool], until: float) -> None:
    """Runs rounds on all connections at once until the time; then each connection ends its round. ended: gets the times
    at which each round began and ended, by the monotonic clock, and returns whether to go on."""
    with selectors.EpollSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.begin(time.monotonic())
        under_way = len(connections)
        while under_way:
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError(f"no answer in {_TIMEOUT} s")
            for key, _ in ready:
                connection = key.data
                if connection.took():
                    now = time.monotonic()
                    if ended(connection.began, now) and now < until:
                        connection.begin(now)
                    else:
                        under_way -= 1
