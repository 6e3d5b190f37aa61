"""Documents that are meant to cost much time or memory, or to raise what nobody catches: each is refused, soon."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from qs_schemas import (
    NAMESPACE,
    Authenticate,
    Fault,
    Limits,
    Peer,
    Ping,
    ProtocolError,
    PurgeQueue,
    PushMessage,
    parsing,
)
from qs_schemas.parsing import parse


def qs(inside: str, attributes: str = "", op: str = "ping") -> bytes:
    """A request for the operation; its op is left out when the name is empty."""
    op = f"<op><{op}/></op>" if op else ""
    return f'<qs xmlns="{NAMESPACE}" req="r1"{attributes}>{op}{inside}</qs>'.encode()


def push(inside: str, attributes: str = "") -> bytes:
    return qs(f"<qid>a</qid>{inside}", attributes, op="push-message")


def fault(document: bytes) -> Fault:
    """The fault that a peer finds in the document. The document is followed by a ping, to see what becomes of that."""
    peer = Peer()
    peer.receive_data(document + b"\r\n" + qs(""))
    first, *rest = peer.events()
    assert isinstance(first, Fault)
    assert rest == ([] if first.error.closes else [Ping(req="r1")])
    return first


def test_parse_validates_a_long_list_up_to_its_first_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of a long list are validated one by one, and none behind one that is not valid, so that a fault in each
    costs no more than one."""
    seen: list[str] = []
    real = parsing._SCHEMA_OF_ENTRIES

    class Schema:
        @property
        def error_log(self) -> object:
            return real.error_log

        def validate(self, element: Any) -> bool:
            seen.append(element.text)
            return real.validate(element)

    monkeypatch.setattr(parsing, "_SCHEMA_OF_ENTRIES", Schema())
    queues = [f"<queue>{name}</queue>" for name in ["a", "b", ""] * 100]
    found = fault(qs(f"<queues>{''.join(queues)}</queues>"))
    assert found.text == "line 1: 'queue' has to be 1 to 200 characters, none of them a control character"
    assert seen == [None, "a", "b", None]


ATTRIBUTES = " ".join(f"a{number}=''" for number in range(31))
HEADERS = "<headers>" + f"<header {ATTRIBUTES}/>" * 30 + "</headers>"
FAULTS = {
    "entries": qs("<messages>" + f"<mid {ATTRIBUTES}/>" * 100 + "</messages>"),
    "entries of a long list": qs("<parts>" + f"<part {ATTRIBUTES}/>" * 10_000 + "</parts>"),
    "entries without what they need": qs("<parts>" + "<part/>" * 10_000 + "</parts>"),
    "elements in an entry": qs(f"<parts><part number='1' attempt='1'>{'<part/>' * 19_000}</part></parts>"),
    "elements in a value": qs(f"<qid>{'<qid/>' * 19_000}</qid>"),
    "elements in a mid": qs(f"<mid>{'<mid/>' * 19_000}</mid>"),
    "elements in options": qs(f"<options>{'<a/>' * 19_000}</options>"),
    "operations": qs(f"<op>{'<ping/>' * 19_000}</op>", op=""),
    "elements in an operation": qs(f"<op><ping>{'<ping/>' * 19_000}</ping></op>", op=""),
    "payloads in messages": qs(
        f"<messages>{f'<message>{chr(60)}payload/>{chr(60)}payload/></message>' * 1000}</messages>"
    ),
    "headers in messages": qs("<messages>" + f"<message>{HEADERS}</message>" * 90 + "</messages>"),
    "headers side by side": qs(f"<messages><message>{HEADERS * 90}</message></messages>"),
    "headers beside the payload": qs(HEADERS + "<payload/>"),
    "text between": qs("<messages>" + "a<mid>1</mid>" * 1000 + "</messages>"),
    "attributes everywhere": qs(
        "".join(f"<{name} {ATTRIBUTES}/>" for name in ("qid", "mid", "payload", "messages", "queues", "options", "m"))
    ),
}


@pytest.mark.parametrize("document", FAULTS.values(), ids=FAULTS.keys())
def test_parse_looks_for_few_faults(document: bytes) -> None:
    """However many faults a document has, the schema finds few before the document is refused."""
    found = fault(document)
    assert (found.error.code, found.error.closes) == (400, False)
    logged = len(parsing._SCHEMA.error_log) + len(parsing._SCHEMA_OF_ENTRIES.error_log)
    assert logged <= 33 * parsing._AT_ONCE


@pytest.mark.parametrize("inside", ["{}", "<messages>{}</messages>", "<qid>{}</qid>"])
def test_parse_of_foreign_elements_with_many_namespaces(inside: str) -> None:
    """The content of a foreign element is dropped with it, in a time that grows with its bytes: lxml by itself compares
    each of its names with all declarations that it has removed."""
    attributes = " ".join(f"y:a{number}=''" for number in range(29))
    foreign = "<a xmlns='u:u'>" + f"<y:b xmlns:y='u:u' {attributes}/>" * 6000 + "</a>"
    document = qs(inside.format(foreign))
    start = time.process_time()
    peer = Peer(serving=True)
    peer.receive_data(document)
    assert len(list(peer.events())) == 1
    assert time.process_time() - start < 2  # it takes 0.1 s, and took 6


