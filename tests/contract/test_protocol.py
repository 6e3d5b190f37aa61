"""The wire contract between any two parties: two peers back to back, the schema, and the tables of the protocol."""

import types
import typing
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from lxml import etree
from support.clients.documents import as_asked

from qs_schemas import (
    NAMESPACE,
    OPERATIONS,
    Claim,
    Delivery,
    Draft,
    Error,
    Fault,
    Figure,
    GetMessage,
    ListMessages,
    Message,
    Part,
    Peer,
    Ping,
    PushMessage,
    QueueInfo,
    QueueOptions,
    Receipt,
    errors,
    serialize,
    wire,
)

XS = "{http://www.w3.org/2001/XMLSchema}"
XSD = etree.fromstring((files("qs_schemas") / "qs.xsd").read_bytes())
SCHEMA = etree.XMLSchema(XSD)

# -- a sample of every message, with every field set ------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "type": "request", "req": "r\n<1>", "resp": "5" * 64, "state": "in-flight", "status": "delivered", "ack": "client",
    "qid": "a/\N{GRINNING FACE} &c", "payload": b"\x00<&>\r\n", "queues": ["a", "é"], "mids": [1, 2],
    "dead_reason": "receives", "max_receives": 1000, "removed": frozenset(),
    "labels": {"operation": "<\r\n>"}, "headers": {"traceparent": "<\r\n>", "B": ""}, "priority": 9,
    "order": "given", "limited": "rate", "schema": "order.xsd", "match": "pattern",
}  # fmt: skip
ENTRIES = (Draft, Delivery, QueueOptions, QueueInfo, Figure, Claim, Part, Receipt)


def value(name: str, hint: Any) -> Any:
    if name in VALUES and hint != list[QueueInfo]:
        return VALUES[name]
    if typing.get_origin(hint) is list:
        return [value("", typing.get_args(hint)[0]) for _ in range(2)]
    if isinstance(hint, types.UnionType):
        return value(name, next(member for member in typing.get_args(hint) if member is not types.NoneType))
    if hint in ENTRIES:
        return filled(hint)
    return {int: 1760000000000000, float: 0.25, str: f"{name} ' \"", bytes: b"\xff", bool: True}[hint]


def filled(cls: type[Any]) -> Any:
    hints = typing.get_type_hints(cls).items()
    return cls(**{name: value(name, hint) for name, hint in hints if typing.get_origin(hint) is not typing.ClassVar})


REQUESTS = [as_asked(filled(cls)) for cls in OPERATIONS.values()]
ANSWERS = [cls(type="response", req="1", resp="5" * 64) for cls in OPERATIONS.values()]
FULL_ANSWERS = [replace(filled(cls), type="response") for cls in OPERATIONS.values()]
ERRORS = [Error(row.code, row.kind, row.when, req="1", resp="5" * 64) for row in errors.TABLE]
SAMPLES: list[Message] = [
    *REQUESTS,
    *ANSWERS,
    *FULL_ANSWERS,
    *ERRORS,
    Error(500, "internal", ""),
    PushMessage(qid="a", payload=b""),
    GetMessage(type="response", qid="a", mid=1, status="in-flight"),
    ListMessages(qid="a", early=True),
]


def name_of(message: Message) -> str:
    return f"{message.op or 'error'}-{message.type}"


# -- two peers ------------------------------------------------------------------------------------------------------


class Pair:
    """Two peers; what one sends, the other gets, in pieces of a given size."""

    def __init__(self, size: int = 0) -> None:
        self.peers = (Peer(), Peer())
        self.size = size

    def cross(self, messages: list[Message], sender: int) -> list[Message | Fault]:
        """Returns what comes out at the other side when all are sent without waiting."""
        data = b"".join(map(self.peers[sender].send, messages))
        receiver = self.peers[1 - sender]
        found: list[Message | Fault] = []
        for piece in self.pieces(data):
            receiver.receive_data(piece)
            found += receiver.events()
        assert not receiver.begun
        assert receiver.end_of_data() is None
        return found

    def pieces(self, data: bytes) -> Iterator[bytes]:
        size = self.size or len(data)
        return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("message", SAMPLES, ids=name_of)
def test_crosses(message: Message) -> None:
    """Every message crosses from either side to the other unchanged."""
    for sender in (0, 1):  # to the server, to the client
        assert Pair().cross([message], sender) == [message]


