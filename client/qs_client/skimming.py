"""What has to be given back: the messages in an answer that nobody takes, also in one that is too long to be kept."""

from xml.parsers import expat  # of bytes that no other parser gets to see; no entity is ever defined there

from qs_schemas import GetMessage, Message, ReceiveMessage, ReleaseMessage
from qs_schemas.wire import NAMESPACE

_QS = f"{NAMESPACE} qs"
_MESSAGE = f"{NAMESPACE} message"
_MID = f"{NAMESPACE} mid"


def may_hold_messages(request: Message) -> bool:
    """Whether messages leave their queue with the answer to it."""
    return isinstance(request, ReceiveMessage) or (isinstance(request, GetMessage) and not request.peek)


def releases_of(request: Message, answer: Message | None) -> list[ReleaseMessage]:
    """What gives back the messages that came in an answer, or as a delivery of a subscription."""
    qid = getattr(request, "qid", None)  # a server may leave out what was named in the request
    if isinstance(answer, ReceiveMessage):
        found = [(each.qid or qid, each.mid, each.receives) for each in answer.messages]
    elif isinstance(answer, GetMessage) and answer.status == "delivered" and answer.mid is not None:
        found = [(answer.qid or qid, answer.mid, answer.receives)]
    else:
        found = []
    return [ReleaseMessage(qid, mid, receives) for qid, mid, receives in found if qid is not None]


class Skim:
    """Reads on in a document that is over the bound, and keeps no more of it than which messages are in it.

    begun: what has come of it; text: of the error. req: whose answer it is; ended: whether it has come to its end, or
    cannot be read.
    """

    def __init__(self, begun: bytes, text: str) -> None:
        self.text = text
        self.req: str | None = None
        self.ended = False
        self._found: list[tuple[str | None, int, int | None]] = []
        self._depth = 0
        self._mid = ""  # of a get-message, as its text comes
        self._receives: int | None = None
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self.feed(begun)

    def feed(self, data: bytes) -> None:
        """Takes what came."""
        if not self.ended:
            try:
                self._parser.Parse(data, False)
            except (expat.ExpatError, ValueError):
                self.ended = True  # perhaps only behind the document

    def releases(self, request: Message) -> list[ReleaseMessage]:
        """What gives the messages back that it answers the request with."""
        named = getattr(request, "qid", None)
        found = [(qid or named, mid, receives) for qid, mid, receives in self._found]
        return [ReleaseMessage(qid, mid, receives) for qid, mid, receives in found if qid is not None]

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        receives = attributes.get("receives")
        if self._depth == 1 and name == _QS:
            self.req = attributes.get("req")
        elif self._depth == 3 and name == _MESSAGE and "mid" in attributes:
            found = attributes.get("qid"), int(attributes["mid"]), None if receives is None else int(receives)
            self._found.append(found)
        elif self._depth == 2 and name == _MID and attributes.get("status") == "delivered":
            self._receives = None if receives is None else int(receives)
            self._parser.CharacterDataHandler = self._text

    def _text(self, text: str) -> None:
        self._mid += text

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._mid and name == _MID:
            self._found.append((None, int(self._mid), self._receives))
            self._mid = ""
            self._parser.CharacterDataHandler = None
        self.ended = self.ended or self._depth == 0
