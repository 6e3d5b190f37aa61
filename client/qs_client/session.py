"""The conversation on one connection, without the connection: which message belongs to which request.

Bytes in, bytes out, over the `Peer` of qs_schemas. No sockets and no waiting here: every client uses it, sync or async.
Whoever waits sets `wake`, which is called when what is waited for has come.
"""

import itertools
from collections import deque
from collections.abc import Callable

from qs_schemas import (
    CLIENT_LIMITS,
    Error,
    Fault,
    GetMessage,
    Limits,
    Message,
    Peer,
    ReceiveMessage,
    ReleaseMessage,
    Subscribe,
    Unsubscribe,
)
from qs_schemas.errors import BAD_REQUEST, TOO_LARGE

from .errors import CLOSING, exception_for

_OF_A_DOCUMENT = frozenset((408, 413))
"""Codes of errors that are about one document, also when the server could not read its `req`."""


class Unexpected(Exception):  # noqa: N818 - says what came, and never leaves this package
    """What came does not speak the protocol, or does not belong to any request of this connection."""


class TooLong(Unexpected):
    """A document over the client's bound."""


class Cut(Unexpected):
    """The server could not read a document of ours to its end: the network has cut it off."""


class Ended(Exception):  # noqa: N818 - as above
    """The subscription was ended from this side, and nothing of it is left to hand out."""


class Waiting:
    """What can be waited for. wake: called when it may be ready; None when nobody waits."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    @property
    def ready(self) -> bool:
        """Whether it has come."""
        raise NotImplementedError

    def _has_come(self) -> None:
        if self.wake is not None:
            self.wake()


class Pending(Waiting):
    """A request that is being asked. answer: its own kind of message or an `Error`, None until it has come."""

    __slots__ = ("answer", "request")

    def __init__(self, request: Message) -> None:
        super().__init__()
        self.request = request
        self.answer: Message | None = None

    @property
    def ready(self) -> bool:
        """Whether the answer has come."""
        return self.answer is not None

    def settle(self, answer: Message) -> None:
        """Its answer has come."""
        self.answer = answer
        self._has_come()


class Mailbox(Waiting):
    """Messages in the order in which they came."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[Message] = deque()

    @property
    def ready(self) -> bool:
        """Whether there is one."""
        return bool(self._messages)

    def put(self, message: Message) -> None:
        """Adds one."""
        self._messages.append(message)
        self._has_come()

    def take(self) -> Message | None:
        """The oldest, or None."""
        return self._messages.popleft() if self._messages else None


class Subscription(Mailbox):
    """The deliveries of one subscribe request. asked: the request itself, and its answer; ending: the unsubscribe
    request, once there is one."""

    __slots__ = ("asked", "ending", "over", "request")

    def __init__(self, request: Subscribe, asked: Pending) -> None:
        super().__init__()
        self.request = request
        self.asked = asked
        self.ending: Pending | None = None
        self.over = False  # no delivery is wanted any more, or none will come

    def next(self) -> GetMessage | None:
        """The next delivery, or None until one comes. ServerError when the server has ended the subscription, Ended
        when this side has."""
        message = self.take()
        if message is None and self.ending is not None:
            raise Ended
        if isinstance(message, Error):
            self.put(message)  # it is the last one, and stays
            raise exception_for(message)
        if isinstance(message, GetMessage) and message.qid is None:
            message.qid = self.request.qid  # a server may leave out what was named in the request
        return message if isinstance(message, GetMessage) else None