@pytest.mark.parametrize("sender", [0, 1], ids=["to the server", "to the client"])
@pytest.mark.parametrize("size", [1, 2, 3, 17, 1000, 0])
def test_pipelined(size: int, sender: int) -> None:
    """All messages sent at once cross in order, in pieces of any size."""
    assert Pair(size).cross(SAMPLES, sender) == SAMPLES


def test_conversation() -> None:
    """Requests pipelined one way and answers the other find each other by req; faults are answered in their place."""
    client, server = Peer(), Peer()
    sent = deque(str(number) for number in range(20))
    server.receive_data(b"".join(client.send(Ping(req=req)) for req in sent))
    server.receive_data(f'<qs xmlns="{NAMESPACE}" req="bad"><op><nonsense/></op></qs>'.encode())
    server.receive_data(client.send(Ping(req="last")))
    for event in server.events():
        answer = event.message() if isinstance(event, Fault) else Ping(type="response", req=event.req)
        client.receive_data(server.send(answer))
    answers = list(client.events())
    assert [answer.req for answer in answers] == [*sent, "bad", "last"]
    assert [answer.code for answer in answers if isinstance(answer, Error)] == [501]


# -- the schema -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", SAMPLES, ids=name_of)
def test_schema_accepts(message: Message) -> None:
    """`qs.xsd` is a schema that any validator can use, and what is written is valid against it."""
    SCHEMA.assertValid(etree.fromstring(serialize(message)))


EARLY = [
    serialize(ListMessages("a", mids=[1, 2], type="response"), early=True),
    b'<qs xmlns="%b" type="Response" resp="%b"><mid>3f2504e0-4f89</mid><op><ping/></op></qs>',
    b'<qs xmlns="%b" resp="%b"><messages><mid>none of ours</mid><mid/></messages><op><delete-message/></op></qs>',
]


@pytest.mark.parametrize("document", EARLY, ids=["ids twice", "an id of its own", "a list of them"])
def test_schema_knows_early_clients(document: bytes) -> None:
    """Documents that early clients send and get are valid."""
    filled_in = document if b"%b" not in document else document % (NAMESPACE.encode(), b"9" * 200)
    SCHEMA.assertValid(etree.fromstring(filled_in))


def test_schema_stands_alone() -> None:
    """`qs.xsd` includes and imports nothing, and is for the namespace of the protocol."""
    assert XSD.get("targetNamespace") == NAMESPACE
    assert not [element for tag in ("include", "import", "redefine") for element in XSD.iter(f"{XS}{tag}")]


