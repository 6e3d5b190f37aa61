"""The conversation on one connection, without I/O: matches messages with requests.

Bytes in, bytes out, over the `Peer` of qs_schemas, for the sync and the async clients. `connection` and
`async_connection` move the bytes, and wait: a waiter sets `wake`, which is called when what it waits for has come.
"""

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial

from qs_schemas import (
    CLIENT_LIMITS,
    Authenticate,
    Error,
    Fault,
    GetMessage,
    Limits,
    Message,
    Peer,
    Ping,
    ReleaseMessage,
    ServerStats,
    Subscribe,
    Unsubscribe,
)
from qs_schemas.errors import BAD_REQUEST, INTERNAL, NOT_IMPLEMENTED, TOO_LARGE
from qs_schemas.templates import write
from qs_schemas.wire import NAMESPACE

from .acknowledgements import Acknowledgements
from .errors import (
    UNREADABLE,
    Cut,
    OtherProgram,
    SpeaksHttp,
    SpeaksTls,
    TooLong,
    Unexpected,
    always_closes,
    closes,
    exception_for,
    log,
)
from .skimming import Skim, may_hold_messages, releases_of
from .waiting import DroppedRequest, Lease, MessageBuffer, Pending, Subscription

_DOCUMENT_ERRORS = frozenset((408, 413))
"""Codes of errors about one document, also when the server could not read its `req`."""

_TLS = (b"\x15\x03", b"\x16\x03")
"""The first bytes of a TLS stream: an alert or a handshake, of version 3."""

_HTTP = (b"http/", b"<!doctype html", b"<html")
"""The first bytes, in lower case, of an HTTP server's answer to what is not HTTP. Some send the page alone."""

_BEGINNING = 16
"""The first bytes of a stream that are kept: they tell what else than the protocol the other side speaks. The longest
beginning above has 14."""

_TOGETHER = 64
"""Messages that are read before they are routed: what came together is read together."""

GREETING = "qs-0"
"""The `req` of the first request of a connection."""

_FOR_ANY_PROGRAM = (Authenticate, ServerStats)
"""The requests that a client of one program may make of another: the figures of the bus are asked for like those of the
server."""

_HEAD = f'<qs xmlns="{NAMESPACE}" type="request" req="{GREETING}">'
_GREETING = f"{_HEAD}\r\n\r\n<op><ping/></op></qs>\r\n".encode()
"""The first document of a connection, which goes out with the first request: a `ping`, whose answer names the program
that listens. So a bus never takes a client that connects for one that only listens. An HTTP server waits for the empty
line, the end of a request's head, before it answers that it does not understand."""


