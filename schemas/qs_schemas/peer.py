"""One side of a connection, without the connection: bytes in, events out; a message in, bytes out.

It does no I/O and does not wait. So the server, the bus, the blocking and the async client use the same peer, and tests
put two of them back to back.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .errors import MALFORMED, ErrorCode, ProtocolError
from .framing import Framer
from .limits import Limits, binary_payload
from .messages import Error, Message
from .plain import PlainReader
from .serializing import check_lengths, serialize
from .templates import write
from .text import replace_uncarriable


@dataclass(slots=True, frozen=True)
class Fault:
    """An event: a document that came in breaks the contract. error: the row of the table; text: says what is wrong, and
    where; req: the correlation id of the document, if known. After a fault whose error closes, no event follows."""

    error: ErrorCode
    text: str
    req: str | None = None

    def message(self, resp: str | None = None) -> Error:
        """Makes the error message to send. resp: its id."""
        return error_message(self.error, self.text, self.req, resp)


def error_message(error: ErrorCode, text: str, req: str | None = None, resp: str | None = None) -> Error:
    """Makes a message of an error of the table. It can be sent whatever the text quotes: characters that XML cannot
    carry are replaced."""
    return Error(error.code, error.kind, replace_uncarriable(text), req=req, resp=resp)


def _parse(document: bytes, limits: Limits, serving: bool = False) -> Message:
    """Parses a document with the XML library."""
    # It is imported for the first document that is not plain: most clients get none, and start sooner without it.
    # Servers import it when they start.
    from .parsing import parse  # noqa: PLC0415

    return parse(document, limits, serving)


def read_document(data: bytes, limits: Limits = Limits()) -> Message:  # noqa: B008 - frozen
    """Reads the one message in the bytes. Raises ProtocolError if there is none, or more than one, or if it breaks the
    contract."""
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
    """The state of one stream. Call `receive_data`, then iterate over `events`; `send` returns the bytes of a message.

    1. Each document that comes in is one event, in order: a message, or a `Fault` if it breaks the contract.
    2. A plain document is read without a parser, with the result that the parser has.
    3. After a fault whose error closes, no event follows, and what comes in is dropped.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        serving: bool = False,
        early: bool = False,
        keep_too_large: bool = False,
    ) -> None:
        """serving: this side answers, so a document with an operation is a request whatever its type says, except
        `error`: early clients of bucker send `response`; early: the other side is sent documents that end with an empty
        line from the first on; keep_too_large: see `Framer`."""
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
        self.drained = False
        """True if the last call of `next_event` returned the last event, so that another call can be saved. False says
        nothing."""
        self.receive_data: Callable[[bytes | bytearray | memoryview], None] = self._framer.feed
        """Takes what the other side sent, in pieces of any size."""
        self.early = early
        """True if the other side is an early client, which gets other documents (see `serialize`). It becomes True once
        `next_event` has read a document that shows it."""

    def bound_documents(self, most: int | None, why: str = "") -> None:
        """Takes documents of at most so many bytes from now on, None for the bound of the limits: a client that has not
        authenticated gets less. why: text that follows the number in the fault."""
        document = self._limits.document
        self._framer.bound(document if most is None else min(document, most), self._why if most is None else why)

    @property
    def too_large(self) -> bytes:
        """The bytes that have come of the document that was over the limit."""
        return self._framer.too_large

    @property
    def begun(self) -> bool:
        """Tells whether a document has begun to arrive and is not complete."""
        return self._framer.begun

    def end_of_data(self) -> Fault | None:
        """Takes the end of the other side's stream. Call it after the events. Returns a fault if the stream ended
        inside a document."""
        if self._closed or not self._framer.begun:
            return None
        self._closed = True
        return Fault(MALFORMED, "not well-formed: the stream ended inside a document")

    def events(self) -> Iterator[Message | Fault]:
        """Yields the messages and faults in the bytes so far."""
        while (event := self.next_event()) is not None:
            yield event

    def next_event(self) -> Message | Fault | None:
        """Returns the next message or fault, or None until more bytes come."""
        framer = self._framer
        self.drained = False
        if self._closed or not framer.buffer:
            return None
        plain = framer.next_plain(self._plain.read)
        self.early = framer.early
        if plain is not None:
            self.drained = not framer.buffer
            return plain
        in_pieces = framer.begun  # otherwise the document was examined just now, and is not plain
        try:
            document = framer.next_document()
            self.early = framer.early
            if document is None:
                return None
            # The framer has put it together, and is done with it: a plain document needs no parser for that.
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
        """Returns the document of a message, for the other side. Raises ValueError when a field holds what XML cannot
        carry, or in a request a name, key or id that is longer than the contract allows."""
        document = None if self.early else write(message)
        if document is not None:
            return document
        if message.type == "request":
            check_lengths(message)
        return serialize(message, self.early)