# As the operations table of the protocol has them: what stands in op, and what stands beside it.
TABLE: dict[str, tuple[str, str]] = {
    "list-queues": ("", "queues/queue"),
    "new-queue": ("exist-ok", ("qid options options/@storage options/@visibility options/@capacity options/@retention "
                  "options/@dead-letter options/@max-receives options/@backoff options/@backoff-max "
                  "options/@group-in-flight options/@fair options/@max-in-flight options/@rate")),
    "set-queue": ("", ("qid options options/@visibility options/@capacity options/@retention options/@dead-letter "
                  "options/@max-receives options/@backoff options/@backoff-max "
                  "options/@group-in-flight options/@fair options/@max-in-flight options/@rate")),
    "get-queue": ("", "qid options options/@storage options/@dead-letter"),
    "delete-queue": ("force", "qid"),
    "list-messages": ("state max after", "qid messages/mid m/mid"),
    "push-message": ("delay key unique priority expires group", (
                     "qid payload payload/@encoding headers/header headers/header/@name messages/message/payload "
                     "messages/message/headers/header message/@delay message/@key message/@unique message/@priority "
                     "message/@expires message/@group mid messages/mid")),
    "get-message": ("peek visibility more", ("qid mid payload reason messages/mid messages/message/payload "
                    "message/@status message/@reason mid/@status mid/@receives mid/@visible-at mid/@priority "
                    "mid/@group mid/@expires-at headers/header messages/message/headers "
                    "mid/@dead-from mid/@dead-mid mid/@dead-receives mid/@dead-at mid/@dead-reason")),
    "receive-message": ("max wait visibility order", ("qid queues/queue messages/message/payload message/@qid "
                        "message/@mid message/@receives message/@pushed-at message/@visible-at message/@dead-from "
                        "message/@dead-mid message/@dead-receives message/@dead-at message/@dead-reason "
                        "message/@reason message/@priority message/@group message/@expires-at "
                        "messages/message/headers/header")),
    "delete-message": ("", "qid mid messages/mid mid/@receives"),
    "release-message": ("delay count", "qid mid mid/@receives reason"),
    "reject-message": ("", "qid mid mid/@receives reason"),
    "extend-message": ("visibility", "qid mid mid/@receives mid/@visible-at"),
    "copy-message": ("", "qid mid messages/mid mid/@receives queues/queue"),
    "purge-queue": ("", "qid count"),
    "pause-queue": ("", "qid"),
    "resume-queue": ("", "qid"),
    "redrive-messages": ("max", "qid messages/mid queues/queue count"),
    "queue-stats": ("", ("qid queues/queue queue/@new queue/@ready queue/@in-flight queue/@delayed queue/@bytes "
                    "queue/@oldest queue/@pushed queue/@delivered queue/@expired queue/@deleted queue/@storage "
                    "queue/@dead queue/@retired queue/@paused queue/@subscribers queue/@waiting "
                    "queue/@limited queue/@schema queue/@refused")),
    "server-stats": ("connections", "figures/figure figure/@name"),
    "subscribe": ("prefetch visibility ack name where match", "qid queues/queue"),
    "unsubscribe": ("subscription", ""),
    "authenticate": ("", "token principal"),
    "ping": ("", ""),
    "claim-messages": ("seq max max-bytes upto", ("qid consumer claim claim/@seq claim/@count claim/@bytes "
                       "claim/@first claim/@last claim/@checksum claim/@consumer claim/@since")),
    "get-claim": ("seq part parts", ("qid consumer messages/message/payload message/@mid message/@receives "
                  "message/@pushed-at message/@priority message/@group message/@expires-at "
                  "messages/message/headers/header")),
    "ack-claim": ("seq", "qid consumer"),
    "release-claim": ("seq owner", "qid consumer count"),
    "list-claims": ("", "qid claims/claim claim/@seq"),
    "stage-messages": ("batch part attempt", ("qid producer messages/message/payload count message/@priority "
                       "message/@expires message/@group messages/message/headers/header")),
    "publish-staged": ("batch", "qid producer parts/part part/@number part/@attempt"),
}  # fmt: skip


def declared(element: etree._Element) -> etree._Element:
    """Returns what an element's type says: the named one, or the one inside."""
    named = XSD.find(f"{XS}complexType[@name='{element.get('type')}']")
    return element if named is None else named


def has(element: etree._Element, path: str) -> bool:
    """Tells whether the schema has the path below the element."""
    step, _, rest = path.partition("/")
    content = declared(element)
    if step.startswith("@"):
        groups = {found.get("ref") for found in content.iter(f"{XS}attributeGroup")}
        shared = [group for group in XSD.iterfind(f"{XS}attributeGroup") if group.get("name") in groups]
        return any(
            found.get("name") == step[1:] for part in (content, *shared) for found in part.iter(f"{XS}attribute")
        )
    below = [found for found in content.iter(f"{XS}element") if found.get("name") == step and found is not element]
    return bool(below) and (not rest or has(below[0], rest))


def test_every_operation_is_in_the_table() -> None:
    """The table above, qs.xsd and the classes know the same operations."""
    (op,) = XSD.iterfind(f"{XS}complexType[@name='op']")
    assert set(TABLE) == set(OPERATIONS) == {element.get("name") for element in op.iter(f"{XS}element")}


@pytest.mark.parametrize("op", TABLE)
def test_schema_has_what_the_table_names(op: str) -> None:
    """Every element and attribute that the operations table names is in qs.xsd, and a field of its class."""
    attributes, paths = TABLE[op]
    (root,) = XSD.iterfind(f"{XS}element[@name='qs']")
    missing = [f"op/@{name}" for name in attributes.split() if not has(root, f"op/@{name}")]
    tops = {"message": "messages/message", "queue": "queues/queue", "part": "parts/part", "figure": "figures/figure"}
    for path in paths.split():
        step, _, rest = path.partition("/")
        whole = f"{tops[step]}/{rest}" if step in tops else path
        missing += [] if has(root, whole) else [path]
    assert missing == []
    fields = {wire.attribute(field) for field in OPERATIONS[op].__dataclass_fields__}
    assert set(attributes.split()) <= fields


def test_has_can_fail() -> None:
    """The look-up above does not find what is not there."""
    (root,) = XSD.iterfind(f"{XS}element[@name='qs']")
    assert [path for path in ("op/@nonsense", "nonsense", "messages/queue", "mid/@delay") if has(root, path)] == []
