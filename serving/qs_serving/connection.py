"""One connection: a client, from its first byte to its last, as a machine with one state.

How it works. Everything that happens to a connection is a plain call in the loop's thread: bytes have come, a batch has
ended, a message has arrived, a time is over, the socket has taken what was sent, the server stops. Each call finds the
connection in one phase, and may bring it into another by a row of `TRANSITIONS`; a cause that the table does not have
in a phase is a fault, and ends the connection. No task sleeps for a connection: only the end of one that is told why it
ends is a task, as that is a story of several waits.

What a request means is the business of the connection's session, one for each kind of server. The connection has the
reader, the outbox and the countdown, and decides when requests are taken up, when nothing is read, and how it ends.

The hub calls `_arrived` in a poll cycle. If requests are complete, the session takes them up (RUNNING) and says in the
end what came of it: `answered`, `pause` or `await_socket`. The client's next requests are taken up at once, in the same
call, and only when there are none does the connection read again (READING).
"""

import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

import trio

from qs_schemas import LINE_END, ErrorCode, Fault, Message, Peer
from qs_schemas import errors as table

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
    """What a connection is at. The value says what it waits for."""

    NEW = "its acceptor"
    READING = "bytes of the client"
    RUNNING = "the end of what its session does with requests"
    WAITING = "what a request waits for: messages, another server, a time"
    SENDING = "the socket, to take the answers"
    PARTING = "the client, to read why the connection ends"
    CLOSED = "nothing"

    __hash__ = object.__hash__  # that of Enum is a Python function, called for each look into the table


class Cause(Enum):
    """Why a connection gets into another phase."""

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
    """What a kind of server does with the requests of a connection. Each method is called in the loop's thread and
    returns at once."""

    @property
    def stopping_text(self) -> str:
        """What clients are told when the server stops."""

    @property
    def patience(self) -> float | None:
        """Seconds for which a client may send nothing before `silent` is called, None for any time."""

    def run(self) -> None:
        """Goes on with the requests that it has, or takes up the connection's next ones. Ends, now or later, with a
        call of `answered`, `pause` or `await_socket`."""

    def interrupt(self) -> None:
        """Ends the wait of a request soon: the client has gone, or no request begins any more."""

    def abandon(self) -> None:
        """Gives up all requests: nobody wants their answers. Later calls for them must do nothing."""

    def rights_changed(self) -> None:
        """Ends what the client may not do any more: the access file has been read again."""

    def heard(self) -> None:
        """The client has sent its first bytes."""

    def silent(self) -> None:
        """The client has sent nothing for `patience` seconds, which may be others now."""

    def written(self, token: object) -> None:
        """The socket has taken all that was put into the outbox with this token, later than at once."""

    @property
    def subscription_count(self) -> int:
        """The number of subscriptions of the client."""


S = TypeVar("S", bound=Session)


