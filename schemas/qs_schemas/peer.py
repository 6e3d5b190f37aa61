"""Implements one side of a connection without the socket: bytes in, events out; a message in, bytes out.

This module does no I/O and does not wait. So the server, the bus, the blocking and the async client use the same peer,
and tests put two peers back to back.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .errors import MALFORMED, ErrorCode, ProtocolError
from .framing import Framer
from .limits import Limits, binary_payload
from .messages import Authenticate, Error, Message
from .plain import PlainReader
from .serializing import check_lengths, serialize
from .templates import write
from .text import replace_uncarriable


@dataclass(slots=True, frozen=True)
class Fault:
    """Reports, as an event, that a document from the other side breaks the contract. error: the row of the table; text:
    words that say what is wrong, and where; req: the correlation id of the document, if known. After a fault whose
    error closes, no event follows."""

    error: ErrorCode
    text: str
    req: str | None = None

    def message(self, resp: str | None = None) -> Error:
        """Makes the error message to send. resp: its id."""
        return error_message(self.error, self.text, self.req, resp)


def error_message(error: ErrorCode, text: str, req: str | None = None, resp: str | None = None) -> Error:
    """Makes a message for an error of the table. Characters of the text that XML cannot carry are replaced, so the
    message can be sent whatever the text quotes."""
    return Error(error.code, error.kind, replace_uncarriable(text), req=req, resp=resp)


def _parse(document: bytes, limits: Limits, serving: bool = False) -> Message:
    """Parses a document with the XML library, which is imported when the first document needs it."""
    # Most clients get only plain documents, and start sooner without the library. Servers import it when they start.
    from .parsing import parse  # noqa: PLC0415

    return parse(document, limits, serving)


def read_document(data: bytes, limits: Limits = Limits()) -> Message:  # noqa: B008 - frozen
    """Reads the one message in the bytes. Raises ProtocolError if the bytes hold no document or more than one, or if
    the document breaks the contract."""
    framer = Framer(limits)
    framer.feed(data)
    document = framer.next_document()
    if document is None:
        raise ProtocolError(MALFORMED, "not well-formed: the document is not complete")
    message = _parse(document, limits)
    if framer.next_document() is not None or framer.begun:
        raise ProtocolError(MALFORMED, "not well-formed: something follows the document")
    return message


class Peer:
    """Keeps the state of one stream. Call `receive_data`, then iterate over `events`; `send` returns the bytes of a
    message.

    1. Each document that comes in is one event, in order: a message, or a `Fault` if it breaks the contract.
    2. A plain document is read without a parser, with the result that the parser has.
    3. After a fault whose error closes, no event follows, and later bytes are dropped.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        serving: bool = False,
        early: bool = False,
        keep_too_large: bool = False,
    ) -> None:
        """serving: True if this side answers: then a document with an operation is a request whatever its type says
        (early clients of bucker send `response`), except `error`; early: True to end all documents to the other side
        with an empty line, from the first on; keep_too_large: see `Framer`."""
        self._limits = limits
        self._serving = serving
        self._framer = Framer(limits, keep_too_large=keep_too_large)
        self._framer.early = early
        self._why = ""
        if serving:
            self._why = f" (--max-document): at most {binary_payload(limits.document)} bytes of a binary payload fit"
            self._framer.bound(limits.document, self._why)
        self._plain = PlainReader(limits, serving)
        self._closed = False
        self.begun = False
        """True if a document has begun to arrive and is not complete, as far as events have been asked for."""
        self.receive_data: Callable[[bytes | bytearray | memoryview], None] = self._framer.feed
        """Takes what the other side sent, in pieces of any size."""
        self.early = early
        """True if the other side is an early client, which gets other documents (see `serialize`). It becomes True once
        `next_event` has read a document that shows it."""

    def bound_documents(self, most: int | None, why: str = "") -> None:
        """Changes the bound of incoming documents from now on: a client that has not authenticated gets a lower one.
        most: bytes, None for the bound of the limits; why: text that follows the number in the fault."""
        document = self._limits.document
        self._framer.bound(document if most is None else min(document, most), self._why if most is None else why)

    @property
    def too_large(self) -> bytes:
        """The bytes of the document that was over the limit, as far as they have come."""
        return self._framer.too_large

    def end_of_data(self) -> Fault | None:
        """Takes the end of the other side's stream. Call this after the last of the `events`. Returns a fault if the
        stream ended inside a document."""
        if self._closed or not self._framer.begun:
            return None
        self._closed = True
        return Fault(MALFORMED, "not well-formed: the stream ended inside a document")

    def events(self) -> Iterator[Message | Fault]:
        """Yields the messages and faults in the bytes that have come."""
        while (event := self.next_event()) is not None:
            yield event

    def next_event(self) -> Message | Fault | None:
        """Returns the next message or fault, or None until more bytes have come."""
        events: deque[Message | Fault] = deque()
        self.read_into(events, 1)
        return events.popleft() if events else None

    def read_into(self, events: deque[Message | Fault], most: int, data: bytes = b"") -> bool:
        """Appends the next messages and faults to `events`, until there are `most` in it. Stops behind an
        `authenticate`, whose answer decides which bounds hold for what follows. Returns True if there may be more.
        data: what the other side sent, to take first."""
        framer = self._framer
        if data:
            framer.feed(data)
        while framer.buffer and not self._closed:
            room = most - len(events)
            if room <= 0:
                return True
            # Nearly all documents are plain: those that came together are read together.
            if framer.take_plain(self._plain.read, events.append, room):
                self.early = framer.early
                continue
            event = self._parsed_event()
            self.begun = framer.begun
            if event is None:
                return False
            events.append(event)
            if type(event) is Authenticate:
                return True
        return False

    def _parsed_event(self) -> Message | Fault | None:
        """Returns the next message or fault of a document that is not plain, or that came in pieces."""
        framer = self._framer
        in_pieces = framer.begun  # otherwise the document was examined just now, and is not plain
        try:
            document = framer.next_document()
            self.early = framer.early
            if document is None:
                return None
            # The framer has put the document together, and is done with it: a plain document needs no parser after
            # that.
            if in_pieces and (found := self._plain.read(document)) is not None and found[1] == len(document):
                return found[0]
            return _parse(document, self._limits, self._serving)
        except ProtocolError as error:
            self.early = framer.early
            if error.error.closes:
                self._closed = True
                framer.close(error)
            return Fault(error.error, error.text, error.req)

    def send(self, message: Message) -> bytes:
        """Returns the document of a message, for the other side. Raises ValueError if a field holds a character that
        XML cannot carry, or if a request has a name, key or id that is longer than the contract allows."""
        if not self.early:
            return write(message)
        if message.type == "request":
            check_lengths(message)
        return serialize(message, early=True)
