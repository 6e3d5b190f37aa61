"""Serializing: one document is one line, whatever is in it; and the text functions below."""

import pytest

from qs_schemas import (
    Delivery,
    Draft,
    Error,
    Figure,
    GetMessage,
    Limits,
    ListMessages,
    ListQueues,
    Message,
    NewQueue,
    Ping,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    ReceiveMessage,
    RedriveMessages,
    ReleaseMessage,
    ServerStats,
    SetQueue,
    errors,
    parse,
    serialize,
)
from qs_schemas.text import escape, escape_payload, from_base64, replace_uncarriable

HEAD = b'<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="'


def body(message: Message) -> bytes:
    """The document without what begins each request, and without its end."""
    document = serialize(message)
    assert document.startswith(HEAD)
    assert document.endswith(b"</qs>\r\n")
    return document[len(HEAD) : -len(b"</qs>\r\n")]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Ping(), b'request"><op><ping/></op>'),
        (
            Ping(req='1"', type="response", resp="a" * 64),
            b'response" req="1&quot;" resp="' + b"a" * 64 + b'"><op><ping/></op>',
        ),
        (
            PushMessage(qid="<", payload="\r\n&", delay=0.25, key="k"),
            b'request"><op delay="0.25" key="k"><push-message/></op><qid>&lt;</qid><payload>&#13;&#10;&amp;</payload>',
        ),
        (
            PushMessage(qid="a", messages=[Draft("x"), Draft(b"\xff", delay=1)]),
            (
                b'request"><op><push-message/></op><qid>a</qid><messages><message><payload>x</payload></message>'
                b'<message delay="1"><payload encoding="base64">/w==</payload></message></messages>'
            ),
        ),
        (
            GetMessage(type="response", qid="a", mid=5, status="in-flight", receives=2, visible_at=9),
            b'response"><op><get-message/></op><qid>a</qid><mid status="in-flight" receives="2" visible-at="9">5</mid>',
        ),
        (
            ReceiveMessage(type="response", messages=[Delivery(5, b"x", "a", receives=1)]),
            (
                b'response"><op><receive-message/></op><messages><message qid="a" mid="5" receives="1">'
                b"<payload>x</payload></message></messages>"
            ),
        ),
        (ReceiveMessage(type="response"), b'response"><op><receive-message/></op><messages></messages>'),
        (ListQueues(type="response"), b'response"><op><list-queues/></op><queues></queues>'),
        (
            ListMessages(type="response", qid="a"),
            b'response"><op><list-messages/></op><qid>a</qid><messages></messages>',
        ),
        (
            ListMessages(qid="a", early=True, mids=[5]),
            b'request"><op><list-messages/></op><qid>a</qid><m><mid>5</mid></m>',
        ),
        (
            NewQueue(qid="a", options=QueueOptions(max_receives=3, visibility=1e-9)),
            b'request"><op><new-queue/></op><qid>a</qid><options visibility="0.000000001" max-receives="3"/>',
        ),
        (
            SetQueue("a", QueueOptions(capacity=5, removed=frozenset({"retention", "dead_letter", "capacity"}))),
            b'request"><op><set-queue/></op><qid>a</qid><options capacity="5" retention="" dead-letter=""/>',
        ),
        (
            ReleaseMessage("a", 5, uncounted=True),
            b'request"><op count="no"><release-message/></op><qid>a</qid><mid>5</mid>',
        ),
        (
            RedriveMessages("a", type="response", count=0),
            b'response"><op><redrive-messages/></op><qid>a</qid><count>0</count><messages></messages>',
        ),
        (
            QueueStats(queues=[QueueInfo("a", paused=False), QueueInfo("b", paused=True)], type="response"),
            (
                b'response"><op><queue-stats/></op><queues><queue paused="no">a</queue><queue paused="yes">b</queue>'
                b"</queues>"
            ),
        ),
        (
            ServerStats([Figure("a", 5, {"x": '"'}), Figure("b", 0.0625), Figure("c", 1e12)], type="response"),
            (
                b'response"><op><server-stats/></op><figures><figure name="a" x="&quot;">5</figure>'
                b'<figure name="b">0.0625</figure><figure name="c">1000000000000</figure></figures>'
            ),
        ),
        (ServerStats(connections=True), b'request"><op connections="yes"><server-stats/></op>'),
        (
            Error(404, "not-found", "no\nqueue 'a'", req="1"),
            b'error" req="1" xml:lang="en-US"><error code="404" type="not-found">no&#10;queue \'a\'</error>',
        ),
    ],
)
def test_serialize_of_each_kind(message: Message, expected: bytes) -> None:
    """The bytes of a message are these: nothing that is not set is written, but for the lists that are the answer."""
    assert body(message) == expected