class Connection(Generic[S]):
    """A client.

    Ensures:
    1. Requests are taken up in their order, and none before the answers to all earlier ones are in the outbox.
    2. While requests run or answers wait for the socket, nothing is read: the client has to wait. While a request waits
       for something else, requests are read ahead, up to the bounds, so that the end of the stream is noticed.
    3. A document that has begun is completed in time, or the client is refused.
    4. A stop ends it between two requests, and the client is told, as it is when it is refused.
    5. `closed` is called once; the transport is closed then.

    Assumes that all calls come in the loop's thread. A fault of the code ends this connection, never another: so every
    entry that runs the session's code catches what that raises.

    It must never know what a request means."""

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
        """nursery: for tasks that send what a slow client has not read yet, and that part from clients; counts: of all
        clients' requests; strangers: among all clients; session: makes the session; caller: who the client is, None if
        everybody may do everything; closed: is called at the end."""
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
        self._heard = False  # the client has sent something
        self._closing = False  # no request begins any more: the server is stopping, or the client is turned out
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
        """The name of the principal that the client is now; empty if it is none."""
        principal = None if self._caller is None else self._caller.principal
        return "" if principal is None else principal.name or ""

    @property
    def is_known(self) -> bool:
        """True if the client has said who it is, or need not."""
        return self._caller is None or self._caller.is_known

    @property
    def may_stay(self) -> bool:
        """True if the client may do more than authenticate."""
        return self._caller is None or self._caller.may_stay

    @property
    def is_leaving(self) -> bool:
        """True if the client sends nothing more, or no request of it begins any more."""
        return self._closing or self._reader.ended

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
        """Begins to read."""
        self.phase = TRANSITIONS[self.phase, Cause.ACCEPTED]
        self._stream.start(self._arrived, self.fail)
        if self._closing:
            self._leave()
        elif self.session.patience is not None:
            self._countdown.run(self.session.patience)

    def identify(self) -> None:
        """Applies the bounds of who the client is now: call it when it has come, and when that may have changed."""
        if self._caller is None:
            return
        known = self._caller.is_known
        self._peer.bound_documents(None if known else DOCUMENT, _UNKNOWN)
        self._stream.limit_reads(CHUNK if known else PIECE)
        self._strangers.note(self)

    def _arrived(self, data: bytes) -> None:
        """Takes what has come, in a poll cycle."""
        reader = self._reader
        if self._parting is not None:  # read and dropped: closing with unread bytes destroys what is on its way
            if not data:
                self._parting.has_ended.set()
            return
        reader.read(data)
        if self._early is not self._peer.early:
            self._end_what_was_sent()
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
        """Lets the client's time run if it has only so much, or ends the connection if nothing more will come."""
        if self._reader.ended:
            self._leave()
        elif self._peer.begun:
            # From the first byte of a document: a client that sends a byte a second must not hold on to its place.
            self._countdown.run(self._limits.document_time)
        elif not self._heard and self.session.patience is not None:
            self._countdown.run(self.session.patience)

    def _read_ahead(self) -> None:
        """Reads on while a request waits, up to the bounds; then the client has to wait too. The end of the stream ends
        the wait."""
        reader, limits = self._reader, self._limits
        if reader.ended:
            self.session.interrupt()
        elif len(reader.requests) >= limits.pipeline or reader.unanswered >= (
            limits.outbox if self.is_known else PIECE
        ):
            self._stream.hold()

    def _end_step(self) -> None:
        """Looks at the socket when a step of the client's time is over. What lies there had come before anybody looked,
        so that the step was not the client's: it does not count."""
        try:
            data = self._stream.look()
            if data is not None:
                self._arrived(data)
                self._stream.end_poll()
            elif not self._countdown.count_step():
                self._read_on()
            elif self._heard:
                late = f"a document was begun and not completed within {self._limits.document_time:g} s"
                self.dismiss(table.TIMEOUT, late)
            else:
                self._countdown.reset()
                self.session.silent()
                self._read_on()
        except Exception as error:
            self.fail(error)

    def _end_what_was_sent(self) -> None:
        """The client has turned out to look for an empty line behind each document: maybe it has the answer to the
        first, and its empty line came behind that."""
        self._early = self._peer.early
        if self.outbox.used:
            self.outbox.put(LINE_END)

    # -- what the session says

    def answered(self, *, closes: bool = False) -> None:
        """All requests that the session took up are answered, and the socket has taken the answers. closes: the client
        has been told with them that the connection ends."""
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
            self._end_what_was_sent()
        if self._closing:
            self._leave()
        elif reader.requests:
            self.session.run()
        else:
            reader.unanswered = 0
            self.phase = TRANSITIONS[self.phase, Cause.ANSWERED]
            if reader.ended or (not self._peer.drained and self._peer.begun):
                self._read_on()
            if self._stream.watched and not reader.ended:
                self._stream.held = False  # resumed without a call, which is nearly always possible
            elif not reader.ended:
                self._stream.resume()

    def pause(self) -> None:
        """A request has to wait. Meanwhile requests are read ahead."""
        self.phase = TRANSITIONS[self.phase, Cause.PAUSED]
        if not self._reader.ended:
            self._stream.resume()
            self._read_ahead()

    def go_on(self) -> None:
        """The wait is over, and the session goes on with the request."""
        self._stream.hold()
        self.phase = TRANSITIONS[self.phase, Cause.OVER]

    def await_socket(self) -> None:
        """The socket has not taken the answers. The session's `run` is called when it has."""
        if self.outbox.closed:
            self._close()
        else:
            self.phase = TRANSITIONS[self.phase, Cause.UNREAD]

    def _emptied(self) -> None:
        """The socket has taken everything that was put into the outbox, or takes nothing any more."""
        if self.phase is not Phase.SENDING:
            return
        if self.outbox.closed:
            self._close()
            return
        self.phase = TRANSITIONS[self.phase, Cause.TAKEN]
        self.attempt(self.session.run)
        self._stream.end_poll()

    def _written(self, token: object) -> None:
        try:
            self.session.written(token)
        except Exception as error:
            self.fail(error)

    def attempt(self, call: Callable[[], object]) -> None:
        """Calls a function of the session that no poll cycle calls. What it raises ends this connection alone."""
        try:
            call()
        except Exception as error:
            self.fail(error)

    # -- the end

    def stop(self) -> None:
        """The server is stopping: what is begun is finished, the rest is refused."""
        self._stopping = True
        self._finish()

    def turn_out(self, error: ErrorCode, text: str) -> None:
        """Ends the connection from this side: what is begun is finished, then the client is told why. Call it before
        `begin` to refuse the client."""
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
        """Ends the connection from this side, whatever it is at, and says why if the client reads. It does not end
        before the caller returns, who may be in the middle of something that concerns this client."""
        if self._refusal is None:
            self._refusal = error, text
        self._closing = True
        self._timers.add(0, self._leave_dismissed)

    def _leave_dismissed(self) -> None:
        if self.phase in (Phase.READING, Phase.WAITING, Phase.SENDING):  # after RUNNING, `answered` finds out
            self.attempt(self._leave)

    def cut_off(self) -> None:
        """Ends the connection at once, without a word more."""
        self._close()

    def fail(self, error: Exception) -> None:
        """Ends the connection because of an error."""
        if isinstance(error, trio.BrokenResourceError):
            _logger.debug("%s: %s", error, error.__cause__)
            if self.phase is Phase.WAITING:  # what the request has got must not get lost with its answer
                self._reader.ended = True
                self.attempt(self.session.interrupt)
                return
        elif self.phase is not Phase.CLOSED:
            _logger.error("a connection is closed because of a fault of the server", exc_info=error)
        self._close()

    def _leave(self, *, told: bool = False) -> None:
        """Ends the connection. told: the client has been told why, with the last answer."""
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
        """Says why nothing more is read. It answers the next request, if there is one."""
        error, text = self._refusal or (table.SHUTTING_DOWN, self.session.stopping_text)
        self._counts.refused(NO_OPERATION, error.code)
        waiting = next((event for event in self._reader.requests if isinstance(event, Message)), None)
        fault = Fault(error, text, None if waiting is None else waiting.req)
        self.outbox.put(self._peer.send(fault.message(new_resp())))

    async def _part(self, parting: "_Parting", in_full: bool) -> None:
        """Waits until the client has read what was sent, and reads and drops what still arrives for a moment: closing
        at once would destroy what is on its way. A client that has not taken everything by then is a slow one. It has
        as long for that as a document may take, as a line that it got half of is worse than none."""
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
        """Returns when the client has taken everything, and has ended its side of the stream."""
        await self.outbox.drained()
        await self._stream.send_eof()
        if self._parting is not None and not self._parting.has_ended.is_set():
            self._stream.resume()
            await self._parting.has_ended.wait()

    def _close(self) -> None:
        if self.phase is Phase.CLOSED:
            return
        self._countdown.reset()
        self.session.abandon()
        self.phase = TRANSITIONS[self.phase, Cause.GONE]
        if self._parting is not None:
            self._parting.scope.cancel()
        self.outbox.close()
        self._stream.close()
        self._closed(self)


class _Parting:
    """The end of a connection whose client is told why. scope: around the task that waits for the client; has_ended:
    is set when the client has ended its side of the stream."""

    __slots__ = ("has_ended", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.has_ended = trio.Event()
