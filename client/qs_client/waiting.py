"""Objects to wait for on a connection: an answer, messages, the deliveries of a subscription. Nothing here waits
itself."""

from collections import deque
from collections.abc import Callable

from qs_schemas import Error, GetMessage, Message, Subscribe

from .errors import Ended, exception_for

LINGER = 1.0
"""Seconds that a client which leaves waits for the server: for messages to be released, for acknowledgements to be
taken. An interrupted program must end soon; what is not done by then is done by the end of the window."""

FRESH = 1.0
"""Seconds after the last bytes of the server in which its connection counts as open."""


class Waitable:
    """An object to wait for. wake: called when it may be ready; None when nobody waits.

    The code that routes messages makes the object ready and calls `wake`. So `wake` must not wait or raise.
    """

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    @property
    def ready(self) -> bool:
        """Tells whether waiting is over."""
        raise NotImplementedError

    def _has_come(self) -> None:
        if self.wake is not None:
            self.wake()


class Pending(Waitable):
    """A request without its answer. answer: its own kind of message or an `Error`, None until it has come; size: bytes
    of the request."""

    __slots__ = ("answer", "request", "size")

    def __init__(self, request: Message, size: int = 0) -> None:
        self.wake: Callable[[], None] | None = None  # not through the base class: one is made for each request
        self.request = request
        self.size = size
        self.answer: Message | None = None

    @property
    def ready(self) -> bool:
        return self.answer is not None

    def settle(self, answer: Message) -> None:
        self.answer = answer
        if self.wake is not None:
            self.wake()


class MessageBuffer(Waitable):
    """Messages that nobody has taken yet, in the order in which they came."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[Message] = deque()

    @property
    def ready(self) -> bool:
        return bool(self._messages)

    def put(self, *messages: Message) -> None:
        self._messages.extend(messages)
        self._has_come()

    def take(self) -> Message | None:
        """Returns the oldest message, or None."""
        return self._messages.popleft() if self._messages else None


class Lease:
    """Notes how messages were received. visibility: the seconds of their window, None for the queue's own; lost: the
    connection of their subscription has ended, so the server has taken back all that were not acknowledged.

    One Lease is shared by all messages of a subscription, so a lost connection is noted once. A `delete` that comes too
    late for a message of a lost connection is not an error; the Lease tells it from one that is.

    A Lease is a part of messages that programs may pickle, so it refers to nothing.
    """

    __slots__ = ("lost", "visibility")

    def __init__(self, visibility: float | None) -> None:
        self.visibility = visibility
        self.lost = False


class Subscription(MessageBuffer):
    """The deliveries of a subscribe request.

    asked: the request and its answer; ending: the unsubscribe request, once it is sent; over: no delivery is wanted, or
    none will come; released: messages were released at its end; skipped: one could not be read; lease: shared by all
    messages that are delivered.
    """

    __slots__ = ("asked", "ending", "lease", "over", "released", "request", "skipped")

    def __init__(self, request: Subscribe, asked: Pending) -> None:
        super().__init__()
        self.request = request
        self.asked = asked
        self.ending: Pending | None = None
        self.released = False
        self.skipped = False
        self.lease = Lease(request.visibility)
        self.over = False

    def next(self) -> GetMessage | None:
        """Returns the next delivery, or None until one comes. Raises ServerError when the server has ended the
        subscription, Ended when this side has."""
        if not self._messages:
            if self.ending is not None:
                raise Ended
            return None
        message = self._messages[0]
        if type(message) is not GetMessage:  # an error: it stays the last message, and each further call raises it
            assert isinstance(message, Error)  # noqa: S101 - nothing else is put in
            raise exception_for(message)
        self._messages.popleft()
        message.lease = self.lease
        if message.qid is None:
            message.qid = self.request.qid  # servers may leave out the queue of the request
        return message


class DroppedRequest(Waitable):
    """A request whose answer no caller waits for any more. Ready when the messages in its answer have been released."""

    __slots__ = ("_asked", "_has_answer")

    def __init__(self) -> None:
        super().__init__()
        self._has_answer = False
        self._asked: list[Pending] = []

    @property
    def ready(self) -> bool:
        return self._has_answer and all(asked.ready for asked in self._asked)

    def begin(self, asked: list[Pending]) -> None:
        """Notes that the answer has come. asked: the requests that release its messages."""
        self._has_answer = True
        self._asked = asked
        for each in asked:
            each.wake = self._has_come
        self._has_come()
