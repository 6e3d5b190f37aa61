"""Parsing: what a document means."""

import base64

import pytest

from qs_schemas import (
    NAMESPACE,
    Authenticate,
    DeleteMessage,
    DeleteQueue,
    Delivery,
    Draft,
    Error,
    Figure,
    GetMessage,
    ListMessages,
    ListQueues,
    Message,
    NewQueue,
    Part,
    Peer,
    Ping,
    ProtocolError,
    PublishStaged,
    PurgeQueue,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
    ReceiveMessage,
    RedriveMessages,
    ReleaseMessage,
    ServerStats,
    SetQueue,
    parse,
)


def qs(inside: str, attributes: str = "", op: str = "ping") -> bytes:
    """A request for the operation; its op is left out when the name is empty."""
    op = f"<op><{op}/></op>" if op else ""
    return f'<qs xmlns="{NAMESPACE}" req="r1"{attributes}>{op}{inside}</qs>'.encode()


def push(inside: str, attributes: str = "") -> bytes:
    return qs(f"<qid>a</qid>{inside}", attributes, op="push-message")


OTHER = 'xmlns:x="urn:x"'
PURGE = PurgeQueue(req="r1", qid="a")
FORCE = f'<qs xmlns="{NAMESPACE}"><qid>a</qid><op force="yes"><delete-queue/></op></qs>'

