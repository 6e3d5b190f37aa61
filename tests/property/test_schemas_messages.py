"""Properties of the wire contract: every message comes back as it was, cuts do not matter, nothing bad escapes."""

import itertools
import types
import typing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clients.documents import as_asked
from support.examples import examples

from qs_schemas import (
    OPERATIONS,
    TABLE,
    Claim,
    Delivery,
    Draft,
    Error,
    Fault,
    Figure,
    Limits,
    Message,
    Part,
    Peer,
    Ping,
    QueueInfo,
    QueueOptions,
    Receipt,
    SetQueue,
    parse,
    serialize,
    wire,
)

settings.register_profile(
    "schemas", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
PROFILE = settings.get_profile("schemas")

# -- strategies: one for each field, from its type, or from its name where the contract bounds it ---------------------

CHARACTERS = st.one_of(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), st.sampled_from("<>&\"' ]")
)
XML_CHARACTERS = CHARACTERS | st.sampled_from("\t\n\r\x7f\x85\u2028")
QID = st.text(CHARACTERS, min_size=1, max_size=200).filter(lambda text: text == text.strip(" "))
TEXT = st.text(XML_CHARACTERS, max_size=100)
WHOLE = st.integers(0, 10**18 - 1)
POSITIVE = st.integers(1, 10**18 - 1)
SECONDS = st.integers(0, 10**15 - 1).map(lambda microseconds: microseconds / 10**6) | st.integers(0, 10**9 - 1)
PAYLOAD = (
    st.binary(max_size=200) | TEXT.map(str.encode) | st.sampled_from([b"]]>", b"</payload>", b"\r\n", b"\xef\xbb\xbf"])
)

NAMED: dict[str, st.SearchStrategy[Any]] = {
    "qid": QID, "consumer": QID, "producer": QID, "name": QID, "dead_letter": QID,
    "req": st.text(XML_CHARACTERS, max_size=128), "resp": st.text(XML_CHARACTERS, max_size=128),
    "subscription": st.text(XML_CHARACTERS, max_size=128), "key": st.text(XML_CHARACTERS, min_size=1, max_size=200),
    "ack": st.just("client"), "state": st.sampled_from(["new", "ready", "in-flight", "delayed", "all"]),
    "status": st.sampled_from(["ready", "delivered", "in-flight", "delayed"]),
    "type": st.sampled_from(["request", "response"]),
    "dead_from": QID, "dead_reason": st.just("receives"),
    "backoff": st.integers(1, 10**15 - 1).map(lambda microseconds: microseconds / 10**6) | st.integers(1, 10**9 - 1),
    "backoff_max": st.integers(1, 10**15 - 1).map(lambda microseconds: microseconds / 10**6),
    "retention": st.integers(1, 10**15 - 1).map(lambda microseconds: microseconds / 10**6) | st.integers(1, 10**9 - 1),
    "max_receives": st.integers(1, 1000), "removed": st.just(frozenset()),
    "prefetch": POSITIVE, "max": POSITIVE, "max_bytes": POSITIVE, "capacity": POSITIVE,
    "group_in_flight": POSITIVE, "max_in_flight": POSITIVE, "rate": st.integers(1, 10**9).map(lambda rate: rate / 1000),
    "priority": st.integers(0, 9), "group": st.text(XML_CHARACTERS, min_size=1, max_size=128),
    "expires": st.integers(1, 10**15 - 1).map(lambda microseconds: microseconds / 10**6) | st.integers(1, 10**9 - 1),
    "headers": st.dictionaries(st.sampled_from(["a", "B", "content-type", "x.y_z-0", "a" * 64]), TEXT),
    "order": st.sampled_from(["oldest", "given"]), "limited": st.sampled_from(["max-in-flight", "rate"]),
    "schema": st.from_regex("[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", fullmatch=True), "match": st.just("pattern"),
    "where": st.text(XML_CHARACTERS, min_size=1, max_size=1024),
    "parts": POSITIVE, "labels": st.dictionaries(st.sampled_from(["le", "code", "operation"]), TEXT),
}  # fmt: skip


