"""Documents: what reading and writing one costs, what the quick ways gain, and how long the worst one holds a server.

All in this process and by processor time, without a disk's syncs. The cost of a list is that of one entry. In pieces:
as from a socket, 32 KiB at a time.

Where a thing is done in two ways, both run in turn, and the figure is the ratio of their times. A way that does not
gain a quarter should go.

Hostile documents are as long as their kind can be within the limits, at most 8 MiB. A server can do nothing else while
it reads one, so the longest time is what one stranger with one document can take from all others.
"""

import resource
import time
from collections.abc import Callable
from statistics import median
from time import time_ns

from measuring import Figure, Run

from qs_schemas import (
    CLIENT_LIMITS,
    NAMESPACE,
    DeleteMessage,
    Delivery,
    Draft,
    ExtendMessage,
    Fault,
    GetMessage,
    Limits,
    Message,
    Peer,
    Ping,
    PushMessage,
    ReceiveMessage,
    parse,
    serialize,
    serializing,
    templates,
)
from qs_schemas.framing import Framer
from qs_storage import engine as storage
from qs_storage.directories import JournalEngine

_ROUNDS, _SECONDS = 7, 0.05
_PIECE = 32768
_LIST = 100
_X = b"x" * 1024
_MID, _NOW = 123_456_789_012, 1_700_000_000_000_000

_TIMES = 2000
_DRAFTS = 32
_LENGTH = Limits().document - 1000
_FOREIGN = ' xmlns:x="u:u"'
_MANY = 31
_ATTRIBUTES = " ".join(f"a{number}=''" for number in range(_MANY))
_FOREIGN_ATTRIBUTES = " ".join(f"x:a{number}=''" for number in range(_MANY))
_FEWER_ATTRIBUTES = " ".join(f"x:a{number}=''" for number in range(_MANY - 2))
_DECLARATIONS = " ".join(f"xmlns:n{number}='u:u{number}'" for number in range(_MANY - 1))
_IN_NAMESPACES = " ".join(f"n{number}:b=''" for number in range(_MANY - 1))
_NODES = Limits().elements - 20
_LONG_MESSAGE = f"<message><payload>{'x' * 8300}</payload></message>"
_DECLARING_QUEUE = f"<queue {_DECLARATIONS}>a</queue>"
_INLINE = f"<message><payload>{f'<n0:e {_IN_NAMESPACES}/>' * 17}</payload></message>"
_RELATIVE = " ".join(f"xmlns:y{number}='b'" for number in range(_MANY))


def _answer(message: Message) -> Message:
    message.type, message.req, message.resp = "response", "qs-17", "0f" * 32
    return message


def _delivered(count: int) -> list[Delivery]:
    return [Delivery(_MID + number, _X, "orders", 1, _NOW, _NOW) for number in range(count)]


def _kinds() -> dict[str, tuple[Message, int]]:
    """Returns messages, and how many entries each has."""
    return {
        "push 1 KiB": (PushMessage("orders", _X, req="qs-17"), 1),
        "push 1 KiB with key": (PushMessage("orders", _X, key="k-17", req="qs-17"), 1),
        "push a list of 1 KiB": (PushMessage("orders", messages=[Draft(_X) for _ in range(_LIST)]), _LIST),
        "receive": (ReceiveMessage("orders", max=10, wait=5.0, req="qs-17"), 1),
        "delete": (DeleteMessage("orders", _MID, 1, req="qs-17"), 1),
        "delete a list": (DeleteMessage("orders", mids=[_MID + number for number in range(_LIST)]), _LIST),
        "extend": (ExtendMessage("orders", _MID, 1, 60.0, req="qs-17"), 1),
        "ping": (Ping(req="qs-17"), 1),
        "answer to push": (_answer(PushMessage("orders", mid=_MID)), 1),
        "answer to a list": (_answer(PushMessage("orders", mids=[_MID + number for number in range(_LIST)])), _LIST),
        "answer to receive": (_answer(ReceiveMessage(messages=_delivered(1))), 1),
        "answer to receive many": (_answer(ReceiveMessage(messages=_delivered(_LIST))), _LIST),
        "answer to delete": (_answer(DeleteMessage("orders", _MID)), 1),
        "delivery": (
            _answer(GetMessage("orders", _MID, payload=_X, status="delivered", receives=1, pushed_at=_NOW)),
            1,
        ),
    }


