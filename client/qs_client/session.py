"""The conversation on one connection, without the connection: which answer belongs to which request.

Bytes in, messages out, over the `Peer` of qs_schemas. No sockets here: the sync and the async client both use it.
"""

import itertools
from collections import deque

from qs_schemas import CLIENT_LIMITS, Error, Fault, Limits, Message, Peer
from qs_schemas.errors import TOO_LARGE

from .errors import CLOSING


class Unexpected(Exception):  # noqa: N818 - says what came, and never leaves this package
    """What came does not speak the protocol, or does not belong to any request of this connection."""


class TooLong(Unexpected):
    """A document over the client's bound."""


class Session:
    """Requests get a `req` of their own, and their answers are known by it.

    Messages sent loose (bucker's `send` and `recv`, subscriptions) carry the user's `req` or none. Once there has been
    one, whatever answers no request of ours is kept for `next_message`, in the order in which it came.
    """

    def __init__(self, limits: Limits = CLIENT_LIMITS) -> None:
        self._peer = Peer(limits)
        self._kept: deque[Message] = deque()
        self._numbers = itertools.count(1)
        self._loose = False

    @property
    def loose(self) -> bool:
        """Whether messages may come that no request of ours is waiting for."""
        return self._loose

    def loose_document(self, message: Message) -> bytes:
        """The bytes of a message that is sent as it is. ValueError when XML cannot carry a field."""
        document = self._peer.send(message)
        self._loose = True
        return document

    def document(self, request: Message) -> bytes:
        """The bytes of a request, which gets its own `req`. ValueError when XML cannot carry a field."""
        request.req = f"qs-{next(self._numbers)}"
        return self._peer.send(request)

    def receive_data(self, data: bytes) -> None:
        """Takes what came, in pieces of any size."""
        self._peer.receive_data(data)

    def end_of_data(self) -> str:
        """How the server's end of the stream came about, in words."""
        inside = self._peer.end_of_data() is not None
        return "closed the connection in the middle of an answer" if inside else "closed the connection"

    def next_message(self) -> Message | None:
        """The next message, an `Error` too, or None until more bytes come. Unexpected when it is none of qs."""
        return self._kept.popleft() if self._kept else self._read()

    def answer_to(self, request: Message) -> Message | None:
        """The answer to a request (its own kind of message, or an `Error`), or None until more bytes come.

        Unexpected when something else came instead: the connection is then out of step and must be closed.
        """
        while (message := self._read()) is not None:
            if message.req == request.req:
                if isinstance(message, Error) or (type(message) is type(request) and message.type == "response"):
                    return message
                raise Unexpected(f"a {message.type} of {message.op} came in answer to {request.op}")
            if isinstance(message, Error) and message.req is None and (not self._loose or message.code in CLOSING):
                return message  # about the connection, and with it about what waits on it
            if not self._loose:
                raise Unexpected(f"an answer to {message.req!r} came, and {request.req!r} was asked")
            self._kept.append(message)
        return None

    def _read(self) -> Message | None:
        event = self._peer.next_event()
        if isinstance(event, Fault):
            raise (TooLong if event.error is TOO_LARGE else Unexpected)(event.text)
        return event
