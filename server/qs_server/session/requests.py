"""A group of requests: those of one connection that are at hand, answered in order.

Groups of many connections are advanced together in a batch, and share one commit. A group never knows about sockets.
"""

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
    PushMessage,
    QueueStats,
    ReceiveMessage,
    StageMessages,
)
from qs_schemas import errors as table
from qs_serving.answers import new_resp

from ..broker.jobs import Pause
from ..operations.errors import disk_error, error_answer, refused, storage_error
from ..operations.messages import first_mid, is_plain_push
from ..operations.remote_requests import handler_of
from ..operations.service import Answer, BadRequestError, Service
from ..operations.table import HANDLERS
from ..storage import engine

_logger = logging.getLogger(__name__)

_payload = attrgetter("payload")

# About how long an answer is when it is written, if it can be long.
_SIZES: dict[type, Callable[[Any], int]] = {
    ReceiveMessage: lambda answer: sum(map(len, map(_payload, answer.messages))),
    GetMessage: lambda answer: len(answer.payload or b""),
    GetClaim: lambda answer: sum(map(len, map(_payload, answer.messages))),
    ListClaims: lambda answer: 512 * len(answer.claims),
    ListMessages: lambda answer: 32 * len(answer.mids),
    ListQueues: lambda answer: 256 * len(answer.queues),
    QueueStats: lambda answer: 256 * len(answer.queues),
}


def weight(event: Message | Fault) -> int:
    """Returns how many messages a request is about: a list counts with its length."""
    if isinstance(event, PushMessage | StageMessages):
        return len(event.messages) or 1
    if isinstance(event, DeleteMessage):
        return len(event.mids) or 1
    return len(event.mids or [0]) * len(event.queues) if isinstance(event, CopyMessage) else 1


class RequestBatch:
    """Requests and faults in the order in which they came, and their answers."""

    def __init__(self, events: Sequence[Message | Fault], service: Service, outbox: int, weight: int = 1) -> None:
        """outbox: bytes of answers after which the answers have to be taken before more are made; weight: of the
        events, see `weight`."""
        self.weight = weight
        self.ended: Callable[[], None] | None = None
        self.early_commits = 0
        self._events = events
        self._service = service
        self._outbox = outbox
        self._at = 0
        self._running: Answer | None = None
        self._answers: list[Message] = []
        self._held = 0
        self._over: bool | None = None  # what the handler is sent next
        self.closes = False
        """Whether the last event is a fault, answered by now, after which the connection is closed."""
        self.pause: Pause | None = None
        self.deadline: float | None = None
        """When the pause ends, on the loop's clock; whoever lets it wait sets it."""

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._service.peer

    @property
    def done(self) -> bool:
        """Whether every request has its answer."""
        return self._at == len(self._events)

    @property
    def runnable(self) -> bool:
        return self.pause is None and self._at != len(self._events) and self._held <= self._outbox

    @property
    def unsettled(self) -> bool:
        """Whether there is anything left to do but to send the answers."""
        return self.closes or self._at != len(self._events)

    def take_answers(self) -> list[Message]:
        """The answers since the last call, in order of the requests."""
        answers, self._answers, self._held = self._answers, [], 0
        return answers

    def resume(self, *, over: bool = False) -> None:
        """It goes on. over: because its time is."""
        self.pause = None
        self._over = over

    def end_wait(self) -> None:
        """It is not to wait any longer: the next answer is what there is now."""
        if self._running is not None:
            self._running.close()
            self._running = None
            self._add(ReceiveMessage(), self._events[self._at].req)
        self.pause = None

    def pushes(self) -> list[PushMessage]:
        found: list[PushMessage] = []
        if self.pause is None and self._running is None and self._held <= self._outbox:
            for event in islice(self._events, self._at, None):
                if not (isinstance(event, PushMessage) and is_plain_push(event)):
                    break
                if found and event.qid != found[0].qid:
                    break
                found.append(event)
        return found

    def pushed(self, mids: Iterable[int]) -> None:
        events = self._events
        for mid in mids:
            request = events[self._at]
            self._add(PushMessage(request.qid, mid=mid), request.req)  # type: ignore[union-attr] # see `pushes`

    def advance(self, *, pushing: bool | None) -> None:
        events, bound, count = self._events, self._outbox, len(self._events)
        while self._at < count and self.pause is None and self._held <= bound:
            event = events[self._at]
            if pushing is not None and isinstance(event, PushMessage) is not pushing:
                return
            answer = self._answer_to(event)
            if answer is not None:
                self._add(answer, event.req)

    def _answer_to(self, event: Message | Fault) -> Message | None:
        """Returns the answer, an error's too, or None when the handler waits."""
        if isinstance(event, Fault):
            self.closes = event.error.closes
            return event.message()
        try:
            return self._handle(event) if self._running is None else self._continue()
        except engine.StorageError as error:
            return refused(event, error)
        except BadRequestError as error:
            return error_answer(event, table.BAD_REQUEST, str(error))
        except OSError as error:
            return disk_error(event, error, self._service.storage)
        except Exception:
            answer = error_answer(event, table.INTERNAL, "a fault of the server; its log says more under this resp")
            _logger.exception("resp %s: %s failed", answer.resp, event.op)
            return answer

    def _handle(self, request: Message) -> Message | None:
        handler = HANDLERS.get(type(request))
        if handler is None:
            if isinstance(request, Error):
                return error_answer(request, table.BAD_REQUEST, "this is an error; only requests are taken")
            return error_answer(request, table.NOT_IMPLEMENTED, f"{request.op} is not implemented")
        answer = handler_of(self._service, request, handler)(self._service, request)
        if isinstance(answer, Message):
            return answer
        self._running, self._over, self.deadline = answer, None, None
        return self._continue()

    def _continue(self) -> Message | None:
        """Runs the handler that has begun until it has an answer, or waits."""
        running, self._running = self._running, None
        try:
            self.pause = cast(Answer, running).send(self._over)
        except StopIteration as stop:
            return cast(Message, stop.value)
        self._running = running
        return None

    def _add(self, answer: Message, req: str | None) -> None:
        """Adds the answer to the request at which the batch stands."""
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
        self._at += 1

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        for at, answer in enumerate(self._answers):
            key = first_mid(answer)
            if key is not None and key in failures:
                self._answers[at] = disk_error(answer, failures[key], self._service.storage)

    def fail(self, error: Exception) -> None:
        self._answers = [
            answer if isinstance(answer, Error) else storage_error(answer, error, "what was asked may have been done")
            for answer in self._answers
        ]
