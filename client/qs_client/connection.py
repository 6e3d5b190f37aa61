"""One connection of the sync client: a wire and its session. Only this module reads and writes bytes."""

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from qs_schemas import CLIENT_LIMITS, Authenticate, Error, Limits, Message

from .errors import Unexpected, exception_for
from .lifetimes import call_after_fork
from .place import Place
from .security import PLAIN, Security, Token
from .session import Session
from .waiting import FRESH, Pending
from .wire import BRIEF, LONGEST, Wire, open_wire

M = TypeVar("M", bound=Message)

_WOKEN = 1024
"""Bytes of a read from a waker: one for each `wake` since the last read, so one read usually empties it."""

# poll, where the system has it: it needs no descriptor of its own, as epoll does.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


def open_connection(
    host: str,
    port: int,
    place: Place,
    timeout: float | None,
    limits: Limits = CLIENT_LIMITS,
    *,
    security: Security = PLAIN,
) -> "Connection":
    """Connects to the server. timeout: seconds for each address of the host, and for the handshake of TLS; limits:
    bounds of what is read; security: its token is not sent yet. Raises ServerUnavailable if no address answers, or TLS
    cannot begin."""
    return Connection(open_wire(host, port, place, timeout, security), place, limits)


class Connection:
    """The socket and the session of a sync client.

    Ensures
    1. `read` returns what the session has found, or raises ServerUnavailable with a text that names the server, or
       TimeoutError; at the deadline nothing is lost, and the next `read` goes on.
    2. Any thread may send, wake or close it at any time, also a signal handler; a thread that reads notices.
    3. The descriptor is closed once, by the thread that reads if there is one.
    4. In a child of a fork it is closed without a word to the server.

    Assumes that one thread reads at a time: the lock is its owner's, `QueueClient` or `BusMessages`.
    Never reconnects, and never repeats a request: it cannot know whether that is safe. Its owner closes it after any
    error but TimeoutError, as a part of a document may have been sent or read.
    """

    def __init__(
        self,
        wire: Wire,
        place: Place,
        limits: Limits = CLIENT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """wire: connected; place: for error texts."""
        self.session = Session(limits, place.program)
        self._wire = wire
        self._place = place
        self._clock = clock
        self._selector = _Selector()
        wire.register(self._selector)
        self._wakers: tuple[socket.socket, socket.socket] | None = None
        # A thread reads. It sets this before it checks _ended, and close() does the reverse, so one of the two closes.
        self._busy = False
        self._ended = self._broken = False
        self._slow = False  # the last read has waited in vain
        self._heard_at = -math.inf  # when bytes have come last
        call_after_fork(self)

    def after_fork(self) -> None:
        """Closes the sockets in a child process, see `lifetimes`."""
        self._ended = True
        self._close_sockets()

    def deadline(self, seconds: float | None, since: float | None = None) -> float:
        """Returns the time that many seconds from `since`, on this connection's clock. since: None for now; seconds:
        None for never."""
        return math.inf if seconds is None else (self._clock() if since is None else since) + seconds

    # -- the beginning ------------------------------------------------------------------------------------------------

    def is_stale(self) -> bool:
        """Tells whether the server has closed the connection, or is about to, without owing an answer.

        A call asks this first: a request on such a connection would fail, and the caller would not know whether the
        server has carried it out. A restart of the server between two calls is nothing that a program has to handle.
        Within FRESH of the last bytes it does not look at the socket, as calls in quick succession would pay for a look
        each: then a request on a connection that has just ended fails.
        """
        session = self.session
        if session.is_routed and self._clock() - self._heard_at < FRESH:
            return False
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
        """Authenticates the client. Raises ServerError if the server refuses; then, and after any other exception, the
        connection must be closed. seconds: as in `answer`."""
        answer = self.answer(self.session.ask(Authenticate(token.reveal())), seconds)
        if isinstance(answer, Error):
            raise exception_for(answer)

    def greet(self, seconds: float | None) -> None:
        """Sends the session's greeting, and waits for no answer. seconds: as in `answer`."""
        with contextlib.suppress(OSError):  # the next call will get the error
            self.send(self.deadline(seconds))

    def await_greeting(self, seconds: float | None) -> None:
        """Waits until the other side has said which program it is. Raises WrongProgram; ServerError if it ends the
        connection. seconds: as in `answer`."""
        if self.session.greeting is not None:
            self.answer(self.session.greeting, seconds)
            try:
                self.session.check_program()
            except Unexpected as error:
                raise self._place.protocol_error(error) from None

    # -- requests and answers -----------------------------------------------------------------------------------------

    def send(self, deadline: float, message: Message | None = None) -> None:
        """Writes the session's pending bytes. message: is posted first.

        Raises TimeoutError, OSError: the connection must then be closed, as a part may have been sent.
        """
        if message is not None:
            self.session.post(message)
        self._wire.send(self.session.unsent, deadline)

    def answer(self, pending: Pending, seconds: float | None, since: float | None = None) -> Message:
        """Sends the session's pending bytes, and returns the answer. seconds: None for no limit; since: the time from
        which they count, None for now. After an exception the connection is out of step and must be closed."""
        session = self.session
        # `deadline` and `answer_to` without their calls, as each request of a program comes here.
        deadline = math.inf if seconds is None else (self._clock() if since is None else since) + seconds
        try:
            while pending.answer is None:
                if session.is_routed or not session.route():
                    self.fill(deadline)
        except Unexpected as error:
            raise self._place.protocol_error(error) from None
        except TimeoutError:  # the deadline, or a limit of the system
            raise self._place.no_answer(seconds) from None
        return pending.answer

    def route_all(self) -> None:
        """Passes on all messages that have come. Raises ServerUnavailable if one of them is unexpected: the connection
        must then be closed."""
        try:
            while not self.session.is_routed and self.session.route():
                pass
        except Unexpected as error:
            raise self._place.protocol_error(error) from None

    def last_answer(self, pending: Pending, seconds: float) -> None:
        """Reads the answer, if it comes within these seconds, on a connection that is to be closed. Shuts down the
        sending side first, which makes the server stop waiting."""
        with contextlib.suppress(OSError):
            self._wire.end()
            self.read(self.session.answer_to, pending, deadline=self.deadline(seconds))

    def read(self, next_message: Callable[..., M | None], *arguments: object, deadline: float) -> M:
        """Sends pending bytes, and reads until the session's `next_message(*arguments)` returns a message.

        Raises ServerUnavailable if the connection ends; TimeoutError at the deadline, when nothing is lost.
        """
        try:
            # Asked first: what it waits for may have come with the bytes of an earlier read.
            while (message := next_message(*arguments)) is None:
                self.fill(deadline)
        except Unexpected as error:
            raise self._place.protocol_error(error) from None
        return message

    def check(self) -> None:
        """Raises ServerUnavailable if the connection is closed."""
        if self._ended:
            raise self._place.given_up() if self._broken else self._place.closed()

    def fill(self, deadline: float) -> None:  # noqa: C901 - its steps, without a call each
        """Sends pending bytes, and gives the session the next bytes that come. Errors as in `read`."""
        self._busy = True
        try:
            if self._ended:
                self.check()
            if self.session.unsent:
                try:
                    self._wire.send(self.session.unsent, deadline)
                except TimeoutError:
                    raise
                except OSError:
                    pass  # the server may have sent a reason before it closed; otherwise reading fails as well
            # Most answers come soon, and the read itself waits for them. Only the selector can be woken, waits to the
            # millisecond, and for long.
            left = deadline - self._clock()
            in_read = left >= BRIEF and self._wakers is None and not self._slow
            if not in_read and not self._readable(left):
                # Only the clock decides: woken, or after the longest wait of the system, the caller looks and waits
                # again.
                if self._clock() >= deadline:
                    raise TimeoutError(f"nothing came from {self._place.name} in time")
                return
            try:
                data = self._wire.receive()
            except OSError as error:
                raise self._place.broken(error, maybe_tls=self._maybe_tls) from error
            self._slow = data is None  # the next read of this wait goes to the selector
            if data is None:
                return
            if not data:
                self.check()  # first: it was this program that ended it, in another thread
                raise self._place.lost(self.session.end_of_data(), maybe_tls=self._maybe_tls)
            self._heard_at = self._clock()
            self.session.receive_data(data)
        finally:
            self._busy = False
            if self._ended:
                self._close_sockets()

    @property
    def _maybe_tls(self) -> bool:
        """Tells whether the other side may be a server with TLS, which waits for a handshake."""
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

    # -- other threads, and the end -----------------------------------------------------------------------------------

    def make_wakeable(self) -> None:
        """Prepares for `wake`. Must not be called while another thread reads. Only subscriptions need it, so other
        clients save two descriptors."""
        if self._wakers is None:
            self._wakers = socket.socketpair()
            for end in self._wakers:
                end.setblocking(False)
            self._selector.register(self._wakers[0], selectors.EVENT_READ)

    def wake(self) -> None:
        """Makes a thread that reads check again whether it is done, and send pending bytes. Any thread or signal
        handler may call this at any time: a socket has no lock that the interrupted thread could hold."""
        if self._wakers is not None:
            with contextlib.suppress(OSError):
                self._wakers[1].send(b"!")

    def close(self, *, broken: bool = False) -> None:
        """Ends the connection. If a thread reads, the thread wakes up and closes the socket itself, so that no other
        file gets the descriptor's number meanwhile. broken: after an error, so that other users of the connection know
        that the program did not ask for its end."""
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
