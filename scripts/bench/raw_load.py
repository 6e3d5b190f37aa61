"""Load from raw sockets: bytes made beforehand, many connections in one process, as little of its own as there can be.

A script says what a connection sends; it is the same loop for every server, so that only the server differs.
"""

import selectors
import socket
import time
from collections.abc import Callable, Generator, Iterator

from peer import Exchange, Script

_CHUNK = 1 << 20
_WAIT = 30
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
    """A socket, and where it is in its script."""

    def __init__(self, address: tuple[str, int], script: Script) -> None:
        self.socket = socket.create_connection(address, _WAIT)
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
        """Reads what has come; sends the next request if the answer is whole; True when the round is over."""
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
    """Rounds on all connections at once until the time; then each ends its round. ended: is told when each round began
    and ended, by the monotonic clock, and says whether there is more to do."""
    with selectors.EpollSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.begin(time.monotonic())
        under_way = len(connections)
        while under_way:
            ready = selector.select(_WAIT)
            if not ready:
                raise RuntimeError(f"no answer in {_WAIT} s")
            for key, _ in ready:
                connection = key.data
                if connection.took():
                    now = time.monotonic()
                    if ended(connection.began, now) and now < until:
                        connection.begin(now)
                    else:
                        under_way -= 1
