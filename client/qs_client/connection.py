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
from typing import TypeVar

from qs_schemas import CLIENT_LIMITS, Limits, Message

from .errors import ServerUnavailable
from .forks import call_after_fork
from .place import Place, tune
from .session import Session
from .stream_errors import Unexpected
from .waiting import Pending

M = TypeVar("M", bound=Message)

_PIECE = 256 * 1024  # of what is read at a time
_LONGEST = 86400.0  # seconds that the system waits at a time: it counts milliseconds in 31 bits
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # poll takes no descriptor of its own


def open_connection(
    host: str, port: int, place: Place, timeout: float | None, limits: Limits = CLIENT_LIMITS
) -> "Connection":
    """Connects, within timeout seconds. limits: of what is read there. ServerUnavailable when nothing answers there."""
    try:
        sock = socket.create_connection((host, port), None if timeout is None else min(timeout, _LONGEST))
    except TimeoutError as error:
        raise place.connect_timed_out() from error
    except (OSError, UnicodeError) as error:
        raise place.cannot_connect(error) from error
    tune(sock)
    return Connection(sock, place, limits)


class Connection:
    """sock: connected; place: for errors. Threads may send while one reads; no two may read at a time."""

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
        self._busy = False  # somebody reads; set before _ended is looked at, as that is set before this is
        self._ended = False
        call_after_fork(self)

    def after_fork(self) -> None:
        """The connection is the parent's: it is not shut down, only this process's descriptor is given back."""
        self._ended = True
        self._close_sockets()

    def deadline(self, seconds: float | None) -> float:
        """The time at which so many seconds will have passed; None is never."""
        return math.inf if seconds is None else self._clock() + seconds

    def is_stale(self) -> bool:
        """Whether something came while nothing was asked: the server has closed the connection, or is about to."""
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
        """Writes what the session has to send, and before that a message as it is.

        TimeoutError, OSError: the connection must then be closed, as part of it may have been sent.
        """
        with self._writing:
            if message is not None:
                self.session.post(message)
            if data := self.session.data_to_send():
                self._send_all(data, deadline)

    def _send_all(self, data: bytes, deadline: float) -> None:
        """Usually the socket takes all of it at once: then nothing has to be waited for, or asked of the system."""
        try:
            self._sock.settimeout(0)
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            # Of the sending alone: the reading waits on the selector. 0 would mean not to wait at all.
            self._sock.settimeout(None if deadline == math.inf else min(max(deadline - self._clock(), 0.001), _LONGEST))
            self._sock.sendall(memoryview(data)[sent:])

    def answer(self, pending: Pending, seconds: float | None) -> Message:
        """Sends what the session has been given to ask, and reads the answer, in so many seconds or for ever. When it
        raises, the connection is out of step and must be closed."""
        try:
            return self.read(lambda: self.session.answer_to(pending), self.deadline(seconds))
        except TimeoutError:  # the system, too, has limits of its own
            raise self._place.no_answer(seconds) from None

    def last_answer(self, pending: Pending, seconds: float) -> None:
        """Reads the answer in so many seconds if it comes, on a connection that is to be closed. A wait at the server
        ends when it hears that nothing more will be asked."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            self.read(lambda: self.session.answer_to(pending), self.deadline(seconds))

    def read(self, next_message: Callable[[], M | None], deadline: float) -> M:
        """Reads until there is a message. TimeoutError when the deadline comes first: nothing is lost then."""
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
        """Sends what there is to send, and gives the session what comes next; as `read` does once."""
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
            pass  # the server may have said why before it hung up; if it has not, the reading fails as well
        if not self._readable(deadline - self._clock()):
            if self._clock() >= deadline:
                raise TimeoutError(f"nothing came from {self._place.name} in time")
            return
        try:
            data = self._sock.recv(_PIECE)
        except BlockingIOError:
            return  # the system had been mistaken; it is asked again
        except OSError as error:
            raise self._place.broken(error) from error
        if not data and self._ended:
            raise self._place.closed()
        if not data:
            raise self._place.lost(self.session.end_of_data())
        self.session.receive_data(data)

    def _readable(self, seconds: float) -> bool:
        """Waits until the socket can be read. False when so many seconds have passed, or `wake` was called; perhaps
        also before."""
        ready = self._selector.select(None if seconds == math.inf else min(max(seconds, 0), _LONGEST))
        for key, _ in ready:
            if key.fileobj is self._sock:
                return True
        if ready and self._wakers is not None:
            with contextlib.suppress(OSError):
                self._wakers[0].recv(_PIECE)
        return False

    def make_wakeable(self) -> None:
        """Before the first `wake`. Not while another thread reads."""
        if self._wakers is None:
            self._wakers = socket.socketpair()
            for end in self._wakers:
                end.setblocking(False)
            self._selector.register(self._wakers[0], selectors.EVENT_READ)

    def wake(self) -> None:
        """Lets a thread that reads look again at what it waits for, and send what there is to send. May be called by
        any thread at any time, also by a signal's handler."""
        if self._wakers is not None:
            with contextlib.suppress(OSError):
                self._wakers[1].send(b"!")

    def close(self) -> None:
        """Ends the connection. A thread that reads it wakes up, and closes the socket itself: while it waits on the
        descriptor, that must not become another file's."""
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
        self.close()  # the selector is in a cycle with its map: without this, its sockets wait for the collector
