"""The part that all handlers share: the client they serve, how they wait, what they raise.

Handlers run where the engine runs, one at a time. A handler that cannot answer yet is a generator: it yields a Pause,
and goes on when the pause is over.
"""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any

from qs_schemas import Figure, Message
from qs_serving.access.caller import Caller
from qs_serving.access.principal import Right

from ..broker.jobs import Pause
from ..broker.remotes import Remotes
from ..broker.subscriber import Subscriber
from ..broker.subscriptions import Subscriptions
from ..storage.engine import SECOND, Engine, StorageError


class NoSuchSubscriptionError(StorageError):
    """The connection has no subscription of that id."""


class BadRequestError(Exception):
    """A valid request contradicts itself, or asks for more than there is. The text says how."""


@dataclass(slots=True)
class Service:
    """Gives handlers what they work with, for one client. become_subscriber: makes the client's `subscriber`, when it
    first subscribes; list_length: messages and ids in one answer; document: bytes of payload in one answer, except for
    its first message; peer: the client's HOST:PORT; remotes: the queues that other servers keep; caller:
    who the client is, None if everybody may do everything; waiting: returns how many receives wait for a queue;
    figures: returns those of the server; its argument: also those of each connection."""

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

    def queues(self) -> Collection[str]:
        """Returns the names of all queues."""
        return {*self.storage.queues(), *self.remotes.queues()}

    def may_see_stats(self, qid: str) -> bool:
        """Returns whether the client may see the figures of a queue."""
        return self.caller is None or self.caller.may(Right.STATS, qid)

    def start_subscriptions(self) -> None:
        """Starts the client's subscriptions whose answers have been sent. Call it in a batch."""
        if self.subscriber is not None:
            self.subscriptions.start(self.subscriber)
            self.end_forbidden_subscriptions()  # the rights may have changed behind the request

    def end_forbidden_subscriptions(self) -> None:
        """Ends the client's subscriptions that it may not have any more. Call it in a batch, after the client has
        become somebody else, or the access file has been read again."""
        if self.subscriber is not None and self.caller is not None:
            self.subscriptions.end_forbidden(self.subscriber, self.caller.refusal_to_read)


Answer = Generator[Pause, bool | None, Message]
"""A handler that waits. It is sent None to begin, True when the time of the pause is over."""
Handler = Callable[[Service, Any], Message | Answer]


def microseconds(seconds: float | None) -> int | None:
    """Returns the microseconds that the engine counts in; None for None."""
    return None if seconds is None else round(seconds * SECOND)


def qid_of(request: Message) -> str:
    """Returns the name of the queue. The parser has made sure that there is one."""
    return request.qid or ""  # type: ignore[attr-defined]


def mid_of(request: Message) -> int:
    """Returns the id of the message. The parser has made sure that there is one."""
    return request.mid or 0  # type: ignore[attr-defined]
