"""What handlers work with, and what all of them need: whom they serve, how they wait, what they raise.

Handlers run where the engine runs, one at a time. One that cannot answer yet is a generator: it yields a Pause, and
goes on when that is over.
"""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any

from qs_schemas import Message

from ..broker.jobs import Pause
from ..broker.remotes import Remotes
from ..broker.subscriber import Subscriber
from ..broker.subscriptions import Subscriptions
from ..storage.engine import SECOND, Engine, StorageError


class NoSuchSubscriptionError(StorageError):
    """The connection has no subscription of that id."""


class BadRequestError(Exception):
    """A request that is valid and contradicts itself, or wants more than there is. The text says how."""


@dataclass(slots=True)
class Service:
    """What handlers work with, for one client. document: bytes of payload that one answer may carry, but for its first
    message; become_subscriber: what the client is as one, made when it first subscribes; peer: its HOST:PORT; remotes:
    queues that are not in the storage."""

    storage: Engine
    subscriptions: Subscriptions
    become_subscriber: Callable[[], Subscriber]
    list_length: int = 1000
    document: int = 8 * 1024 * 1024
    peer: str = ""
    subscriber: Subscriber | None = None
    remotes: Remotes = field(default_factory=Remotes)

    def queues(self) -> Collection[str]:
        """The names of all queues."""
        return {*self.storage.queues(), *self.remotes.queues()}


Answer = Generator[Pause, bool | None, Message]
"""Is sent True when the pause's time is over, None to begin."""
Handler = Callable[[Service, Any], Message | Answer]


def microseconds(seconds: float | None) -> int | None:
    """As the engine counts; None for None."""
    return None if seconds is None else round(seconds * SECOND)


def qid_of(request: Message) -> str:
    """The name of the queue: the parser has made sure that there is one."""
    return request.qid or ""  # type: ignore[attr-defined]


def mid_of(request: Message) -> int:
    """The id of the message, likewise."""
    return request.mid or 0  # type: ignore[attr-defined]