XS = "{http://www.w3.org/2001/XMLSchema}"
QS_XSD = etree.fromstring((Path(parsing.__file__).parent / "qs.xsd").read_bytes())


def unbounded() -> dict[str, set[str]]:
    """The types of qs.xsd that hold any number of something, or more than a list may have, and the elements of each."""
    found: dict[str, set[str]] = {}
    for particle in QS_XSD.iter(f"{XS}element", f"{XS}any", f"{XS}sequence", f"{XS}choice", f"{XS}group", f"{XS}all"):
        most = particle.get("maxOccurs", "1")
        if most == "unbounded" or int(most) > Limits().list_length:
            (kind,) = particle.iterancestors(f"{XS}complexType")
            elements = QS_XSD.iterfind(f".//{XS}element[@type='{kind.get('name')}']")
            found[kind.get("name", "")] = {element.get("name", "") for element in elements}
    return found


def test_parse_bounds_every_list_of_the_schema() -> None:
    """Whatever qs.xsd leaves unbounded has a bound here, at which a document is taken and over which it is refused:
    unread, whether it is valid or not."""
    kinds = unbounded()
    assert kinds.pop("payload") == {"payload"}
    assert len(kinds) >= 5
    bound = {name for names in kinds.values() for name in names}
    assert {f"{{{NAMESPACE}}}{name}" for name in bound} == parsing._LISTS.keys()
    for name in sorted(bound):
        limits = Limits(list_length=3)
        most = 3 * parsing._LISTS[f"{{{NAMESPACE}}}{name}"]
        for entry in ("<a/>", "<!-- a --><a/>", "<x:a xmlns:x='u:x'/>"):
            document = qs(f"<{name}>{entry * (most + 1)}</{name}>", ' type="response"')
            with pytest.raises(ProtocolError, match=f"'{name}' has {most + 1} entries; at most {most}"):
                parse(document, limits)
        with pytest.raises(ProtocolError, match="Element 'a': This element is not expected"):
            parse(qs(f"<{name}>{'<a/>' * most}</{name}>", ' type="response"'), limits)
    with pytest.raises(ProtocolError, match="more than 1000 elements side by side"):
        parse(push("<payload>" + "<a/>" * 1001 + "</payload>"))


def test_parse_of_short_and_long_lists_agrees() -> None:
    """A list that is validated in one go and one that is validated entry by entry get the same refusals."""
    for wrong in ("<mid a=''>1</mid>", "<mid receives='x'>1</mid>", "<message/>", "<queue>a</queue>", "<qs/>", "text",
                  "<message><payload/><payload/></message>", "<mid xmlns=''>1</mid>"):  # fmt: skip
        texts = {fault(qs(f"<messages>{'<mid>1</mid>' * before}{wrong}</messages>")).text for before in (0, 500)}
        (text,) = {re.sub(r"Expected is.*|namespace ''", "", text).strip() for text in texts}
        assert text


@pytest.mark.parametrize("name", ["count", "principal", "claim", "claims", "figures"])
def test_parse_refuses_parts_of_answers_in_requests(name: str) -> None:
    """A request with an element that only answers have is 400 and says which: it is not looked at. An answer has it."""
    found = fault(qs(f"<{name}>{'<a/>' * 15_000}</{name}>"))
    assert (found.error.code, found.error.closes) == (400, False)
    assert found.text == f"'{name}' is for answers: a request cannot have it"
    assert "for answers" not in fault(qs(f"<{name}><a/></{name}>", ' type="response"')).text
    peer = Peer(serving=True)
    peer.receive_data(qs(f"<{name}><a/></{name}>", ' type="response"'))
    (event,) = peer.events()
    assert isinstance(event, Fault)
    assert event.text == found.text


@pytest.mark.parametrize("op", ["subscribe", "receive-message"])
@pytest.mark.parametrize("count", [1, 500])
def test_parse_takes_entries_of_an_answer_sent_back(op: str, count: int) -> None:
    """A request whose queues have the figures of `queue-stats`, as in the answer that they were taken from, is read as
    if they had none. What is not a figure is refused."""
    queue = "<queue new='3' ready='4' in-flight='0' oldest='1.5' storage='journal' paused='no'>a</queue>"
    peer = Peer(serving=True)
    peer.receive_data(qs(f"<queues>{queue * count}</queues>", op=op))
    (event,) = peer.events()
    assert getattr(event, "queues", event) == ["a"] * count
    assert "'new' of 'queue'" in fault(qs(f"<queues>{queue.replace('3', '!') * count}</queues>", op=op)).text


