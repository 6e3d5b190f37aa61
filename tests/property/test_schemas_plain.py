"""The quick lanes: what is read and written without the parser is what the parser and the serializer make of it."""

import contextlib
import dataclasses
import itertools
import random
import re
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import examples as random_documents
from support.examples import examples

from qs_schemas import (
    CLIENT_LIMITS,
    CopyMessage,
    DeleteMessage,
    Delivery,
    Draft,
    ExtendMessage,
    Fault,
    GetClaim,
    GetMessage,
    Limits,
    Message,
    Peer,
    Ping,
    ProtocolError,
    PushMessage,
    Receipt,
    ReceiveMessage,
    ReleaseMessage,
    StageMessages,
    serialize,
)
from qs_schemas.framing import Framer
from qs_schemas.parsing import parse
from qs_schemas.plain import PlainReader
from qs_schemas.serializing import check_lengths
from qs_schemas.templates import write

PROFILE = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])

# -- messages as they are, and as they could be ---------------------------------------------------------------------

CHARACTERS = st.one_of(
    st.sampled_from("ab<>&\"' ]-.\t\n\r\x7f\x85\xa0\u2028\ufeff\ud7ff"),
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"),
)
QID = st.sampled_from(["a", "orders", "orders.new-1", "a b", "größe", "\u00ad", "q" * 200, "ü" * 150, "a<b>&\"'"])
REQ = st.none() | st.sampled_from(["1", "qs-17", "", " a ", "a>b", "x" * 128, "ü", "&", "\n"]) | st.text(CHARACTERS)
RESP = st.none() | st.just("f" * 64)
WHOLE = st.integers(0, 300) | st.integers(0, 10**18 - 1)
SECONDS = st.none() | st.integers(0, 100) | st.floats(0, 10**6).map(lambda value: round(value, 6))
KEY = st.none() | st.text(CHARACTERS, min_size=1, max_size=20)
PAYLOAD = (
    st.sampled_from([b"", b"x", b"x" * 40, b'{"a": [1]}', b"a\r\nb", b"]]>", b"\x00", b"\xff", b"</payload>", b"&lt;"])
    | st.text(CHARACTERS, max_size=20).map(str.encode)
    | st.binary(max_size=20)
)
EITHER = {"type": st.sampled_from(["request", "response"]), "req": REQ, "resp": RESP}
OPTIONAL = st.none() | WHOLE


