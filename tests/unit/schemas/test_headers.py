"""Headers, and what else a message to push says of itself: how it travels, and what is refused."""

from typing import Any

import pytest

from qs_schemas import (
    NAMESPACE,
    Delivery,
    Draft,
    GetClaim,
    GetMessage,
    Message,
    NewQueue,
    ProtocolError,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    ReceiveMessage,
    SetQueue,
    StageMessages,
    parse,
    serialize,
)
from qs_schemas.headers import checked_headers
from qs_schemas.limits import HEADER_BYTES, HEADERS
from qs_schemas.serializing import check_lengths

PUSHED: dict[str, Any] = {
    "unique": True, "priority": 7, "expires": 2.5, "group": 'a\t"b', "headers": {"Content-Type": "a\r\n<b>", "x.y": ""},
}  # fmt: skip
HEADERS_OF_PUSHED = (
    b'<headers><header name="Content-Type">a&#13;&#10;&lt;b&gt;</header><header name="x.y"></header></headers>'
)
THERE: dict[str, Any] = {"priority": 7, "group": "g", "expires_at": 9, "headers": {"qs-from": "a", "QS-FROM": "b"}}
HEADERS_OF_THERE = b'<headers><header name="qs-from">a</header><header name="QS-FROM">b</header></headers>'


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (
            PushMessage("a", b"x", key="k", **PUSHED),
            b'<op key="k" unique="yes" priority="7" expires="2.5" group="a&#9;&quot;b"><push-message/></op><qid>a</qid>'
            + HEADERS_OF_PUSHED
            + b"<payload>x</payload>",
        ),
        (
            PushMessage("a", messages=[Draft(b"x", **PUSHED), Draft(b"y", priority=0)]),
            b'<op><push-message/></op><qid>a</qid><messages><message unique="yes" priority="7" expires="2.5" '
            b'group="a&#9;&quot;b">'
            + HEADERS_OF_PUSHED
            + b'<payload>x</payload></message><message priority="0"><payload>y</payload></message></messages>',
        ),
        (
            StageMessages("a", "p", 1, 2, 3, messages=[Draft(b"x", headers={"a": "b"}, priority=9)]),
            (
                b'<op part="2" batch="1" attempt="3"><stage-messages/></op><qid>a</qid><producer>p</producer><messages>'
                b'<message priority="9"><headers><header name="a">b</header></headers><payload>x</payload></message>'
                b"</messages>"
            ),
        ),
        (
            GetMessage("a", 5, payload=b"x", type="response", **THERE),
            b"<op><get-message/></op><qid>a</qid>"
            + HEADERS_OF_THERE
            + b'<payload>x</payload><mid priority="7" group="g" expires-at="9">5</mid>',
        ),
        (
            ReceiveMessage(messages=[Delivery(5, b"x", **THERE), Delivery(6, b"y")], type="response"),
            b'<op><receive-message/></op><messages><message mid="5" priority="7" group="g" expires-at="9">'
            + HEADERS_OF_THERE
            + b'<payload>x</payload></message><message mid="6"><payload>y</payload></message></messages>',
        ),
        (
            GetClaim("a", messages=[Delivery(5, b"x", headers={"a": "b"})], type="response"),
            (
                b'<op><get-claim/></op><qid>a</qid><messages><message mid="5"><headers><header name="a">b</header>'
                b"</headers><payload>x</payload></message></messages>"
            ),
        ),
        (
            ReceiveMessage(queues=["b", "a"], order="given"),
            b'<op order="given"><receive-message/></op><queues><queue>b</queue><queue>a</queue></queues>',
        ),
        (
            NewQueue("a", QueueOptions(group_in_flight=2, fair=False, max_in_flight=3, rate=0.5)),
            b'<op><new-queue/></op><qid>a</qid><options group-in-flight="2" fair="no" max-in-flight="3" rate="0.5"/>',
        ),
        (
            SetQueue("a", QueueOptions(fair=True, removed=frozenset({"rate", "max_in_flight", "group_in_flight"}))),
            b'<op><set-queue/></op><qid>a</qid><options fair="yes" group-in-flight="" max-in-flight="" rate=""/>',
        ),
        (
            QueueStats(queues=[QueueInfo("a", limited="rate")], type="response"),
            b'<op><queue-stats/></op><queues><queue limited="rate">a</queue></queues>',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_message_says(message: Message, body: bytes) -> None:
    """Headers stand in front of the payload, the rest in attributes, and all of it is read as it was written."""
    document = serialize(message)
    assert document == f'<qs xmlns="{NAMESPACE}" type="{message.type}">'.encode() + body + b"</qs>\r\n"
    assert parse(document) == message


def test_headers_behind_the_payload() -> None:
    """The headers of a message may stand in front of its payload or behind it, in both forms."""
    headers, payload = '<headers><header name="a"><!-- - -->b</header></headers>', "<payload>x</payload>"
    for body in (headers + payload, payload + headers):
        assert parse(push(body)) == PushMessage("q", b"x", headers={"a": "b"})
        listed = parse(push(f"<messages><message>{body}</message></messages>"))
        assert listed == PushMessage("q", messages=[Draft(b"x", headers={"a": "b"})])


def test_messages_without_headers_share_none() -> None:
    """A message that has no headers has an empty dict of its own; None stands for it too."""
    for make in (
        lambda: PushMessage("q"),
        lambda: Draft(b""),
        lambda: Delivery(1, b""),
        lambda: parse(push("<payload/>")),
    ):
        made: Any = make()
        assert made.headers == {}
        made.headers["a"] = "b"
        assert make().headers == {}
    assert PushMessage("q", headers=None).headers == {}  # type: ignore[arg-type]


def test_headers_are_text() -> None:
    """Bytes of UTF-8 become text, another type is a TypeError at once, also of what was added to the dict later."""
    assert Draft(b"", headers={b"a": "é".encode()}).headers == {"a": "é"}  # type: ignore[dict-item]
    for wrong in ({"a": 1}, {1: "a"}, {"a": None}, [("a", "b")], "a"):
        with pytest.raises(TypeError, match="headers is"):
            Draft(b"", headers=wrong)  # type: ignore[arg-type]
    draft = Draft(b"")
    draft.headers["a"] = 1  # type: ignore[assignment]
    with pytest.raises(TypeError, match="headers is text"):
        serialize(PushMessage("q", messages=[draft]))


def push(inside: str, op: str = "") -> bytes:
    return f'<qs xmlns="{NAMESPACE}"><op{op}><push-message/></op><qid>q</qid>{inside}</qs>'.encode()


def headers(*entries: tuple[str, str]) -> str:
    return "<headers>" + "".join(f'<header name="{name}">{text}</header>' for name, text in entries) + "</headers>"


MANY = [(f"a{number}", "") for number in range(HEADERS + 1)]
BAD_HEADERS = [
    ("33 of them", MANY, "33"),
    ("one twice", [("a", "1"), ("a", "2")], "'a' is there twice: names differ without regard to case"),
    ("one twice, in other letters", [("Ab", "1"), ("aB", "2")], "'aB' is there twice, also as 'Ab'"),
    ("the server's", [("qs-a", "1")], "'qs-a' has a name of the server's: those that begin with 'qs-'"),
    ("the server's, in other letters", [("QS-", "1")], "'QS-' has a name of the server's"),
    ("no name", [("", "1")], "1 to 64 of the characters A-Z, a-z, 0-9, '.', '_' and '-'"),
    ("a long name", [("a" * 65, "1")], "1 to 64 of the characters"),
    ("a name of others", [("a b", "1")], "1 to 64 of the characters"),
    ("a letter that is not ASCII", [("é", "1")], "1 to 64 of the characters"),
    ("a long text", [("a", "é" * 4096)], "8193 bytes of UTF-8, names and texts together, and at most 8192 are kept"),
    ("long texts", [("a", "x" * 5000), ("b", "x" * 5000)], "10002 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "says"), [row[1:] for row in BAD_HEADERS], ids=[row[0] for row in BAD_HEADERS])
def test_bad_headers(given: list[tuple[str, str]], says: str) -> None:
    """Headers that are not allowed are 400 in both forms, and a client does not send them: each says which and why."""
    written = headers(*given)
    for inside in (f"{written}<payload/>", f"<messages><message><payload/>{written}</message></messages>"):
        with pytest.raises(ProtocolError) as refused:
            parse(push(inside))
        assert says in str(refused.value)
        assert refused.value.error.code == 400
        assert len(str(refused.value)) < 300
    with pytest.raises(ValueError, match="header") as checked:
        checked_headers(given)
    assert says in str(checked.value)
    if len(dict(given)) == len(given):
        for request in (
            PushMessage("q", b"", headers=dict(given)),
            PushMessage("q", messages=[Draft(b"", headers=dict(given))]),
        ):
            with pytest.raises(ValueError, match="header"):
                check_lengths(request)


def test_headers_at_their_bounds() -> None:
    """A message may have as many headers, and as many bytes of them, as the limits say."""
    kept = dict(MANY[1:HEADERS])
    kept["A.b_c-9" + "x" * 57] = "y" * (HEADER_BYTES - 64 - sum(map(len, kept)))
    assert len(kept) == HEADERS
    request = PushMessage("q", b"x", headers=kept)
    check_lengths(request)
    assert parse(serialize(request)) == request


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ('priority="10"', "'priority' of '{}' has to be a whole number from 0 to 9"),
        ('priority="-1"', "'priority' of '{}' has to be a whole number from 0 to 9"),
        ('priority=""', "'priority' of '{}' has to be a whole number from 0 to 9"),
        ('expires="0.0"', "'expires' of '{}' has to be seconds, more than 0"),
        ('expires=""', "'expires' of '{}' has to be seconds, more than 0"),
        ('unique="true"', "Element '{}', attribute 'unique'"),
        ('group=""', "Element '{}', attribute 'group'"),
        (f'group="{"g" * 129}"', "Element '{}', attribute 'group'"),
    ],
)
def test_bad_attributes(attribute: str, says: str) -> None:
    """A value that is not allowed is 400 in both forms, and says what was expected."""
    single = push("<payload/>", " " + attribute)
    listed = push(f"<messages><message {attribute}><payload/></message></messages>")
    for document, name in ((single, "op"), (listed, "message")):
        with pytest.raises(ProtocolError) as refused:
            parse(document)
        assert says.format(name) in str(refused.value)


def test_a_long_group_is_not_sent() -> None:
    """A group of 128 characters is sent, a longer one is a ValueError, in both forms."""
    for length in (128, 129):
        for request in (
            PushMessage("q", b"", group="g" * length),
            PushMessage("q", messages=[Draft(b"", group="g" * length)]),
        ):
            if length == 128:
                check_lengths(request)
                continue
            with pytest.raises(ValueError, match=r"group 'g.*'… has 129 characters, and 1 to 128 are allowed"):
                check_lengths(request)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('rate="0"', "'rate' of 'options' has to be messages a second, more than 0"),
        ('group-in-flight="0"', "'group-in-flight' of 'options' has to be a whole number, 1 or more"),
        ('max-in-flight="1.5"', "'max-in-flight' of 'options' has to be a whole number, 1 or more"),
        ('fair="true"', "'fair' of 'options' has to be yes or no"),
        ('fair=""', "'fair' of 'options' is empty: only set-queue takes that, and removes the option"),
    ],
)
def test_bad_options(options: str, says: str) -> None:
    """An option that is not allowed is 400 and says what was expected."""
    document = f'<qs xmlns="{NAMESPACE}"><op><new-queue/></op><qid>q</qid><options {options}/></qs>'
    with pytest.raises(ProtocolError) as refused:
        parse(document.encode())
    assert says in str(refused.value)


def test_inline_xml_that_looks_like_headers() -> None:
    """A payload stays the payload, also if it looks like headers, and however many they are."""
    inline = f'<headers xmlns="{NAMESPACE}">{"<header/>" * 99}</headers>'
    for inside in (inline, f'<messages xmlns="{NAMESPACE}"><message>{inline}</message></messages>'):
        message: Any = parse(push(f"<payload>{inside}</payload>"))
        assert message.headers == {}
        assert message.payload.count(b"<header/>") == 99
