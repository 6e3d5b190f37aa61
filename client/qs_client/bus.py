"""The base of the sync and the async bus client: settings, and finding the subscription of a message."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from qs_schemas import CLIENT_LIMITS, DeleteMessage, GetMessage, Limits, ReleaseMessage, Subscribe

from .asking import checked_reason, queue_names
from .bounds import seconds, whole
from .bus_session import BusSession
from .place import BusPlace, Place, endpoint
from .security import Tls, Token
from .settings import Settings


class Settling(Protocol):
    """A subscription that may have a message in hand."""

    def settle(self, message: GetMessage, request: DeleteMessage | ReleaseMessage) -> bool:
        """Sends the request if the message is in hand there. Returns whether it was."""


S = TypeVar("S", bound=Settling)


class Bus(Settings, Generic[S]):
    """The base of both bus clients, which document the arguments."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        timeout: float | None = 30.0,
        max_document: int = CLIENT_LIMITS.document,
        tls: Tls = None,
        token: str | Token | None = None,
        reconnect: bool = True,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(host, port, 9878, timeout, max_document, tls=tls, token=token)
        self.reconnect = reconnect
        self.on_trouble = on_trouble
        self._open: weakref.WeakSet[S] = weakref.WeakSet()  # those that are still referenced

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {endpoint(self.host, self.port)}>"

    @property
    def place(self) -> Place:
        """The address of the bus, for errors."""
        return BusPlace(endpoint(self.host, self.port), client=type(self).__name__)

    @property
    def limits(self) -> Limits:
        """The bounds of what is read."""
        return replace(CLIENT_LIMITS, document=self.max_document)

    def _session(self, queues: str | Iterable[str], ack: bool, prefetch: int | None, name: str | None) -> BusSession:
        request = Subscribe(
            queues=queue_names(queues),
            prefetch=whole(prefetch, "prefetch", 1),
            ack="client" if ack else None,
            name=name,
        )
        if not request.queues:
            raise ValueError("the queues to subscribe to are missing: name at least one")
        return BusSession(
            request,
            self.place,
            token=self.token,
            timeout=self.timeout,
            reconnect=self.reconnect,
            tell=self.on_trouble,
        )

    def _added(self, messages: S) -> S:
        self._open.add(messages)
        return messages

    def _release(self, message: GetMessage, delay: float | None, *, count: bool, reason: str | None) -> None:
        delay = seconds(delay, "delay")
        reason = checked_reason(reason)
        release = ReleaseMessage(message.qid, message.mid, delay=delay, uncounted=not count, reason=reason)
        self._settle(message, release)

    def _settle(self, message: GetMessage, request: DeleteMessage | ReleaseMessage) -> None:
        any(each.settle(message, request) for each in list(self._open))
