"""One client's connection to the bus: its requests, acknowledgements and subscriptions.

`Broker` is the bus as its connections see it; it keeps this module from importing the bus.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import trio

from qs_schemas import Error, ErrorCode, Fault, Figure, ListQueues, Message, Peer, Subscribe
from qs_schemas import errors as table
from qs_serving.access.caller import Caller, NotAllowedError
from qs_serving.answers import new_resp
from qs_serving.conversation import Conversation
from qs_serving.figures import RequestCounts
from qs_serving.options import ServerLimits
from qs_serving.strangers import PIECE, Strangers
from qs_serving.transport import Transport

from .delivery_counts import DeliveryCounts
from .operations import operation_of, waits
from .options import BusOptions
from .refused import RefusedError
from .rights import Rights
from .subscription import Subscription
from .timers import Timers

SILENCE = 0.25
"""Seconds after which a client that has sent nothing is subscribed to every queue."""
_DOUBT = 5
"""Further seconds in which such a client may still turn out to be slow: its messages until then go back to their queues
when it sends something."""
_ANSWERS = (None, None)
"""Marks an outbox entry that is an answer, in place of the subscription and record of a delivery."""
_NO_ACCESS_FILE = "this bus has no access file: connect without a token, or start the bus with --access FILE"
_GROUP = 256
"""Requests that are handled before other connections get their turn."""


@dataclass(slots=True)
class _Group:
    """Requests that are answered together. documents: of the answers, and of some that were counted before; since: when
    the first of the requests was taken up."""

    documents: list[bytes]
    requests: list[Message | Fault] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)
    since: float = field(default_factory=perf_counter)


class Broker(Protocol):
    """The bus, as its connections use it."""

    @property
    def options(self) -> BusOptions:
        """The options of the bus."""

    @property
    def counts(self) -> RequestCounts:
        """The requests of all clients, and how long they took."""

    @property
    def strangers(self) -> Strangers:
        """The clients that have not said who they are."""

    @property
    def delivery_counts(self) -> DeliveryCounts:
        """The counts of messages that subscribers have been sent."""

    @property
    def timers(self) -> Timers:
        """Calls functions at a later time."""

    @property
    def server_name(self) -> str:
        """HOST:PORT of the queue server."""

    async def subscribe(
        self, conversation: BusConnection, subscription: Subscription, qids: list[str], answer: Message
    ) -> None:
        """Subscribes a client to queues. May wait for the queue server.

        answer: is sent before any message, see `BusConnection.begin`. Raises RefusedError.
        """

    def review(self, conversation: BusConnection) -> None:
        """Ends the subscriptions of a client that it may no longer have, and adds the queues that a silent client may
        read now."""

    def subscribe_silent(self, conversation: BusConnection, subscription: Subscription) -> None:
        """Subscribes a client that has sent nothing to every queue that is monitored now or later."""

    def leave(self, conversation: BusConnection) -> None:
        """Ends all subscriptions of a client. Messages that it has not handled are no longer waited for."""

    def figures(self, connections: bool) -> list[Figure]:
        """Returns the figures of the bus. connections: also those of each connection."""

    def log_slow(self, text: str) -> None:
        """Logs why a slow client is disconnected."""


class BusConnection(Conversation):
    """Answers one client's requests and sends it the messages of its subscriptions."""

    stopping_text = "the bus is stopping; connect again later"

    def __init__(
        self,
        stream: Transport,
        peer: Peer,
        limits: ServerLimits,
        writers: trio.Nursery,
        bus: Broker,
        *,
        caller: Caller | None,
    ) -> None:
        """caller: who the client is; None if there is no access file."""
        super().__init__(stream, peer, limits, writers, bus.counts, strangers=bus.strangers, caller=caller)
        self.rights = Rights(caller)
        self._bus = bus
        self.subscriptions: list[Subscription] = []
        self.timers, self.server_name = bus.timers, bus.server_name
        self._has_sent = False
        self._closes = False  # the client has been told that the connection ends
        self._silent: Subscription | None = None  # the subscription of a client that has sent nothing

    @property
    def subscription_count(self) -> int:
        return len(self.subscriptions)

    # -- a client that sends nothing ------------------------------------------------------------------------------

    def _parse(self) -> None:
        super()._parse()
        if not self._has_sent and (self._peer.begun or self._events):
            self._has_sent = True
            self._stop_time()
            self._steps = 0
            if self._silent is not None:  # the client was only slow
                self._silent = None
                self._bus.leave(self)

    def _time_allowed(self) -> float | None:
        if self._has_sent:
            return super()._time_allowed()
        if self._silent is None:
            return SILENCE
        return _DOUBT if self._silent.doubtful else None

    def _time_over(self) -> None:
        if self._has_sent:
            super()._time_over()
        elif self._silent is None:
            self._silent = self._new_subscription(None, ack=False, asked=False)
            self._bus.subscribe_silent(self, self._silent)
        else:
            self._silent.confirm_silent()

    # -- requests -------------------------------------------------------------------------------------------------

    async def _answer(self) -> bool:
        group = _Group([])
        for _ in range(min(len(self._events), _GROUP)):
            event = self._events.popleft()
            if isinstance(event, Fault):
                self._add(group, event, event.message(new_resp()))
                self._closes = event.error.closes
            elif waits(event):
                self._send(group)  # earlier answers go before the messages of a subscription
                group = _Group([await self._answer_later(event)])
            else:
                self._add(group, event, self._answer_to(event))
            if self._closes:
                self._send_no_more()
                break
        self._send(group)
        self._parse()
        unsent = self._outbox.unsent
        if unsent > 2 * PIECE and (unsent > 2 * self._limits.outbox or not self.may_stay):
            await self._outbox.drained()  # the client sends requests and does not read the answers
        await trio.lowlevel.checkpoint()
        return not self._closes

    def _add(self, group: _Group, request: Message | Fault, answer: Message) -> None:
        group.requests.append(request)
        group.answers.append(answer)
        group.documents.append(self._peer.send(answer))

    def _send(self, group: _Group) -> None:
        if any(group.documents):
            self._outbox.put(b"".join(group.documents), _ANSWERS)
        self._counts.answered(group.requests, group.answers, perf_counter() - group.since)

    def _answer_to(self, request: Message) -> Message:
        """Returns the answer to a request whose operation does not wait."""
        try:
            answer: Message = operation_of(request, self).handler(self, request)
        except (RefusedError, NotAllowedError) as error:
            return _error(request, error)
        answer.answers(new_resp(), request.req)
        return answer

    async def _answer_later(self, request: Message) -> bytes:
        """Does what an operation that waits is to do. Returns the document of its answer, b"" if that has been sent
        already, right before the first message."""
        answers: list[Message | None] = []
        since = perf_counter()

        async def handle() -> None:
            answers.append(await operation_of(request, self).handler(self, request))

        try:
            await self._while_connected(handle)
        except (RefusedError, NotAllowedError) as error:
            self._closes = error.error.closes
            answers = [_error(request, error)]
            if isinstance(error, NotAllowedError):
                since += error.delay  # a deliberate delay does not count as duration
        if not answers:
            return b""  # the client has gone
        answer = answers[0]
        self._counts.answered([request], [answer or request], perf_counter() - since)
        if answer is None:
            return b""
        if not isinstance(answer, Error):
            answer.answers(new_resp(), request.req)
        return self._peer.send(answer)

    # -- subscribing ----------------------------------------------------------------------------------------------

    async def subscribe(self, request: Subscribe | ListQueues, qids: list[str], answer: Message) -> None:
        """Subscribes the client to queues, and sends the answer before the first message. Raises RefusedError."""
        options: dict[str, Any] = {"ack": False}
        if isinstance(request, Subscribe):
            options = {"ack": request.ack == "client", "prefetch": request.prefetch, "name": request.name}
        answer.answers(new_resp(), request.req)
        subscription = self._new_subscription(request.req, **options)
        await self._bus.subscribe(self, subscription, list(dict.fromkeys(qids)), answer)

    async def authenticate(self, token: str) -> str:
        """Makes the client the principal of a token, and returns its name. Raises RefusedError, NotAllowedError."""
        if self._caller is None:
            raise RefusedError(table.NOT_IMPLEMENTED, _NO_ACCESS_FILE)
        try:
            name = self._caller.authenticate(token)
        except NotAllowedError as error:
            self.rights_changed()
            await trio.sleep(error.delay)
            raise
        self.rights_changed()
        return name

    def figures(self, connections: bool) -> list[Figure]:
        """Returns the figures of the bus. connections: also those of each connection."""
        return self._bus.figures(connections)

    def rights_changed(self) -> None:
        """Ends what the client may not have any more: it is somebody else, or the access file has been read again."""
        self._bus.review(self)

    async def _while_connected(self, do: Callable[[], Awaitable[None]]) -> None:
        """Runs a function that may wait for the queue server. Cancels it when the client goes or is dismissed."""
        refused: list[RefusedError | NotAllowedError] = []
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            try:
                await do()
            except (RefusedError, NotAllowedError) as error:
                refused.append(error)
            nursery.cancel_scope.cancel()
        self._interruptible = None
        if refused:
            raise refused[0]

    def _new_subscription(
        self,
        req: str | None,
        *,
        ack: bool,
        prefetch: int | None = None,
        name: str | None = None,
        asked: bool = True,
    ) -> Subscription:
        return Subscription(
            self._outbox,
            self._peer,
            self._bus.options,
            self._too_slow,
            self._bus.delivery_counts,
            req=req,
            ack=ack,
            prefetch=prefetch,
            name=name,
            asked=asked,
        )

    def begin(self, subscription: Subscription, answer: Message | None) -> None:
        """Adds a subscription. answer: is sent before any message of it."""
        if answer is not None:
            # Serialized only now: requests that came meanwhile may tell how the client's documents end.
            self._outbox.put(self._peer.send(answer), _ANSWERS)
        self.subscriptions.append(subscription)

    def end(self, subscription: Subscription, fault: Fault) -> None:
        """Removes a subscription that is over, and tells the client why."""
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            self._outbox.put(self._peer.send(fault.message(new_resp())), _ANSWERS)

    def _put_error(self, error: ErrorCode, text: str) -> None:
        self._send_no_more()
        super()._put_error(error, text)

    def _send_no_more(self) -> None:
        """Stops sending messages because this side ends the connection. While the bus is stopping, messages that are
        being sent still count as delivered."""
        for subscription in self.subscriptions:
            subscription.ending = True
        if not self._stopping:
            self._bus.leave(self)

    def _too_slow(self, bound: str, text: str) -> None:
        if self._refusal is None:
            self._bus.delivery_counts.disconnected[bound] += 1
            self._bus.log_slow(text)
            self.dismiss(table.TOO_MANY, text)

    def _written(self, token: Any) -> None:
        if token is not _ANSWERS:
            subscription, record = token
            subscription.written(record)
        for each in self.subscriptions:  # all of them share the outbox
            each.pump()

    def leave(self) -> None:
        """Ends all subscriptions: the client has gone, or is to get no more messages."""
        if self._ended and self._silent is not None:
            self._silent.confirm_silent()
        for subscription in self.subscriptions:
            subscription.leave()
        self.subscriptions.clear()


def _error(about: Message, error: RefusedError | NotAllowedError) -> Error:
    return Fault(error.error, str(error), about.req).message(new_resp())