def lists(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(entries, max_size=3)


HEADERS = st.dictionaries(st.sampled_from(["a", "B", "content-type", "a" * 64]), st.text(CHARACTERS, max_size=9))
PUSHED = {
    "unique": st.booleans(), "priority": st.none() | st.integers(0, 9), "expires": SECONDS, "headers": HEADERS,
    "group": st.none() | st.text(CHARACTERS, min_size=1, max_size=20),
}  # fmt: skip
DRAFT = st.builds(Draft, PAYLOAD) | st.builds(Draft, PAYLOAD, SECONDS, KEY) | st.builds(Draft, PAYLOAD, **PUSHED)
DEAD = {
    "dead_from": st.none() | QID, "dead_mid": OPTIONAL, "dead_receives": OPTIONAL, "dead_at": OPTIONAL,
    "dead_reason": st.none() | st.just("receives"),
}  # fmt: skip
THERE = {"priority": PUSHED["priority"], "group": PUSHED["group"], "expires_at": OPTIONAL, "headers": HEADERS}
DELIVERED = (Delivery, WHOLE, PAYLOAD, st.none() | QID, OPTIONAL, OPTIONAL, OPTIONAL)
DELIVERY = st.builds(*DELIVERED) | st.builds(*DELIVERED, **DEAD) | st.builds(*DELIVERED, **THERE)
MIDS = WHOLE | st.builds(Receipt, WHOLE, WHOLE)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(PushMessage, QID, PAYLOAD, SECONDS, KEY, **EITHER),
    st.builds(PushMessage, QID, PAYLOAD, SECONDS, KEY, **PUSHED, **EITHER),
    st.builds(PushMessage, QID, messages=lists(DRAFT), **EITHER),
    st.builds(PushMessage, QID, messages=lists(st.builds(Draft, PAYLOAD)), **EITHER),
    st.builds(PushMessage, QID, mid=WHOLE, **EITHER),
    st.builds(PushMessage, QID, mids=lists(WHOLE), **EITHER),
    st.builds(ReceiveMessage, QID, max=st.none() | WHOLE, wait=SECONDS, visibility=SECONDS, **EITHER),
    st.builds(ReceiveMessage, QID, order=st.sampled_from([None, "oldest", "given"]), **EITHER),
    st.builds(ReceiveMessage, st.none() | QID, messages=lists(DELIVERY), **EITHER),
    st.builds(DeleteMessage, QID, WHOLE, OPTIONAL, **EITHER),
    st.builds(DeleteMessage, QID, mids=lists(MIDS), **EITHER),
    st.builds(CopyMessage, QID, WHOLE, queues=lists(QID), **EITHER),
    st.builds(CopyMessage, QID, mids=lists(MIDS), queues=lists(QID), **EITHER),
    st.builds(CopyMessage, QID, mids=lists(WHOLE), **EITHER),
    st.builds(ReleaseMessage, QID, WHOLE, OPTIONAL, SECONDS, OPTIONAL, **EITHER),
    st.builds(ReleaseMessage, QID, WHOLE, uncounted=st.booleans(), **EITHER),
    st.builds(ExtendMessage, QID, WHOLE, OPTIONAL, SECONDS, OPTIONAL, **EITHER),
    st.builds(
        GetMessage, QID, WHOLE, st.booleans(), SECONDS, st.none() | PAYLOAD,
        st.sampled_from([None, "ready", "delivered", "in-flight", "delayed"]), OPTIONAL, OPTIONAL, OPTIONAL, **EITHER,
    ),
    st.builds(GetMessage, QID, WHOLE, payload=PAYLOAD, status=st.just("delivered"), **DEAD, **EITHER),
    st.builds(GetMessage, QID, WHOLE, payload=PAYLOAD, status=st.just("delivered"), **THERE, **EITHER),
    st.builds(Ping, **EITHER),
    st.builds(GetClaim, QID, messages=lists(DELIVERY), **EITHER),
    st.builds(StageMessages, QID, QID, WHOLE, WHOLE, WHOLE, messages=lists(DRAFT), **EITHER),
)  # fmt: skip
WRONG = st.sampled_from([None, False, True, 0, -1, 1.5, 10**30, "", "x", b"x", [], [1], [True], [Draft("y")], ["z"]])


@st.composite
def odd(draw: st.DrawFn) -> Message:
    """Messages of which some fields hold what no client would put there."""
    message = draw(MESSAGES)
    for _ in range(draw(st.integers(1, 2))):
        field = draw(st.sampled_from(dataclasses.fields(message)))
        with contextlib.suppress(TypeError):  # text is checked at once
            setattr(message, field.name, draw(WRONG))
    return message


def outcome(write_it: Any, message: Message) -> Any:
    try:
        return write_it(message)
    except ValueError as error:  # what XML cannot carry
        return str(error)
    except Exception:  # a field of another type, which nobody promises to tell
        return Exception


def checked_and_serialized(message: Message) -> bytes:
    if message.type == "request":
        check_lengths(message)
    return serialize(message)


@settings(PROFILE, max_examples=examples(600))
@given(MESSAGES | odd())
def test_templates(message: Message) -> None:
    """A template writes what the serializer writes, byte for byte, and fails as it does; or there is none."""
    assert outcome(write, message) == outcome(Peer().send, message) == outcome(checked_and_serialized, message)


# -- documents that are plain, and that nearly are ---------------------------------------------------------------------

