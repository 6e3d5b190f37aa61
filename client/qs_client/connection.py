"""One connection of the sync client: a wire and its session. Only this module reads and writes bytes.

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

from qs_schemas import CLIENT_LIMITS, Authenticate, Error, Limits, Message

from .errors import Unexpected, exception_for
from .lifetimes import call_after_fork
from .place import Place, tune
from .security import PLAIN, Security, Token
from .session import Session
from .waiting import Pending
from .wire import LONGEST, Wire

M = TypeVar("M", bound=Message)

_WOKEN = 1024  # bytes of a read from a waker
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # poll needs no descriptor of its own


def open_connection(
    host: str,
    port: int,
    place: Place,
    timeout: float | None,
    limits: Limits = CLIENT_LIMITS,
    *,
    security: Security = PLAIN,
) -> "Connection":
    """Connects. timeout: seconds for each address of the host, and for the handshake of TLS; limits: of what is read;
    security: whose token is not sent yet. ServerUnavailable when nothing answers, or TLS cannot begin."""
    sock = _connected_socket(host, port, place, timeout)
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    try:
        tune(sock)
        wire = Wire(sock, security.layer(host))
        wire.shake_hands(deadline)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise place.handshake_failed(error) from error
        raise
    return Connection(wire, place, limits)


def _connected_socket(host: str, port: int, place: Place, timeout: float | None) -> socket.socket:
    try:
        return socket.create_connection((host, port), None if timeout is None else min(timeout, LONGEST))
    except TimeoutError as error:
        raise place.connect_timed_out() from error
    except (OSError, UnicodeError) as error:
        raise place.cannot_connect(error) from error


class Connection:
    """A connection. wire: connected; place: for error texts. Threads may send while one reads; only one may read at a
    time."""

    def __init__(
        self,
        wire: Wire,
        place: Place,
        limits: Limits = CLIENT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = Session(limits, place.program)
        self._wire = wire
        self._place = place
        self._clock = clock
        self._writing = threading.Lock()
        self._selector = _Selector()
        wire.register(self._selector)
        self._wakers: tuple[socket.socket, socket.socket] | None = None
        self._busy = False  # a thread reads. It sets this before it checks _ended; close() does the reverse
        self._ended = self._broken = False
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
                if not self._wire.has_input():
                    continue
                if not session.awaits_answer:
                    return True
                self.fill(math.inf)  # answers that nobody waits for
                while session.route():
                    pass
        except (OSError, Unexpected):
            return True
        return False

    def authenticate(self, token: Token, seconds: float | None) -> None:
        """Says who the client is. ServerError when the server refuses; then, and after any other exception, the
        connection must be closed. seconds: as in `answer`."""
        answer = self.answer(self.session.ask(Authenticate(token.reveal())), seconds)
        if isinstance(answer, Error):
            raise exception_for(answer)

    def greet(self, seconds: float | None) -> None:
        """Sends what the session says first, and waits for no answer. seconds: as in `answer`."""
        with contextlib.suppress(OSError):  # the next call will get the error
            self.send(self.deadline(seconds))

    def introduce(self, seconds: float | None) -> None:
        """Waits until the other side has said which program it is. WrongProgram; ServerError when it ends the
        connection. seconds: as in `answer`."""
        if self.session.greeting is not None:
            self.answer(self.session.greeting, seconds)
            try:
                self.session.check_program()
            except Unexpected as error:
                raise self._place.protocol_error(error) from None

    def send(self, deadline: float, message: Message | None = None) -> None:
        """Writes what the session has to send. message: is posted first.

        TimeoutError, OSError: the connection must then be closed, as a part may have been sent.
        """
        with self._writing:
            if message is not None:
                self.session.post(message)
            if data := self.session.data_to_send():
                self._wire.send(data, deadline)

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
            self._wire.end()
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

    def check(self) -> None:
        """Raises ServerUnavailable if the connection is closed."""
        if self._ended:
            raise self._place.given_up() if self._broken else self._place.closed()

    def _fill(self, deadline: float) -> None:
        self.check()
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
            data = self._wire.receive()
        except OSError as error:
            raise self._place.broken(error, maybe_tls=self._maybe_tls) from error
        if data is None:
            return
        if not data:
            self.check()
            raise self._place.lost(self.session.end_of_data(), maybe_tls=self._maybe_tls)
        self.session.receive_data(data)

    @property
    def _maybe_tls(self) -> bool:
        """Tells whether the server may be one that waits for TLS."""
        return not self.session.heard and not self._wire.secure

    def _readable(self, seconds: float) -> bool:
        """Waits until there is something to read. Returns False on a timeout (seconds), after `wake`, or spuriously."""
        if self._wire.ready:
            return True
        ready = self._selector.select(None if seconds == math.inf else min(max(seconds, 0), LONGEST))
        for key, _ in ready:
            if key.data is self._wire:
                return True
        if ready and self._wakers is not None:
            with contextlib.suppress(OSError):
                self._wakers[0].recv(_WOKEN)
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

    def close(self, *, broken: bool = False) -> None:
        """Ends the connection. If a thread reads it, that thread wakes up and closes the socket itself, lest the
        descriptor be reused meanwhile. broken: after an error, so that others that use the connection know that the
        program did not ask for its end."""
        if self._ended:
            return
        self._broken = broken
        self._ended = True
        self._wire.shut_down()
        if not self._busy:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for each in (self._wire, *(self._wakers or ())):
            each.close()

    def __del__(self) -> None:
        self.close()  # otherwise a reference cycle in the selector keeps the sockets until a garbage collection
