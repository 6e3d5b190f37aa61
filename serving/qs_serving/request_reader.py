"""Turns the bytes of one client into requests, up to the bound of waiting requests."""

from collections import deque

from qs_schemas import Authenticate, Fault, Message, Peer

from .options import ServerLimits


class RequestReader:
    """Reads requests of one client, and keeps them until the session takes them up.

    Ensures that at most `limits.pipeline` requests wait here, and that bytes after an `authenticate` are not parsed
    before that request is answered: the answer decides which bounds hold for them. The reader never waits for bytes and
    answers nothing: an unreadable document is a fault in the list of requests, in its order."""

    __slots__ = ("_most", "_peer", "ended", "identifying", "requests", "unanswered", "unread")

    def __init__(self, peer: Peer, limits: ServerLimits) -> None:
        self._peer = peer
        self._most = limits.pipeline
        self.requests: deque[Message | Fault] = deque()
        """Those that have come, the oldest first. Who takes one up removes it."""
        self.unread = False
        """True if there may be requests beyond those."""
        self.identifying = False
        """True if nothing more is read before an `authenticate` is answered, see `identified`."""
        self.unanswered = 0
        """Bytes that came since the last time that everything was answered."""
        self.ended = False
        """True if the client sends nothing more."""

    def read(self, data: bytes = b"") -> None:
        """Turns received bytes into requests, as many as may wait. data: the bytes that have just come, empty to parse
        only bytes that came earlier."""
        self.unanswered += len(data)
        if self.identifying:
            self._peer.receive_data(data)
            return
        requests = self.requests
        self.unread = self._peer.read_into(requests, self._most, data)
        if self.unread:
            self.identifying = bool(requests) and type(requests[-1]) is Authenticate
        elif self.ended and (fault := self._peer.end_of_data()) is not None:
            requests.append(fault)

    def identified(self) -> None:
        """Continues to parse after an `authenticate`. Call this after the answer, when the bounds of the client are
        known."""
        self.identifying = False
        self.read()
