"""What can be waited for on a connection: an answer, messages, the deliveries of a subscription. Nothing here waits."""

from collections import deque
from collections.abc import Callable

from qs_schemas import Error, GetMessage, Message, Subscribe

from .errors import exception_for
from .stream_errors import Ended

LINGER = 1.0
"""Seconds that a client which leaves waits for the server: for messages that go back, for acknowledgements to be
taken."""


class Waitable:
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


class Pending(Waitable):
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


class Mailbox(Waitable):
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


class DroppedRequest(Waitable):
    """A request that nobody waits for any more. Ready when what its answer holds has been given back."""

    __slots__ = ("_asked", "_begun")

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._asked: list[Pending] = []

    @property
    def ready(self) -> bool:
        """Whether the server has confirmed all of it."""
        return self._begun and all(asked.ready for asked in self._asked)

    def begin(self, asked: list[Pending]) -> None:
        """The answer has come. asked: what gives back what is in it."""
        self._begun = True
        self._asked = asked
        for each in asked:
            each.wake = self._has_come
        self._has_come()
