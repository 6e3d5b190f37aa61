"""The conversation on one connection, without I/O: matches messages with requests.

Bytes in, bytes out, over the `Peer` of qs_schemas, for the sync and the async client. A waiter sets `wake`, which is
called when what it waits for has come.
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
from qs_schemas.errors import BAD_REQUEST, INTERNAL, TOO_LARGE

from .errors import CLOSING, UNREADABLE
from .outages import log
from .skimming import Skim, may_hold_messages, releases_of
from .stream_errors import Cut, SpeaksTls, TooLong, Unexpected
from .waiting import DroppedRequest, Mailbox, Pending, Subscription

_DOCUMENT_ERRORS = frozenset((408, 413))
"""Codes of errors about one document, also when the server could not read its `req`."""

_TLS = (b"\x15\x03", b"\x16\x03")
"""The first bytes of a TLS stream: an alert or a handshake, of version 3."""


class Session:
    """Gives each request a `req` of its own, by which its answer is recognized, in any order.

    Posted messages (bucker's `send` and `recv`) keep the user's `req` or have none. From the first one on, messages
    that answer no request go to `on_unmatched`, if it is set, or else to `unmatched`, in order.
    """

    def __init__(self, limits: Limits = CLIENT_LIMITS) -> None:
        self.unmatched = Mailbox()
        self.on_unmatched: Callable[[Message], None] | None = None
        self.returns: list[ReleaseMessage] = []  # releases to send on another connection
        self._skim: Skim | None = None
        self._peer = Peer(limits, keep_too_large=True)
        self._beginning = b""  # the first bytes that have come
        self._numbers = itertools.count(1)
        self._has_posted = False
        self._pending: dict[str | None, Pending] = {}  # in order of request
        self._subscriptions: dict[str | None, Subscription] = {}
        self._out: deque[bytes] = deque()  # threads may add and take at any time

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def may_get_unasked(self) -> bool:
        """Tells whether the server may send messages that no request waits for."""
        return self._has_posted or self.on_unmatched is not None or bool(self._subscriptions)

    @property
    def awaits_answer(self) -> bool:
        """Tells whether an answer is still to come, even if nobody waits for it."""
        return bool(self._pending)

    def data_to_send(self) -> bytes:
        """Returns the bytes to send, each only once. Empty when there are none."""
        documents: list[bytes] = []
        while self._out:
            documents.append(self._out.popleft())
        return documents[0] if len(documents) == 1 else b"".join(documents)

    def ask(self, request: Message) -> Pending:
        """Sends a request with a new `req`. ValueError when XML cannot carry a field."""
        request.req = f"qs-{next(self._numbers)}"
        self._out.append(self._peer.send(request))
        pending = self._pending[request.req] = Pending(request)
        return pending

    def post(self, message: Message) -> None:
        """Sends a message unchanged. Its answer belongs to no request. ValueError when XML cannot carry a field."""
        self._out.append(self._peer.send(message))
        self._has_posted = True

    def subscribe(self, request: Subscribe) -> Subscription:
        """Subscribes. Deliveries go to the subscription; the answer, or the error, to its `asked`."""
        asked = self.ask(request)
        subscription = self._subscriptions[request.req] = Subscription(request, asked)
        return subscription

    def end(self, subscription: Subscription) -> Pending | None:
        """Unsubscribes, and releases messages that were not handed out, also those still to come. Returns the
        unsubscribe request, or None when the server had ended the subscription."""
        if subscription.over:
            return subscription.ending
        subscription.over = True
        subscription.ending = asked = self.ask(Unsubscribe(subscription=subscription.request.req))
        # After the unsubscribe request: the server would otherwise deliver them here again.
        while (message := subscription.take()) is not None:
            self._release(message)
        return asked

    def drop(self, pending: Pending) -> DroppedRequest:
        """Stops waiting for an answer: messages in it are released when it comes. The result becomes ready when that is
        done."""
        returning = DroppedRequest()
        pending.wake = lambda: returning.begin(self._give_back(pending))
        if pending.ready:
            pending.wake()
        return returning

    # -- what comes in ------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Takes bytes in pieces of any size. `route` interprets them."""
        if not self._beginning:
            self._beginning = data[:2]
        if self._skim is not None:
            self._skim.feed(data)
        else:
            self._peer.receive_data(data)

    def end_of_data(self) -> str:
        """Returns how the server ended the stream, in words."""
        inside = self._peer.end_of_data() is not None
        if inside and self._beginning in _TLS:
            return "speaks TLS (use qss:// or tls=True) and closed the connection"
        return "closed the connection in the middle of an answer" if inside else "closed the connection"

    @property
    def heard(self) -> bool:
        """Tells whether the server has sent anything."""
        return bool(self._beginning)

    def route(self) -> bool:
        """Passes the next message on to its request. Returns False when more bytes are needed.

        Raises Unexpected when the message belongs to no request or cannot be read; the connection must then be closed.
        """
        if self._skim is not None:
            return self._skimmed(self._skim)
        message = self._peer.next_event()
        if message is None:
            return False
        if isinstance(message, Fault):
            if self._beginning in _TLS:
                raise SpeaksTls
            if not message.error.closes and message.req is not None:
                self._unreadable(message, message.req)
                return True
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

    def _unreadable(self, fault: Fault, req: str) -> None:
        """Fails the request of an answer that is well-formed, and not valid. Leaves a delivery with the server, which
        makes it visible again when its window or the connection ends."""
        subscription = self._subscriptions.get(req)
        if req in self._pending or subscription is None:
            text = f"the answer cannot be read, and the request may have been done: {fault.text}"
            error = Error(INTERNAL.code, UNREADABLE, text, req=req)
            pending = self._pending.get(req)
            if pending is None:
                self._keep(error)
            else:
                self._answer(pending, error)
        elif not subscription.skipped:
            subscription.skipped = True
            queues = subscription.request.qid or ", ".join(subscription.request.queues)
            log(
                "warning",
                f"a message of the subscription to {queues} cannot be read, and is left to the server (others like it "
                f"are not reported): {fault.text}",
            )

    def _skimmed(self, skim: Skim) -> bool:
        """Reads an answer that is too long to its end if it holds messages, to release them."""
        pending = self._pending.get(skim.req)
        if pending is not None and may_hold_messages(pending.request):
            if not skim.ended:
                return False
            self.returns = skim.releases(pending.request)
        raise TooLong(skim.text)

    def answer_to(self, pending: Pending) -> Message | None:
        """Returns the answer to a request, or None until more bytes come. Routes no more than needed."""
        while pending.answer is None and self.route():
            pass
        return pending.answer

    def next_delivery(self, subscription: Subscription) -> GetMessage | None:
        """Returns the subscription's next delivery, or None until more bytes come. ServerError or Ended when it has
        ended."""
        while (message := subscription.next()) is None and self.route():
            pass
        return message

    def next_message(self) -> Message | None:
        """Returns the next message that answers no request, an `Error` too, or None until more bytes come."""
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
        """Handles a message without `req`. An error about the connection goes to all that wait on it; one about a
        document to the first request without an answer, as answers come in order. The end of the stream then tells the
        other requests.

        A 400 blames no request: all are well-formed and have a `req`, so the server has not read a whole one.
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
            raise Unexpected(f"an unexpected answer to {message.req!r} came")

    # -- giving back --------------------------------------------------------------------------------------------------

    def _give_back(self, pending: Pending) -> list[Pending]:
        if isinstance(pending.answer, Subscribe) and (found := self._subscriptions.get(pending.request.req)):
            ending = self.end(found)
            return [] if ending is None else [ending]
        return [self.ask(release) for release in releases_of(pending.request, pending.answer)]

    def _release(self, message: Message) -> None:
        for release in releases_of(message, message):
            self.ask(release)  # nobody waits for the answer
