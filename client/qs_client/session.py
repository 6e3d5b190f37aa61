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
    ReleaseMessage,
    Subscribe,
    Unsubscribe,
)
from qs_schemas.errors import BAD_REQUEST, TOO_LARGE

from .errors import CLOSING
from .skimming import Skim, may_hold_messages, releases_of
from .stream_errors import Cut, TooLong, Unexpected
from .waiting import DroppedRequest, Mailbox, Pending, Subscription

_DOCUMENT_ERRORS = frozenset((408, 413))
"""Codes of errors that are about one document, also when the server could not read its `req`."""


class Session:
    """Requests get a `req` of their own, and their answers are known by it, in whatever order they are waited for.

    Messages posted (bucker's `send` and `recv`) carry the user's `req` or none. Once there has been one, whatever
    answers no request of ours is kept in `kept`, in the order in which it came; or it goes to `stray`, if that is set.
    """

    def __init__(self, limits: Limits = CLIENT_LIMITS) -> None:
        self.unmatched = Mailbox()
        self.on_unmatched: Callable[[Message], None] | None = None
        self.returns: list[ReleaseMessage] = []  # what is to be given back on another connection
        self._skim: Skim | None = None
        self._peer = Peer(limits, keep_too_large=True)
        self._numbers = itertools.count(1)
        self._has_posted = False
        self._pending: dict[str | None, Pending] = {}  # in the order in which they were asked
        self._subscriptions: dict[str | None, Subscription] = {}
        self._out: deque[bytes] = deque()  # of which threads may add and take at any time

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def may_get_unasked(self) -> bool:
        """Whether the server may send what no request of ours is waiting for."""
        return self._has_posted or self.on_unmatched is not None or bool(self._subscriptions)

    @property
    def awaits_answer(self) -> bool:
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
        self._has_posted = True

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

    def drop(self, pending: Pending) -> DroppedRequest:
        """Nobody waits for the answer any more: when it comes, the messages in it are given back. What tells when they
        are."""
        returning = DroppedRequest()
        pending.wake = lambda: returning.begin(self._give_back(pending))
        if pending.ready:
            pending.wake()
        return returning

    # -- what comes in ------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Takes what came, in pieces of any size. `route` makes something of it."""
        if self._skim is not None:
            self._skim.feed(data)
        else:
            self._peer.receive_data(data)

    def end_of_data(self) -> str:
        """How the server's end of the stream came about, in words."""
        inside = self._peer.end_of_data() is not None
        return "closed the connection in the middle of an answer" if inside else "closed the connection"

    def route(self) -> bool:
        """Gives the next message to whom it belongs; False when more bytes are needed for one.

        Unexpected when it belongs to nobody or cannot be read: the stream is out of step then, and must be closed.
        """
        if self._skim is not None:
            return self._skimmed(self._skim)
        message = self._peer.next_event()
        if message is None:
            return False
        if isinstance(message, Fault):
            if message.error is not TOO_LARGE:
                raise Unexpected(message.text)
            self._skim = Skim(self._peer.too_large, message.text)
            return self._skimmed(self._skim)
        if message.req is None:
            self._without_req(message)
        elif (pending := self._pending.get(message.req)) is not None:
            self._answer(pending, message)
        elif (subscription := self._subscriptions.get(message.req)) is not None:
            self._deliver(subscription, message)
        else:
            self._keep(message)
        return True

    def _skimmed(self, skim: Skim) -> bool:
        """An answer that is too long to be kept is read to its end all the same if it has messages in it: they go
        back."""
        pending = self._pending.get(skim.req)
        if pending is not None and may_hold_messages(pending.request):
            if not skim.ended:
                return False
            self.returns = skim.releases(pending.request)
        raise TooLong(skim.text)

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
        self._has_posted = True
        while not self.unmatched.ready and self.route():
            pass
        return self.unmatched.take()

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
        if not isinstance(message, Error) or (self._has_posted and message.code not in CLOSING):
            self._keep(message)
            return
        if message.code == BAD_REQUEST.code:
            raise Cut(message.text)
        concerned = list(self._pending.values())
        if message.code in _DOCUMENT_ERRORS:
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
        if self.on_unmatched is not None:
            self.on_unmatched(message)
        elif self._has_posted:
            self.unmatched.put(message)
        else:
            raise Unexpected(f"an answer to {message.req!r} came, which was not asked")

    # -- giving back --------------------------------------------------------------------------------------------------

    def _give_back(self, pending: Pending) -> list[Pending]:
        if isinstance(pending.answer, Subscribe) and (found := self._subscriptions.get(pending.request.req)):
            ending = self.end(found)
            return [] if ending is None else [ending]
        return [self.ask(release) for release in releases_of(pending.request, pending.answer)]

    def _release(self, message: Message) -> None:
        for release in releases_of(message, message):
            self.ask(release)  # whatever the answer says, nobody waits for it
