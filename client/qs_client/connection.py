"""One connection of the sync client: a socket and its session. The only module that reads and writes bytes.

Nothing here opens a connection again or retries: whatever fails is raised, and the client then closes the connection.
"""

import contextlib
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable

from qs_schemas import CLIENT_LIMITS, Limits, Message

from .calls import Exchange
from .errors import NoAnswer, ServerUnavailable
from .session import Session, TooLong, Unexpected

_PIECE = 256 * 1024  # of what is read at a time
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # poll takes no descriptor of its own


def endpoint(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_connection(host: str, port: int, timeout: float | None, limits: Limits = CLIENT_LIMITS) -> "Connection":
    """Connects, within timeout seconds. limits: of what is read there. ServerUnavailable when nothing answers there."""
    name = endpoint(host, port)
    try:
        sock = socket.create_connection((host, port), timeout)
    except TimeoutError as error:
        raise NoAnswer(f"{name} does not answer: check the address, and that no firewall is between") from error
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ServerUnavailable(
            f"no queue server at {name} ({reason}): start one with queue-server.py, or give the address of one"
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a request is small and its answer is waited for
    return Connection(sock, name, limits)


class Connection:
    """sock: connected; name: HOST:PORT, for errors. Threads may send while one reads; no two may read at a time."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        limits: Limits = CLIENT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = Session(limits)
        self._sock = sock
        self._name = name
        self._clock = clock
        self._writing = threading.Lock()
        self._selector = _Selector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._busy = False  # somebody reads; set before _ended is looked at, as that is set before this is
        self._ended = False

    def deadline(self, seconds: float | None) -> float:
        """The time at which so many seconds will have passed; None is never."""
        return math.inf if seconds is None else self._clock() + seconds

    def spent(self) -> bool:
        """Whether something came while nothing was asked: the server has closed the connection, or is about to."""
        return not self.session.loose and bool(self._selector.select(0))

    def send(self, document: bytes, deadline: float) -> None:
        """Writes a document. TimeoutError, OSError: the connection must then be closed, as part may have been sent."""
        with self._writing:
            # Of the sending alone: the reading waits on the selector. 0 would mean not to wait at all.
            self._sock.settimeout(None if deadline == math.inf else max(deadline - self._clock(), 0.001))
            self._sock.sendall(document)

    def exchange(self, document: bytes, exchange: Exchange, timeout: float | None) -> Message:
        """Sends a request and reads its answer. When it raises, the connection is out of step and must be closed."""
        seconds = None if timeout is None else timeout + exchange.patience
        deadline = self.deadline(seconds)
        try:
            try:
                self.send(document, deadline)
            except TimeoutError:
                raise
            except OSError:
                pass  # the server may have said why before it hung up; if it has not, the reading fails as well
            return self.read(lambda: self.session.answer_to(exchange.request), deadline)
        except TimeoutError:
            span = "in time" if seconds is None else f"within {seconds:g} s"  # the system has limits of its own
            raise NoAnswer(
                f"no answer from {self._name} {span}, and whether the request was carried out is not "
                "known: see that the server is not stuck, or raise the timeout"
            ) from None

    def read(self, next_message: Callable[[], Message | None], deadline: float) -> Message:
        """Reads until there is a message. TimeoutError when the deadline comes first: nothing is lost then."""
        self._busy = True
        try:
            while (message := next_message()) is None:
                self._fill(deadline)
        except TooLong as error:
            raise ServerUnavailable(
                f"{self._name} sent more than this client takes ({error}): give QueueClient a larger max_document"
            ) from None
        except Unexpected as error:
            raise ServerUnavailable(
                f"{self._name} does not speak the protocol as this client does ({error}): is it a queue server?"
            ) from None
        finally:
            self._busy = False
            if self._ended:
                self._sock.close()
        return message

    def _fill(self, deadline: float) -> None:
        if self._ended:
            raise self._closed()
        while not self._selector.select(None if deadline == math.inf else max(deadline - self._clock(), 0)):
            if self._clock() >= deadline:
                raise TimeoutError(f"nothing came from {self._name} in time")
        try:
            data = self._sock.recv(_PIECE)
        except OSError as error:
            raise self._lost(f"broke the connection ({error.strerror or error})") from error
        if not data and self._ended:
            raise self._closed()
        if not data:
            raise self._lost(self.session.end_of_data())
        self.session.receive_data(data)

    def _closed(self) -> ServerUnavailable:
        return ServerUnavailable(f"the connection to {self._name} was closed by disconnect() before an answer came")

    def _lost(self, how: str) -> ServerUnavailable:
        return ServerUnavailable(
            f"{self._name} {how} before it answered, and whether a request was carried out is not known: see that the "
            "server runs, then call again"
        )

    def close(self) -> None:
        """Ends the connection. A thread that reads it wakes up, and closes the socket itself: while it waits on the
        descriptor, that must not become another file's."""
        self._ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._busy:
            self._sock.close()
