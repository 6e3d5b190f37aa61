"""Runs one connection, from the client's first byte to the last, as a state machine.

How it works. Everything that happens to a connection is a plain call in the loop's thread: bytes have come, a batch has
ended, a message has arrived, a time is over, the socket has taken what was sent, the server stops. Each call finds the
connection in one phase, and may bring it into another by a row of `TRANSITIONS`; a cause that the table does not allow
in that phase is a fault, and ends the connection. No task sleeps for a connection. Only telling a client why its
connection ends needs a task, because that takes several waits.

The connection's session, one for each kind of server, knows what a request means. The connection has the reader, the
outbox and the countdown, and decides when requests are taken up, when nothing is read, and how the connection ends.

The hub calls `_arrived` in a poll cycle. If requests are complete, the session takes them up (RUNNING) and in the end
calls `answered`, `pause` or `await_socket`. The client's next requests are taken up at once, in the same call, and only
when there are none does the connection read again (READING).
"""

import logging
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Generic, Protocol, TypeVar

import trio

from qs_schemas import LINE_END, ErrorCode, Fault, Message, Peer, errors

from .access.caller import Caller
from .answers import new_resp
from .figures import NO_OPERATION, RequestCounts
from .options import ServerLimits
from .outbox import Outbox
from .request_reader import RequestReader
from .strangers import DOCUMENT, PIECE, Strangers
from .timers import Countdown, Timers, within
from .transport import CHUNK, Transport

_logger = logging.getLogger(__name__)
_UNKNOWN = ", which is that of clients that have not authenticated; send authenticate first"


class Phase(Enum):
    """Names what a connection is doing. The value says what the connection waits for."""

    NEW = "its acceptor"
    READING = "bytes of the client"
    RUNNING = "the end of what its session does with requests"
    WAITING = "what a request waits for: messages, another server, a time"
    SENDING = "the socket, to take the answers"
    PARTING = "the client, to read why the connection ends"
    CLOSED = "nothing"

    __hash__ = object.__hash__  # that of Enum is a Python function, called for each look into the table


class Cause(Enum):
    """Names why a connection changes its phase."""

    ACCEPTED = "the client has a place, or is to be told that there is none"
    REQUESTS = "requests have come"
    ANSWERED = "all requests are answered"
    PAUSED = "a request has to wait"
    OVER = "the wait is over"
    UNREAD = "the client does not read its answers"
    TAKEN = "the socket has taken the answers"
    TOLD = "the client is told why the connection ends"
    GONE = "the connection is lost, or ends without a word"

    __hash__ = object.__hash__


TRANSITIONS = {
    (Phase.NEW, Cause.ACCEPTED): Phase.READING,
    (Phase.READING, Cause.REQUESTS): Phase.RUNNING,
    (Phase.RUNNING, Cause.ANSWERED): Phase.READING,
    (Phase.RUNNING, Cause.PAUSED): Phase.WAITING,
    (Phase.RUNNING, Cause.UNREAD): Phase.SENDING,
    (Phase.WAITING, Cause.OVER): Phase.RUNNING,
    (Phase.SENDING, Cause.TAKEN): Phase.RUNNING,
    (Phase.READING, Cause.TOLD): Phase.PARTING,
    (Phase.RUNNING, Cause.TOLD): Phase.PARTING,
    (Phase.WAITING, Cause.TOLD): Phase.PARTING,
    (Phase.SENDING, Cause.TOLD): Phase.PARTING,
    (Phase.NEW, Cause.GONE): Phase.CLOSED,
    (Phase.READING, Cause.GONE): Phase.CLOSED,
    (Phase.RUNNING, Cause.GONE): Phase.CLOSED,
    (Phase.WAITING, Cause.GONE): Phase.CLOSED,
    (Phase.SENDING, Cause.GONE): Phase.CLOSED,
    (Phase.PARTING, Cause.GONE): Phase.CLOSED,
}
"""The next phase. docs/architecture.md draws them."""


