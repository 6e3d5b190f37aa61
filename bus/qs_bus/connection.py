"""A connection of a client of the bus: of one that only listens, or of one that sends requests and acknowledges.

What a connection needs of the bus is the protocol `Broker`, so that this module does not import the bus.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import trio

from qs_schemas import (
    DeleteMessage,
    Error,
    ErrorCode,
    Fault,
    ListQueues,
    Message,
    Peer,
    Receipt,
    ReleaseMessage,
    Subscribe,
    Unsubscribe,
)
from qs_schemas import errors as table
from qs_serving.answers import new_resp
from qs_serving.conversation import Conversation
from qs_serving.options import ServerLimits
from qs_serving.transport import Transport

from .later import Later
from .options import BusOptions
from .records import Record
from .refused import RefusedError
from .subscription import Subscription

SILENCE = 0.25
"""Seconds after which a client that has sent nothing is taken for one that only listens."""
_DOUBT = 5
"""Seconds more after which that is certain. Until then the client may have been held up, and what it got is then not
for it."""
_ANSWERS = (None, None)
"""Stands in the outbox, in place of subscription and record, for a document that is no delivery."""
_GROUP = 256
"""Requests that are handled before other connections get their turn."""


class Broker(Protocol):
    """The bus, as its connections use it."""

    @property
    def options(self) -> BusOptions:
        """What the bus was told at its start."""

    @property
    def later(self) -> Later:
        """Calls functions at a later time."""

    @property
    def server_name(self) -> str:
        """HOST:PORT of the queue server."""

    async def subscribe(
        self, conversation: BusConnection, subscription: Subscription, qids: list[str], answer: Message
    ) -> None:
        """Begins a subscription to some queues. May wait for the queue server. Raises RefusedError.

        answer: what the connection sends before any message, see `BusConnection.begin`.
        """

    def subscribe_silent(self, conversation: BusConnection, subscription: Subscription) -> None:
        """Begins a subscription to every queue that is monitored, now or later, for a client that sends nothing."""

    def leave(self, conversation: BusConnection) -> None:
        """Ends all subscriptions of a client."""

    def note_slow(self, text: str) -> None:
        """Logs why a client that is too slow is disconnected."""


class BusConnection(Conversation):
    """One client: answers its requests, and sends it the messages of its subscriptions."""

    stopping_text = "the bus is stopping; connect again later"

    def __init__(self, stream: Transport, peer: Peer, limits: ServerLimits, writers: trio.Nursery, bus: Broker) -> None:
        super().__init__(stream, peer, limits, writers)
        self._bus = bus
        self.subscriptions: list[Subscription] = []
        self._spoken = False
        self._silent: Subscription | None = None  # that the client has because it has sent nothing

    # -- a client that sends nothing ------------------------------------------------------------------------------

    def _take(self, data: bytes | bytearray) -> None:
        super()._take(data)
        if not self._spoken and (self._peer.begun or self._events):
            self._spoken = True
            self._stop_time()
            self._steps = 0
            if self._silent is not None:  # it was only slow to say what it wants
                self._silent = None
                self._bus.leave(self)

    def _time_allowed(self) -> float | None:
        if self._spoken:
            return super()._time_allowed()
        if self._silent is None:
            return SILENCE
        return _DOUBT if self._silent.doubtful else None

    def _time_over(self) -> None:
        if self._spoken:
            super()._time_over()
        elif self._silent is None:
            self._silent = self._new_subscription(None, ack=False, asked=False)
            self._bus.subscribe_silent(self, self._silent)
        else:
            self._silent.be_sure()

    # -- requests -------------------------------------------------------------------------------------------------

    async def _answer(self) -> bool:
        answers: list[bytes] = []
        closes = False
        for _ in range(min(len(self._events), _GROUP)):
            event = self._events.popleft()
            if isinstance(event, Fault):
                answers.append(self._peer.send(event.message(new_resp())))
                closes = event.error.closes
                if closes:
                    self._send_no_more()
                continue
            if isinstance(event, (Subscribe, ListQueues)):
                self._say(answers)  # what is asked for before comes before what it brings
                answers.append(await self._subscribe(event))
                continue
            answers.append(self._peer.send(self._answer_to(event)))
        self._say(answers)
        self._parse()
        if self._outbox.unsent > 2 * self._limits.outbox:
            await self._outbox.drained()  # it asks, and does not read
        await trio.lowlevel.checkpoint()
        return not closes

    def _say(self, answers: list[bytes]) -> None:
        if any(answers):
            self._outbox.put(b"".join(answers), _ANSWERS)
        answers.clear()

    def _answer_to(self, request: Message) -> Message:
        try:
            answer = self._handle(request)
        except RefusedError as error:
            return _error(request, error)
        answer.answers(new_resp(), request.req)
        return answer

    def _handle(self, request: Message) -> Message:
        if isinstance(request, Error):
            raise RefusedError(table.BAD_REQUEST, "this is an error; only requests are taken")
        if isinstance(request, DeleteMessage):
            return self._delete(request)
        if isinstance(request, ReleaseMessage):
            return self._release(request)
        if isinstance(request, Unsubscribe):
            raise RefusedError(table.NOT_IMPLEMENTED, "unsubscribe is not for the bus: close the connection instead")
        raise RefusedError(
            table.NOT_IMPLEMENTED,
            f"{request.op} is not for the bus; the queue server at {self._bus.server_name} may know it",
        )

    def _delete(self, request: DeleteMessage) -> Message:
        qid = request.qid or ""
        if request.mid is not None:
            if request.mids:
                raise RefusedError(
                    table.BAD_REQUEST, "delete-message takes either 'mid' or 'messages', and this one has both"
                )
            self._acknowledge(qid, request.mid)
            return DeleteMessage(qid, request.mid)
        deleted: list[int | Receipt] = []
        for entry in request.mids:
            mid = entry.mid if isinstance(entry, Receipt) else entry
            try:
                self._acknowledge(qid, mid)
            except RefusedError:
                continue
            deleted.append(mid)
        return DeleteMessage(qid, mids=deleted)

    def _acknowledge(self, qid: str, mid: int) -> None:
        subscription, record = self._in_hand(qid, mid)
        record.feed.handled(record)
        subscription.pump()

    def _in_hand(self, qid: str, mid: int) -> tuple[Subscription, Record]:
        for subscription in self.subscriptions:
            record = subscription.take((qid, mid))
            if record is not None:
                return subscription, record
        raise RefusedError(
            table.NOT_FOUND,
            f"message {mid} of queue {qid!r} is not in this client's hands: it was not delivered to it, or is handled, "
            "or its subscription has no ack='client'",
        )

    def _release(self, request: ReleaseMessage) -> Message:
        subscription, record = self._in_hand(request.qid or "", request.mid or 0)
        if not request.delay:
            record.feed.resend(record, subscription)
        else:
            subscription.delay(record, request.delay, self._bus.later)
        return ReleaseMessage(request.qid, request.mid)

    # -- subscribing ----------------------------------------------------------------------------------------------

    async def _subscribe(self, request: Subscribe | ListQueues) -> bytes:
        """Subscribes. Returns the document of an error; any other answer has been sent already, as messages come right
        after it."""
        try:
            qids, subscription, answer = self._wanted(request)
            answer.answers(new_resp(), request.req)
            await self._while_there(partial(self._bus.subscribe, self, subscription, list(dict.fromkeys(qids)), answer))
        except RefusedError as error:
            return self._peer.send(_error(request, error))
        return b""

    def _wanted(self, request: Subscribe | ListQueues) -> tuple[list[str], Subscription, Message]:
        """Returns the queues that a request names, the subscription that it asks for, and the answer to send once the
        subscription has begun. Raises RefusedError."""
        if isinstance(request, ListQueues):
            if not request.queues:
                raise RefusedError(
                    table.NOT_IMPLEMENTED,
                    "list-queues without queues is not for the bus: name some to subscribe to them, or ask the "
                    f"queue server at {self._bus.server_name}",
                )
            subscription = self._new_subscription(request.req, ack=False)
            return request.queues, subscription, ListQueues(list(request.queues))
        if request.qid is not None and request.queues:
            raise RefusedError(table.BAD_REQUEST, "subscribe takes either 'qid' or 'queues', and this one has both")
        subscription = self._new_subscription(
            request.req, ack=request.ack == "client", prefetch=request.prefetch, name=request.name
        )
        return request.queues or [request.qid or ""], subscription, Subscribe(request.qid, request.queues)

    async def _while_there(self, do: Callable[[], Awaitable[None]]) -> None:
        """Runs a function that may wait for the queue server. Gives up when the client goes or is dismissed."""
        refused: list[RefusedError] = []
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            try:
                await do()
            except RefusedError as error:
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
            req=req,
            ack=ack,
            prefetch=prefetch,
            name=name,
            asked=asked,
        )

    def begin(self, subscription: Subscription, answer: Message | None) -> None:
        """Adds a subscription. answer: is sent first, so that it comes before any message."""
        if answer is not None:
            self._outbox.put(
                self._peer.send(answer), _ANSWERS
            )  # written only now: how it has to end may be known since
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
        """Sends no more messages, as this side ends the connection. While the bus is stopping, messages that are being
        sent still count as delivered."""
        for subscription in self.subscriptions:
            subscription.ending = True
        if not self._stopping:
            self._bus.leave(self)

    def _too_slow(self, text: str) -> None:
        if self._refusal is None:
            self._bus.note_slow(text)
            self.dismiss(table.TOO_MANY, text)

    def _written(self, token: Any) -> None:
        if token is not _ANSWERS:
            subscription, record = token
            subscription.written(record)
        for each in self.subscriptions:  # they share the outbox
            each.pump()

    def leave(self) -> None:
        """Leaves all subscriptions: the client has gone, or is to get no more of their messages."""
        if self._ended and self._silent is not None:
            self._silent.be_sure()
        for subscription in self.subscriptions:
            subscription.leave()
        self.subscriptions.clear()


def _error(about: Message, error: RefusedError) -> Error:
    return Fault(error.error, str(error), about.req).message(new_resp())
