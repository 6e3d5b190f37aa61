"""The parts that all handlers share.

Handlers run in batches, one at a time. A handler that may have to wait is a generator: it yields a Pause, and continues
when the pause is over.
"""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any

from qs_schemas import Figure, Message
from qs_serving.access.caller import Caller
from qs_serving.access.principal import Right
from qs_storage.engine import SECOND, Engine, StorageError, wall_clock
from qs_storage.names import owned_name

from ..broker.jobs import Pause
from ..broker.remotes import Remotes
from ..broker.room import DiskRoom
from ..broker.subscriber import Subscriber
from ..broker.subscriptions import Subscriptions

TURN = 2000
"""The work (see `Service.spent`) after which others have their turn: some 10 ms. A turn costs a commit, of up to 1 ms
if it is synced, so that shorter ones would slow everybody down."""


class NoSuchSubscriptionError(StorageError):
    """The connection has no such subscription."""


class BadRequestError(Exception):
    """A request is well-formed, but contradicts itself or exceeds a limit. The text says how."""


@dataclass(slots=True)
class Service:
    """The parts that handlers use, for one client. become_subscriber: makes `subscriber`; list_length: the most
    messages and ids in an answer; document: the most bytes of payload in an answer, except for the first message; peer:
    the client's HOST:PORT; caller: who the client is, None if everybody may do everything; waiting: returns how many
    receives wait for a queue; figures: returns the server's figures; its argument: True to include those of each
    connection; room: is told of requests that are refused for lack of room."""

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
    spent: int = 0
    """The work since the last turn, in units of some 5 us: handlers add what is more than that of a message or two. It
    is counted and not timed, as other processes may have the processor for any time."""

    @property
    def owner(self) -> str | None:
        """The principal to whom the client's keys, producers and consumers belong. None without one: on an open server
        the same for everybody. NotAllowedError."""
        return None if self.caller is None else self.caller.owner

    @property
    def is_admin(self) -> bool:
        return self.caller is None or self.caller.is_admin

    def owned(self, name: str) -> str:
        """Returns what the storage calls the client's key, producer or consumer of this name. NotAllowedError."""
        return owned_name(self.owner, name)

    def queues(self) -> Collection[str]:
        return {*self.storage.queues(), *self.remotes.queues()}

    def may_see_stats(self, qid: str) -> bool:
        return self.caller is None or self.caller.may(Right.STATS, qid)

    def start_subscriptions(self) -> None:
        """Starts the client's new subscriptions, whose answers are sent. Call it in a batch."""
        if self.subscriber is not None:
            self.subscriptions.start(self.subscriber)
            self.end_forbidden_subscriptions()  # the rights may have changed since the request

    def end_forbidden_subscriptions(self) -> None:
        """Ends the subscriptions that the client is not allowed any more. Call it in a batch."""
        if self.subscriber is not None and self.caller is not None:
            self.subscriptions.end_forbidden(self.subscriber, self.caller.refusal_to_read)


Answer = Generator[Pause, bool | None, Message]
"""A handler that waits. It is sent None to begin; after a pause, True if the time of the pause is over, else False."""
Handler = Callable[[Service, Any], Message | Answer]


def microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)


def qid_of(request: Message) -> str:
    """Returns the name of the queue, which the parser has required."""
    return request.qid or ""  # type: ignore[attr-defined]


def mid_of(request: Message) -> int:
    """Returns the id of the message, which the parser has required."""
    return request.mid or 0  # type: ignore[attr-defined]