class Session(Protocol):
    """Handles the requests of a connection, in the way of one kind of server. Each method is called in the loop's
    thread and returns at once."""

    @property
    def stopping_text(self) -> str:
        """The text that clients are told when the server stops."""

    @property
    def patience(self) -> float | None:
        """Seconds for which a client may send nothing before `silent` is called, None for any time."""

    def run(self) -> None:
        """Continues the requests under way, or takes up the connection's next ones. In the end, now or later, calls
        `answered`, `pause` or `await_socket` of the connection."""

    def interrupt(self) -> None:
        """Ends the wait of a request soon, because the client has gone, or because no new request begins any more."""

    def abandon(self) -> None:
        """Gives up all requests: nobody wants their answers. Later calls about these requests must do nothing."""

    def rights_changed(self) -> None:
        """Ends what the client may not do any more. Called after the access file has been read again."""

    def heard(self) -> None:
        """Called when the client has sent its first bytes."""

    def silent(self) -> None:
        """Called when the client has sent nothing for `patience` seconds. `patience` may differ from then on."""

    def written(self, token: object) -> None:
        """Called when the socket has taken all data that was put into the outbox with this token, unless `put` had
        returned True."""

    @property
    def subscription_count(self) -> int:
        """The number of subscriptions of the client."""


S = TypeVar("S", bound=Session)