class Session:
    """Requests get a `req` of their own, and their answers are known by it, in whatever order they are waited for.

    Messages posted (bucker's `send` and `recv`) carry the user's `req` or none. Once there has been one, whatever
    answers no request of ours is kept in `kept`, in the order in which it came; or it goes to `stray`, if that is set.
    """

    def __init__(self, limits: Limits = CLIENT_LIMITS) -> None:
        self.kept = Mailbox()
        self.stray: Callable[[Message], None] | None = None
        self._peer = Peer(limits)
        self._numbers = itertools.count(1)
        self._loose = False
        self._pending: dict[str | None, Pending] = {}  # in the order in which they were asked
        self._subscriptions: dict[str | None, Subscription] = {}
        self._out: deque[bytes] = deque()  # of which threads may add and take at any time

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def open_ended(self) -> bool:
        """Whether the server may send what no request of ours is waiting for."""
        return self._loose or self.stray is not None or bool(self._subscriptions)

    @property
    def owed(self) -> bool:
        """Whether an answer is still to come, be it one that nobody waits for."""
        return bool(self._pending)

    def data_to_send(self) -> bytes:
        """The bytes that are to be sent; each is given once. Empty when there are none."""
        documents: list[bytes] = []
        while self._out:
            documents.append(self._out.popleft())
        return documents[0] if len(documents) == 1 else b"".join(documents)

    def ask(self, request: Message) -> Pending:
        """Sends a request, which gets its own `req`. ValueError when XML cannot carry a field."""
        request.req = f"qs-{next(self._numbers)}"
        self._out.append(self._peer.send(request))
        pending = self._pending[request.req] = Pending(request)
        return pending

    def post(self, message: Message) -> None:
        """Sends a message as it is; its answer is nobody's. ValueError when XML cannot carry a field."""
        self._out.append(self._peer.send(message))
        self._loose = True

    def subscribe(self, request: Subscribe) -> Subscription:
        """Subscribes. Deliveries come to the subscription; the answer, or the error, to what it has `asked`."""
        asked = self.ask(request)
        subscription = self._subscriptions[request.req] = Subscription(request, asked)
        return subscription

    def end(self, subscription: Subscription) -> Pending | None:
        """Unsubscribes, and gives back what was not taken, be it here or on its way. Returns what asks for that, None
        when the server had ended the subscription."""
        if subscription.over:
            return subscription.ending
        subscription.over = True
        subscription.ending = asked = self.ask(Unsubscribe(subscription=subscription.request.req))
        # First it ends, then they go back: else the server would send them here again.
        while (message := subscription.take()) is not None:
            self._release(message)
        return asked

    def drop(self, pending: Pending) -> None:
        """Nobody waits for the answer any more: when it comes, the messages in it are given back."""
        pending.wake = lambda: self._give_back(pending)
        if pending.ready:
            self._give_back(pending)

    # -- what comes in ------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Takes what came, in pieces of any size. `route` makes something of it."""
        self._peer.receive_data(data)

    def end_of_data(self) -> str:
        """How the server's end of the stream came about, in words."""
        inside = self._peer.end_of_data() is not None
        return "closed the connection in the middle of an answer" if inside else "closed the connection"

    def route(self) -> bool:
        """Gives the next message to whom it belongs; False when more bytes are needed for one.

        Unexpected when it belongs to nobody or cannot be read: the stream is out of step then, and must be closed.
        """
        message = self._peer.next_event()
        if message is None:
            return False
        if isinstance(message, Fault):
            raise (TooLong if message.error is TOO_LARGE else Unexpected)(message.text)
        if message.req is None:
            self._without_req(message)
        elif (pending := self._pending.get(message.req)) is not None:
            self._answer(pending, message)
        elif (subscription := self._subscriptions.get(message.req)) is not None:
            self._deliver(subscription, message)
        else:
            self._keep(message)
        return True

    def answer_to(self, pending: Pending) -> Message | None:
        """The answer to a request, or None until more bytes come. Routes what comes before it, and no more."""
        while pending.answer is None and self.route():
            pass
        return pending.answer

    def next_delivery(self, subscription: Subscription) -> GetMessage | None:
        """The subscription's next delivery, or None until more bytes come. ServerError or Ended when it has ended."""
        while (message := subscription.next()) is None and self.route():
            pass
        return message

    def next_message(self) -> Message | None:
        """The next message that answers no request of ours, an `Error` too, or None until more bytes come."""
        self._loose = True
        while not self.kept.ready and self.route():
            pass
        return self.kept.take()

    def _answer(self, pending: Pending, message: Message) -> None:
        request = pending.request
        if not isinstance(message, Error) and (type(message) is not type(request) or message.type != "response"):
            raise Unexpected(f"a {message.type} of {message.op} came in answer to {request.op}")
        del self._pending[message.req]
        if isinstance(message, Error) and (refused := self._subscriptions.pop(message.req, None)) is not None:
            refused.over = True
        if isinstance(request, Unsubscribe):
            self._subscriptions.pop(request.subscription, None)
        pending.settle(message)

    def _deliver(self, subscription: Subscription, message: Message) -> None:
        if isinstance(message, Error):
            subscription.over = True
            del self._subscriptions[message.req]
        elif not isinstance(message, GetMessage):
            raise Unexpected(f"a {message.type} of {message.op} came to a subscription")
        elif subscription.over:
            self._release(message)
            return
        subscription.put(message)

    def _without_req(self, message: Message) -> None:
        """An error that is about the connection goes to whoever waits on it. One that is about a document, to the first
        that has no answer: answers come in order. What then happens to the others, the end of the stream will tell.

        A 400 does not blame a request: each is well-formed and has a `req`, so the server has not read it whole.
        """
        if not isinstance(message, Error) or (self._loose and message.code not in CLOSING):
            self._keep(message)
            return
        if message.code == BAD_REQUEST.code:
            raise Cut(message.text)
        concerned = list(self._pending.values())
        if message.code in _OF_A_DOCUMENT:
            concerned = concerned[:1]
        else:
            for subscription in [each for each in self._subscriptions.values() if not each.over]:
                subscription.over = True
                subscription.put(message)
        if not concerned and not self._subscriptions:
            self._keep(message)
        for pending in concerned:
            del self._pending[pending.request.req]
            pending.settle(message)

    def _keep(self, message: Message) -> None:
        if self.stray is not None:
            self.stray(message)
        elif self._loose:
            self.kept.put(message)
        else:
            raise Unexpected(f"an answer to {message.req!r} came, which was not asked")

    # -- giving back --------------------------------------------------------------------------------------------------

    def _give_back(self, pending: Pending) -> None:
        if isinstance(pending.answer, ReceiveMessage):
            for delivery in pending.answer.messages:
                delivery.qid = delivery.qid or getattr(pending.request, "qid", None)
                self._released(delivery.qid, delivery.mid, delivery.receives)
        elif isinstance(pending.answer, Subscribe) and (found := self._subscriptions.get(pending.request.req)):
            self.end(found)

    def _release(self, message: Message) -> None:
        if isinstance(message, GetMessage):
            self._released(message.qid, message.mid, message.receives)

    def _released(self, qid: str | None, mid: int | None, receives: int | None) -> None:
        if qid is not None and mid is not None:
            self.ask(ReleaseMessage(qid, mid, receives))  # whatever the answer says, nobody waits for it
