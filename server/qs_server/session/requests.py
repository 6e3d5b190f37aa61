"""Handles requests of one connection in their order, as part of the committer's batches. This module knows nothing of
sockets.

How it works. A session has one `RequestBatch`, which `begin` fills with the requests that have come. The committer
calls `advance` in each of its batches until all have answers. A handler returns its answer, or it is a generator and
yields a `Pause`: then the request batch stops there, and goes on with the same handler when the pause is over. The
documents of the answers are made in the batch and sent after its commit, so after a failed commit they can still be
replaced by errors (`fail`).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import cast

from qs_schemas import (
    CopyMessage,
    DeleteMessage,
    Error,
    Fault,
    Message,
    NewQueue,
    Peer,
    PushMessage,
    ReceiveMessage,
    StageMessages,
    errors,
)
from qs_schemas.templates import write_pushed
from qs_serving.access.caller import NotAllowedError
from qs_serving.access.principal import Right
from qs_serving.answers import new_resp
from qs_storage.disk import has_no_room
from qs_storage.engine import Engine, NoRoomError, StorageError
from qs_storage.remote_engine import GatheringEngine

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


def stored_bytes(event: Message | Fault) -> int:
    """Returns the bytes of the payloads that a request brings. A character counts as one byte, which is exact enough
    for `DiskRoom`."""
    if isinstance(event, PushMessage | StageMessages):
        single = event.payload if isinstance(event, PushMessage) else None
        return len(single or b"") + sum(len(draft.payload or b"") for draft in event.messages)
    return 0


class RequestBatch:
    """Makes the answers to requests and faults, in their order. Implements `Work`, the part that the committer uses.

    Ensures:
    1. Each request has one answer, in the order of the requests. An error of one request, also a fault of its handler,
       concerns that request alone: the others of the batch are answered.
    2. A request that lacked room is run again from its start, and has changed nothing before.
    3. A request that a failed commit may have taken back is answered with an error, never as done.
    4. The answers that nobody has taken have `outbox` bytes at most: only the last one may exceed the bound.
    5. A client's rights are checked just before its request runs, and again before a receive that has waited is
       answered without messages.

    Assumes that `begin` is called only when all earlier requests are answered and `events` is empty, that `advance` is
    called in a batch while it is `runnable`, that answers are taken between two batches, and that handlers change
    nothing before they raise NoRoomError (see `operations/service.py`).

    A request batch must never send an answer, and never know what a request means: the table of operations knows."""

    __slots__ = (
        "_answer_bytes", "_first_mids", "_outbox", "_over", "_peer", "_running", "_service", "alone", "answers",
        "closes", "deadline", "done", "events", "fault", "is_first", "lacked", "may_push", "on_batch_end", "pause",
        "refusals", "unanswered", "weight",
    )  # fmt: skip

    def __init__(self, service: Service, peer: Peer, outbox: int) -> None:
        """Begins without requests. peer: writes the documents of answers; outbox: after so many bytes of answers, the
        answers must be taken before more are made."""
        self.events: list[Message | Fault] = []
        """The requests and faults. The session empties the list when all are answered."""
        self.unanswered = 0
        """The number of requests and faults without an answer."""
        self.done = 0
        """The number of requests and faults with an answer."""
        self.weight = 0
        self.may_push = False
        self.answers: list[bytes] = []
        """The documents of the answers that have not been taken, of the last of the requests that are done. The session
        takes them with `take`."""
        self.refusals: dict[int, int] = {}
        """The codes of the errors among these answers, by their positions."""
        self.on_batch_end: Callable[[], None] | None = None
        self.is_first = False
        self.lacked: NoRoomError | None = None
        self._service = service
        self._peer = peer
        self._outbox = outbox
        self._running: Answer | None = None  # the handler that pauses
        self._answer_bytes = 0  # of the answers that have not been taken
        self._first_mids: dict[int, tuple[str, int]] = {}  # pushes among these answers: the queue and the first id
        self._over: bool | None = None  # the value that the handler is sent next, see `Answer`
        self.closes = False
        """True if the connection must be closed after the answers; later requests are not handled."""
        self.fault: Exception | None = None
        """The error because of which an answer is missing."""
        self.pause: Pause | None = None
        self.alone = 0
        """How many of the next requests have to be done each by itself, as they failed together."""
        self.deadline: float | None = None
        """The time at which the pause ends, by the loop's clock. The session sets it."""

    def begin(self, waiting: deque[Message | Fault]) -> None:
        """Takes the next events from `waiting`, as many as one batch may have."""
        events, messages, self.may_push = self.events, 0, False
        while waiting and len(events) < _REQUESTS:
            event = waiting[0]
            if isinstance(event, PushMessage | StageMessages):
                self.may_push = self.may_push or isinstance(event, PushMessage)
                messages += len(event.messages) or 1
            elif isinstance(event, DeleteMessage):
                messages += len(event.mids) or 1
            else:
                messages += len(event.mids or [0]) * len(event.queues) if isinstance(event, CopyMessage) else 1
            if messages > _MESSAGES and events:  # the first is taken whatever its size
                break
            events.append(waiting.popleft())
        self.weight, self.unanswered, self.done = messages, len(events), 0

    def take(self) -> bytes:
        """Returns the documents of the answers that have not been taken."""
        answers = self.answers
        documents = answers[0] if len(answers) == 1 else b"".join(answers)
        answers.clear()
        self.refusals.clear()
        self._first_mids.clear()
        self._answer_bytes = 0
        return documents

    @property
    def peer(self) -> str:
        return self._service.peer

    @property
    def runnable(self) -> bool:
        return self.pause is None and self.unanswered > 0 and (self._answer_bytes <= self._outbox or not self.answers)

    @property
    def is_begun(self) -> bool:
        """True if the handler of the next request has begun, and pauses."""
        return self._running is not None

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

    def pushes(  # noqa: C901 - its steps, without a call each
        self, storage: Engine | GatheringEngine | None = None
    ) -> list[PushMessage]:
        """Implements `Work.pushes`. Leaves out payloads that the schema of their queue refuses, or that take long to
        check. storage: the engine that has the queue, None for the server's own."""
        found: list[PushMessage] = []
        service = self._service
        caller = service.caller
        is_valid: Callable[[bytes], bool] | None = None
        # While the disk is full, `advance` handles each push, which tells whether it was stored.
        if not (self.pause or self._running or self._answer_bytes > self._outbox or service.room.full):
            for event in islice(self.events, self.done, None):
                if type(event) is not PushMessage or type(event.payload) is not bytes or event.messages:
                    break
                # `_key` and `_qid` without the cost of their properties: this runs for each push.
                if event.delay is not None or event._key is not None or (found and event._qid != found[0]._qid):
                    break
                if event.priority is not None or event.expires is not None or event._group is not None:
                    break
                if event._headers or event.unique:
                    break
                # One check is enough, as all are to the same queue. `advance` makes the refusal.
                if not found:
                    if caller is not None and not caller.may(Right.WRITE, event.qid or ""):
                        break
                    try:
                        schema = (storage or service.storage).options(event.qid or "").schema
                        is_valid = service.door.quick_check(event.qid or "", schema) if schema else None
                    except StorageError:
                        break  # `advance` makes the answer
                if is_valid is not None and not is_valid(event.payload):
                    break
                found.append(event)
        return found

    def pushed(self, requests: Sequence[PushMessage], mids: Iterable[int]) -> None:
        documents = write_pushed(requests, mids, new_resp, early=self._peer.early)
        self.answers += documents
        self._answer_bytes += sum(map(len, documents))
        self.done += len(requests)
        self.unanswered -= len(requests)

    def advance(self, pushing: bool | None) -> None:  # noqa: C901, PLR0912
        """Implements `Work.advance`. Takes the steps of each request without a function call, because every request
        goes through here."""
        service = self._service
        service.spent = 0
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
                        elsewhere = handler_of(service, cast(Message, event), handler)
                        if elsewhere is None:
                            self.pause = Pause()  # the session begins its operation after this batch
                            return
                        handler = elsewhere
                    found = handler(service, event)
                    answer = found if isinstance(found, Message) else self._begin(found)
                if service.room.full:
                    self._note_room(event)
            except Exception as error:
                if isinstance(error, NoRoomError) and (lacks := error.unmet(self.lacked)) is not None:
                    self.pause = Pause(lacks=lacks)  # nothing has changed: the request is run again, with room
                    return
                answer = self.refuse(event, error, begun=begun)
            if answer is not None:
                if type(answer) is PushMessage:
                    mid = answer.mids[0] if answer.mids else answer.mid  # a list fails as a whole, under its first id
                    self._first_mids[len(self.answers)] = answer.qid or "", mid or 0
                self.answer(event, answer)
                if self.is_first:
                    self.is_first, self.lacked = False, None  # the room was secured for this request alone
            if service.spent >= TURN and self.unanswered and self.pause is None:
                self.pause = Pause()  # the time slice of this client is over: others run first

    def answer(self, event: Message | Fault, answer: Message) -> None:
        """Answers the next request. Makes the document of the answer."""
        if not isinstance(answer, Error):  # an error has its ids
            answer.answers(new_resp(), event.req)
        at = len(self.answers)
        self.answers.append(b"")
        self._write(at, answer)
        self._answer_bytes += len(self.answers[at])
        self.done += 1
        self.unanswered = 0 if self.closes else self.unanswered - 1

    def _write(self, at: int, answer: Message) -> None:
        """Writes the document of an answer at its position. If that is not possible, which is a fault of the server,
        notes that the connection has to be closed: the client cannot tell which of its requests has no answer."""
        if isinstance(answer, Error):
            self.refusals[at] = answer.code
        try:
            self.answers[at] = self._peer.send(answer)
        except Exception as error:  # any of them concerns this connection alone
            self.fault, self.closes = error, True

    def refuse(self, request: Message | Fault, error: Exception, *, begun: bool = False) -> Message:
        """Returns the answer to a request that failed."""
        if isinstance(error, NotAllowedError):
            self.closes = error.error.closes
            return error_answer(request, error.error, str(error))
        if isinstance(request, Fault):
            raise error  # no handler was involved: a fault of the server, which ends the batch
        if isinstance(error, StorageError):
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
        self.check(request)
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
            self.check(self.events[self.done])
        except NotAllowedError:
            return False
        return True

    def check(self, request: Message | Fault) -> None:
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
            self.check(request)
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
        for at, first in self._first_mids.items():
            error = failures.get(first)
            if error is not None:
                request = self.events[self.done - len(self.answers) + at]
                self._replace(at, request, disk_error(cast(Message, request), error, self._service.storage), error)

    def _replace(self, at: int, request: Message | Fault, answer: Error, error: Exception) -> None:
        """Replaces an answer by an error, because the change of its request failed. at: its position."""
        self._note_lack(request, error)
        self._write(at, answer)

    def fail(self, error: Exception) -> None:
        pause = self.pause
        if self._running is not None and pause is not None and pause.call is None and not pause.is_asked_for:
            # Between two slices: the handler would count what this batch has done, and is taken back.
            self._running.close()
            paused = cast(Message, self.events[self.done])
            self._running = _answered(storage_error(paused, error, PARTLY))
            self.pause = None
        for at, request in enumerate(self.events[self.done - len(self.answers) : self.done]):
            if at not in self.refusals:  # all others are messages: a fault is answered with an error
                answer = storage_error(cast(Message, request), error, "what was asked may have been done")
                self._replace(at, request, answer, error)


def _answered(answer: Message) -> Answer:
    """Stands in for a paused handler, and answers when it is continued."""
    yield from ()
    return answer