@pytest.mark.parametrize(
    "payload", [b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbf\xbe", b"\xef\xbf\xbf", b"a\x1f<", b"\x0b"]
)
def test_write_payload_as_base64(payload: bytes) -> None:
    """Bytes that are not text that XML can carry travel as base64."""
    assert escape_payload(payload) is None
    assert b'<payload encoding="base64">' in serialize(PushMessage(qid="a", payload=payload))


@pytest.mark.parametrize(
    ("payload", "encoded"),
    [("\n" * 12, True), ("\n" * 5 + "a" * 20, False), (b"<" * 100, True), ("a" * 100, False), ("\n", False)],
)
def test_serialize_takes_the_shorter_form(payload: str | bytes, encoded: bool) -> None:
    """A request carries text as base64 where that is shorter; an answer never does."""
    told = b'encoding="base64"'
    for document in (PushMessage(qid="a", payload=payload), PushMessage(qid="a", messages=[Draft(payload)])):
        assert (told in serialize(document)) == encoded
    raw = payload.encode() if isinstance(payload, str) else payload
    for answer in (
        GetMessage(type="response", qid="a", mid=1, payload=payload),
        ReceiveMessage(type="response", qid="a", messages=[Delivery(1, raw)]),
    ):
        assert told not in serialize(answer)


def test_serialize_of_line_breaks_fits() -> None:
    """A payload near three quarters of a document's limit can be pushed, whatever text it is."""
    for payload in (b"\n" * 6_200_000, b"&" * 6_200_000, b"\0" * 6_200_000):
        document = serialize(PushMessage(qid="a", payload=payload))
        assert len(document) <= Limits().document
        assert parse(document) == PushMessage(qid="a", payload=payload)


@pytest.mark.parametrize("payload", [b"", b"a", b"\t", b"\x7f", "\x85\u2028é\U0001f600".encode(), b"\xef\xbb\xbf"])
def test_escape_payload_of_plain_text(payload: bytes) -> None:
    """Text without markup or line breaks is written as it is."""
    assert escape_payload(payload) == payload


def test_serialize_refuses_what_xml_cannot_carry() -> None:
    """A name or text that XML cannot carry is a ValueError, and can be made one that it can."""
    for text in ("\0", "\x1b", "\ud800", "\uffff"):
        with pytest.raises(ValueError, match=r"cannot|surrogates"):
            serialize(PushMessage(qid=f"a{text}", payload=b""))
        assert escape(replace_uncarriable(text)) == "\N{REPLACEMENT CHARACTER}"
    with pytest.raises(ValueError, match="surrogates"):
        serialize(PushMessage(qid="a", payload="\ud800"))


def test_escape_of_white_space() -> None:
    """Characters that a line reader or attribute normalization would change are written as references."""
    assert escape("a\t\r\n\"'<&>\U0001f600 ") == "a&#9;&#13;&#10;&quot;'&lt;&amp;&gt;\U0001f600 "


@pytest.mark.parametrize("text", ["A", "A===", "@@@@", "é", "AA=A", "AAAA\u00a0"])
def test_from_base64_refuses_other_text(text: str) -> None:
    """Invalid base64 is a ValueError."""
    with pytest.raises(ValueError, match=r".+"):
        from_base64(text)


def test_serialize_refuses_a_bare_message() -> None:
    """A message that is of no operation cannot be sent."""
    with pytest.raises(TypeError, match="Message"):
        serialize(Message())


def test_table_is_in_order() -> None:
    """Codes and types are those of the protocol; the table is in order, and no row stands in it twice."""
    rows = [(row.code, row.kind) for row in errors.TABLE]
    assert sorted(rows, key=lambda row: row[0]) == rows
    assert len(set(errors.TABLE)) == len(errors.TABLE)
    assert set(rows) == {
        (400, "bad-request"), (401, "unauthorized"), (403, "forbidden"), (404, "not-found"), (408, "timeout"),
        (409, "conflict"), (409, "not-empty"), (409, "stale"), (413, "too-large"), (422, "invalid"),
        (429, "too-many"), (500, "internal"), (501, "not-implemented"), (503, "shutting-down"),
        (503, "unavailable"), (503, "not-known"), (507, "full"),
    }  # fmt: skip
    assert {row.code for row in errors.TABLE if row.closes} == {400, 408, 413, 429, 503}
    assert all(row.when for row in errors.TABLE)
