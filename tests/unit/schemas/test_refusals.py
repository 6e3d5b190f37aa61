"""The documents that the parser refuses, and the errors that their senders get."""

import sys

import pytest

from qs_schemas import NAMESPACE, DeleteMessage, Fault, Peer, Ping, ProtocolError, PushMessage, parse
from qs_schemas.peer import read_document


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


MALFORMED = [
    ("invalid UTF-8", qs("<qid>@</qid>").replace(b"@", b"\xff"), ""),
    ("an overlong encoding", qs("<qid>@</qid>").replace(b"@", b"\xc0\xaf"), ""),
    ("a surrogate", qs("<qid>@</qid>").replace(b"@", b"\xed\xa0\x80"), ""),
    ("a truncated character", qs("<qid>@</qid>").replace(b"@", b"\xf0\x9f"), ""),
    ("a NUL", qs("<qid>\0</qid>"), ""),
    ("a NUL as a reference", qs("<qid>&#0;</qid>"), "xmlChar value 0"),
    ("a control character", qs("<qid>\x01</qid>"), ""),
    ("a control character as a reference", qs("<qid>&#x1F;</qid>"), "xmlChar value 31"),
    ("an undeclared entity", qs("<qid>&a;</qid>"), "'a' not defined"),
    ("a bare ampersand", qs("<qid>a & b</qid>"), ""),
    ("]]> in text", qs("<qid>]]></qid>"), "]]>"),
    ("an attribute twice", qs("", ' req="2"'), "req redefined"),
    ("an attribute twice by its namespace", qs("", ' xmlns:a="u:u" xmlns:b="u:u" a:c="" b:c=""'), ""),
    ("an attribute without quotes", qs("", " a=b"), ""),
    ("an attribute without a value", qs("", " a"), ""),
    ("an undeclared prefix", qs("<a:b/>"), "prefix a"),
    ("-- in a comment", qs("<!-- -- -->"), ""),
    ("a name that is none", qs("<1/>"), ""),
    ("a DOCTYPE", b"<!DOCTYPE qs>" + qs(""), "DOCTYPE"),
    ("an entity bomb", b'<!DOCTYPE q [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + qs("<qid>&b;</qid>"), "DOCTYPE"),
    ("UTF-16", qs("").decode().encode("utf-16"), "UTF-8"),
    ("a declared other encoding", b"<?xml version='1.0' encoding='latin1'?>" + qs(""), "latin1"),
    ("tags that do not match", qs("<qid>a</mid>"), "</qid> is due"),
    ("tags that do not match, deep inside", qs("<payload><a><b></a></b></payload>"), ""),
]


@pytest.mark.parametrize(("document", "says"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_parse_refuses_malformed_documents(document: bytes, says: str) -> None:
    """A document that is not well-formed XML in UTF-8 is 400 with the reason, and ends the stream."""
    found = fault(document)
    assert (found.error.code, found.error.kind, found.error.closes) == (400, "bad-request", True)
    assert found.text.startswith("not well-formed: ")
    assert len(found.text) > 25
    assert says in found.text or "mismatch" in found.text


OTHER_ROOT = b'<qs req="r1"><op><ping/></op></qs>'
PART = "<part number='0' attempt='1'/>"
INVALID = [
    ("no namespace", OTHER_ROOT, "namespace ''"),
    ("another namespace", OTHER_ROOT.replace(b"<qs", b"<qs xmlns='urn:x'"), "'urn:x'"),
    ("another root", qs("").replace(b"<qs", b"<sq").replace(b"</qs", b"</sq"), "'sq'"),
    ("no op", qs("<qid>a</qid>", op=""), "'op' is missing"),
    ("an empty op", qs("<op/>", op=""), "'op' is empty"),
    ("two operations", qs("<op><ping/><list-queues/></op>", op=""), "list-queues"),
    ("op twice", qs("<op><ping/></op>"), "'op'"),
    ("an element twice", qs("<qid>a</qid><qid>b</qid>"), "'qid'"),
    ("an unknown element", qs("<nonsense/>"), "'nonsense'"),
    ("an element of no namespace", qs("<qid xmlns=''>a</qid>"), "'qid'"),
    ("an operation of no namespace", qs("<op><ping xmlns=''/></op>", op=""), "'ping'"),
    ("an unknown attribute", qs("", ' nonsense="1"'), "'nonsense'"),
    ("an attribute in the qs namespace", qs("", f' xmlns:q="{NAMESPACE}" q:resp="1"'), "'resp'"),
    ("an unknown type", qs("", ' type="question"'), "'question'"),
    ("text between elements", qs("hello"), "'qs'"),
    ("an empty qid", qs("<qid> \n</qid>"), "'qid' has to be 1 to 200 characters, none of them a control character"),
    ("a tab inside a qid", qs("<qid>a\tb</qid>"), "'qid' has to be 1 to 200"),
    ("a C1 control character", qs("<qid>a\x85b</qid>"), "'qid' has to be 1 to 200"),
    ("a qid of 201", qs(f"<qid>{'a' * 201}</qid>"), "'qid' has to be 1 to 200"),
    ("a qid of 300", qs(f"<qid>{'é' * 300}</qid>"), "'qid' has to be 1 to 200"),
    ("thousands of zeros", qs(f"<op max='{'0' * 5000}1'><ping/></op>", op=""), "'max'"),
    ("max=0", qs("<op max='0'><ping/></op>", op=""), "'max' of 'op' has to be a whole number, 1 or more"),
    ("a duration that is none", qs("<op wait='1e9'><ping/></op>", op=""), "'wait' of 'op' has to be seconds"),
    ("a negative duration", qs("<op delay='-1'><ping/></op>", op=""), "'delay' of 'op' has to be seconds"),
    ("a boolean that is none", qs("<op peek='true'><ping/></op>", op=""), "'yes', 'no'"),
    ("an unknown state", qs("<op state='old'><ping/></op>", op=""), "'in-flight'"),
    ("an empty key", qs("<op key=''><ping/></op>", op=""), "minLength"),
    ("an option without a value", qs("<qid>a</qid><options capacity=''/>", op="new-queue"), "only set-queue takes"),
    ("retention=0", qs("<qid>a</qid><options retention='0.0'/>", op="set-queue"), "seconds, more than 0"),
    ("max-receives over 1000", qs("<qid>a</qid><options max-receives='1001'/>", op="set-queue"), "from 1 to 1000"),
    ("set-queue without options", qs("<qid>a</qid>", op="set-queue"), "set-queue needs 'options'"),
    ("an unknown dead-reason", qs("<mid dead-reason='age'>1</mid>"), "'receives'"),
    ("base64 that is none", push("<payload encoding='base64'>@</payload>"), "base64"),
    ("base64 of other letters", push("<payload encoding='base64'>é</payload>"), "base64"),
    ("base64 around elements", push("<payload encoding='base64'><b/></payload>"), "elements"),
    ("another encoding", qs("<payload encoding='hex'>00</payload>"), "'base64'"),
    ("a message without payload", qs("<messages><message/></messages>"), "'message'"),
    (
        "a delivery without mid",
        qs("<messages><message><payload/></message></messages>", " type='response'", op="receive-message"),
        "'mid'",
    ),
    ("1001 messages", qs(f"<messages>{'<mid>1</mid>' * 1001}</messages>"), "1001 entries; at most 1000"),
    ("1001 early messages", qs(f"<m>{'<mid>1</mid>' * 1001}</m>"), "1001 entries"),
    ("too many queues, each of them bad", qs(f"<queues>{'<queue/>' * 10_001}</queues>"), "at most 10000"),
    ("many queues, the last of them bad", qs(f"<queues>{'<queue>a</queue>' * 5000}<queue/></queues>"), "'queue' has"),
    ("many queues, unknown attributes", qs("<queues>" + "<queue a=''>a</queue>" * 5000 + "</queues>"), "attribute 'a'"),
    ("many parts, something else", qs(f"<parts>{PART * 5000}<a/></parts>"), "Element 'a'"),
    ("many parts, text between", qs(f"<parts>{PART * 5000}b</parts>"), "line 1"),
    ("many parts, an unknown attribute", qs(f"<parts a=''>{PART * 5000}</parts>"), "attribute 'a'"),
    ("many parts, text behind", qs(f"<parts>{PART * 5000}</parts>b"), "'qs'"),
    ("too many elements", push("<payload><a>" + "<b/>" * 20_000 + "</a></payload>"), "more than 20000 elements"),
    ("too many comments", qs("<!---->" * 20_000), "more than 20000 elements"),
    ("too much side by side in a payload", push("<payload>" + "<a/>" * 1001 + "</payload>"), "1000 elements"),
    ("an error without error", qs("", ' type="error"'), "'error' is missing"),
    ("nested too deep", push("<payload>" + "<a>" * 15 + "</a>" * 15 + "</payload>"), "deeper than 16"),
    ("too many attributes", qs("", "".join(f" a{i}=''" for i in range(40))), "more than 32 attributes"),
    ("a processing instruction", qs("<?php a?>"), "processing instruction"),
]


@pytest.mark.parametrize(("document", "says"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID])
def test_parse_refuses_invalid_documents(document: bytes, says: str) -> None:
    """XML that breaks the contract is 400 under its req with the fault, and the stream goes on."""
    found = fault(document)
    assert (found.error.code, found.error.kind, found.error.closes, found.req) == (400, "bad-request", False, "r1")
    assert says in found.text
    assert len(found.text) < 1000


UNKNOWN = [
    ("an unknown element", qs("<a/>" * 1000), "line 1: Element 'a': This element is not expected."),
    ("an element of no namespace", qs("<qid xmlns=''/>" * 9), "line 1: Element 'qid': This element is not expected."),
    ("one twice", qs("\n<qid>a</qid>\n<qid/>"), "line 3: Element 'qid': This element is not expected."),
    ("one twice, foreign ones between", qs("<x:a xmlns:x='u:x'/><qid/>" * 9), "line 1: Element 'qid': This"),
    ("too many entries", qs("<messages>" + "<a/>" * 1001 + "</messages>"), "'messages' has 1001 entries"),
    ("too many elements", qs("<a/>" * 20_000), "the document has more than 20000 elements"),
]


@pytest.mark.parametrize(("document", "says"), [row[1:] for row in UNKNOWN], ids=[row[0] for row in UNKNOWN])
def test_parse_refuses_before_the_schema_looks(document: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults that may occur very often are refused without the schema, which would log each."""
    monkeypatch.setattr(sys.modules["qs_schemas.parsing"], "_SCHEMA", None)
    with pytest.raises(ProtocolError, match=says):
        read_document(document)


def test_next_event_parses_nothing_over_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document over the bound of elements never reaches the parser, whole or in pieces; the next one does."""
    parsed = []
    monkeypatch.setattr("qs_schemas.parsing.parse", lambda document, *_: parsed.append(document) or Ping())
    bomb = qs("<a/>" * 20_000)
    following = qs("<!-- not read without the parser -->")
    for size in (len(bomb), 1000):
        peer = Peer()
        found = []
        for start in range(0, len(bomb), size):
            peer.receive_data(bomb[start : start + size])
            found += peer.events()
        peer.receive_data(following)
        found += peer.events()
        assert [type(event) for event in found] == [Fault, Ping]
        assert (found[0].error.code, found[0].error.closes, found[0].req) == (400, False, "r1")
    assert parsed == [following] * 2


def test_parse_drops_a_long_req() -> None:
    """A req over 128 characters is 400 and is not sent back; one of 128 is taken."""
    found = fault(qs("").replace(b"r1", b"r" * 129))
    assert (found.error.code, found.error.closes, found.req) == (400, False, None)
    assert "128" in found.text
    assert parse(qs("").replace(b"r1", b"r" * 128)).req == "r" * 128


@pytest.mark.parametrize("op", ["frobnicate", "Ping", "PING", "push-messages"])
def test_parse_refuses_unknown_operations(op: str) -> None:
    """An unknown operation is 501 under its req, whatever else is in the document, and the stream goes on."""
    found = fault(qs("<qid>a</qid><something-new/>", op=op))
    assert (found.error.code, found.error.kind, found.error.closes, found.req) == (501, "not-implemented", False, "r1")
    assert found.text == f"unknown operation '{op}'"


@pytest.mark.parametrize(
    ("op", "inside", "missing"),
    [
        ("new-queue", "", "'qid'"),
        ("push-message", "<payload/>", "'qid'"),
        ("push-message", "<qid>a</qid>", "'payload' or 'messages'"),
        ("push-message", "<qid>a</qid><messages/>", "'payload' or 'messages'"),
        ("get-message", "<qid>a</qid>", "'mid' or 'messages'"),
        ("delete-message", "<qid>a</qid>", "'mid' or 'messages'"),
        ("receive-message", "<queues/>", "'qid' or 'queues'"),
        ("unsubscribe", "", "'subscription'"),
        ("authenticate", "", "'token'"),
        ("ack-claim", "<qid>a</qid><consumer>c</consumer>", "'seq'"),
        ("publish-staged", "<qid>a</qid><producer>c</producer>", "'batch'"),
    ],
)
def test_parse_refuses_missing_fields(op: str, inside: str, missing: str) -> None:
    """A request without what its operation needs is 400 and says which; an answer may leave it out."""
    found = fault(qs(inside, op=op))
    assert (found.error.code, found.error.closes) == (400, False)
    assert found.text == f"{op} needs {missing}, and it is missing or empty"
    assert parse(qs(inside, ' type="response"', op=op)).type == "response"


NO_IDS = ["1e3", "-1", "\u0661", "1" * 19, "", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"]


@pytest.mark.parametrize("mid", NO_IDS)
def test_parse_of_ids_that_are_none_of_ours(mid: str) -> None:
    """A request about a message with an id that is none of ours is 404, after what it lacks is 400; where no message is
    meant the id is ignored, and in a list it is one that no message has. An answer with such an id has none; a list of
    them is refused."""
    qid, written = "<qid>a</qid>", f"<mid>{mid}</mid>"
    found = fault(qs(qid + written, op="get-message"))
    assert (found.error.code, found.error.closes, found.text) == (404, False, f"no message has the id {mid!r}")
    assert fault(qs(written, op="get-message")).error.code == 400
    assert parse(push(f"<payload>x</payload>{written}")) == PushMessage("a", b"x", req="r1")
    assert parse(qs(written)) == Ping(req="r1")
    listed = f"<messages>{written}<mid>7</mid></messages>"
    assert parse(qs(qid + listed, op="delete-message")) == DeleteMessage("a", mids=[0, 7], req="r1")
    answer = push(f"{written}<payload>x</payload>", ' type="response"')
    assert parse(answer) == PushMessage("a", b"x", req="r1", type="response")
    assert "'mid' has to be a message id" in fault(push(listed, ' type="response"')).text


@pytest.mark.parametrize("kind", ["response", "Request", ""])
def test_parse_for_a_server_takes_requests(kind: str) -> None:
    """A document with an operation is a request to a server, in both lanes, and has to have what a request needs."""
    for comment in ("", "<!-- not plain -->"):
        peer = Peer(serving=True)
        attributes = f' type="{kind}" resp="{"f" * 200}"'
        peer.receive_data(push(f"<payload>x</payload>{comment}", attributes) + qs(comment, attributes, "get-message"))
        asked, missing = peer.events()
        assert asked == PushMessage("a", b"x", req="r1", resp="f" * 200)
        assert isinstance(missing, Fault)
        assert missing.error.code == 400
    client = Peer()
    client.receive_data(qs("", f' type="{kind}"'))
    (event,) = client.events()
    assert isinstance(event, Ping) == (kind == "response")


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<",
        b'<!DOCTYPE q [<!ENTITY a "aaaa">]><q>&a;</q>',
        b"\xef\xbb\xbf<?xml version='1.0'?><!-- --> <!DOCTYPE q SYSTEM 'file:///etc/passwd'><q/>",
        b"<q/><q/>",
        qs("<?a?>", op="")[:-1],
    ],
)
def test_parse_without_a_framer_is_hardened(document: bytes) -> None:
    """The parser itself also refuses what no framer would pass on, and reads no entity."""
    with pytest.raises(ProtocolError) as caught:
        parse(document)
    assert caught.value.error.closes


@pytest.mark.parametrize(
    "document",
    [qs("<?a?>"), qs("<op><?a?><ping/></op>", op=""), qs("<qid>a<?b?></qid>"), qs("<?a?>", "", op="")],
)
def test_parse_without_a_framer_meets_instructions(document: bytes) -> None:
    """A processing instruction that no framer looked for leads to a message or an error of the table, nothing else."""
    try:
        assert isinstance(parse(document), Ping)
    except ProtocolError as error:
        assert error.error.code == 400  # noqa: PT017