GOOD = [
    ("type may be missing", qs(""), Ping(req="r1")),
    ("answers are read too", qs("", ' type="response" resp="a"'), Ping(req="r1", type="response", resp="a")),
    ("any prefix", f'<q:qs xmlns:q="{NAMESPACE}"><q:op><q:ping/></q:op></q:qs>'.encode(), Ping()),
    ("two prefixes", f'<a:qs xmlns:a="{NAMESPACE}" xmlns="{NAMESPACE}"><op><a:ping/></op></a:qs>'.encode(), Ping()),
    ("a declaration", b"<?xml version='1.0' encoding='utf-8' standalone='yes'?>" + qs(""), Ping(req="r1")),
    ("op last", qs("<qid>a</qid><op><purge-queue/></op>", op=""), PurgeQueue(req="r1", qid="a")),
    ("white space around a qid", qs("<qid>\r\n\t a b \n</qid>", op="purge-queue"), PurgeQueue(req="r1", qid="a b")),
    (
        "other spaces belong to a qid",
        qs("<qid>\u3000a\u00a0</qid>", op="purge-queue"),
        PurgeQueue(req="r1", qid="\u3000a\u00a0"),
    ),
    (
        "white space around a mid",
        qs("<qid>a</qid><mid> 007\n</mid>", op="delete-message"),
        DeleteMessage(req="r1", qid="a", mid=7),
    ),
    ("emoji in a qid", qs("<qid>\U0001f600</qid>", op="purge-queue"), PurgeQueue(req="r1", qid="\U0001f600")),
    (
        "200 characters outside the BMP",
        qs("<qid>" + "\U0001f600" * 200 + "</qid>", op="purge-queue"),
        PurgeQueue(req="r1", qid="\U0001f600" * 200),
    ),
    ("a slash in a qid", qs("<qid>../a</qid>", op="purge-queue"), PurgeQueue(req="r1", qid="../a")),
    ("white space of a payload", push("<payload> \n </payload>"), b" \n "),
    ("an empty payload", push("<payload/>"), b""),
    ("references", push("<payload>&lt;&#13;&#x1F600;&amp;</payload>"), b"<\r\xf0\x9f\x98\x80&"),
    ("CDATA", push("<payload>a<![CDATA[</qs>&amp;]]>b</payload>"), b"a</qs>&amp;b"),
    ("a comment in a payload", push("<payload>a<!-- </qs> -->b</payload>"), b"ab"),
    ("a comment in a qid", qs("<qid>a<!-- b -->c</qid>", op="purge-queue"), PurgeQueue(req="r1", qid="ac")),
    ("comments everywhere", qs("<!-- --><qid>a</qid><!-- -->", op="purge-queue"), PurgeQueue(req="r1", qid="a")),
    (
        "base64",
        push("<payload encoding='base64'> AAEC\n /w== </payload>"),
        b"\x00\x01\x02\xff",
    ),
    (
        "inline XML",
        push(f'<payload>1 &lt;\n"<a xmlns="" b="&#10;">&#13;<!--c--></a>2<x:y {OTHER}/>&amp;</payload>'),
        b'1 &lt;\n"<a xmlns="" b="&#10;">&#13;<!--c--></a>2<x:y xmlns:x="urn:x"/>&amp;',
    ),
    (
        "inline XML takes along only the declarations that it uses",
        push("<payload><x:b/><c/></payload>", f' {OTHER} xmlns:y="urn:y"'),
        f'<x:b xmlns:x="urn:x"/><c xmlns="{NAMESPACE}"/>'.encode(),
    ),
    ("xml:id in inline XML", push("<payload><b xmlns='' xml:id='1 2'/></payload>"), b'<b xmlns="" xml:id="1 2"/>'),
    (
        "foreign attributes",
        qs("<qid x:a='1'>a</qid>", f' {OTHER} x:req="no"', op="purge-queue"),
        PurgeQueue(req="r1", qid="a"),
    ),
    (
        "foreign elements",
        qs("<x:a><qid>no</qid></x:a><qid>a<x:b>no</x:b>c</qid><x:qid>no</x:qid>", f" {OTHER}", op="purge-queue"),
        PurgeQueue(req="r1", qid="ac"),
    ),
    (
        "foreign elements beside the operation",
        f'<qs xmlns="{NAMESPACE}" {OTHER}><op><x:a/><ping x:b=""/><x:c/></op></qs>'.encode(),
        Ping(),
    ),
    (
        "attributes of schema instances, as .NET declares them",
        f'<qs xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema" '
        f'xsi:schemaLocation="{NAMESPACE} http://127.0.0.1/no.xsd" xmlns="{NAMESPACE}"><qid xsi:type="xsd:int">a</qid>'
        '<m xsi:nil="true" /><op><list-messages /></op></qs>'.encode(),
        ListMessages(qid="a", early=True),
    ),
    ("an early list", qs("<qid>a</qid><m/>", op="list-messages"), ListMessages(req="r1", qid="a", early=True)),
    (
        "an early answer",
        qs("<qid>a</qid><m><mid>1</mid></m>", " type='response'", op="list-messages"),
        ListMessages(req="r1", type="response", qid="a", early=True, mids=[1]),
    ),
    (
        "force=yes",
        qs("<qid>a</qid><op force='yes'><delete-queue/></op>", op=""),
        DeleteQueue(req="r1", qid="a", force=True),
    ),
    ("force=true", qs("<qid>a</qid><op force='true'><delete-queue/></op>", op=""), DeleteQueue(req="r1", qid="a")),
    (
        "durations and numbers with white space and zeros",
        qs("<qid>a</qid><op max=' 010 ' wait='\n0.5' visibility='030'><receive-message/></op>", op=""),
        ReceiveMessage(req="r1", qid="a", max=10, wait=0.5, visibility=30),
    ),
    (
        "ids and receipts",
        qs("<qid>a</qid><messages><mid>1</mid><mid receives='3'>2</mid></messages>", op="delete-message"),
        DeleteMessage(req="r1", qid="a", mids=[1, Receipt(2, 3)]),
    ),
    (
        "a list to push",
        push("<messages><message key='k' delay='1'><payload>x</payload></message></messages>"),
        PushMessage(req="r1", qid="a", messages=[Draft(b"x", 1, "k")]),
    ),
    (
        "deliveries",
        qs(
            "<messages><message mid='1' qid=' a '><payload>x</payload></message></messages>",
            " type='response'",
            op="receive-message",
        ),
        ReceiveMessage(req="r1", type="response", messages=[Delivery(1, b"x", "a")]),
    ),
    (
        "what an operation has no use for",
        qs("<qid>a</qid><token>t</token><payload>x</payload>", op="list-queues"),
        ListQueues(req="r1"),
    ),
    (
        "an early subscriber of the bus",
        qs("<queues><queue> a </queue></queues>", op="list-queues"),
        ListQueues(req="r1", queues=["a"]),
    ),
    (
        "figures",
        qs("<queues><queue new='1' oldest='0.5'>a</queue></queues>", " type='response'", op="queue-stats"),
        QueueStats(req="r1", type="response", queues=[QueueInfo("a", new=1, oldest=0.5)]),
    ),
    (
        "options",
        qs("<qid>a</qid><options capacity='5' dead-letter=' d '/>", op="new-queue"),
        NewQueue(req="r1", qid="a", options=QueueOptions(capacity=5, dead_letter="d")),
    ),
    (
        "options to change and to remove",
        qs("<qid>a</qid><options capacity='5' dead-letter='' max-receives=' ' retention='0.5'/>", op="set-queue"),
        SetQueue(
            "a",
            QueueOptions(capacity=5, retention=0.5, removed=frozenset({"dead_letter", "max_receives"})),
            req="r1",
        ),
    ),
    (
        "dead letters to move",
        qs(
            "<op max='9'><redrive-messages/></op><qid>d</qid><messages><mid>1</mid><mid>none</mid></messages>"
            "<queues><queue>a</queue></queues>",
            op="",
        ),
        RedriveMessages("d", [1, 0], ["a"], 9, req="r1"),
    ),
    (
        "a receive that does not count",
        qs("<op count='no'><release-message/></op><qid>a</qid><mid>1</mid>", op=""),
        ReleaseMessage("a", 1, uncounted=True, req="r1"),
    ),
    (
        "a receive that counts",
        qs("<op count='yes'><release-message/></op><qid>a</qid><mid>1</mid>", op=""),
        ReleaseMessage("a", 1, req="r1"),
    ),
    (
        "figures of a queue that is not paused",
        qs("<queues><queue paused='no' dead='3'>a</queue></queues>", " type='response'", op="queue-stats"),
        QueueStats(req="r1", type="response", queues=[QueueInfo("a", paused=False, dead=3)]),
    ),
    (
        "figures of a server",
        qs(
            "<figures><figure name='a' x='1' y='2'> 5 </figure><figure name='b'>-0.5</figure></figures>",
            " type='response'",
            op="server-stats",
        ),
        ServerStats([Figure("a", 5, {"x": "1", "y": "2"}), Figure("b", -0.5)], req="r1", type="response"),
    ),
    (
        "figures of connections wanted",
        qs("<op connections='yes'><server-stats/></op>", op=""),
        ServerStats(connections=True, req="r1"),
    ),
    (
        "figures of connections not wanted",
        qs("<op connections='no'><server-stats/></op>", op=""),
        ServerStats(req="r1"),
    ),
    (
        "parts",
        qs(
            "<qid>a</qid><producer>p</producer><op batch='0'><publish-staged/></op>"
            "<parts><part number='0' attempt='2'/></parts>",
            op="",
        ),
        PublishStaged(req="r1", qid="a", producer="p", batch=0, chosen=[Part(0, 2)]),
    ),
    (
        "thousands of queues",
        qs("<queues x:a=''>" + "<x:b/><queue x:c=''> a </queue>" * 2500 + "</queues>", f" {OTHER}", op="list-queues"),
        ListQueues(req="r1", queues=["a"] * 2500),
    ),
    ("a token's white space", qs("<token> t </token>", op="authenticate"), Authenticate(req="r1", token=" t ")),
    (
        "an error",
        qs('<error code="404" type="not-found">no\n</error>', ' type="error" xml:lang="en-US"', op=""),
        Error(404, "not-found", "no\n", req="r1"),
    ),
]


