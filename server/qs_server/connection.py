"""One connection: bytes, documents, a group of requests, answers, bytes. Requests are applied and answered in order."""

import logging
from collections import deque

import trio

from qs_schemas import ErrorCode, Fault, Message, Peer
from qs_schemas import errors as table

from .committer import Committer
from .group import Group, new_resp, weight
from .handlers import Service
from .options import ServerLimits
from .transport import Transport
from .waiting import Waiters

_logger = logging.getLogger(__name__)
_CHUNK = 64 * 1024
_GROUP = 256
"""Requests of one connection that one batch takes, so that a busy one does not keep the others waiting."""
_MESSAGES = 1000
"""And messages, where the requests are lists."""


class Connection:
    """A client, from its first byte to its last."""

    def __init__(
        self,
        stream: Transport,
        peer: Peer,
        *,
        service: Service,
        committer: Committer,
        waiters: Waiters,
        limits: ServerLimits,
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._service = service
        self._committer = committer
        self._waiters = waiters
        self._limits = limits
        self._events: deque[Message | Fault] = deque()
        self._begun_at: float | None = None
        self._unanswered = 0  # bytes that came since the last time that everything was answered
        self._ended = False  # the client sends nothing more
        self._stopping = False
        self._refused = False  # it has been told why nothing more is read
        self._life = trio.CancelScope()
        self._interruptible: trio.CancelScope | None = None  # while it only waits for the client, or for messages

    def stop(self) -> None:
        """The server is stopping: what is begun is finished, the rest is refused."""
        self._stopping = True
        if self._interruptible is not None:
            self._interruptible.cancel()

    async def serve(self) -> None:
        """Until the client has gone, or is refused. Closes the stream."""
        try:
            with self._life:
                await self._converse()
            if self._refused:
                pass  # with the fault that ended the stream
            elif self._stopping:
                await self.refuse(table.SHUTTING_DOWN, "the server is stopping; connect again later")
            elif self._life.cancel_called:
                late = f"a document was begun and not completed within {self._limits.document_time:g} s"
                await self.refuse(table.TIMEOUT, late)
        except trio.BrokenResourceError as error:
            _logger.debug("%s: %s", error, error.__cause__)
        except Exception:
            _logger.exception("a connection is closed because of a fault of the server")  # and the others go on
        finally:
            await self._stream.aclose()

    async def _converse(self) -> None:
        while await self._read():
            while self._events and not self._stopping:
                if not await self._answer_group():
                    self._refused = True
                    await self._close_gently()
                    return

    # -- reading --------------------------------------------------------------------------------------------------

    async def _read(self) -> bool:
        """Until there is at least one event. False when there will be none any more, or none is wanted."""
        timed = False
        if not self._events:
            self._unanswered = 0
        while not self._events and not self._stopping:
            if self._ended:
                return False
            if self._peer.begun:
                # From its first byte: a client that sends a byte a second must not hold on to its place.
                timed = True
                if self._begun_at is None:
                    self._begun_at = trio.current_time()
                self._life.deadline = self._begun_at + self._limits.document_time
            self._interruptible = self._life
            data = await self._stream.receive_some(_CHUNK)
            self._interruptible = None
            self._take(data)
        if timed and not self._life.cancel_called:
            self._life.deadline = float("inf")
        # Too late is too late, also when the rest came in the same moment: what is refused must not be done as well.
        return not self._stopping and not self._life.cancel_called

    def _take(self, data: bytes | bytearray) -> None:
        """Turns bytes into events."""
        if data:
            self._unanswered += len(data)
            self._peer.receive_data(data)
            self._parse()
            return
        self._ended = True
        self._events.extend(self._peer.events())
        fault = self._peer.end_of_data()
        if fault is not None:
            self._events.append(fault)

    def _parse(self) -> None:
        events, most = self._events, self._limits.pipeline
        while len(events) < most and (event := self._peer.next_event()) is not None:
            events.append(event)
            self._begun_at = None

    # -- answering ------------------------------------------------------------------------------------------------

    async def _answer_group(self) -> bool:
        """Answers the requests at hand. False when the connection is to be closed."""
        events = [self._events.popleft()]
        held = weight(events[0])
        while self._events and len(events) < _GROUP and (held := held + weight(self._events[0])) <= _MESSAGES:
            events.append(self._events.popleft())
        group = Group(events, self._service, self._limits.outbox)
        try:
            while not group.done:
                await self._committer.run(group)
                await self._send(group.take_answers())
                if group.pause is not None:
                    await self._wait(group)
            await self._send(group.take_answers())  # of a wait that was ended
        finally:
            self._waiters.leave(group)
        if group.closes:
            return False
        self._parse()
        return True

    async def _send(self, answers: list[Message]) -> None:
        if answers:
            await self._stream.send_all(b"".join(map(self._peer.send, answers)))

    async def _wait(self, group: Group) -> None:
        """Until what the group waits for is over. Meanwhile, what comes in is taken up to the bound."""
        pause = group.pause
        if pause is None or not pause.qids:
            await trio.lowlevel.checkpoint()
            group.resume()
            return
        woken = self._waiters.woken(group)
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            if self._stopping or self._ended:
                nursery.cancel_scope.cancel()
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            # On the loop's clock, which nobody sets.
            group.deadline = trio.current_time() + pause.wait if group.deadline is None else group.deadline
            with trio.move_on_at(group.deadline) as time:
                await woken.wait()
            nursery.cancel_scope.cancel()
        self._interruptible = None
        if self._stopping or self._ended:
            # Nobody may be there any more to take what comes: it answers with nothing, and the next in line is woken.
            self._waiters.leave(group)
            group.end_wait()
        else:
            self._waiters.resume(group)
            group.resume(over=time.cancelled_caught)

    async def _read_ahead(self, waiting: trio.CancelScope) -> None:
        """Takes requests that come during a wait, up to the bounds; then the client has to wait too."""
        limits = self._limits
        try:
            while len(self._events) < limits.pipeline and self._unanswered < limits.outbox and not self._ended:
                self._take(await self._stream.receive_some(_CHUNK))
        except trio.BrokenResourceError:
            self._ended = True  # sending will say so again
        if self._ended:
            waiting.cancel()

    # -- refusing -------------------------------------------------------------------------------------------------

    async def refuse(self, error: ErrorCode, text: str) -> None:
        """Sends an error and closes. It answers the next request, if there is one."""
        waiting = next((event for event in self._events if isinstance(event, Message)), None)
        await self._send([Fault(error, text, None if waiting is None else waiting.req).message(new_resp())])
        await self._close_gently()

    async def _close_gently(self) -> None:
        """What still arrives is read and dropped for a moment: closing at once would destroy the error on its way."""
        with trio.move_on_after(self._limits.linger):
            await self._stream.send_eof()
            while await self._stream.receive_some(_CHUNK):
                pass