NS = b'xmlns="http://purl.oclc.org/DEFUZE/qs"'
PUT = [
    b"<", b">", b"&", b"&lt;", b"&amp;lt;", b"&#10;", b"&#x41;", b"&#0;", b"&nope;", b"&amp", b"&gt;&#13;", b"]]>",
    b"]]&gt;",
    b"<!--c-->", b"<![CDATA[x]]>", b"<?pi?>", b"<?xml version='1.0'?>", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n",
    b"\t", b" ",
    b"\x00", b"\x01", b"\x0b", b"\x1f", b"\x7f", b"\xc2\x85", b"\xc2\xa0", b"\xff", b"\xc3", b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xef\xbf\xbe", b"\xef\xbf\xbf", b"\xef\xbf\xbd", b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xa8",
    b"\xc3\xbc",
    b'"', b"'", b"/", b"=", b"0", b"00", b"1", b"-1", b"+1", b"1_0", b"1e3", b".5", b"5.", b"1.5", b"1" * 18,
    b"1" * 19, b"a",
    b"a" * 200, b' a="b"', b' key="k"', b' key=""', b' delay="1"', b' delay="1.0000000001"', b' max="0"', b' max="007"',
    b' wait="5"', b' visibility=" 5"', b' peek="yes"', b' peek="maybe"', b' receives="2"', b' status="ready"',
    b' status="x"', b' pushed-at="1"', b' visible-at="1"', b' qid="a"', b' mid="1"', b' req="r"',
    b' req="' + b"r" * 129 + b'"',
    b' resp="r"', b' type="request"', b' type="response"', b' type="error"', b' type="x"', b' encoding="base64"',
    b' encoding="hex"', b' xmlns:x="u:u" x:a="b"', b' xml:lang="en"', b' xmlns="u:u"', NS, b"x:", b"<x/>", b"<op/>",
    b"<qid>a</qid>", b"<qid> a </qid>", b"<qid></qid>", b"<mid>1</mid>", b"<mid> 1 </mid>", b"<payload>p</payload>",
    b"<payload/>", b"<messages></messages>", b"<messages>", b"</messages>", b"<message>", b"</message>",
    b"<message><payload>p</payload></message>", b"</payload></message><message><payload>", b"<count>1</count>",
    b"<queues><queue>a</queue></queues>", b"</qs>", b"<qs>", b"<qs " + NS + b"><op><ping/></op></qs>", b"<ping />",
    b"<ping></ping>", b"</payload>", b"<payload>", b'<payload encoding="base64">', b"eA==", b"eA=", b"</mid>",
    b"</qid>", b"<headers></headers>", b"<headers/>", b"</headers>", b'<headers><header name="a">1</header></headers>',
    b'<header name="a">1</header>', b'<header name="qs-a">1</header>', b'<header name="a" x="">1</header>',
    b'<header name="' + b"n" * 65 + b'">1</header>', b' name="a"', b' priority="5"', b' priority="10"', b' group="g"',
    b' group=""', b' group="' + b"g" * 129 + b'"', b' expires="1.5"', b' expires="0"', b' expires="00.0"',
    b' expires-at="1"', b' unique="yes"', b' unique="maybe"', b' order="given"', b' order="any"',
]  # fmt: skip
CHANGES = [
    (b'"', b"'"), (b"><", b">\n<"), (b"/>", b" />"), (b"/></op>", b"></ping></op>"), (b"\r\n", b""), (b"x",
    b"\xc3\xbc"),
    (b"1", b"01"), (b"</qid>", b" </qid>"), (b' type="request"', b""), (b"qs", b"q:qs"), (b"payload>", b"payload >"),
    (b"push-message", b"stage-messages"), (b"push-message", b"delete-message"), (b"messages", b"m"),
    (b"receive-message", b"get-claim"), (b"<mid>", b'<mid status="ready">'), (b"<message>", b'<message delay="1">'),
    (b"http://purl.oclc.org/DEFUZE/qs", b"u:u"), (b"x", b"&#13;"), (b"x", b"\r"), (b"<op>", b'<op key="k" delay="2">'),
    (b"<payload>", b'<headers><header name="a">x</header><header name="b">&lt;</header></headers><payload>'),
    (b"<message>", b'<message group="g" priority="3" unique="yes" key="k">'), (b"<op>", b'<op order="given">'),
    (b"<mid>", b'<mid priority="3" group="g" expires-at="1">'), (b'<header name="', b'<header name="A'),
    (b"<op>", b'<op delay="2" wait="3">'), (b"<op>", b'<op max="2" wait="3">'), (b"<op>", b'<op max="2" max="3">'),
]  # fmt: skip


@st.composite
def nearly(draw: st.DrawFn) -> bytes:
    """A document or two, of which some bytes have been changed: mostly where tags and values meet."""
    data = b"".join(serialize(message) for message in draw(st.lists(MESSAGES, min_size=1, max_size=2)))
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            old, new = draw(st.sampled_from(CHANGES))
            data = data.replace(old, new, draw(st.sampled_from([1, -1])))
            continue
        places = [found.end() for found in re.finditer(rb'(?=[<>"/ ])|(?<=[>"])', data)]
        start = draw(st.sampled_from(places or [0]) | st.integers(0, len(data)))
        end = start + draw(st.sampled_from([0, 0, 0, 1, 2, 5, 20]))
        put = draw(st.sampled_from(PUT) | st.just(b"") | st.just(data[start:end] * 2))
        data = data[:start] + put + data[end:]
    return data