@pytest.mark.parametrize(("document", "meaning"), [row[1:] for row in GOOD], ids=[row[0] for row in GOOD])
def test_parse_of_good_documents(document: bytes, meaning: Message | bytes) -> None:
    """Each of these documents is accepted and means this message, or a push of this payload."""
    peer = Peer()
    peer.receive_data(document)
    (message,) = peer.events()
    if isinstance(meaning, bytes):
        meaning = PushMessage(req="r1", qid="a", payload=meaning)
    assert message == meaning


def test_parse_takes_text_of_a_payload_as_it_is() -> None:
    """The text of a message that was got is its payload decoded, and empty when there is none."""
    assert (
        GetMessage(payload="é".encode()).text == GetMessage(payload="é").text == Delivery(1, "é".encode()).text == "é"
    )
    assert GetMessage().text == ""


def test_parse_of_many_comments() -> None:
    """All the comments that a document can hold are taken out of a value."""
    inside = "<qid>" + "<!---->" * 50_000 + "a" + "<!---->b" * 50 + "</qid>"
    assert parse(qs(inside, op="purge-queue")) == PurgeQueue(req="r1", qid="a" + "b" * 50)


def test_parse_of_long_text() -> None:
    """Texts longer than libxml2's own bound are read, where the limits let them through."""
    payload = base64.b64encode(bytes(9_000_000)).decode()
    found = parse(push(f"<payload encoding='base64'>{payload}</payload>"))
    assert found == PushMessage(req="r1", qid="a", payload=bytes(9_000_000))


def test_message_parse_reads_one_document() -> None:
    """`Message.parse` takes exactly one document, and `xml` gives it back."""
    text = Ping(req="é").xml()
    assert Message.parse(text) == Message.parse(b"\n" + text.encode() + b"\r\n") == Ping(req="é")
    for wrong in ("", "<qs>", text + text, text + "<", text + "x"):
        with pytest.raises(ProtocolError):
            Message.parse(wrong)
