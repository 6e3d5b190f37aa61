"""Defines the parts that all handlers share, and the answers to requests that fail.

Handlers run in batches, one at a time. A handler is given a `Service` and a request, and returns the answer, or raises
an error, which `refused` or `disk_error` turns into an answer. A handler neither commits nor sends: its changes become
durable with the batch, and a failed commit takes them back.

A handler that may have to wait, or whose work no request bounds, is a generator: it yields a Pause, and continues when
the pause is over. Once such a handler has changed something, it must not raise NoRoomError, after which the request
would begin again from the start. So it takes its steps with `in_room`.
"""

import logging
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from qs_schemas import (
    CopyMessage,
    Error,
    ErrorCode,
    Fault,
    Figure,
    Message,
    NewQueue,
    PushMessage,
    ReceiveMessage,
    StageMessages,
    errors,
)
from qs_serving.access.caller import Caller
from qs_serving.access.principal import Right
from qs_serving.answers import new_resp
from qs_storage import engine
from qs_storage.disk import has_no_room
from qs_storage.engine import LEFT, SECOND, Engine, NoRoomError, StorageError, wall_clock
from qs_storage.names import owned_name

from ..broker.jobs import Pause
from ..broker.remotes import Remotes
from ..broker.room import DiskRoom
from ..broker.subscriber import Subscriber
from ..broker.subscriptions import Subscriptions
from .door import Door, InvalidPayloadError

_logger = logging.getLogger(__name__)
T = TypeVar("T")
PARTLY = "a part of it may have been done"
"""The remark in the answer to a request that failed after some of its slices were committed."""
TURN = 2000
"""The work (see `Service.spent`) of a time slice, after which the requests of others run: some 10 ms. A slice costs a
commit, of up to 1 ms if it is synced, so that shorter ones would slow everybody down."""


class NoSuchSubscriptionError(StorageError):
    """Reports that the connection has no such subscription."""


class BadRequestError(Exception):
    """Reports that a request is well-formed, but contradicts itself or exceeds a limit. The text says how."""


@dataclass(slots=True)
class Service:
    """Gives handlers access to storage and subscriptions, for one client.

    Handlers reach storage and subscriptions only through a service, so that the same handlers run in a batch of the
    broker and, for queues on another server, in a thread. Assumes that one handler of a client runs at a time. Handlers
    must never wait for anything but the storage: a handler that may take long yields a Pause.

    become_subscriber: makes `subscriber`; list_length: the most messages and ids in an answer; document: the most bytes
    of payload in an answer, except for the first message; peer: the client's HOST:PORT; caller: the client's identity,
    None without an access file; waiting: returns how many receives wait for a queue; figures: returns the server's
    figures; its argument: True to include those of each connection; room: notes requests that are refused because the
    disk is full; door: checks payloads by the schemas of queues."""

    storage: Engine
    subscriptions: Subscriptions
    become_subscriber: Callable[[], Subscriber]
    list_length: int = 1000
    document: int = 8 * 1024 * 1024
    peer: str = ""
    subscriber: Subscriber | None = None
    remotes: Remotes = field(default_factory=Remotes)
    caller: Caller | None = None
    waiting: Callable[[str], int] = lambda qid: 0
    figures: Callable[[bool], list[Figure]] = lambda connections: []
    room: DiskRoom = field(default_factory=lambda: DiskRoom("", wall_clock))
    door: Door = field(default_factory=Door)
    spent: int = 0
    """The work in the present time slice, in units of some 5 us: handlers add what is more than that of a message or
    two. It is counted and not timed, as other processes may have the processor for any time."""

    @property
    def turn_is_over(self) -> bool:
        """True if a handler that has done some work should pause: other clients have waited for long enough, or the
        batch has little room left."""
        return self.spent >= TURN or self.storage.room < LEFT

    @property
    def owner(self) -> str | None:
        """The principal that owns the client's keys, producers and consumers. None for a client without a principal; on
        a server without an access file all clients share these names. Raises NotAllowedError."""
        return None if self.caller is None else self.caller.owner

    @property
    def is_admin(self) -> bool:
        return self.caller is None or self.caller.is_admin

    def owned(self, name: str) -> str:
        """Returns the storage's name for the client's key, producer or consumer of this name. Raises
        NotAllowedError."""
        return owned_name(self.owner, name)

    def queues(self) -> Collection[str]:
        return {*self.storage.queues(), *self.remotes.queues()}

    def may_see_stats(self, qid: str) -> bool:
        return self.caller is None or self.caller.may(Right.STATS, qid)

    def start_subscriptions(self) -> None:
        """Starts the client's new subscriptions, after the answers to their requests. Call this in a batch."""
        if self.subscriber is not None:
            self.subscriptions.start(self.subscriber)
            self.end_forbidden_subscriptions()  # the rights may have changed since the request

    def end_forbidden_subscriptions(self) -> None:
        """Ends the subscriptions that the client may not have any more. Call this in a batch."""
        if self.subscriber is not None and self.caller is not None:
            self.subscriptions.end_forbidden(self.subscriber, self.caller.refusal_to_read)