BOUNDS = [
    Limits(), CLIENT_LIMITS, Limits(document=200), Limits(document=160), Limits(depth=5), Limits(depth=3),
    Limits(attributes=12), Limits(attributes=3), Limits(list_length=2), Limits(elements=8), Limits(elements=10),
    Limits(depth=4), Limits(elements=12),
]  # fmt: skip
PARSED: dict[str, int] = {"plain": 0, "not": 0}
READERS = {limits: PlainReader(limits) for limits in BOUNDS}
"""Readers that read all documents of a run, one after the other, and so remember heads."""


def same(one: Any, other: Any) -> bool:
    """Tells whether these are equal, and of the same types all through."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@settings(PROFILE, max_examples=examples(1300))
@given(nearly(), st.sampled_from(BOUNDS))
def test_plain_or_declined(data: bytes, limits: Limits) -> None:
    """The framer and the parser understand every document that is read without the parser in just the same way."""
    found = PlainReader(limits).read(data)
    PARSED["not" if found is None else "plain"] += 1
    for _ in range(2):  # the second time, the head is known
        assert same(READERS[limits].read(data), found)
    if found is None:
        return
    message, end = found
    assert same(PlainReader(limits).read(bytearray(b"x" + data), 1), (message, end + 1))
    framer = Framer(limits)
    framer.feed(data)
    document = framer.next_document()
    assert document is not None
    assert document == data[:end].strip(b" \t\r\n")
    assert data[end : end + 1] not in (b" ", b"\t", b"\r", b"\n")
    assert same(parse(document, limits), message)


def test_many_are_plain() -> None:
    """The property above is about something: of the documents that it looks at, many are read without the parser."""
    if PARSED["not"]:
        assert PARSED["plain"] > 100


def plain_like_the_parser(data: bytes, limits: Limits) -> bool:
    """Tells whether the document is read without the parser, and asserts that it is then what the framer and the parser
    make of it."""
    found = PlainReader(limits).read(data)
    if found is None:
        return False
    message, end = found
    framer = Framer(limits)
    framer.feed(data)
    document = framer.next_document()
    assert document == data[:end].strip(b" \t\r\n")
    assert same(parse(document, limits), message), data
    return True


def compare(plain: int, seed: int) -> tuple[int, int]:
    """Compares random documents until so many were read without the parser. Returns how many there were in all, and how
    many of those read without the parser differ from each other."""
    rng = random.Random(seed)
    seen = looked_at = 0
    different = set()
    while seen < plain:
        looked_at += 1
        data = random_documents.plain(rng)
        if rng.random() < 0.5:
            data = random_documents.changed(rng, data)
        if plain_like_the_parser(data, rng.choice(BOUNDS) if rng.random() < 0.1 else BOUNDS[0]):
            seen += 1
            different.add(data)
        assert looked_at < 10 * plain
    return looked_at, len(different)


def test_random_documents() -> None:
    """1,000 random documents that are read without the parser are what the parser makes of them."""
    looked_at, different = compare(1000, 1)
    assert looked_at < 4000
    assert different > 850


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3])
def test_random_documents_in_numbers(seed: int) -> None:
    """100,000 random documents that are read without the parser are what the parser makes of them (a minute or two)."""
    looked_at, different = compare(100_000, seed)
    print(f"seed {seed}: {looked_at:,} documents, of which 100,000 were plain, {different:,} of these different")
    assert different > 70_000


def events(pieces: list[bytes], limits: Limits, serving: bool) -> list[Any]:
    """Returns the events that a peer makes of the pieces; of a closing fault only its row, as its text quotes what had
    come."""
    peer = Peer(limits, serving=serving)
    found: list[Any] = []
    for piece in pieces:
        peer.receive_data(piece)
        found += peer.events()
        found += [peer.begun, peer.early]
    last = peer.end_of_data()
    found += [] if last is None else [last]
    return [event.error if isinstance(event, Fault) and event.error.closes else event for event in found]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


@settings(PROFILE, max_examples=examples(200))
@given(st.lists(nearly(), min_size=1, max_size=2).map(b"".join), st.lists(st.integers(0), max_size=8), st.data())
def test_lanes_agree(data: bytes, at: list[int], more: st.DataObject) -> None:
    """A stream in any pieces gives the same events, and is inside a document at the same places, with and without the
    quick lane, for a server and for a client."""
    limits, serving = more.draw(st.sampled_from(BOUNDS)), more.draw(st.booleans())
    for pieces in (cut(data, at), [data], [bytes([byte]) for byte in data]):
        quick = events(pieces, limits, serving)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PlainReader, "read", lambda self, data, at=0: None)
            slow = events(pieces, limits, serving)
        assert same(quick, slow)


# -- what has to be plain, or the lane is of no use --------------------------------------------------------------------

X = b"x" * 100
RECEIVED = [Delivery(mid, X, "orders", 1, 1700000000000000, 1700000060000000) for mid in range(50)]
KEPT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Content-Type": 'a/b; c="d&é"\r\n'}
SAID: dict[str, Any] = {"unique": True, "priority": 9, "expires": 2.5, "group": "customer 17", "headers": KEPT}
SHOWN: dict[str, Any] = {"priority": 9, "group": "customer 17", "expires_at": 1700000060000000, "headers": KEPT}
USUAL = [
    PushMessage("orders", X), PushMessage("orders", b"a\n<b>&amp;\r\n", 1.5, "k-1"), PushMessage("größe", "ß".encode()),
    PushMessage("orders", b"\xff\x00"), PushMessage("orders", messages=[Draft(X)] * 50),
    PushMessage("orders", messages=[Draft(b"<>", 5.0), Draft(b"\x00", None, "k")]),
    ReceiveMessage("orders", max=10, visibility=30.0, wait=20.0), ReceiveMessage("orders"),
    DeleteMessage("orders", 7), DeleteMessage("orders", 7, 2), DeleteMessage("orders", mids=[1, Receipt(2, 3)]),
    ReleaseMessage("orders", 7, 2, 1.0), ExtendMessage("orders", 7, 2, 60.0), GetMessage("orders", 7, peek=True),
    Ping(), StageMessages("orders", "shop", 0, 1, 2, messages=[Draft(X)] * 50), ReceiveMessage("orders", order="given"),
    PushMessage("orders", X, headers=KEPT), PushMessage("orders", X, 1.5, "k", **SAID),
    PushMessage("orders", b"\0", **SAID),
    PushMessage("orders", messages=[Draft(X, headers=KEPT), Draft(X, 1.0, "k", **SAID), Draft(X)]),
    StageMessages("orders", "shop", 0, 1, 2, messages=[Draft(X, headers=KEPT)] * 50),
]  # fmt: skip
ANSWERS = [
    PushMessage("orders", mid=7), PushMessage("orders", mids=list(range(50))), ReceiveMessage(messages=RECEIVED),
    ReceiveMessage(), DeleteMessage("orders", 7), DeleteMessage("orders"), DeleteMessage("orders", mids=[1, 2]),
    GetMessage("orders", 7, payload=X, status="delivered", receives=1, pushed_at=1, visible_at=2),
    GetMessage("orders", 7, status="delayed", visible_at=2), ReleaseMessage("orders", 7, visible_at=1),
    ExtendMessage("orders", 7, visible_at=1), Ping(),
    GetClaim("orders", messages=[Delivery(mid, X, None, 1, 1700000000000000) for mid in range(50)]),
    GetMessage("orders", 7, payload=X, status="delivered", receives=1, pushed_at=1, **SHOWN),
    GetMessage("orders", 7, payload=b"\0", headers=KEPT), GetMessage("orders", 7, status="delayed", priority=3),
    ReceiveMessage(messages=[*RECEIVED, Delivery(5, X, "orders", 1, 17, 18, **SHOWN), *RECEIVED]),
    GetClaim("orders", messages=[Delivery(mid, X, None, 1, 17, headers=KEPT) for mid in range(50)]),
]  # fmt: skip
for answer in ANSWERS:
    answer.type, answer.req, answer.resp = "response", "qs-17", "0f" * 32


@pytest.mark.parametrize("message", USUAL + ANSWERS, ids=lambda message: f"{message.type}-{message.op}")
@pytest.mark.parametrize("size", [10**6, 700])
def test_usual_ones_need_no_parser(message: Message, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual requests and answers go through two peers without serializer and parser, whole and in pieces."""
    for name in ("_parse", "serialize"):
        monkeypatch.setattr(sys.modules["qs_schemas.peer"], name, None)
    document = Peer().send(message)
    peer = Peer(CLIENT_LIMITS)
    found: list[Any] = []
    for start in range(0, len(document), size):
        peer.receive_data(document[start : start + size])
        found += peer.events()
    assert same(found, [message])