SPACES = " " * 5000
VALUES = [
    (f"<qid>{SPACES}a</qid>", "'qid' has 5001 characters; at most 4096"),
    (f"<qid>a{'<!-- -->  ' * 3000}</qid>", "'qid' has 6001 characters"),
    ("<qid>a" + "<x:a xmlns:x='u:x'/>  " * 3000 + "</qid>", "'qid' has 6001 characters"),
    (f"<mid>{'1' * 5000}</mid>", "'mid' has 5000"),
    (f"<mid receives='{SPACES}1'>1</mid>", "'receives' of 'mid' has 5001"),
    (f"<queues><queue>{SPACES}a</queue></queues>", "'queue' has 5001"),
    (f"<messages><mid>{'&#32;' * 5000}1</mid></messages>", "'mid' has 5001"),
    (f"<messages><message key='{'k' * 5000}'><payload/></message></messages>", "'key' of 'message' has 5000"),
    (f"<options visibility='{'1' * 5000}'/>", "'visibility' of 'options' has 5000"),
    (f"<payload encoding='{'1' * 5000}'/>", "'encoding' of 'payload' has 5000"),
    (f"<messages a='{'1' * 5000}'/>", "'a' of 'messages' has 5000"),
    (f"<producer>{SPACES}</producer>", "'producer' has 5000"),
]


@pytest.mark.parametrize(("inside", "says"), VALUES, ids=[row[1] for row in VALUES])
def test_parse_refuses_long_values(inside: str, says: str) -> None:
    """A value of more than 4096 characters, white space included, is 400 before a pattern of the schema sees it."""
    for document in (
        qs(inside),
        qs(inside + "<queues>" + "<queue>a</queue>" * 500 + "</queues>").replace(b"<op>", b"<op >"),
    ):
        if document.count(b"<queues>") > 1:
            continue
        found = fault(document)
        assert says in found.text
        assert (found.error.code, found.error.closes, found.req) == (400, False, "r1")


def test_parse_takes_texts_of_any_length() -> None:
    """Values of 4096 characters are taken; payloads, tokens, and what is foreign may be longer; white space between
    elements too."""
    spaces = " " * 4095
    assert parse(qs(f"<qid>{spaces}a</qid>", op="purge-queue")) == PurgeQueue("a", req="r1")
    long = "x" * 5000
    foreign = f"<x:a>{long}</x:a>{SPACES}"
    found = parse(qs(f"{foreign}<token x:b='{long}'>{long}</token>", " xmlns:x='u:x'", op="authenticate"))
    assert found == Authenticate(long, req="r1")
    assert parse(push(f"<payload>{long}</payload>")) == PushMessage("a", long.encode(), req="r1")


MASKED = [
    b'<x:y><a xml:space="z"/></x:y>',
    qs("<payload><x:y/></payload><mid xml:space='z'>1</mid>"),
    qs("<payload xmlns:a='u:u' xmlns:b='u:u'><y a:c='' b:c=''/></payload><mid xml:space='z'>1</mid>"),
    qs("<payload><a:b:c xmlns:a='u:u'/></payload><mid xml:space='z'>1</mid>"),
    qs("<payload><y x:a=''/><a xmlns='a b'/></payload>"),
]


@pytest.mark.parametrize("document", MASKED)
def test_parse_finds_errors_before_a_warning(document: bytes) -> None:
    """A document whose namespaces are wrong is not well-formed, also if libxml2 warns of something behind, which lxml
    takes for all that there is. The documents before it are read."""
    found = fault(document)
    assert (found.error.code, found.error.closes) == (400, True)
    assert found.text.startswith("not well-formed: ")
    before = push("<payload>x</payload>")
    peer = Peer(serving=True)
    peer.receive_data(before + document)
    first, second = peer.events()
    assert first == PushMessage("a", b"x", req="r1")
    assert second == found


def test_parse_passes_over_warnings() -> None:
    """A document of which libxml2 merely warns is taken: a namespace that is not an absolute URI, a value of
    xml:space."""
    document = qs("<payload><y xmlns='a' xml:space='z'/></payload><qid>a</qid>", op="push-message")
    assert parse(document) == PushMessage("a", b'<y xmlns="a" xml:space="z"/>', req="r1")


@pytest.mark.parametrize("place", ["etree.fromstring", "_message"])
def test_parse_turns_whatever_is_raised_into_an_answer(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception while a document is read is that document's 400."""

    def fail(*_: object) -> None:
        raise LookupError("nobody thought of this")

    with monkeypatch.context() as patch:
        patch.setattr(f"qs_schemas.parsing.{place}", fail)
        with pytest.raises(ProtocolError, match="nobody thought of this") as caught:
            parse(qs(""))
    assert (caught.value.error.code, caught.value.error.closes) == (400, place != "_message")
    assert caught.value.req == ("r1" if place == "_message" else None)