def _cost(step: Callable[[], object]) -> float:
    """Returns the microseconds of CPU that a call takes."""
    start = time.process_time()
    step()
    calls = max(1, int(_SECONDS / max(1e-6, time.process_time() - start)))
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.process_time()
        for _ in range(calls):
            step()
        best = min(best, time.process_time() - start)
    return best / calls * 1e6


def _read_pieces(peer: Peer, pieces: list[bytes]) -> Message:
    event = None
    for piece in pieces:
        peer.receive_data(piece)
        event = peer.next_event()
    assert isinstance(event, Message)  # a document that was refused would be read quickly
    return event


def document_costs(run: Run) -> list[Figure]:
    """Measures the processor time to read and to write a document, by peers, and by parser and serializer alone."""
    figures = []
    for name, (message, entries) in _kinds().items():
        peer, document = Peer(CLIENT_LIMITS), serialize(message)
        pieces = [document[at : at + _PIECE] for at in range(0, len(document), _PIECE)]
        assert _read_pieces(peer, [document]) == message == _read_pieces(peer, pieces)
        costs = (
            _cost(lambda: _read_pieces(peer, [document])),  # noqa: B023 - called at once
            _cost(lambda: _read_pieces(peer, pieces)),  # noqa: B023
            _cost(lambda: parse(document[:-2], CLIENT_LIMITS)),  # noqa: B023
            _cost(lambda: peer.send(message)),  # noqa: B023
            _cost(lambda: serialize(message)),  # noqa: B023
        )
        read, cut, parsed, written, serialized = (cost / entries for cost in costs)
        of = f"in pieces {cut:.2f} us, the parser alone {parsed:.2f} us; {len(document):,} bytes"
        figures.append(Figure(f"{name}: read", read, unit=" us", of=of))
        figures.append(Figure(f"{name}: write", written, unit=" us", of=f"the serializer alone {serialized:.2f} us"))
    return figures


def _reading(request: Message) -> tuple[Callable[[], object], Callable[[], object]]:
    document = Peer().send(request)

    def plain() -> None:
        peer = Peer(serving=True)
        for _ in range(_TIMES):
            peer.receive_data(document)
            peer.next_event()

    def parsed() -> None:
        framer, limits = Framer(), Limits()
        for _ in range(_TIMES):
            framer.feed(document)
            found = framer.next_document()
            parse(found or b"", limits, True)

    return plain, parsed


def _writing(answer: Message) -> tuple[Callable[[], object], Callable[[], object]]:
    answer.answers("0" * 64)
    return (
        lambda: [templates.write(answer) for _ in range(_TIMES)],
        lambda: [serializing.serialize(answer, False) for _ in range(_TIMES)],
    )


