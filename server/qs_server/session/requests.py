"""Handles requests of one connection in their order, as part of the committer's batches. Knows nothing of sockets."""

import logging
from collections.abc import Callable, Iterable, Sequence
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
)
from qs_schemas import errors as table
from qs_serving.access.caller import NotAllowedError
from qs_serving.access.principal import Right
from qs_serving.answers import new_resp
from qs_storage import engine
from qs_storage.disk import has_no_room

from ..broker.jobs import Pause
from ..operations.errors import disk_error, error_answer, refused, storage_error
from ..operations.messages import first_mid
from ..operations.remote_requests import handler_of
from ..operations.service import TURN, Answer, BadRequestError, Service
from ..operations.table import ANY_PRINCIPAL, OPERATIONS

_logger = logging.getLogger(__name__)

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
"""Return the approximate bytes of an answer, for answers that can be long."""


def stored_bytes(event: Message | Fault) -> int:
    """Returns the bytes of the payloads that a request brings; a character counts as one."""
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
    """Makes the answers to requests and faults, in their order. See `Work` for the part that the committer uses."""

    def __init__(self, events: Sequence[Message | Fault], service: Service, outbox: int) -> None:
        """outbox: bytes of answers after which they must be taken before more are made."""
        self.left = len(events)
        """The number of requests and faults without an answer."""
        self.ended: Callable[[], None] | None = None
        self.early_commits = 0
        self._events = events
        self._service = service
        self._outbox = outbox
        self._running: Answer | None = None
        self._answers: list[Message] = []
        self._held = 0
        self._taken = 0  # the number of answers that `take_answers` has returned
        self._over: bool | None = None  # the value that the handler is sent next, see `Answer`
        self.closes = False
        """True if the connection must be closed after the answers; later requests are not handled."""
        self.pause: Pause | None = None
        self.deadline: float | None = None
        """When the pause ends, by the loop's clock. The connection sets it."""

    @property
    def peer(self) -> str:
        return self._service.peer

    @property
    def weight(self) -> int:
        return sum(map(weight, self._events))

    @property
    def runnable(self) -> bool:
        return self.pause is None and self.left > 0 and self._held <= self._outbox

    def take_answers(self) -> tuple[Sequence[Message | Fault], list[Message]]:
        """Returns (requests, their answers) since the last call."""
        answers, self._answers, self._held = self._answers, [], 0
        first, self._taken = self._taken, self._taken + len(answers)
        return self._events[first : self._taken], answers

    def resume(self, *, over: bool = False) -> None:
        self.pause = None
        self._over = over

    def end_wait(self) -> None:
        """Ends the wait of a receive, with an empty answer, or an error if it is forbidden."""
        if self._running is not None:
            self._running.close()
            self._running = None
            request = self._events[-self.left]
            answer: Message = ReceiveMessage()
            try:
                self._check(request)
            except NotAllowedError as error:
                answer = self._refuse(request, error)
            self._add(answer, request.req)
        self.pause = None

    def pushes(self) -> list[PushMessage]:
        found: list[PushMessage] = []
        caller = self._service.caller
        # While the disk is full, `advance` handles each push, which tells whether it was stored.
        if self.pause is None and self._running is None and self._held <= self._outbox and not self._service.room.full:
            for event in islice(self._events, len(self._events) - self.left, None):
                if type(event) is not PushMessage or event.payload is None or event.messages:
                    break
                if event.delay is not None or event.key is not None or (found and event.qid != found[0].qid):
                    break
                if not found and caller is not None and not caller.may(Right.WRITE, event.qid or ""):
                    break
                found.append(event)
        return found

    def pushed(self, mids: Iterable[int]) -> None:
        done = len(self._events) - self.left
        for mid, request in zip(mids, islice(self._events, done, None), strict=False):
            answer = PushMessage(request.qid, mid=mid)  # type: ignore[union-attr] # see `pushes`
            answer.answers(new_resp(), request.req)
            self._answers.append(answer)
            self.left -= 1

    def advance(self, *, pushing: bool | None) -> None:
        self._service.spent = 0
        while self.left and self.pause is None and self._held <= self._outbox:
            event = self._events[-self.left]
            if pushing is not None and isinstance(event, PushMessage) is not pushing:
                return
            try:
                answer = self._handle(event) if self._running is None else self._go_on(event)
                if self._service.room.full:
                    self._note_room(event)
            except Exception as error:
                answer = self._refuse(event, error)
            if answer is not None:
                self._add(answer, event.req)
            if self.closes:
                self.left = 0
            if self._service.spent >= TURN and self.left and self.pause is None:
                self.pause = Pause()  # others have their turn

    def _refuse(self, request: Message | Fault, error: Exception) -> Message:
        if isinstance(error, NotAllowedError):
            self.closes = error.error.closes
            return error_answer(request, error.error, str(error))
        if isinstance(request, Fault):
            raise error
        if isinstance(error, engine.StorageError):
            return refused(request, error)
        if isinstance(error, BadRequestError):
            return error_answer(request, table.BAD_REQUEST, str(error))
        if isinstance(error, OSError):
            self._note_lack(request, error)
            return disk_error(request, error, self._service.storage)
        answer = error_answer(request, table.INTERNAL, "a fault of the server; its log says more under this resp")
        _logger.error("resp %s: %s failed", answer.resp, request.op, exc_info=error)
        return answer

    def _note_lack(self, request: Message | Fault, error: Exception) -> None:
        """Tells of a request that was refused because the disk is full."""
        if isinstance(error, OSError) and has_no_room(error):
            self._service.room.refused(stored_bytes(request))

    def _note_room(self, request: Message | Fault) -> None:
        """Tells of a request that found room on the disk, which one for a queue of another server does not need."""
        if isinstance(request, PushMessage | StageMessages) and request.qid in self._service.storage.queues():
            self._service.room.stored(stored_bytes(request))

    def _handle(self, request: Message | Fault) -> Message | None:
        """Returns the answer to a request, None if its handler waits. Raises the handler's errors."""
        service = self._service
        operation = OPERATIONS.get(type(request))  # type: ignore[arg-type] # a fault has none
        if operation is None:
            self._check(request)
            return self._handle_unknown(request)
        if service.caller is not None:
            service.caller.check(operation.rights, request)
        handler = operation.handler
        if service.remotes.has_queues or isinstance(request, NewQueue):
            handler = handler_of(service, cast(Message, request), handler)
        answer = handler(service, request)
        if isinstance(answer, Message):
            return answer
        self._running, self._over, self.deadline = answer, None, None
        return self._continue()

    def _handle_unknown(self, request: Message | Fault) -> Message:
        """Returns the answer to a fault, an error, or an operation that is not in the table."""
        if isinstance(request, Fault):
            self.closes = request.error.closes
            return request.message()
        if isinstance(request, Error):
            return error_answer(request, table.BAD_REQUEST, "this is an error; only requests are taken")
        return error_answer(request, table.NOT_IMPLEMENTED, f"{request.op} is not implemented")

    def is_allowed(self) -> bool:
        """Tells whether the client still may make the waiting request."""
        try:
            self._check(self._events[-self.left])
        except NotAllowedError:
            return False
        return True

    def _check(self, request: Message | Fault) -> None:
        """Raises NotAllowedError unless the client may make the request. An unreadable document needs no right; an
        unknown operation is refused like any other."""
        caller = self._service.caller
        if caller is not None and (not isinstance(request, Fault) or request.error == table.NOT_IMPLEMENTED):
            operation = OPERATIONS.get(type(request))  # type: ignore[arg-type] # a fault has none
            caller.check(ANY_PRINCIPAL if operation is None else operation.rights, request)

    def _go_on(self, request: Message | Fault) -> Message | None:
        """Continues the handler. Only a receive that got nothing is refused if it is not allowed any more: other
        requests may have changed something."""
        answer = self._continue()
        if isinstance(answer, ReceiveMessage) and not answer.messages:
            self._check(request)
        return answer

    def _continue(self) -> Message | None:
        """Runs the handler until it has an answer, or waits: then returns None."""
        running, self._running = self._running, None
        try:
            self.pause = cast(Answer, running).send(self._over)
        except StopIteration as stop:
            return cast(Message, stop.value)
        self._running = running
        return None

    def _add(self, answer: Message, req: str | None) -> None:
        if not isinstance(answer, Error):
            answer.answers(new_resp(), req)
        else:
            answer.req = req
            if answer.resp is None:
                answer.resp = new_resp()
        self._answers.append(answer)
        size = _SIZES.get(type(answer))
        if size is not None:
            self._held += size(answer)
        self.left -= 1

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        for at, answer in enumerate(self._answers):
            key = first_mid(answer)
            if key is not None and key in failures:
                self._note_lack(self._events[self._taken + at], failures[key])
                self._answers[at] = disk_error(answer, failures[key], self._service.storage)

    def fail(self, error: Exception) -> None:
        pause = self.pause
        if self._running is not None and pause is not None and pause.call is None and not pause.is_asked_for:
            # Between two slices: the handler would count what this batch has done, and is taken back.
            self._running.close()
            self._running = self.pause = None
            request = cast(Message, self._events[-self.left])
            self._add(storage_error(request, error, "a part of it may have been done"), request.req)
        for at, answer in enumerate(self._answers):
            if not isinstance(answer, Error):
                self._note_lack(self._events[self._taken + at], error)
                self._answers[at] = storage_error(answer, error, "what was asked may have been done")