def of_field(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if name == "queues" and hint == list[str]:
        return st.lists(QID, max_size=3)
    if name == "seq":
        return POSITIVE if hint is int else st.none() | POSITIVE
    if typing.get_origin(hint) is list:
        return st.lists(of_field("", typing.get_args(hint)[0]), max_size=3)
    if isinstance(hint, types.UnionType):
        members = set(typing.get_args(hint))
        if bytes in members:
            members.discard(str)
        return st.one_of(*(of_field(name, member) for member in sorted(members, key=str)))
    if hint is types.NoneType:
        return st.none()
    if name in NAMED:
        return NAMED[name]
    if hint in (Draft, Delivery, QueueOptions, QueueInfo, Figure, Claim, Part, Receipt):
        return of_class(hint)
    return {int: WHOLE, float: SECONDS, str: TEXT, bytes: PAYLOAD, bool: st.booleans()}[hint]


def with_removals(message: Message) -> st.SearchStrategy[Message]:
    """Options that are not set may be removed: by set-queue."""
    options = getattr(message, "options", None)
    if not isinstance(message, SetQueue) or options is None:
        return st.just(message)
    absent = [name for name in wire.OPTIONS if name != "storage" and getattr(options, name) is None]
    names = st.frozensets(st.sampled_from(absent)) if absent else st.just(frozenset[str]())
    return names.map(lambda removed: replace(message, options=replace(options, removed=removed)))


def of_class(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls).items()
    fields = {name: hint for name, hint in hints if typing.get_origin(hint) is not typing.ClassVar}
    return st.builds(cls, **{name: of_field(name, hint) for name, hint in fields.items()})


def complete(message: Message) -> bool:
    """Tells whether it has what a request must carry, and a mid if it has what is written as attributes of one."""
    groups = message.required if message.type == "request" else ()
    of_mid = wire.attributes_of(type(message))[1]
    if getattr(message, "mid", None) is None and any(getattr(message, field) is not None for field in of_mid):
        return False
    return all(any(getattr(message, field) not in (None, []) for field in group) for group in groups)


ERRORS = st.builds(
    Error, WHOLE, TEXT, TEXT, req=st.none() | NAMED["req"], resp=st.none() | NAMED["resp"], type=st.just("error")
)
MESSAGES: dict[str, st.SearchStrategy[Any]] = {
    **{op: of_class(cls).map(as_asked).filter(complete).flatmap(with_removals) for op, cls in OPERATIONS.items()},
    "error": ERRORS,
}
ANY_MESSAGE = st.one_of(*MESSAGES.values())


# -- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", MESSAGES)
def test_round_trip(op: str) -> None:
    """Every message of every operation, and every error, is one line and means the same when it has been read."""

    @settings(PROFILE, max_examples=examples(50))
    @given(MESSAGES[op])
    def check(message: Message) -> None:
        document = serialize(message)
        assert document.endswith(b"\r\n")
        assert b"\n" not in document[:-2]
        assert b"\r" not in document[:-2]
        assert parse(document[:-2]) == message
        assert serialize(parse(document[:-2])) == document

    check()


def events(pieces: list[bytes], limits: Limits) -> list[Any]:
    """Returns the events that a peer makes of the pieces; of a closing fault only its row, as its text quotes what had
    come."""
    peer = Peer(limits)
    found: list[Any] = []
    for piece in pieces:
        peer.receive_data(piece)
        found += peer.events()
    last = peer.end_of_data()
    found += [] if last is None else [last]
    return [event.error if isinstance(event, Fault) and event.error.closes else event for event in found]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


# Of all that framing and parsing distinguish, put together at random.
NS = b"xmlns='http://purl.oclc.org/DEFUZE/qs'"
TOKENS = [
    b"<", b">", b"/", b"</", b"/>", b"=", b"'", b'"', b" ", b"\r\n", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"<?",
    b"?>", b"<?xml version='1.0'?>", b" encoding='utf-16'", b"<!DOCTYPE", b"<!", b"&amp;", b"&", b";", b"\xef\xbb\xbf",
    b"\x00", b"\xff", b"qs", b"a", b"-", b"]", NS, b"xmlns:x='u:u'", b"x:", b"req='1'", b"<qs", b"</qs>", b"<op>",
    b"</op>", b"<ping/>", b"<qid>", b"</qid>", b"<payload>", b"</payload>", b"<a>", b"</a>", b"<a b='c'/>",
    b"<qs " + NS + b">", b"<qs " + NS + b"><op><ping/></op></qs>",
]  # fmt: skip
SOUP = st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join) | st.binary(max_size=50)
SMALL = Limits(document=150, depth=3, attributes=2)
FEW = Limits(elements=3)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Documents with something put in, taken out or repeated."""
    data = b"".join(serialize(message) for message in draw(st.lists(ANY_MESSAGE, min_size=1, max_size=2)))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 20)))
        put = draw(st.sampled_from(TOKENS) | st.binary(max_size=3) | st.just(data[start:end] * 2))
        data = data[:start] + put + data[end:]
    return data


@settings(PROFILE, max_examples=examples(200))
@given(st.lists(ANY_MESSAGE, min_size=1, max_size=4), st.lists(st.integers(0), max_size=8))
def test_cuts_of_good_streams(messages: list[Message], at: list[int]) -> None:
    """Messages come out of a stream as they went in: byte by byte, cut anywhere, or all at once."""
    data = b"".join(map(serialize, messages))
    for pieces in ([data], cut(data, at), [bytes([byte]) for byte in data]):
        assert events(pieces, Limits()) == messages


@settings(PROFILE, max_examples=examples(700))
@given(SOUP | mutated(), st.lists(st.integers(0), max_size=8), st.sampled_from([Limits(), SMALL, FEW]))
def test_cuts_of_bad_streams(data: bytes, at: list[int], limits: Limits) -> None:
    """Random and mutated bytes give messages and faults of the table, nothing else, and the same in any pieces."""
    at_once = events([data], limits)
    for event in at_once:
        assert isinstance(event, Message) or event in TABLE or event.error in TABLE
        if isinstance(event, Fault):
            assert event.text
            assert serialize(event.message()).count(b"\n") == 1
    assert events(cut(data, at), limits) == at_once
    assert events([bytes([byte]) for byte in data], limits) == at_once


@settings(PROFILE, max_examples=examples(700))
@given(SOUP | mutated())
def test_after_a_fault(data: bytes) -> None:
    """After a fault that does not close, what follows is read: a ping behind whole documents arrives."""
    peer = Peer()
    peer.receive_data(data)
    for event in peer.events():
        if isinstance(event, Fault) and event.error.closes:
            return
    if not peer.begun and not peer._framer.buffer:  # nor the first bytes of a BOM
        peer.receive_data(b"\r\n" + serialize(Ping(req="after")))
        assert list(peer.events()) == [Ping(req="after")]