def _pushing(root: str) -> tuple[Callable[[], object], Callable[[], object]]:
    engine = JournalEngine(root, clock=lambda: time_ns() // 1000, durability=storage.Durability.NONE)
    engine.create("q", storage.Options())
    draft = storage.Draft(_X)

    def merged() -> None:
        for _ in range(_TIMES // _DRAFTS):
            _push_drafts(engine, [draft] * _DRAFTS)
        _empty(engine)

    def one_by_one() -> None:
        for _ in range(_TIMES // _DRAFTS * _DRAFTS):
            _push_drafts(engine, [draft])
        _empty(engine)

    return merged, one_by_one


def _push_drafts(engine: JournalEngine, drafts: list[storage.Draft]) -> None:
    try:
        engine.queue("q").push(drafts)
    except storage.NoRoomError as error:  # the batch is full
        engine.commit()
        engine.secure(error)
        engine.queue("q").push(drafts)


def _empty(engine: JournalEngine) -> None:
    engine.commit()
    while engine.queue("q").purge(1 << 62, _TIMES):
        engine.commit()


def second_paths(run: Run) -> list[Figure]:
    """Compares the time of a quick way with the time of the usual one, where the code has two ways."""
    answer = ReceiveMessage(messages=[Delivery(0, _X, "q", 1, 1, 1)])
    pairs = {
        "plain reader / parser: a push of 1 KiB": _reading(PushMessage("q", payload=_X)),
        "plain reader / parser: a delete": _reading(DeleteMessage("q", 1)),
        "template / serializer: the answer to a push": _writing(PushMessage("q", mid=1)),
        "template / serializer: a message of 1 KiB": _writing(answer),
        f"pushes merged / one by one: {_DRAFTS} of 1 KiB, engine alone": _pushing(str(run.folder)),
    }
    figures = []
    for name, ways in pairs.items():
        ratios = []
        for _ in range(3 if run.quick else 9):
            times = []
            for way in ways:
                started = time.process_time()
                way()
                times.append(time.process_time() - started)
            ratios.append(times[0] / times[1])
        figures.append(Figure(name, median(ratios), 0.75, "at most"))
    return figures


def _qs(inside: str, attributes: str = "", op: str = "ping", of_op: str = "") -> bytes:
    return f'<qs xmlns="{NAMESPACE}"{attributes}><op{of_op}><{op}/></op>{inside}</qs>'.encode()


def _push(payload: str, attributes: str = "") -> bytes:
    return _qs(f"<qid>q</qid>{payload}", attributes, "push-message")


def _full(begin: str, unit: str, end: str, most: int = _LENGTH) -> str:
    """Repeats the unit, at most `most` times, until the document is full."""
    return begin + unit * min(most, (_LENGTH - len(begin) - len(end)) // len(unit.encode())) + end


_VALID = {
    "text, plain": _push(_full("<payload>", "x", "</payload>")),
    "text": _push(_full("<!-- --><payload>", "x", "</payload>")),
    "base64": _push(_full("<!-- --><payload encoding='base64'>", "AAAA", "</payload>")),
    "references": _push(_full("<payload>", "&#65;", "</payload>")),
    "1,000 messages": _push(_full("<!-- --><messages>", _LONG_MESSAGE, "</messages>", 1000)),
    "10,000 names": _qs(_full("<!-- --><queues>", f"<queue>{'x' * 200}</queue>", "</queues>", 10_000), op="subscribe"),
    "inline XML": _push(_full(f"<payload><a {_DECLARATIONS}>", f"<b {_DECLARATIONS}/>", "</a></payload>", _NODES)),
    "inline XML in namespaces": _push(
        "<messages>" + _INLINE * 1000 + "</messages>", " " + _DECLARATIONS
    ),
}  # fmt: skip
_HOSTILE = {
    "white space in a name": _qs(_full("<qid>", " ", "a</qid>"), op="purge-queue"),
    "white space in names": _qs(_full("<queues>", f"<queue>{' ' * 800}a</queue>", "</queues>", 10_000), op="subscribe"),
    "white space in an option": _qs(_full("<qid>q</qid><options visibility='", " ", "'/>"), op="set-queue"),
    "white space between comments": _qs(_full("<qid>", "<!-- -->" + " " * 400, "a</qid>", _NODES), op="purge-queue"),
    "white space between elements": _qs(_full("", " ", "")),
    "digits": _qs(_full("<qid>q</qid><mid receives='", "1", "'>1</mid>"), op="delete-message"),
    "a long name": _qs(_full("<", "b", "/>")),
    "faulty parts": _qs(_full("<parts>", "<part/>", "</parts>", 10_000)),
    "faulty attributes of parts": _qs(_full("<parts>", f"<part {_ATTRIBUTES}/>", "</parts>", 10_000)),
    "faulty attributes of ids": _qs(_full("<messages>", f"<mid {_ATTRIBUTES}/>", "</messages>", 1000)),
    "a faulty part behind 9,999": _qs("<parts>" + "<part number='1' attempt='1'/>" * 9999 + "<part/></parts>"),
    "claims": _qs(_full("<claims>", "<claim/>", "</claims>", _NODES)),
    "figures of queues": _qs(_full("<queues>", "<queue new='!' ready='!'>a</queue>", "</queues>", 10_000)),
    "unknown elements": _qs(_full("", "<b/>", "", _NODES)),
    "foreign elements": _qs(_full("", f"<x:b {_FOREIGN_ATTRIBUTES}/>", "", _NODES), _FOREIGN),
    "declarations in a foreign element": _qs(
        _full("<b xmlns='u:u'>", f"<x:c xmlns:x='u:u' {_FEWER_ATTRIBUTES}/>", "</b>", _NODES)
    ),
    "foreign attributes": _qs(
        _full("<x:b/><queues>", f"<queue {_FOREIGN_ATTRIBUTES}>a</queue>", "</queues>", 10_000), _FOREIGN, "subscribe"
    ),
    "declarations": _qs(_full("<!-- --><queues>", _DECLARING_QUEUE, "</queues>", 10_000), op="subscribe"),
    "relative namespaces": _qs(_full("", f"<x:a {_RELATIVE}/>", "", _NODES), _FOREIGN),
    "prefixes without a namespace": _qs(_full("", f"<x:a {_IN_NAMESPACES}/>", "", _NODES), _FOREIGN),
    "comments": _qs(_full("<qid>", "<!---->a", "</qid>", _NODES)),
    "CDATA sections": _push(_full("<payload>", f"<![CDATA[{'a' * 400}]]>b", "</payload>", _NODES)),
    "undeclared entities": _push(_full("<payload>", "&a;", "</payload>")),
    "references to nothing": _push(_full("<payload>", "&#0;", "</payload>")),
    "ampersands": _push(_full("<payload>", "& ", "</payload>")),
    "control characters": _push(_full("<payload>", "\x01", "</payload>")),
    "]]>": _push(_full("<payload>", "]]>", "</payload>")),
    "no base64": _push(_full("<!-- --><payload encoding='base64'>", "@", "</payload>")),
    "too many elements": _qs(_full("", "<a/>", "")),
    "too many attributes": _qs(_full("<x ", "a='' ", "/>")),
    "tags that stay open": _qs(_full("", "<a>", "")),
    "tags, nested": _qs(_full("", "<a><a><a><a><a></a></a></a></a></a>", "")),
}  # fmt: skip


def _read(document: bytes) -> tuple[float, Message | Fault | None]:
    peer = Peer(serving=True)
    start = time.process_time()
    peer.receive_data(document)
    event = peer.next_event()
    return time.process_time() - start, event


def hostile_documents(run: Run) -> list[Figure]:
    """Measures how long one costly document holds a server, beside valid documents."""
    figures = []
    for title, documents in (("valid", _VALID), ("hostile", _HOSTILE)):
        found = []
        for name, document in documents.items():
            rounds = [_read(document) for _ in range(1 if run.quick else 3)]
            event = rounds[0][1]
            said = event.text[:60] if isinstance(event, Fault) else type(event).__name__
            milliseconds = min(seconds for seconds, _ in rounds) * 1000
            of = f"{len(document):,} bytes: {said}"
            found.append(Figure(f"{title}: {name}", milliseconds, unit=" ms", of=of, digits=0))
        figures += sorted(found, key=lambda figure: -(figure.value or 0))
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return [*figures, Figure("memory at most, all these documents included", highest, unit=" MiB", digits=0)]
