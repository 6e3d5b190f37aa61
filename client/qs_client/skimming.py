"""Finds the messages that have to be released: the messages in an answer that no caller takes, even in one that is too
long to keep."""

from xml.parsers import expat  # parses bytes that no other parser sees; no entity can be defined there

from qs_schemas import GetMessage, Message, ReceiveMessage, ReleaseMessage
from qs_schemas.wire import NAMESPACE

_QS = f"{NAMESPACE} qs"
_MESSAGE = f"{NAMESPACE} message"
_MID = f"{NAMESPACE} mid"


def may_hold_messages(request: Message) -> bool:
    """Tells whether the answer to a request takes messages out of their queue."""
    return isinstance(request, ReceiveMessage) or (isinstance(request, GetMessage) and not request.peek)


def releases_of(request: Message, answer: Message | None) -> list[ReleaseMessage]:
    """Returns the requests that release the messages in an answer or a delivery."""
    qid = getattr(request, "qid", None)  # servers may leave out the queue of the request
    if isinstance(answer, ReceiveMessage):
        found = [(each.qid or qid, each.mid, each.receives) for each in answer.messages]
    elif isinstance(answer, GetMessage) and answer.status == "delivered" and answer.mid is not None:
        found = [(answer.qid or qid, answer.mid, answer.receives)]
    else:
        found = []
    return [ReleaseMessage(qid, mid, receives) for qid, mid, receives in found if qid is not None]


class Skim:
    """Reads the rest of a document that exceeds the bound, and keeps only the ids of its messages.

    req: the answered request's; ended: the document is complete or unreadable.

    Ensures: it uses no more memory than the ids of the messages take, however long the document is. Assumes an answer
    of a server. Anything else holds no messages, or ends the reading with an error of the parser.
    """

    def __init__(self, begun: bytes, text: str) -> None:
        """begun: the bytes of the document so far; text: the error's."""
        self.text = text
        self.req: str | None = None
        self.ended = False
        self._messages: list[tuple[str | None, int, int | None]] = []
        self._depth = 0
        self._mid = ""  # text of a get-message's mid so far
        self._receives: int | None = None
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self.feed(begun)

    def feed(self, data: bytes) -> None:
        """Takes more bytes."""
        if not self.ended:
            try:
                self._parser.Parse(data, False)
            except (expat.ExpatError, ValueError):
                self.ended = True  # perhaps only after the end of the document, where the next one begins

    def releases(self, request: Message) -> list[ReleaseMessage]:
        """Returns the requests that release the messages in this answer to `request`."""
        named = getattr(request, "qid", None)
        found = [(qid or named, mid, receives) for qid, mid, receives in self._messages]
        return [ReleaseMessage(qid, mid, receives) for qid, mid, receives in found if qid is not None]

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        receives = attributes.get("receives")
        if self._depth == 1 and name == _QS:
            self.req = attributes.get("req")
        elif self._depth == 3 and name == _MESSAGE and "mid" in attributes:
            found = attributes.get("qid"), int(attributes["mid"]), None if receives is None else int(receives)
            self._messages.append(found)
        elif self._depth == 2 and name == _MID and attributes.get("status") == "delivered":
            self._receives = None if receives is None else int(receives)
            self._parser.CharacterDataHandler = self._text

    def _text(self, text: str) -> None:
        self._mid += text

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._mid and name == _MID:
            self._messages.append((None, int(self._mid), self._receives))
            self._mid = ""
            self._parser.CharacterDataHandler = None
        self.ended = self.ended or self._depth == 0
