"""One connection, as far as it is the same for every server.

Bytes become events, within bounds; what cannot be read, or comes too late, is refused; a stop ends it between two
requests. What an event means is a subclass's business.
"""

import logging
import time
from collections import deque

import trio

from qs_schemas import LINE_END, Authenticate, ErrorCode, Fault, Message, Peer
from qs_schemas import errors as table

from .access.caller import Caller
from .answers import new_resp
from .figures import NO_OPERATION, RequestCounts
from .options import ServerLimits
from .outbox import Outbox
from .patience import STEPS, within
from .strangers import DOCUMENT, PIECE, Strangers
from .transport import CHUNK, Transport

_logger = logging.getLogger(__name__)
_UNKNOWN = ", which is that of clients that have not authenticated; send authenticate first"


class Conversation:
    """A client, from its first byte to its last."""

    stopping_text = "the server is stopping; connect again later"
    # Of the class until they are True, at the end: with more than 30 attributes, Python 3.11 and 3.12 give each object
    # a table of names of its own, which would be a fifth of the memory of an idle connection.
    _closing = False  # no request begins any more: the server is stopping, or the client is turned out
    _cut = False  # it is cut off, without a word

    def __init__(
        self,
        stream: Transport,
        peer: Peer,
        limits: ServerLimits,
        writers: trio.Nursery,
        counts: RequestCounts,
        *,
        strangers: Strangers,
        caller: Caller | None = None,
    ) -> None:
        """writers: where what a slow client has not read yet is sent from; counts: of all clients' requests; strangers:
        among all clients; caller: who the client is, None if everybody may do everything."""
        self.started = time.time()
        """When the connection began, in seconds since 1970."""
        self._stream = stream
        self._peer = peer
        self._limits = limits
        self._counts = counts
        self._strangers = strangers
        self._caller = caller
        self._identifying = False  # nothing behind the last of the events, an `authenticate`, has been made an event
        self._outbox = Outbox(stream, writers, self._written)
        self._early = peer.early
        self._events: deque[Message | Fault] = deque()
        self._more = False  # there may be events beyond those that are taken
        self._steps = 0  # seconds left in which the client has to act
        self._timed = False  # the present step ends at the deadline of the connection's life
        self._unanswered = 0  # bytes that came since the last time that everything was answered
        self._ended = False  # the client sends nothing more
        self._stopping = False  # the server is
        self._refusal: tuple[ErrorCode, str] | None = None
        self._life = trio.CancelScope()
        self._interruptible: trio.CancelScope | None = None  # True while it only waits for the client, or for messages

    def stop(self) -> None:
        """The server is stopping: what is begun is finished, the rest is refused."""
        self._stopping = True
        self._finish()

    def turn_out(self, error: ErrorCode, text: str) -> None:
        """Ends the connection from this side: what is begun is finished, then the client is told why. Call it before
        `serve` to refuse the client."""
        if self._refusal is None:
            self._refusal = error, text
        self._finish()

    def _finish(self) -> None:
        self._closing = True
        if self._interruptible is not None:
            self._interruptible.cancel()

    def cut_off(self) -> None:
        """Ends the connection at once, without a word more."""
        self._cut = True
        self._life.cancel()

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
    def subscription_count(self) -> int:
        """The number of subscriptions of the client."""
        raise NotImplementedError

    @property
    def is_known(self) -> bool:
        """True if the client has said who it is, or need not."""
        return self._caller is None or self._caller.is_known

    @property
    def may_stay(self) -> bool:
        """True if the client may do more than authenticate."""
        return self._caller is None or self._caller.may_stay

    def identify(self) -> None:
        """Applies the bounds of who the client is now: call it when it has come, and when that may have changed."""
        if self._caller is None:
            return
        known = self._caller.is_known
        self._peer.bound_documents(None if known else DOCUMENT, _UNKNOWN)
        self._stream.limit_reads(CHUNK if known else PIECE)
        self._strangers.note(self)

    def rights_changed(self) -> None:
        """The access file has been read again: what the client may not do any more has to end."""
        raise NotImplementedError

    def dismiss(self, error: ErrorCode, text: str) -> None:
        """Ends the connection from this side, whatever it is at, and says why if the client reads."""
        self._refusal = error, text
        self._life.cancel()

    async def serve(self) -> None:
        """Serves the client until it has gone, or is refused. Closes the stream."""
        try:
            told = await self._live()
            if not self._cut:
                with trio.CancelScope() as self._life:
                    await self._part(told=told)
        except trio.BrokenResourceError as error:
            _logger.debug("%s: %s", error, error.__cause__)
        except Exception:
            _logger.exception("a connection is closed because of a fault of the server")  # the other connections go on
        finally:
            self._outbox.close()
            await self._stream.aclose()

    async def _live(self) -> bool:
        """Converses, and bounds the time of each step. Returns True if the client has been told why nothing more is
        read."""
        while True:
            with self._life:
                return await self._converse()
            if self._closing or self._refusal is not None:
                return False
            self._life, self._timed = trio.CancelScope(), False
            if not self._events:
                self._spend_step()
            if self._refusal is not None:
                return False

    async def _converse(self) -> bool:
        """Reads and answers until nothing more is read. Returns True if the client has been told why."""
        while await self._read():
            while self._at_hand:
                if not await self._answer():
                    return True
        return False

    @property
    def _at_hand(self) -> bool:
        """True if there is something for `_answer`."""
        return bool(self._events) and not self._closing

    async def _answer(self) -> bool:
        """Handles at least one of the events at hand. False when the connection is to be closed: it has been told."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Is called in a poll cycle when there are events. A subclass may do what they ask for without waking the task:
        it calls `_idle` to read on, or rouses the task to go on there."""
        self._stream.rouse()

    def _written(self, token: object) -> None:
        """Called when the socket has taken all that was put into the outbox with this token."""

    # -- reading --------------------------------------------------------------------------------------------------

    async def _read(self) -> bool:
        """Reads until something is at hand. Returns False when nothing will come any more, or nothing is wanted."""
        if not self._events:
            self._unanswered = 0
        while not self._closing and not self._at_hand:
            if self._ended:
                return False
            self._keep_time()
            self._interruptible = self._life
            await self._listen()
            self._interruptible = None
        if self._timed:
            self._stop_time()
        if self._life.cancel_called:  # may happen in the same moment: a step that has begun must not be cancelled
            await trio.lowlevel.checkpoint_if_cancelled()
        return self._at_hand

    async def _listen(self) -> None:
        """Sleeps while what comes can be taken without the task."""
        await self._stream.feed(self._arrived)

    def _arrived(self, data: bytes) -> None:
        """Takes what comes in a poll cycle while the task sleeps."""
        if not data:
            self._take(data)
            self._stream.rouse()
            return
        self._unanswered += len(data)
        self._peer.receive_data(data)
        self._parse()
        if self._events:
            if self._timed:
                self._stop_time()
            self._begin()
        else:
            self._keep_time()

    def _idle(self) -> None:
        """Reads on when everything is answered and the task has not woken up."""
        self._unanswered = 0
        if not self._peer.drained and self._peer.begun:
            self._keep_time()
        self._interruptible = self._life
        self._stream.resume()

    # -- the client's time ----------------------------------------------------------------------------------------

    def _time_allowed(self) -> float | None:
        """Seconds that the client has for what it is at; None: as many as it likes. From the first byte of a document:
        a client that sends a byte a second must not hold on to its place."""
        return self._limits.document_time if self._peer.begun else None

    def _time_over(self) -> None:
        """The client has not done in time what it was at."""
        late = f"a document was begun and not completed within {self._limits.document_time:g} s"
        self._refusal = table.TIMEOUT, late

    def _keep_time(self) -> None:
        """Lets the client's time run, if it has only so much, and it does not run yet."""
        if self._timed:
            return
        seconds = self._time_allowed()
        if seconds is not None:
            self._steps = self._steps or STEPS
            self._timed = True
            self._life.deadline = trio.current_time() + seconds / STEPS

    def _stop_time(self) -> None:
        """Stops the time: the client has done something, or is not waited for."""
        self._timed = False
        self._life.deadline = float("inf")

    def _spend_step(self) -> None:
        """Looks at the socket when a step is over. What lies there had come before anybody looked, so that the step
        was not the client's: it does not count."""
        data = self._stream.look()
        if data is not None:
            self._take(data)
            return
        self._steps -= 1
        if self._steps <= 0:
            self._time_over()

    # -- events ---------------------------------------------------------------------------------------------------

    def _take(self, data: bytes | bytearray) -> None:
        """Turns bytes into events; no bytes mean the end of the stream."""
        if data:
            self._unanswered += len(data)
            self._peer.receive_data(data)
            self._parse()
            return
        self._ended = True
        self._parse()

    @property
    def _is_answering(self) -> bool:
        """True if requests are under way that are no events any more."""
        return False

    def _parse(self) -> None:
        """Makes events of what has come, as many as may wait. What follows an `authenticate` is left alone until that
        is answered: then the bounds for it are known."""
        if self._identifying:
            if self._events or self._is_answering:
                return
            self._identifying = False
            self.identify()
        events, most, next_event = self._events, self._limits.pipeline, self._peer.next_event
        self._more = True
        while len(events) < most:
            event = next_event()
            if event is not None:
                events.append(event)
                self._steps = 0
                if type(event) is Authenticate:
                    self._identifying = True
                    break
            if event is None or self._peer.drained:
                self._more = False
                break
        if self._ended and not self._more and (fault := self._peer.end_of_data()) is not None:
            events.append(fault)
        if self._early is not self._peer.early:
            self._end_what_was_sent()

    def _end_what_was_sent(self) -> None:
        """The client has turned out to look for an empty line behind each document: maybe it has the answer to the
        first, and its empty line came behind that."""
        self._early = self._peer.early
        if self._outbox.used:
            self._outbox.put(LINE_END)

    async def _read_ahead(self, waiting: trio.CancelScope) -> None:
        """Takes requests that come during a wait, up to the bounds; then the client has to wait too. At the end of the
        stream, the wait is over."""
        limits = self._limits
        most = limits.outbox if self.is_known else PIECE
        try:
            while len(self._events) < limits.pipeline and self._unanswered < most and not self._ended:
                self._take(await self._stream.receive_some(CHUNK))
        except trio.BrokenResourceError:
            self._ended = True  # the next send raises this error again
        if self._ended:
            waiting.cancel()

    # -- refusing -------------------------------------------------------------------------------------------------

    async def _part(self, *, told: bool) -> None:
        """Says why nothing more is read, unless the client has been told or has gone, and waits until it has read
        that."""
        if not told:
            if self._refusal is not None:
                self._put_error(*self._refusal)
            elif self._stopping:
                self._put_error(table.SHUTTING_DOWN, self.stopping_text)
                await self._outbox.drained()
            else:
                return
        await self._close_gently()

    def _put_error(self, error: ErrorCode, text: str) -> None:
        """Says why nothing more is read. It answers the next request, if there is one."""
        self._counts.refused(NO_OPERATION, error.code)
        waiting = next((event for event in self._events if isinstance(event, Message)), None)
        fault = Fault(error, text, None if waiting is None else waiting.req)
        self._outbox.put(self._peer.send(fault.message(new_resp())))

    async def _close_gently(self) -> None:
        """Sends what is left, and reads and drops what still arrives for a moment: closing at once would destroy what
        is on its way. A client that has not taken everything by then is a slow one. It has as long for that as a
        document may take, as a line that it got half of is worse than none."""
        if await within(self._limits.linger, self._end_both):
            return
        for _ in range(int(self._limits.document_time)):
            if not (self._outbox.unsent or self._stream.backlog()) or await within(1, self._end_both):
                return

    async def _end_both(self) -> None:
        """Returns when the client has taken everything, and has ended its side of the stream."""
        await self._outbox.drained()
        await self._stream.send_eof()
        while await self._stream.receive_some(CHUNK):
            pass