@pytest.mark.parametrize("document", [
    b'<qs %b><op><push-message/></op><qid>orders</qid><payload>pears</payload></qs>' % NS,
    b'<qs %b type="request"><op><push-message /></op><qid>orders</qid><payload>two\npizzas</payload></qs>' % NS,
    b'<qs %b><op wait="5" max="3"><receive-message/></op><qid>orders</qid></qs>\r\n\r\n' % NS,
])  # fmt: skip
def test_as_the_readme_writes_them(document: bytes) -> None:
    """Documents as people type them are plain too."""
    found = PlainReader(Limits()).read(document)
    assert found is not None
    assert same(found[0], parse(document))


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n", b" \t\r\n\r\n"])
@pytest.mark.parametrize("payload", [b"", b"x", b"a\nb", b"a &amp; b", b"&no;", b"\xff", b"]]>", b"\x00", b"<x/>"])
def test_a_known_head_changes_nothing(payload: bytes, tail: bytes) -> None:
    """A document behind one with the same head is read, or declined, as the first one of a stream is."""
    reader = PlainReader(Limits())
    document = b"<qs %b%%b><op><push-message/></op><qid>q</qid><payload>%%b</payload></qs>%%b" % NS
    reqs = (b"2", b"", b"a>b", b"a&b", b"\xff", b"x" * 128, b"x" * 129, b'2" resp="3')
    some = [*(b' req="%b"' % req for req in reqs), b"", b"", b' type="request"', b' type="request"', b' resp="3"']
    some += [b' type="response"%b resp="%b"' % (req, resp) for req in (b' req="1"', b"") for resp in reqs[:-1]]
    for ids, further in itertools.product(some, (b"", b' resp="0"')):
        kind = b' type="response"' if b"response" in ids else b""
        first = document % (b"" if b"req=" not in ids else kind + b' req="1"' + further, b"first", b"\r\n")
        assert reader.read(first) is not None
        data = document % (ids, payload, tail)
        for written in (data, data + data, data[:-1], data[:40], b" " + data):
            assert same(reader.read(written), PlainReader(Limits()).read(written)), written


