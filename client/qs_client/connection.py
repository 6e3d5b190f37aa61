"""One connection of the sync client: a socket and its session. Only this module reads and writes bytes.

It does not reconnect or retry: errors are raised, and the client then closes the connection.
"""

import contextlib
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from qs_schemas import CLIENT_LIMITS, Limits, Message

from .errors import ServerUnavailable
from .forks import call_after_fork
from .place import Place, tune
from .session import Session
from .stream_errors import Unexpected
from .waiting import Pending

M = TypeVar("M", bound=Message)

_PIECE = 256 * 1024  # bytes of a read
_LONGEST = 86400.0  # seconds of one wait: the system counts milliseconds in 31 bits
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # poll needs no descriptor of its own


def open_connection(
    host: str, port: int, place: Place, timeout: float | None, limits: Limits = CLIENT_LIMITS
) -> "Connection":
    """Connects within timeout seconds. limits: of what is read. ServerUnavailable when nothing answers."""
    try:
        sock = socket.create_connection((host, port), None if timeout is None else min(timeout, _LONGEST))
    except TimeoutError as error:
        raise place.connect_timed_out() from error
    except (OSError, UnicodeError) as error:
        raise place.cannot_connect(error) from error
    tune(sock)
    return Connection(sock, place, limits)


class Connection:
    """A connection. sock: connected; place: for error texts. Threads may send while one reads; only one may read at a
    time."""

    def __init__(
        self,
        sock: socket.socket,
        place: Place,
        limits: Limits = CLIENT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = Session(limits)
        self._sock = sock
        self._place = place
        self._clock = clock
        self._writing = threading.Lock()
        self._selector = _Selector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._wakers: tuple[socket.socket, socket.socket] | None = None
        self._busy = False  # a thread reads. It sets this before it checks _ended; close() does the reverse
        self._ended = False
        call_after_fork(self)

    def after_fork(self) -> None:
        """Closes the sockets in a child process, see `forks`."""
        self._ended = True
        self._close_sockets()

    def deadline(self, seconds: float | None) -> float:
        """Returns the time that many seconds from now, on this connection's clock; None: never."""
        return math.inf if seconds is None else self._clock() + seconds

    def is_stale(self) -> bool:
        """Tells whether the server has closed the connection, or is about to, while no answer was awaited."""
        session = self.session
        try:
            while not session.may_get_unasked and self._readable(0):
                if not session.awaits_answer:
                    return True
                self.fill(math.inf)  # answers that nobody waits for
                while session.route():
                    pass
        except (ServerUnavailable, Unexpected):
            return True
        return False

    def send(self, deadline: float, message: Message | None = None) -> None:
        """Writes what the session has to send. message: is posted first.

        TimeoutError, OSError: the connection must then be closed, as a part may have been sent.
        """
        with self._writing:
            if message is not None:
                self.session.post(message)
            if data := self.session.data_to_send():
                self._send_all(data, deadline)

    def _send_all(self, data: bytes, deadline: float) -> None:
        """Tries first without waiting, as the socket usually takes all at once."""
        try:
            self._sock.settimeout(0)
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            # Applies to sending only: reading waits on the selector. 0 would mean non-blocking.
            self._sock.settimeout(None if deadline == math.inf else min(max(deadline - self._clock(), 0.001), _LONGEST))
            self._sock.sendall(memoryview(data)[sent:])

    def answer(self, pending: Pending, seconds: float | None) -> Message:
        """Sends what the session has to send, and returns the answer. seconds: None for no limit. After an exception
        the connection is out of step and must be closed."""
        try:
            return self.read(lambda: self.session.answer_to(pending), self.deadline(seconds))
        except TimeoutError:  # the deadline, or a limit of the system
            raise self._place.no_answer(seconds) from None

    def last_answer(self, pending: Pending, seconds: float) -> None:
        """Reads the answer, if it comes within these seconds, on a connection that is to be closed. Shuts down the
        sending side, which makes the server stop waiting."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            self.read(lambda: self.session.answer_to(pending), self.deadline(seconds))

    def read(self, next_message: Callable[[], M | None], deadline: float) -> M:
        """Reads until next_message returns a message. TimeoutError at the deadline; nothing is lost then."""
        self._busy = True
        try:
            while (message := next_message()) is None:
                self._fill(deadline)
        except Unexpected as error:
            raise self._place.protocol_error(error) from None
        finally:
            self._busy = False
            if self._ended:
                self._close_sockets()
        return message

    def fill(self, deadline: float) -> None:
        """Sends pending bytes, and gives the session the next bytes that come. Errors as in `read`."""
        self._busy = True
        try:
            self._fill(deadline)
        finally:
            self._busy = False
            if self._ended:
                self._close_sockets()

    def _fill(self, deadline: float) -> None:
        if self._ended:
            raise self._place.closed()
        try:
            self.send(deadline)
        except TimeoutError:
            raise
        except OSError:
            pass  # the server may have sent a reason; otherwise reading fails as well
        if not self._readable(deadline - self._clock()):
            if self._clock() >= deadline:
                raise TimeoutError(f"nothing came from {self._place.name} in time")
            return
        try:
            data = self._sock.recv(_PIECE)
        except BlockingIOError:
            return  # a spurious wake-up
        except OSError as error:
            raise self._place.broken(error) from error
        if not data and self._ended:
            raise self._place.closed()
        if not data:
            raise self._place.lost(self.session.end_of_data())
        self.session.receive_data(data)

    def _readable(self, seconds: float) -> bool:
        """Waits until the socket is readable. Returns False on a timeout (seconds), after `wake`, or spuriously."""
        ready = self._selector.select(None if seconds == math.inf else min(max(seconds, 0), _LONGEST))
        for key, _ in ready:
            if key.fileobj is self._sock:
                return True
        if ready and self._wakers is not None:
            with contextlib.suppress(OSError):
                self._wakers[0].recv(_PIECE)
        return False

    def make_wakeable(self) -> None:
        """Prepares for `wake`. Not while another thread reads."""
        if self._wakers is None:
            self._wakers = socket.socketpair()
            for end in self._wakers:
                end.setblocking(False)
            self._selector.register(self._wakers[0], selectors.EVENT_READ)

    def wake(self) -> None:
        """Makes a thread that reads check again what it waits for, and send pending bytes. Any thread or signal handler
        may call it at any time."""
        if self._wakers is not None:
            with contextlib.suppress(OSError):
                self._wakers[1].send(b"!")

    def close(self) -> None:
        """Ends the connection. If a thread reads it, that thread wakes up and closes the socket itself, lest the
        descriptor be reused meanwhile."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._busy:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for each in (self._sock, *(self._wakers or ())):
            each.close()

    def __del__(self) -> None:
        self.close()  # otherwise a reference cycle in the selector keeps the sockets until a garbage collection