Answer = Generator[Pause, bool | None, Message]
"""A handler that waits. It is sent None to begin; after a pause, True if the time of the pause is over, else False."""
Handler = Callable[[Service, Any], Message | Answer]


def microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)


def duration(seconds: float | None) -> int | None:
    """Returns microseconds, at least one, None for None."""
    return None if seconds is None else max(round(seconds * SECOND), 1)


def qid_of(request: Message) -> str:
    """Returns the queue's name in a request that must have one, which the parser has checked."""
    return request.qid or ""  # type: ignore[attr-defined]


def mid_of(request: Message) -> int:
    """Returns the message id in a request that must have one, which the parser has checked."""
    return request.mid or 0  # type: ignore[attr-defined]


def in_room(step: Callable[[], T]) -> Generator[Pause, bool | None, T]:
    """Takes a step of a handler. If the batch lacks room for the step, pauses, and tries once more in a batch that runs
    this request first and has secured room for it. Raises NoRoomError if the room is still lacking; the answer then
    says that a part may have been done."""
    try:
        return step()
    except NoRoomError as error:
        lacks = error
    yield Pause(lacks=lacks)
    return step()


# -- answers to requests that fail

_ERRORS: dict[type[engine.StorageError], ErrorCode] = {
    engine.NoSuchQueueError: errors.NOT_FOUND,
    engine.NoSuchMessageError: errors.NOT_FOUND,
    NoSuchSubscriptionError: errors.NOT_FOUND,
    engine.NoSuchClaimError: errors.NOT_FOUND,
    engine.NoSuchPartError: errors.NOT_FOUND,
    engine.ClaimOrderError: errors.CONFLICT,
    engine.BatchOrderError: errors.CONFLICT,
    engine.QueueExistsError: errors.CONFLICT,
    engine.OtherMessageError: errors.CONFLICT,
    engine.DeadLetterCycleError: errors.CONFLICT,
    engine.NoDeadLetterQueueError: errors.CONFLICT,
    engine.QueueNotEmptyError: errors.NOT_EMPTY,
    engine.StaleReceiptError: errors.STALE,
    engine.QueueFullError: errors.FULL,
    engine.BadQueueNameError: errors.BAD_REQUEST,
    engine.UnsupportedError: errors.NOT_IMPLEMENTED,
    InvalidPayloadError: errors.INVALID,
    engine.UnavailableError: errors.UNAVAILABLE,  # the engine logs an outage, once
    engine.NotKnownError: errors.NOT_KNOWN,
}


def error_answer(about: Message | Fault, error: ErrorCode, text: str) -> Error:
    return Fault(error, text, about.req).message(new_resp())


def refused(about: Message, error: engine.StorageError) -> Error:
    """Returns the answer to a request that the engine refuses. Logs an error that has no code in the error table."""
    known = next((_ERRORS[kind] for kind in type(error).__mro__ if kind in _ERRORS), errors.INTERNAL)
    answer = error_answer(about, known, str(error))
    if known is errors.INTERNAL:
        _logger.error("resp %s: %s: %s", answer.resp, about.op, error)
    return answer


def disk_error(about: Message, error: Exception, storage: engine.Engine, *, begun: bool = False) -> Error:
    """Returns the answer to a request for which the storage failed. begun: True if a slice of the request has run
    before."""
    # Somebody has removed the directory of a queue of files, with whatever program: for the client there is no such
    # queue.
    if isinstance(error, FileNotFoundError) and not all(map(storage.in_place, _queues_of(about))):
        return error_answer(about, errors.NOT_FOUND, "the directory of the queue is gone")
    if isinstance(about, CopyMessage) and about.mids:  # the copies before the one that failed stay
        return storage_error(about, error, "some may have been copied")
    # These have only waited: for messages, or for the check of their payloads.
    partly = begun and not isinstance(about, ReceiveMessage | PushMessage | StageMessages)
    return storage_error(about, error, PARTLY if partly else "nothing was changed")


def _queues_of(about: Message) -> list[str]:
    """Returns the queues of a request that have to exist."""
    if isinstance(about, NewQueue):
        return []
    qid = getattr(about, "qid", None)
    return [*([] if qid is None else [qid]), *getattr(about, "queues", ())]


def storage_error(about: Message, error: Exception, remark: str) -> Error:
    """Returns the answer to a request during which the storage failed, and logs the error. remark: words that say what
    was changed."""
    if isinstance(error, OSError) and has_no_room(error):
        return error_answer(about, errors.FULL, f"the disk is full; {remark}")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    answer = error_answer(about, errors.INTERNAL, f"the storage failed: {reason}; {remark}")
    _logger.error("resp %s: %s: %s", answer.resp, about.op, error)
    return answer