class Session:
    """Gives each request a `req` of its own, by which its answer is recognized, in any order.

    Ensures
    1. A request gets its own answer or an error about it, once. An answer of another kind, or to no request, raises
       Unexpected: the connection is out of step, and any further answer could be that of somebody else.
    2. A message that the program will not see goes back to its queue: what still comes to a subscription that has
       ended, and what is in the answer to a request that was dropped.
    3. Another program than the expected one is reported, with OtherProgram, before any of its answers is believed.
    4. An answer that is well-formed and not valid fails its request alone.

    Posted messages (bucker's `send` and `recv`) keep the user's `req` or have none, so their answers cannot be told
    from other messages. From the first one on, messages that answer no request go to `on_unmatched`, if it is set, or
    else to `unmatched`, in order, and 3. holds no longer: programs may speak to a bus that way, as bucker's do.

    Assumes one thread at a time that calls `receive_data`, `route` and what routes; another one may call `ask`, `end`
    and `data_to_send` meanwhile.
    Never reads, writes or waits. After Unexpected it is of no more use.
    """

    def __init__(self, limits: Limits = CLIENT_LIMITS, program: str | None = None) -> None:
        """program: the name of the expected one; None: the session does not ask which program answers."""
        self.unmatched = MessageBuffer()
        self.on_unmatched: Callable[[Message], None] | None = None
        self.releases: list[ReleaseMessage] = []  # releases to send on another connection
        self._skim: Skim | None = None
        self._peer = Peer(limits, keep_too_large=True)
        self._beginning = b""  # the first bytes that have come
        self._events: deque[Message | Fault] = deque()  # what has been read, and is not routed yet
        self._may_be_more = False  # the peer may have more events in the bytes that it has
        self._unread = b""  # bytes that came while there were events: an error among these changes how they are read
        self.is_routed = True
        """True if `route` has taken all that has come. If False, a farewell of the server may be left."""
        self._numbers = itertools.count(1)
        self._has_posted = False
        self._program = program
        self._other = ""  # the name of the program at the other side, if it is not the one expected
        self._pending: dict[str | None, Pending] = {}  # in order of request
        self._subscriptions: dict[str | None, Subscription] = {}
        self._acknowledgements: dict[Lease, Acknowledgements] = {}  # by the lease of their messages
        self.unsent: deque[bytes] = deque()
        """The documents to send. Threads may add at any time; `data_to_send` or the sender takes them."""
        self.greeting: Pending | None = None  # the request that asks for the program's name
        if program is not None:
            self.unsent.append(_GREETING)
            self.greeting = self._pending[GREETING] = Pending(Ping(req=GREETING))

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def may_get_unasked(self) -> bool:
        """Tells whether the server may send messages that no request waits for: then data is not a sign of the end."""
        return self._has_posted or self.on_unmatched is not None or bool(self._subscriptions)

    @property
    def checks_program(self) -> bool:
        """Tells whether the other side has to be the expected program, which holds until a message is posted."""
        return self._program is not None

    def check_program(self) -> None:
        """Raises OtherProgram if the other side has said that it is another one than expected, ServerError if it has
        ended the connection instead."""
        if self._other:
            raise OtherProgram(self._other)
        answer = None if self.greeting is None else self.greeting.answer
        if isinstance(answer, Error) and closes(answer):
            raise exception_for(answer)

    @property
    def awaits_answer(self) -> bool:
        """Tells whether an answer is still to come, even if no caller waits for it."""
        return bool(self._pending)

    def data_to_send(self) -> bytes:
        """Returns the bytes to send, each only once. Empty when there are none."""
        out = self.unsent
        if not out:
            return b""
        data = out.popleft()
        if not out:
            return data  # mostly there is one, and a large document is not copied
        documents = [data]
        while out:  # taken one by one, as another thread may add one at any time
            documents.append(out.popleft())
        return b"".join(documents)

    def ask(self, request: Message) -> Pending:
        """Sends a request with a new `req`. Raises ValueError if XML cannot carry a field."""
        request._req = req = f"qs-{next(self._numbers)}"  # type: ignore[misc] # text, so no check is needed
        data = write(request)
        pending = object.__new__(Pending)  # made in half of the time that the constructor takes
        pending.wake = pending.answer = None
        pending.request, pending.size = request, len(data)
        # Before it can go out: another thread that reads may send it at once, and then the answer needs its request.
        self._pending[req] = pending
        self.unsent.append(data)
        return pending

    def post(self, message: Message) -> None:
        """Sends a message unchanged. Its answer belongs to no request. Raises ValueError if XML cannot carry a
        field."""
        self.unsent.append(write(message))
        self._has_posted = True
        self._program, self._other = None, ""  # from now on, any program may be at the other side

    def subscribe(self, request: Subscribe, acknowledgements: Acknowledgements | None = None) -> Subscription:
        """Subscribes. Deliveries go to the subscription; the answer, or the error, goes to its `asked`.

        acknowledgements: those of the subscription. What earlier connections have left open is written first: the
        server would otherwise deliver these messages again.
        """
        if acknowledgements is not None:
            self.acknowledge_again(acknowledgements)
        asked = self.ask(request)
        subscription = self._subscriptions[request.req] = Subscription(request, asked)
        if acknowledgements is not None:
            for lease in [lease for lease, each in self._acknowledgements.items() if each.ended and each.last is None]:
                del self._acknowledgements[lease]
            self._acknowledgements[subscription.lease] = acknowledgements
        return subscription

    def acknowledge(self, lease: Lease, request: Message) -> bool:
        """Sends the request that acknowledges a message of this lease, if nobody has to wait for its answer. Returns
        False, and sends nothing, if somebody has to: the subscription is not one whose acknowledgements go behind, or
        it has ended, or too many are open."""
        acknowledgements = self._acknowledgements.get(lease)
        if acknowledgements is None or not acknowledgements.has_room:
            return False
        for refused in acknowledgements.take_refused():
            acknowledgements.add(self.ask(refused), repeated=True)
        acknowledgements.add(self.ask(request))
        return True

    def acknowledge_again(self, acknowledgements: Acknowledgements) -> None:
        """Sends the acknowledgements that another connection has left open."""
        for request in acknowledgements.take():
            acknowledgements.add(self.ask(request), repeated=True)

    @property
    def unconfirmed(self) -> list[Acknowledgements]:
        """The acknowledgements of the subscriptions of this connection whose answers have not all come."""
        return [each for each in self._acknowledgements.values() if each.last is not None]

    def end(self, subscription: Subscription) -> Pending | None:
        """Unsubscribes, and releases messages that were not handed out, also those still to come. Returns the
        unsubscribe request, or None when the server had ended the subscription."""
        if (acknowledgements := self._acknowledgements.get(subscription.lease)) is not None:
            acknowledgements.ended = True
        if subscription.over:
            return subscription.ending
        subscription.over = True
        subscription.ending = asked = self.ask(Unsubscribe(subscription=subscription.request.req))
        # After the unsubscribe request: the server would otherwise deliver them here again.
        self._release_rest(subscription)
        return asked

    def drop(self, pending: Pending) -> DroppedRequest:
        """Stops waiting for an answer. If the answer still comes, its messages are released, and then the result
        becomes ready."""
        dropped = DroppedRequest()
        pending.wake = lambda: dropped.begin(self._undo(pending))
        if pending.ready:
            pending.wake()
        return dropped

    # -- what comes in ------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Takes bytes in pieces of any size. `route` interprets them."""
        if len(self._beginning) < _BEGINNING:
            self._beginning += data[: _BEGINNING - len(self._beginning)]
        self.is_routed = False
        if self._skim is not None:
            self._skim.feed(data)
        elif self._events:
            self._unread += data
        else:
            self._may_be_more = self._peer.read_into(self._events, _TOGETHER, data)

    def end_of_data(self) -> str:
        """Notes the end of the stream. Returns how the server ended it, in words."""
        inside = self._peer.end_of_data() is not None
        if inside and self._beginning.startswith(_TLS):
            return "speaks TLS (use qss:// or tls=True) and closed the connection"
        return "closed the connection in the middle of an answer" if inside else "closed the connection"

    @property
    def heard(self) -> bool:
        """Tells whether the server has sent anything."""
        return bool(self._beginning)

    def route(self) -> bool:  # noqa: C901 - its steps, without a call each
        """Passes the next message on to its request, or the next deliveries of one subscription to it. Returns False
        when more bytes are needed.

        Raises Unexpected when the message belongs to no request or cannot be read; the connection must then be closed.
        """
        events = self._events
        if not events and not self._read_on():
            return False
        message = events.popleft()
        if not events and not self._may_be_more and not self._unread:
            self.is_routed = True  # so that another call can be saved
        if isinstance(message, Fault):
            return self._take_fault(message)
        req = message._req
        pending = None if req is None else self._pending.get(req)
        if pending is None:
            self._take_other(message)
            return True
        request = pending.request
        kind = type(request)
        refused = type(message) is not kind or message._type != "response"
        if refused and not isinstance(message, Error):
            raise Unexpected(f"a {message.type} of {message.op} came in answer to {request.op}")
        if self._other and not isinstance(request, _FOR_ANY_PROGRAM):
            raise OtherProgram(self._other)
        if pending is self.greeting:
            if isinstance(message, Error) and always_closes(message.code, message.kind):
                # A server that is full or stops says so to the first request of a connection, the greeting, and to no
                # other: the program's request behind it would wait in vain.
                self._take_without_req(message)
                return True
            self._take_name(message)
        del self._pending[req]
        if refused and (subscription := self._subscriptions.pop(req, None)) is not None:
            subscription.over = True
        if kind is Unsubscribe:  # only now: deliveries that crossed the request have been released
            self._subscriptions.pop(request.subscription, None)  # type: ignore[attr-defined]
        pending.settle(message)
        return True

    def _take_other(self, message: Message) -> None:
        """Passes on a message that answers no request."""
        if message.req is None:
            self._take_without_req(message)
        elif (subscription := self._subscriptions.get(message.req)) is not None:
            self._deliver(subscription, message)
        else:
            self._take_unmatched(message)

    def _read_on(self) -> bool:
        """Reads bytes that have come and are not read yet. Returns and raises what `route` does."""
        if self._skim is not None:
            return self._skimmed(self._skim)
        if self._unread or self._may_be_more:
            data, self._unread = self._unread, b""
            self._may_be_more = self._peer.read_into(self._events, _TOGETHER, data)
        self.is_routed = not self._events
        return not self.is_routed

    def _take_fault(self, fault: Fault) -> bool:
        """Handles data that breaks the contract. Returns and raises what `route` does."""
        if self._beginning.startswith(_TLS):
            raise SpeaksTls
        begun = self._beginning.lower()
        if begun.startswith(_HTTP) or any(each.startswith(begun) for each in _HTTP):  # it may have come in pieces
            raise SpeaksHttp
        if not fault.error.closes and fault.req is not None:
            self._unreadable(fault, fault.req)
            return True
        if fault.error is not TOO_LARGE:
            raise Unexpected(fault.text)
        # The messages in the answer are in flight: they would wait for their window to end. So it is read on.
        self._skim = Skim(self._peer.too_large + self._unread, fault.text)
        return self._skimmed(self._skim)

    def _unreadable(self, fault: Fault, req: str) -> None:
        """Fails the request whose answer is well-formed, but not valid. Leaves an invalid delivery with the server,
        which makes the message visible again when its window or the connection ends."""
        subscription = self._subscriptions.get(req)
        if req in self._pending or subscription is None:
            text = f"the answer cannot be read, and the request may have been done: {fault.text}"
            error = Error(INTERNAL.code, UNREADABLE, text, req=req)
            self._events.appendleft(error)  # it is routed like one of the server
            self.is_routed = False
        elif not subscription.skipped:
            subscription.skipped = True
            queues = subscription.request.qid or ", ".join(subscription.request.queues)
            log(
                "warning",
                f"a message of the subscription to {queues} cannot be read, and is left to the server (others like it "
                f"are not reported): {fault.text}",
            )

    def _skimmed(self, skim: Skim) -> bool:
        """Reads an answer that is too long to its end if it may hold messages, to release them."""
        pending = self._pending.get(skim.req)
        if pending is not None and may_hold_messages(pending.request):
            if not skim.ended:
                return False
            self.releases = skim.releases(pending.request)
        raise TooLong(skim.text)

    def answer_to(self, pending: Pending) -> Message | None:
        """Returns the answer to a request, or None until more bytes come. Routes no more than needed: an error of what
        comes after the answer is for the next call."""
        while pending.answer is None and not self.is_routed and self.route():
            pass
        return pending.answer

    def next_delivery(self, subscription: Subscription) -> GetMessage | None:
        """Returns the subscription's next delivery, or None until more bytes come. Raises ServerError or Ended if it
        has ended."""
        while (message := subscription.next()) is None and self.route():
            pass
        return message

    def next_message(self) -> Message | None:
        """Returns the next message that answers no request, an `Error` too, or None until more bytes come."""
        self._has_posted = True
        while not self.unmatched.ready and self.route():
            pass
        if self._other:
            raise OtherProgram(self._other)
        return self.unmatched.take()

    def _take_name(self, answer: Message) -> None:
        """Takes the answer to the greeting. A server of an earlier version does not name itself, and a bus of one
        answers with an error: they are taken for what is expected."""
        name = answer.name if isinstance(answer, Ping) else None
        if name is not None and self._program is not None and name != self._program:
            self._other = name

    def _deliver(self, subscription: Subscription, message: Message) -> None:
        if isinstance(message, Error):  # the server has ended it, as when its queues were deleted
            subscription.over = True
            del self._subscriptions[message.req]
        elif not isinstance(message, GetMessage):
            raise Unexpected(f"a {message.type} of {message.op} came to a subscription")
        elif subscription.over:
            self._release(message)
            subscription.released = True
            return
        else:
            events, found = self._events, [message]
            # Those that came with it need no look at each.
            while events and type(events[0]) is GetMessage and events[0]._req == message._req:
                found.append(events.popleft())  # type: ignore[arg-type] # its type was looked at
            self.is_routed = not (events or self._may_be_more or self._unread)
            subscription.put(*found)
            if subscription.over:  # since another thread has ended it, and may have seen none of them
                self._release_rest(subscription)
            return
        subscription.put(message)

    def _take_without_req(self, message: Message) -> None:
        """Handles a message without `req`. An error about the connection goes to all that wait on it; one about a
        document to the first request without an answer, as answers come in order. The end of the stream then tells the
        other requests.

        A 400 blames no request: all are well-formed and have a `req`, so the server has not read a whole one. The
        network has cut it off, and the caller may repeat it, which it must not after a BadRequest.
        """
        if not isinstance(message, Error) or (self._has_posted and not always_closes(message.code, message.kind)):
            # A posted message may have no req, and then its answer has none.
            self._take_unmatched(message)
            return
        if message.code == BAD_REQUEST.code:
            raise Cut(message.text)
        concerned = list(self._pending.items())  # with the `req` of each: a request that is sent again has a new one
        if message.code in _DOCUMENT_ERRORS:
            # Not the greeting, which is short and goes out with the request behind it.
            concerned = [(req, pending) for req, pending in concerned if pending is not self.greeting][:1]
        else:
            for subscription in [each for each in self._subscriptions.values() if not each.over]:
                subscription.over = True
                subscription.put(message)
        # The greeting is nobody's request: an error that only it waits for would be lost with it.
        others = [pending for _, pending in concerned if pending is not self.greeting]
        if not others and not self._subscriptions and (self._has_posted or not concerned):
            self._take_unmatched(message)
        for req, pending in concerned:
            del self._pending[req]
            pending.settle(message)

    def _take_unmatched(self, message: Message) -> None:
        if self.on_unmatched is not None:
            self.on_unmatched(message)
        elif self._has_posted:
            self.unmatched.put(message)
        else:
            raise Unexpected(f"an unexpected answer to {message.req!r} came")

    # -- releasing what nobody takes ----------------------------------------------------------------------------------

    def _undo(self, pending: Pending) -> list[Pending]:
        """Takes back the messages in an answer that no caller waits for. Returns the requests that release them."""
        if isinstance(pending.answer, Subscribe) and (found := self._subscriptions.get(pending.request.req)):
            ending = self.end(found)
            return [] if ending is None else [ending]
        return [self.ask(release) for release in releases_of(pending.request, pending.answer)]

    def _release_rest(self, subscription: Subscription) -> None:
        """Releases the messages that a subscription has not handed out."""
        while (message := subscription.take()) is not None:
            subscription.released = True
            self._release(message)

    def _release(self, message: Message) -> None:
        """Releases a delivery that the program has not seen, without counting its receive. A storage that cannot take a
        receive back refuses that, and then the receive counts."""
        for release in releases_of(message, message):
            release.uncounted = True
            asked = self.ask(release)  # nobody waits for the answer
            asked.wake = partial(self._release_counted, asked, release)

    def _release_counted(self, asked: Pending, refused: ReleaseMessage) -> None:
        """Releases a delivery whose uncounted release was refused: one counted receive too many is better than a
        message hidden for a whole window."""
        if isinstance(asked.answer, Error) and asked.answer.code == NOT_IMPLEMENTED.code:
            self.ask(ReleaseMessage(refused.qid, refused.mid, refused.receives))