class Connection(Generic[S]):
    """Serves one client.

    Ensures:
    1. Requests are taken up in their order, and none before the answers to all earlier ones are in the outbox.
    2. While requests run or answers wait for the socket, nothing is read, so the client has to wait. While a request
       waits for something else, more requests are read ahead, up to the bounds, to notice the end of the stream.
    3. A client that does not complete a document in time is refused.
    4. A stop ends the connection between two requests, and the client is told so, as in a refusal.
    5. `closed` is called once, after the transport has been closed.

    Assumes that all calls come in the loop's thread. A fault of the code ends this connection and no other: every entry
    that runs the session's code catches the errors of that code.

    A connection must never know what a request means."""

    __slots__ = (
        "_caller",
        "_closed",
        "_closing",
        "_countdown",
        "_counts",
        "_early",
        "_heard",
        "_limits",
        "_nursery",
        "_parting",
        "_peer",
        "_reader",
        "_refusal",
        "_stopping",
        "_strangers",
        "_stream",
        "_timers",
        "outbox",
        "phase",
        "requests",
        "session",
        "started",
    )  # fmt: skip

    def __init__(
        self,
        stream: Transport,
        peer: Peer,
        session: Callable[["Connection[S]"], S],
        *,
        limits: ServerLimits,
        nursery: trio.Nursery,
        timers: Timers,
        counts: RequestCounts,
        strangers: Strangers,
        caller: Caller | None = None,
        closed: Callable[["Connection[S]"], None] = lambda connection: None,
    ) -> None:
        """nursery: runs the tasks that send what a slow client has not read yet, and the tasks that tell clients why
        their connections end; counts: the counts of all clients' requests; strangers: the strangers among all clients;
        session: makes the session; caller: the client's identity, None without an access file; closed: called when the
        connection has ended."""
        self.started = time.time()
        """When the connection began, in seconds since 1970."""
        self.phase = Phase.NEW
        self._stream = stream
        self._peer = peer
        self._limits = limits
        self._nursery = nursery
        self._timers = timers
        self._counts = counts
        self._strangers = strangers
        self._caller = caller
        self._closed = closed
        self._early = peer.early
        self._heard = False  # the client has sent bytes
        self._closing = False  # no new request is taken up: the server is stopping, or the client is turned out
        self._stopping = False
        self._refusal: tuple[ErrorCode, str] | None = None
        self._parting: _Parting | None = None
        self._reader = RequestReader(peer, limits)
        self.requests = self._reader.requests
        """The requests that have come and that the session has not taken up, the oldest first."""
        self._countdown = Countdown(timers, self._end_step)
        self.outbox = Outbox(stream, nursery, self._written, self._emptied)
        self.session = session(self)

    # -- what others ask

    @property
    def address(self) -> str:
        """The client's HOST:PORT."""
        return self._stream.peer

    @property
    def principal(self) -> str:
        """The name of the client's present principal; empty for a client without one."""
        principal = None if self._caller is None else self._caller.principal
        return "" if principal is None else principal.name or ""

    @property
    def is_known(self) -> bool:
        """True if the client has given a valid credential, or if there is no access file."""
        return self._caller is None or self._caller.is_known

    @property
    def may_stay(self) -> bool:
        """True if the client may do more than authenticate, or if there is no access file."""
        return self._caller is None or self._caller.may_stay

    @property
    def is_leaving(self) -> bool:
        """True if the client sends nothing more, or if none of its further requests will be taken up."""
        return self._closing or self._reader.ended

    @property
    def is_closing(self) -> bool:
        """True if no request of the client begins any more."""
        return self._closing

    @property
    def has_ended(self) -> bool:
        """True if the client sends nothing more."""
        return self._reader.ended

    @property
    def is_refused(self) -> bool:
        """True if the client has been turned out or dismissed."""
        return self._refusal is not None

    @property
    def is_stopping(self) -> bool:
        """True if the server is stopping."""
        return self._stopping

    # -- from the first byte on

    def begin(self) -> None:
        """Begins to read, and starts the session's countdown for a silent client."""
        self.phase = TRANSITIONS[self.phase, Cause.ACCEPTED]
        self._stream.start(self._arrived, self.fail)
        if self._closing:
            self._leave()
        elif self.session.patience is not None:
            self._countdown.run(self.session.patience)

    def identify(self) -> None:
        """Applies the bounds for the client's present identity. Called when the client has come, and when its identity
        may have changed."""
        if self._caller is None:
            return
        known = self._caller.is_known
        self._peer.bound_documents(None if known else DOCUMENT, _UNKNOWN)
        self._stream.limit_reads(CHUNK if known else PIECE)
        self._strangers.note(self)

    def _arrived(self, data: bytes) -> None:
        """Takes received bytes, in a poll cycle, and takes up the requests in them."""
        reader = self._reader
        if self._parting is not None:  # drops the bytes: closing with unread bytes would destroy answers on their way
            if not data:
                self._parting.has_ended.set()
            return
        if not data:
            reader.ended = True
        reader.read(data)
        if self._early is not self._peer.early:
            self._add_missing_empty_line()
        if not self._heard and (reader.requests or self._peer.begun):
            self._heard = True
            self._countdown.reset()
            self.session.heard()
        if self.phase is Phase.WAITING:
            self._read_ahead()
        elif reader.requests:
            if self._countdown.begun:
                self._countdown.reset()
            self._stream.held = True
            self.phase = TRANSITIONS[self.phase, Cause.REQUESTS]
            self.session.run()
        else:
            self._read_on()

    def _read_on(self) -> None:
        """Starts the countdown for a client that has begun a document or has sent nothing yet. Ends the connection if
        the client's stream has ended."""
        if self._reader.ended:
            self._leave()
        elif self._peer.begun:
            # From the first byte of a document: a client that sends a byte a second must not keep its connection.
            self._countdown.run(self._limits.document_time)
        elif not self._heard and self.session.patience is not None:
            self._countdown.run(self.session.patience)

    def _read_ahead(self) -> None:
        """Reads more requests, up to the bounds, while a request waits; beyond the bounds the client has to wait too.
        The end of the stream ends the request's wait."""
        reader, limits = self._reader, self._limits
        if reader.ended:
            self.session.interrupt()
        elif len(reader.requests) >= limits.pipeline or reader.unanswered >= (
            limits.outbox if self.is_known else PIECE
        ):
            self._stream.hold()

    def _end_step(self) -> None:
        """Reads from the socket when a step of the client's time is over. If bytes were there, the process was late and
        not the client, so the step does not count."""
        try:
            data = self._stream.look()
            if data is not None:
                self._arrived(data)
                self._stream.end_poll()
            elif not self._countdown.count_step():
                self._read_on()
            elif self._heard:
                late = f"a document was begun and not completed within {self._limits.document_time:g} s"
                self.dismiss(errors.TIMEOUT, late)
            else:
                self._countdown.reset()
                self.session.silent()
                self._read_on()
        except Exception as error:
            self.fail(error)

    def _add_missing_empty_line(self) -> None:
        """Sends the empty line that an earlier answer lacked. Called when a document shows that the client is an early
        one, which waits for an empty line after each answer."""
        self._early = self._peer.early
        if self.outbox.used:
            self.outbox.put(LINE_END)

    # -- what the session says

    def answered(self, *, closes: bool = False) -> None:
        """Goes on after a batch of requests: all requests that the session took up are answered, and the socket has
        taken the answers. closes: True if the answers have told the client that the connection ends."""
        reader = self._reader
        if closes:
            self._leave(told=True)
            return
        if reader.identifying and not reader.requests:
            self.identify()
            reader.identified()
        elif reader.unread:
            reader.read()
        if self._early is not self._peer.early:
            self._add_missing_empty_line()
        if self._closing:
            self._leave()
        elif reader.requests:
            self.session.run()
        else:
            reader.unanswered = 0
            self.phase = TRANSITIONS[self.phase, Cause.ANSWERED]
            if reader.ended or self._peer.begun:
                self._read_on()
            if self._stream.watched and not reader.ended:
                self._stream.held = False  # resumed without a call, which nearly always suffices
            elif not reader.ended:
                self._stream.resume()

    def pause(self) -> None:
        """Notes that a request has to wait, and reads more requests ahead meanwhile."""
        self.phase = TRANSITIONS[self.phase, Cause.PAUSED]
        if self._reader.ended or self._closing:  # nothing will interrupt the wait any more
            self.session.interrupt()
        else:
            self._stream.resume()
            self._read_ahead()

    def end_pause(self) -> None:
        """Notes that the wait is over, and that the session continues the request."""
        self._stream.hold()
        self.phase = TRANSITIONS[self.phase, Cause.OVER]

    def await_socket(self) -> None:
        """Notes that the socket has not taken all answers yet. The session's `run` is called once it has."""
        if self.outbox.closed:
            self._close()
        else:
            self.phase = TRANSITIONS[self.phase, Cause.UNREAD]

    def _emptied(self) -> None:
        """Goes on after the socket has taken everything in the outbox, or after the outbox was closed."""
        if self.phase is not Phase.SENDING:
            return
        if self.outbox.closed:
            self._close()
            return
        self.phase = TRANSITIONS[self.phase, Cause.TAKEN]
        self.attempt(self.session.run)
        self._stream.end_poll()

    def _written(self, token: object) -> None:
        self.attempt(partial(self.session.written, token))

    def attempt(self, call: Callable[[], object]) -> None:
        """Calls a function of the session outside of the hub's poll cycle. An error of that function ends only this
        connection."""
        try:
            call()
        except Exception as error:
            self.fail(error)

    # -- the end

    def stop(self) -> None:
        """Ends the connection for a stop of the server: finishes the requests that have begun, refuses the rest."""
        self._stopping = True
        self._finish()

    def turn_out(self, error: ErrorCode, text: str) -> None:
        """Ends the connection from this side: finishes the requests that have begun, then tells the client why. Call it
        before `begin` to refuse the client."""
        if self._refusal is None:
            self._refusal = error, text
        self._finish()

    def _finish(self) -> None:
        """Ends the connection between two requests."""
        self._closing = True
        if self.phase is Phase.READING:
            self.attempt(self._leave)
        elif self.phase is Phase.WAITING:
            self.attempt(self.session.interrupt)

    def dismiss(self, error: ErrorCode, text: str) -> None:
        """Ends the connection from this side, in any phase, and says why if the client reads. The end comes after the
        caller has returned, because the caller may be in the middle of something that concerns this client."""
        if self._refusal is None:
            self._refusal = error, text
        self._closing = True
        self._timers.add(0, self._leave_dismissed)

    def _leave_dismissed(self) -> None:
        if self.phase in (Phase.READING, Phase.WAITING, Phase.SENDING):  # after RUNNING, `answered` finds out
            self.attempt(self._leave)

    def cut_off(self) -> None:
        """Ends the connection at once, and sends nothing more."""
        self._close()

    def fail(self, error: Exception) -> None:
        """Ends the connection because of an error."""
        if isinstance(error, trio.BrokenResourceError):
            _logger.debug("%s: %s", error, error.__cause__)
            if self.phase is Phase.WAITING:  # messages that the request has received must not get lost with its answer
                self._reader.ended = True
                self.attempt(self.session.interrupt)
                return
        elif self.phase is not Phase.CLOSED:
            _logger.error("a connection is closed because of a fault of the server", exc_info=error)
        self._close()

    def _leave(self, *, told: bool = False) -> None:
        """Ends the connection. told: True if the last answer has told the client why."""
        self._countdown.reset()
        self.session.abandon()
        if not told and self._refusal is None and not self._stopping:
            self._close()  # the client has ended it
            return
        in_full = not told and self._refusal is None  # a stop waits until the client has all answers
        if not told:
            self._say_why()
        self.phase = TRANSITIONS[self.phase, Cause.TOLD]
        self._parting = parting = _Parting()
        if self._reader.ended:
            parting.has_ended.set()
        self._nursery.start_soon(self._part, parting, in_full)

    def _say_why(self) -> None:
        """Sends the error that says why nothing more is read, as the answer to the next request if there is one."""
        error, text = self._refusal or (errors.SHUTTING_DOWN, self.session.stopping_text)
        self._counts.refused(NO_OPERATION, error.code)
        waiting = next((event for event in self._reader.requests if isinstance(event, Message)), None)
        fault = Fault(error, text, None if waiting is None else waiting.req)
        self.outbox.put(self._peer.send(fault.message(new_resp())))

    async def _part(self, parting: "_Parting", in_full: bool) -> None:
        """Waits a moment until the client has read what was sent and has ended its side, and drops the bytes that still
        arrive: closing at once would destroy answers on their way. A slow client that has not read everything by then
        gets more time, as much as for a document: half a line would be worse than none."""
        try:
            with parting.scope:
                if in_full:
                    await self.outbox.drained()
                if await within(self._limits.linger, self._end_both):
                    return
                for _ in range(int(self._limits.document_time)):
                    if not (self.outbox.unsent or self._stream.backlog()) or await within(1, self._end_both):
                        return
        except Exception as error:
            self.fail(error)
        finally:
            self._close()

    async def _end_both(self) -> None:
        """Waits until the client has taken everything, and has ended its side of the stream."""
        await self.outbox.drained()
        await self._stream.send_eof()
        if self._parting is not None and not self._parting.has_ended.is_set():
            self._stream.resume()
            await self._parting.has_ended.wait()

    def _close(self) -> None:
        if self.phase is Phase.CLOSED:
            return
        self.phase = TRANSITIONS[self.phase, Cause.GONE]
        self._countdown.reset()
        try:
            self.session.abandon()
        except Exception:  # whatever it is, the others go on
            _logger.exception("a connection was closed with a fault of the server")
        if self._parting is not None:
            self._parting.scope.cancel()
        self.outbox.close()
        self._stream.close()
        self._closed(self)


class _Parting:
    """Holds the end of a connection whose client is told why. scope: the cancel scope around the task that waits for
    the client; has_ended: set when the client has ended its side of the stream."""

    __slots__ = ("has_ended", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.has_ended = trio.Event()
