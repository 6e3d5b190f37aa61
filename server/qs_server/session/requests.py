"""Handles requests of one connection in their order, as part of the committer's batches. This module knows nothing of
sockets.

How it works. A session makes a `RequestBatch` of the requests that have come. The committer calls `advance` in each of
its batches until all have answers. A handler returns its answer, or it is a generator and yields a `Pause`: then the
request batch stops there, and goes on with the same handler when the pause is over. Answers are made in the batch and
sent after its commit, so after a failed commit the answers can still be turned into errors (`fail`).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter
from typing import Any, cast

from qs_schemas import (
    CopyMessage,
    DeleteMessage,
    Error,
    Fault,
    GetClaim,
    GetMessage,
    ListClaims,
    ListMessages,
    ListQueues,
    Message,
    NewQueue,
    PushMessage,
    QueueStats,
    ReceiveMessage,
    StageMessages,
    errors,
)
from qs_serving.access.caller import NotAllowedError
from qs_serving.access.principal import Right
from qs_serving.answers import new_resp
from qs_storage import engine
from qs_storage.disk import has_no_room
from qs_storage.engine import NoRoomError

from ..broker.jobs import Pause
from ..operations.remote_requests import handler_of
from ..operations.service import (
    PARTLY,
    TURN,
    Answer,
    BadRequestError,
    Service,
    disk_error,
    error_answer,
    refused,
    storage_error,
)
from ..operations.table import ANY_PRINCIPAL, OPERATIONS

_logger = logging.getLogger(__name__)

_REQUESTS = 256
"""The most requests of one connection in a batch, so that a busy client does not keep others waiting. The rest are in
the next batch, which may have those of others before them."""
_MESSAGES = 1000
"""The most messages of one connection in a batch, if its requests are lists: half of what a whole batch may have."""
_payload = attrgetter("payload")

_SIZES: dict[type, Callable[[Any], int]] = {
    ReceiveMessage: lambda answer: sum(map(len, map(_payload, answer.messages))),
    GetMessage: lambda answer: len(answer.payload or b"") + sum(len(message.payload) for message in answer.messages),
    GetClaim: lambda answer: sum(map(len, map(_payload, answer.messages))),
    ListClaims: lambda answer: 512 * len(answer.claims),
    ListMessages: lambda answer: 32 * len(answer.mids),
    ListQueues: lambda answer: 256 * len(answer.queues),
    QueueStats: lambda answer: 256 * len(answer.queues),
}
"""Return the approximate bytes of an answer, for answers that can be long. All others are so short that `_REQUESTS`
bounds them."""


def stored_bytes(event: Message | Fault) -> int:
    """Returns the bytes of the payloads that a request brings. A character counts as one byte, which is exact enough
    for `DiskRoom`."""
    if isinstance(event, PushMessage | StageMessages):
        single = event.payload if isinstance(event, PushMessage) else None
        return len(single or b"") + sum(len(draft.payload or b"") for draft in event.messages)
    return 0


def weight(event: Message | Fault) -> int:
    """Returns how many messages a request is about."""
    if isinstance(event, PushMessage | StageMessages):
        return len(event.messages) or 1
    if isinstance(event, DeleteMessage):
        return len(event.mids) or 1
    return len(event.mids or [0]) * len(event.queues) if isinstance(event, CopyMessage) else 1


class RequestBatch:
    """Makes the answers to requests and faults, in their order. Implements `Work`, the part that the committer uses.

    Ensures:
    1. Each request has one answer, in the order of the requests. An error of one request, also a fault of its handler,
       concerns that request alone: the others of the batch are answered.
    2. A request that lacked room is run again from its start, and has changed nothing before.
    3. A request that a failed commit may have taken back is answered with an error, never as done.
    4. The answers that nobody has taken have about `outbox` bytes at most: only the last one may exceed the bound.
    5. A client's rights are checked just before its request runs, and again before a receive that has waited is
       answered without messages.

    Assumes that `advance` is called in a batch while it is `runnable`, that answers are taken between two batches, and
    that handlers change nothing before they raise NoRoomError (see `operations/service.py`).

    A request batch must never send an answer, and never know what a request means: the table of operations knows."""

    is_first = False
    lacked: NoRoomError | None = None

    def __init__(self, waiting: deque[Message | Fault], service: Service, outbox: int) -> None:
        """Takes the next events from `waiting`, as many as one batch may have. outbox: after so many bytes of answers,
        the answers must be taken before more are made."""
        self.events = [waiting.popleft()]
        """The requests and faults."""
        if waiting:
            messages = weight(self.events[0])  # the first is taken whatever its size
            while waiting and len(self.events) < _REQUESTS:
                event = waiting[0]
                messages += 1 if type(event) is PushMessage and not event.messages else weight(event)  # nearly always
                if messages > _MESSAGES:
                    break
                self.events.append(waiting.popleft())
        self.unanswered = len(self.events)
        """The number of requests and faults without an answer."""
        self.done = 0
        """The number of requests and faults with an answer."""
        self.answers: list[Message] = []
        """The answers that have not been taken, of the last of the requests that are done. The session takes them and
        sets an empty list."""
        self.on_batch_end: Callable[[], None] | None = None
        self._service = service
        self._outbox = outbox
        self._running: Answer | None = None  # the handler that pauses
        self._answer_bytes = 0  # of the answers that have not been taken, about
        self._over: bool | None = None  # the value that the handler is sent next, see `Answer`
        self.closes = False
        """True if the connection must be closed after the answers; later requests are not handled."""
        self.pause: Pause | None = None
        self.deadline: float | None = None
        """The time at which the pause ends, by the loop's clock. The session sets it."""

    @property
    def peer(self) -> str:
        return self._service.peer

    @property
    def weight(self) -> int:
        return sum(map(weight, self.events))

    @property
    def runnable(self) -> bool:
        return self.pause is None and self.unanswered > 0 and (self._answer_bytes <= self._outbox or not self.answers)

    def resume(self, *, over: bool = False) -> None:
        """Ends the pause. over: True if the pause ends because its time is over."""
        if self.pause is not None:
            # The committer secures the missing room before the batch, which runs this work first.
            self.lacked = self.pause.lacks
            self.is_first = self.lacked is not None
        self.pause = None
        self._over = over

    def end_wait(self) -> None:
        """Ends the wait of a receive: the answer is empty, or an error if the receive is forbidden now."""
        if self._running is not None:
            self._running.close()
            # Its answer is made in a batch like any other: the check of its rights is there.
            self._running, self._over = _answered(ReceiveMessage()), None
        self.pause = None

    def pushes(self) -> list[PushMessage]:
        found: list[PushMessage] = []
        service = self._service
        caller = service.caller
        # While the disk is full, `advance` handles each push, which tells whether it was stored.
        if not (self.pause or self._running or self._answer_bytes > self._outbox or service.room.full):
            for event in islice(self.events, self.done, None):
                if type(event) is not PushMessage or event.payload is None or event.messages:
                    break
                if event.delay is not None or event.key is not None or (found and event.qid != found[0].qid):
                    break
                # One check is enough, as all are to the same queue. `advance` makes the refusal.
                if not found and caller is not None and not caller.may(Right.WRITE, event.qid or ""):
                    break
                found.append(event)
        return found

    def pushed(self, mids: Iterable[int]) -> None:
        for mid, request in zip(mids, islice(self.events, self.done, None), strict=False):
            answer = PushMessage(request.qid, mid=mid)  # type: ignore[union-attr] # see `pushes`
            answer.answers(new_resp(), request.req)
            self.answers.append(answer)
            self.done += 1
            self.unanswered -= 1

    def advance(self, pushing: bool | None) -> None:  # noqa: C901, PLR0912
        """Implements `Work.advance`. Takes the steps of each request without a function call, because every request
        goes through here."""
        service = self._service
        service.spent = 0
        if not self.answers:
            self._answer_bytes = 0  # the answers were taken since the last batch
        while self.unanswered and self.pause is None and self._answer_bytes <= self._outbox:
            event = self.events[self.done]
            if pushing is not None and isinstance(event, PushMessage) is not pushing:
                return  # the order of a client's requests stays, whatever kind the batch does first
            begun = self._running is not None
            try:
                if begun:
                    answer = self._continue_request(event)
                elif (operation := OPERATIONS.get(type(event))) is None:  # type: ignore[arg-type] # a fault has none
                    answer = self._handle_unknown(event)
                else:
                    if service.caller is not None:
                        service.caller.check(operation.rights, event)
                    handler = operation.handler
                    # Only a new queue can be the first queue of another server.
                    if service.remotes.has_queues or type(event) is NewQueue:
                        handler = handler_of(service, cast(Message, event), handler)
                    found = handler(service, event)
                    answer = found if isinstance(found, Message) else self._begin(found)
                if service.room.full:
                    self._note_room(event)
            except Exception as error:
                if isinstance(error, NoRoomError) and (lacks := error.unmet(self.lacked)) is not None:
                    self.pause = Pause(lacks=lacks)  # nothing has changed: the request is run again, with room
                    return
                answer = self._refuse(event, error, begun=begun)
            if answer is not None:
                if not isinstance(answer, Error):  # an error has its ids
                    answer.answers(new_resp(), event.req)
                self.answers.append(answer)
                self.done += 1
                self.unanswered = 0 if self.closes else self.unanswered - 1
                if self.is_first:
                    self.is_first, self.lacked = False, None  # the room was secured for this request alone
                if self.unanswered and (size := _SIZES.get(type(answer))) is not None:
                    self._answer_bytes += size(answer)
            if service.spent >= TURN and self.unanswered and self.pause is None:
                self.pause = Pause()  # the time slice of this client is over: others run first

    def _refuse(self, request: Message | Fault, error: Exception, *, begun: bool) -> Message:
        if isinstance(error, NotAllowedError):
            self.closes = error.error.closes
            return error_answer(request, error.error, str(error))
        if isinstance(request, Fault):
            raise error  # no handler was involved: a fault of the server, which ends the batch
        if isinstance(error, engine.StorageError):
            return refused(request, error)
        if isinstance(error, BadRequestError):
            return error_answer(request, errors.BAD_REQUEST, str(error))
        if isinstance(error, OSError):
            self._note_lack(request, error)
            # An engine that raises OSError has changed nothing; only slices before may have.
            return disk_error(request, error, self._service.storage, begun=begun)
        answer = error_answer(request, errors.INTERNAL, "a fault of the server; its log says more under this resp")
        _logger.error("resp %s: %s failed", answer.resp, request.op, exc_info=error)
        return answer

    def _note_lack(self, request: Message | Fault, error: Exception) -> None:
        """Notes a request that was refused because the disk is full."""
        if isinstance(error, OSError) and has_no_room(error):  # any other error says nothing about free space
            self._service.room.refused(stored_bytes(request))

    def _note_room(self, request: Message | Fault) -> None:
        """Notes a request that found space on the disk. A request for a queue of another server needs no space here."""
        if isinstance(request, PushMessage | StageMessages) and request.qid in self._service.storage.queues():
            self._service.room.stored(stored_bytes(request))

    def _handle_unknown(self, request: Message | Fault) -> Message:
        """Returns the answer to a fault, an error, or an operation that is not in the table."""
        self._check(request)
        if isinstance(request, Fault):
            self.closes = request.error.closes
            return request.message(new_resp())
        if isinstance(request, Error):
            return error_answer(request, errors.BAD_REQUEST, "this is an error; only requests are taken")
        return error_answer(request, errors.NOT_IMPLEMENTED, f"{request.op} is not implemented")

    def _begin(self, handler: Answer) -> Message | None:
        """Begins to run a handler that may wait."""
        self._running, self._over, self.deadline = handler, None, None
        return self._run_handler()

    def is_allowed(self) -> bool:
        """Tells whether the client still may make the waiting request."""
        try:
            self._check(self.events[self.done])
        except NotAllowedError:
            return False
        return True

    def _check(self, request: Message | Fault) -> None:
        """Checks that the client may make the request. An unreadable document needs no right; an unknown operation is
        refused like any other. Raises NotAllowedError."""
        caller = self._service.caller
        if caller is not None and (not isinstance(request, Fault) or request.error == errors.NOT_IMPLEMENTED):
            operation = OPERATIONS.get(type(request))  # type: ignore[arg-type] # a fault has none
            caller.check(ANY_PRINCIPAL if operation is None else operation.rights, request)

    def _continue_request(self, request: Message | Fault) -> Message | None:
        """Continues the handler. Then checks the rights again for a receive that got nothing. Other requests may have
        changed something already, so they are finished also if they are not allowed any more."""
        answer = self._run_handler()
        if isinstance(answer, ReceiveMessage) and not answer.messages:
            self._check(request)
        return answer

    def _run_handler(self) -> Message | None:
        """Runs the handler until it answers or pauses. Returns the answer, or None for a pause."""
        running, self._running = self._running, None  # a handler that raises has ended
        try:
            self.pause = cast(Answer, running).send(self._over)
        except StopIteration as stop:
            return cast(Message, stop.value)
        self._running = running
        return None

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        for at, answer in enumerate(self.answers):
            if not isinstance(answer, PushMessage):
                continue
            first = answer.mids[0] if answer.mids else answer.mid  # a list fails as a whole, under its first id
            error = None if first is None else failures.get((answer.qid or "", first))
            if error is not None:
                self._note_lack(self.events[self.done - len(self.answers) + at], error)
                self.answers[at] = disk_error(answer, error, self._service.storage)

    def fail(self, error: Exception) -> None:
        pause = self.pause
        if self._running is not None and pause is not None and pause.call is None and not pause.is_asked_for:
            # Between two slices: the handler would count what this batch has done, and is taken back.
            self._running.close()
            request = cast(Message, self.events[self.done])
            self._running = _answered(storage_error(request, error, PARTLY))
            self.pause = None
        for at, answer in enumerate(self.answers):
            if not isinstance(answer, Error):
                self._note_lack(self.events[self.done - len(self.answers) + at], error)
                self.answers[at] = storage_error(answer, error, "what was asked may have been done")


def _answered(answer: Message) -> Answer:
    """Stands in for a paused handler, and answers when it is continued."""
    yield from ()
    return answer