def test_refusals_come_from_the_parser() -> None:
    """A document that looks plain and is wrong gets the parser's refusal."""
    bad = b'<qs %b req="7"><op max="0"><receive-message/></op><qid>orders</qid></qs>' % NS
    with pytest.raises(ProtocolError) as refused:
        parse(bad)
    peer = Peer()
    peer.receive_data(bad)
    (fault,) = peer.events()
    assert isinstance(fault, Fault)
    assert (fault.text, fault.req) == (refused.value.text, "7")


@pytest.mark.parametrize("dot", [b"\0", b"-", b"x", b"\n"])
def test_the_namespace_is_taken_literally(dot: bytes) -> None:
    """A namespace that differs from ours where that has a dot is another one, or none at all."""
    data = serialize(PushMessage("orders", b"x"))
    assert PlainReader(Limits()).read(data) is not None
    for at in [found.start() for found in re.finditer(rb"\.", data)]:
        assert PlainReader(Limits()).read(data[:at] + dot + data[at + 1 :]) is None


def test_a_head_without_a_queue() -> None:
    """An answer without a queue does not stand for the beginning of one with a queue; deliveries have a known head."""
    reader = PlainReader(Limits())
    for qid in (None, "q", "q", None, "r"):
        message = GetMessage(qid, 1, payload=b"x", status="delivered", req="1", type="response")
        data = serialize(message)
        assert reader.read(data) == (message, len(data))
    for qid in (None, "q", None):
        answer = ReceiveMessage(qid, max=10, type="response")
        data = serialize(answer)
        assert reader.read(data) == (answer, len(data))


def test_long_heads_are_not_remembered() -> None:
    """White space in the heads of a client's documents does not stay in memory."""
    reader = PlainReader(Limits())
    for op in ("push-message", "ping", "get-message"):
        body = f"<op{' ' * 200}><{op}/></op><qid>q</qid>"
        reader.read(b" " * 100_000 + b'<qs %b req="1">' % NS + b"\n" * 100_000 + body.encode() + b"</qs>")
    assert sum(len(head[0]) for head in reader._heads.values()) + len(reader._before) < 1024
