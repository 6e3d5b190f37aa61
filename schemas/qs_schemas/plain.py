"""Reads the documents that nearly all clients send into messages, without a parser.

This reader takes 0.15 to 0.25 of the parser's time (scripts/bench/documents.py).

A document is plain when it is written as qs writes it: no declaration, prefix, comment or CDATA section, `qs` in the
default namespace, attributes in double quotes and in the order of the serializer (those of `op` in any order), no white
space between elements but before `op`, `op` first, then `qid`, then the rest. `_READERS` lists the operations.

This is safe because the reader accepts only a part of what the framer and the parser accept, with the same result. A
pattern has to match the whole document, and a value is taken only where the schema takes it and no rule of XML would
change it: names are of printable characters without `<`, `>` and `&`, numbers of digits alone, payloads of characters
that XML has, without carriage returns, and with no references but those of `_REFERENCES`. A document with anything
missing, unknown, repeated, over a bound, or doubtful is declined: then the framer and the parser get the same bytes,
and report what is wrong. No pattern looks further than the first unexpected byte, nor at any byte more than a few
times.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from .headers import checked_headers
from .limits import GROUP, HEADERS, QID, REQ, Limits
from .messages import (
    CopyMessage,
    DeleteMessage,
    Delivery,
    Draft,
    ExtendMessage,
    GetClaim,
    GetMessage,
    Message,
    Ping,
    PushMessage,
    Receipt,
    ReceiveMessage,
    ReleaseMessage,
    StageMessages,
)
from .text import BLANK, SEPARATOR, SPACES, from_base64, is_xml_text, map_payloads
from .wire import DRAFT, NAMESPACE, OP, Kind, attribute

Found = tuple[Message, int]
"""A message, and the end of the white space behind its document."""

_DEPTH, _ATTRIBUTES, _ELEMENTS = 5, 12, 8
"""The depth, attributes and elements that a plain document has at most, not counting the entries of its list and
headers. Where the limits are lower, nothing is plain, so that no reader has to count."""
_REMEMBERED = 1024
"""Names, and lists of attributes, whose values are cached, the last ones of each: a client repeats them."""

# -- patterns: repetitions are possessive, and of one byte's complement where there is much to skip: that is quickest --

_END = rb"</qs>" + SPACES.pattern
_NUMBER = rb"([0-9]{1,18}+)"
_PAYLOAD = rb'<payload( encoding="base64")?+>([^<]*+)</payload>'
_HEAD = re.compile(
    rb'[ \t\r\n]*+<qs xmlns="%b"(?: type="(request|response)"|)(?: req="([^"]{0,%d}+)"|)(?: resp="([^"]{0,%d}+)"|)>'
    rb"[ \t\r\n]*+<op([^>]{0,300}+)>"
    rb"<(push-message|receive-message|delete-message|get-message|release-message|extend-message|ping|get-claim|"
    rb"stage-messages|copy-message) ?+/></op>"
    rb"(?:<qid>([^<]{1,%d}+)</qid>|)" % (re.escape(NAMESPACE).encode(), REQ, REQ, QID)
)
_ONLY = re.compile(_END)
_ENCODED = re.compile(_PAYLOAD + _END)
_QID_OPEN = b"<qid>"
_OPEN, _CLOSE, _LINE_END = b"<payload>", b"</payload></qs>", b"\r\n"
_BARE_MID = re.compile(rb"<mid>%b</mid>" % _NUMBER + _END)
_HEADERS = rb'<headers>((?>(?:<header name="[A-Za-z0-9._-]{1,64}+">[^<]*+</header>)*))</headers>'
_HEADERS_OPEN, _A_HEADER = b"<headers>", re.compile(rb'<header name="([^"]++)">([^<]*+)</header>')
_THERE = rb'(?: priority="([0-9])"|)(?: group="([^"]{1,%d}+)"|)(?: expires-at="%b"|)' % (GROUP, _NUMBER)
"""Attributes that a message has if it was pushed with them."""
_MID_WITH = (
    rb'<mid(?: status="(ready|delivered|in-flight|delayed)"|)(?: receives="%b"|)(?: pushed-at="%b"|)'
    rb'(?: visible-at="%b"|)' % (_NUMBER, _NUMBER, _NUMBER)
)
_MID = re.compile(_MID_WITH + rb">%b</mid>" % _NUMBER + _END)
_MID_THERE = re.compile(_MID_WITH + _THERE + rb">%b</mid>" % _NUMBER + _END)
_ENCODED_ONE = re.compile(_PAYLOAD)
_ALL_HEADERS = re.compile(_HEADERS)
_PAYLOAD_END = b"</payload>"
_MIDS = re.compile(rb'<messages>((?>(?:<mid(?: receives="[0-9]{1,18}+"|)>[0-9]{1,18}+</mid>)*))</messages>' + _END)
_A_MID = re.compile(rb'<mid(?: receives="%b"|)>%b</mid>' % (_NUMBER, _NUMBER))
_PRODUCER = re.compile(rb"<producer>([^<]{1,%d}+)</producer>" % QID)
_LIST = re.compile(rb"<messages>")
_LIST_END = re.compile(rb"</messages>" + _END)
_BETWEEN = b"</payload></message><message><payload>"
_DRAFTS = re.compile(
    rb"<messages><message><payload>((?>(?:[^<]*+%b)*)[^<]*+)</payload></message></messages>" % _BETWEEN + _END
)
_DRAFT = re.compile(rb"<message([^>]{0,300}+)>(?:%b|)" % _HEADERS + _PAYLOAD + rb"</message>")
_DELIVERY_WITH = (
    rb'<message(?: qid="([^"]{1,%d}+)"|) mid="%b"(?: receives="%b"|)(?: pushed-at="%b"|)(?: visible-at="%b"|)'
    % (QID, _NUMBER, _NUMBER, _NUMBER, _NUMBER)
)
_DELIVERY = re.compile(_DELIVERY_WITH + rb">" + _PAYLOAD + rb"</message>")
_DELIVERY_THERE = re.compile(_DELIVERY_WITH + _THERE + rb">(?:%b|)" % _HEADERS + _PAYLOAD + rb"</message>")
_ATTRIBUTE = re.compile(rb' ([a-z-]++)="([^"]*+)"')

# -- values ---------------------------------------------------------------------------------------------------------


def _unchanged(allowed: bytes) -> bytes:
    """Returns a table with which `bytes.translate` leaves bytes unchanged if all are allowed: the quickest check."""
    return bytes(byte if byte in allowed else (0 if byte else 1) for byte in range(256))


# Names and values: printable ASCII only. White space in a value would have to be normalized (XML 1.0, 3.3.3).
_ASCII = bytes(range(32, 127))
_NAME = _unchanged(bytes(set(_ASCII) - set(b'<&"')))
_TEXT = _unchanged(bytes(set(_ASCII + b"\t\n\x7f") - set(b"<>&")))
_TEXT_JOINED = _unchanged(bytes(set(_ASCII + b"\t\n\x7f") - set(b"<>&") | {SEPARATOR}))
_TEXT_AND_TAGS = _unchanged(bytes(set(_ASCII + b"\t\n\x7f") - set(b"&")))
_NOT_IN_TEXT = bytes(set(range(32)) - set(b"\t\n"))  # a bare CR would be read as a line feed
_NOT_IN_TEXT_JOINED = bytes(set(_NOT_IN_TEXT) - {SEPARATOR})
_REFERENCES = (
    (b"&lt;", b"<"), (b"&gt;", b">"), (b"&#10;", b"\n"), (b"&quot;", b'"'), (b"&#13;", b"\r"), (b"&apos;", b"'"),
    (b"&#9;", b"\t"), (b"&amp;", b"&"),
)  # fmt: skip
"""Replacements of the references that a plain text may have. `&amp;` comes last, so that its result is not taken for a
reference."""


class _NotPlainError(Exception):
    """Reports that the document is not plain after all: the framer and the parser have to read it."""


def _payload(encoded: bytes | None, written: bytes) -> bytes:
    return _decoded(encoded, _text(written))


def _decoded(encoded: bytes | None, text: bytes) -> bytes:
    if encoded is None:
        return text
    try:
        return from_base64(text.decode())
    except ValueError:
        raise _NotPlainError from None


def _text(written: bytes) -> bytes:
    """Reads the text of an element. written: the text as it stands in the document, without any `<`."""
    return _unescaped(written, _TEXT, _NOT_IN_TEXT)


def _texts(written: Sequence[bytes]) -> Sequence[bytes]:
    """Reads the text of each element like `_text`, in less time."""
    return cast(
        Sequence[bytes],
        map_payloads(written, lambda joined: _unescaped(joined, _TEXT_JOINED, _NOT_IN_TEXT_JOINED), _text),
    )


def _unescaped(written: bytes, unchanged: bytes, refused: bytes) -> bytes:
    if written.isascii():
        if written.translate(unchanged) == written:
            return written
    elif not is_xml_text(written):
        raise _NotPlainError
    # `]]>` is not allowed in text (XML 1.0, production 14): the parser says so.
    if b"]]>" in written or len(written.translate(None, refused)) != len(written):
        raise _NotPlainError
    left = written.count(b"&")
    for reference, meant in _REFERENCES:
        if not left:
            break
        shorter = written.replace(reference, meant)
        left -= (len(written) - len(shorter)) // (len(reference) - 1)
        written = shorter
    if left:  # none of these overlaps another, so some `&` is not the start of a known reference
        raise _NotPlainError
    return written


def _value(written: bytes) -> str:
    """Reads the value of an attribute. written: the bytes between the quotes."""
    if written.translate(_NAME) != written:
        raise _NotPlainError
    return written.decode()


@lru_cache(_REMEMBERED)
def _qid(written: bytes) -> str:
    """Reads a queue's name. written: at most as many bytes as a name may have characters; longer ones are not looked
    at."""
    try:
        qid = written.decode()
    except UnicodeDecodeError:
        raise _NotPlainError from None
    # White space around a name is stripped by the parser, and not here.
    if not qid.isprintable() or qid.strip() != qid or not qid or not {"<", ">", "&"}.isdisjoint(qid):
        raise _NotPlainError
    return qid


class _KnownAttribute(NamedTuple):
    """Describes an attribute that is read here: the message's field, a pattern of the values, and the function that
    reads a value."""

    field: str
    pattern: re.Pattern[bytes]
    read: Callable[[str], Any]


_DURATION = rb"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_PATTERNS = {
    "delay": _DURATION, "visibility": _DURATION, "wait": _DURATION, "max": rb"[1-9][0-9]{0,17}",
    "key": rb"[ !#-%'-;=-~]{1,200}", "peek": rb"yes|no", "name": rb"[a-z-]{1,40}", "order": rb"oldest|given",
    "group": rb"[ !#-%'-;=-~]{1,128}", "unique": rb"yes|no", "priority": rb"[0-9]",
    "expires": rb"[1-9][0-9]{0,8}(?:\.[0-9]{1,9})?|0\.0{0,8}[1-9][0-9]{0,8}",
    "batch": rb"[0-9]{1,18}", "part": rb"[0-9]{1,18}", "attempt": rb"[0-9]{1,18}",
}  # fmt: skip


def _known(kinds: dict[str, Kind], *fields: str) -> dict[bytes, _KnownAttribute]:
    return {
        attribute(field).encode(): _KnownAttribute(field, re.compile(_PATTERNS[field]), kinds[field][0])
        for field in fields
    }


_DRAFT_ENTRY = b"message"
_KNOWN = {
    b"push-message": _known(DRAFT, *DRAFT),
    b"receive-message": _known(OP, "max", "wait", "visibility", "order"),
    b"get-message": _known(OP, "peek", "visibility"),
    b"release-message": _known(OP, "delay"),
    b"extend-message": _known(OP, "visibility"),
    b"stage-messages": _known(OP, "batch", "part", "attempt"),
    b"ping": _known(OP, "name"),
    _DRAFT_ENTRY: _known(DRAFT, *DRAFT),
}
"""Operation -> attributes of `op`; and the attributes of a message that is pushed."""
_STAGE_NUMBERS = len(_KNOWN[b"stage-messages"])
"""The attributes of a request to stage, which has all of them."""


@lru_cache(_REMEMBERED)
def _attributes(of: bytes, written: bytes) -> tuple[tuple[str, Any], ...]:
    """Reads attributes. Returns fields and their values, as a tuple that is cached and so must not be changed. of: the
    element, a key of `_KNOWN`; written: all bytes between the tag's name and the `>`."""
    known = _KNOWN.get(of, {})
    values: dict[str, Any] = {}
    at = 0
    while at < len(written):
        found = _ATTRIBUTE.match(written, at)
        kind = None if found is None else known.get(found[1])
        if found is None or kind is None or kind.field in values or kind.pattern.fullmatch(found[2]) is None:
            raise _NotPlainError
        values[kind.field] = kind.read(found[2].decode())
        at = found.end()
    return tuple(values.items())


def _whole(written: bytes | None) -> int | None:
    return None if written is None else int(written)


# -- what stands behind op and qid, by operation ------------------------------------------------------------------


_Data = bytes | bytearray
_Reader = Callable[[_Data, int, str | None, bool, Limits], Found]
"""Takes the data, the offset from which to read, the qid or None, whether the document is a request, and the bounds."""
_Head = tuple[_Reader, str | None, bool, tuple[tuple[str, Any], ...]]
"""The reader of what stands behind the head, the qid, whether the document is a request, and the attributes of `op`."""
_HEADS, _LONGEST_HEAD = 8, 1024
"""Heads that are remembered of a stream, and the most bytes of each: most clients have fewer operations, and heads of
100 to 200 bytes."""
_WITHOUT_QUEUE = b"ping", b"receive-message"
"""Operations whose documents name no queue in front of their body."""
_RESP = b'" resp="'
"""The bytes between the values of `req` and `resp`."""
_TELLING = len(b'"><op><')
"""Bytes from the end of the last id to the one by which heads are remembered: in most documents the first of the
operation's name, which tells apart the most frequent ones."""


def _match(pattern: re.Pattern[bytes], data: _Data, at: int) -> re.Match[bytes]:
    found = pattern.match(data, at)
    if found is None:
        raise _NotPlainError
    return found


def _check_length(entries: int, elements: int, limits: Limits) -> None:
    """Declines a list over a bound. entries: the number of entries; elements: the number of elements in all entries."""
    if entries > limits.list_length or elements + _ELEMENTS > limits.elements:
        raise _NotPlainError


def _push(  # noqa: C901, PLR0912 - its steps, without a call each
    data: _Data, at: int, qid: str | None, request: bool, limits: Limits
) -> Found:
    payload: bytes | None = None
    mid: int | None = None
    drafts: list[Draft] = []
    if data.startswith(_OPEN, at):
        # The end is looked for, and not matched: that takes a tenth of a pattern's time.
        start = at + len(_OPEN)
        stop = data.find(b"<", start)
        if not data.startswith(_CLOSE, stop):
            raise _NotPlainError
        end = stop + len(_CLOSE)
        if data.startswith(_LINE_END, end):  # which nearly always is all
            end += len(_LINE_END)
        elif data.startswith(b"\n", end):
            end += 1
        if end < len(data) and data[end] <= BLANK:
            end = _match(SPACES, data, end).end()
        payload = data[start:stop] if type(data) is bytes else bytes(data[start:stop])
        # `_text` would do, with the two calls that this saves for ASCII text without references.
        if not payload.isascii() or payload.translate(_TEXT) != payload:
            payload = _text(payload)
    elif not request and (bare := _BARE_MID.match(data, at)) is not None:  # the answer to a push of one message
        mid, end = int(bare[1]), bare.end()
    elif (encoded := _ENCODED.match(data, at)) is not None:
        payload, end = _payload(encoded[1], encoded[2]), encoded.end()
    elif data.startswith(_HEADERS_OPEN, at):
        headers, at = _read_headers(data, at, limits)
        if data.startswith(_HEADERS_OPEN, at):  # there are none twice
            raise _NotPlainError
        found = _push(data, at, qid, request, limits)
        found[0].headers = _given(headers)  # type: ignore[attr-defined]
        return found
    elif request or data.startswith(b"<messages><message", at):
        drafts, end = _drafts(data, at, limits)
    else:
        mids, end = _mids(data, at, request, limits)
        if Receipt in map(type, mids):  # the answer to a push has none
            raise _NotPlainError
        return PushMessage(qid, mids=mids), end  # type: ignore[arg-type] # no receipts
    # Made in half of the time that the constructor takes: pushes are the most frequent requests, and their texts have
    # been checked by this reader.
    message = object.__new__(PushMessage)
    message._type = "request"  # type: ignore[misc]
    message._req = message._resp = message._key = message._group = None  # type: ignore[misc]
    message._qid = qid  # type: ignore[misc]
    message.payload = payload
    message.delay = message.priority = message.expires = None
    message.unique = False
    message._headers = {}  # type: ignore[misc]
    message.mid = mid
    message.messages = drafts
    message.mids = []
    return message, end


def _drafts(data: _Data, at: int, limits: Limits) -> tuple[list[Draft], int]:
    found = _DRAFTS.match(data, at)
    if found is None:
        return _drafts_one_by_one(data, at, limits)
    # Messages without attributes: one match and one split for all of them, and mostly one check of all their text.
    written = found[1]
    payloads = written.split(_BETWEEN)
    _check_length(len(payloads), 2 * len(payloads), limits)
    if not (written.isascii() and written.translate(_TEXT_AND_TAGS) == written) or (
        b"]" in written and b"]]>" in written  # the first test is quick, and often enough
    ):
        payloads = list(_texts(payloads))
    return list(map(Draft, payloads)), found.end()


def _drafts_one_by_one(data: _Data, at: int, limits: Limits) -> tuple[list[Draft], int]:
    at = _match(_LIST, data, at).end()
    entries: list[tuple[bytes, bytes | None, bytes | None, bytes]] = []
    while (entry := _DRAFT.match(data, at)) is not None:
        entries.append(entry.groups())  # type: ignore[arg-type]
        at = entry.end()
    _check_length(len(entries), 2 * len(entries), limits)
    drafts: list[Draft] = []
    left = limits.elements - _ELEMENTS - 2 * len(entries)
    for (attributes, headers, encoded, _), text in zip(entries, _texts([entry[3] for entry in entries]), strict=True):
        draft = Draft(_decoded(encoded, text))
        if headers is not None:
            draft.headers = _given(pairs := _pairs(headers))
            left -= 1 + len(pairs)
        for field, value in _attributes(_DRAFT_ENTRY, attributes):
            setattr(draft, field, value)
        drafts.append(draft)
    if not drafts or left < 0:
        raise _NotPlainError
    return drafts, _match(_LIST_END, data, at).end()


def _receive(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
    if request:
        found = _ONLY.match(data, at)
        if found is None:
            raise _NotPlainError
        return ReceiveMessage(qid), found.end()
    deliveries, end = _deliveries(data, at, limits)
    return ReceiveMessage(qid, messages=deliveries), end


def _claim(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
    if request:
        raise _NotPlainError
    deliveries, end = _deliveries(data, at, limits)
    return GetClaim(qid, messages=deliveries), end


def _stage(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
    if not request:
        raise _NotPlainError
    producer = _match(_PRODUCER, data, at)
    drafts, end = _drafts(data, producer.end(), limits)
    return StageMessages(qid, _qid(producer[1]), messages=drafts), end


def _pairs(written: bytes) -> list[tuple[str, str]]:
    """Reads headers. written: the bytes between the tags of `headers`."""
    return [(name.decode(), _text(text).decode()) for name, text in _A_HEADER.findall(written)]


def _given(headers: list[tuple[str, str]]) -> dict[str, str]:
    """Returns the headers of a message to push, if they are allowed."""
    try:
        return checked_headers(headers)
    except ValueError:
        raise _NotPlainError from None  # the parser says what is wrong


def _read_headers(data: _Data, at: int, limits: Limits) -> tuple[list[tuple[str, str]], int]:
    """Reads the headers beside a payload. Returns them and the offset behind them."""
    found = _match(_ALL_HEADERS, data, at)
    headers = _pairs(found[1])
    if len(headers) > HEADERS or len(headers) + 1 + _ELEMENTS > limits.elements:
        raise _NotPlainError
    return headers, found.end()


def _deliveries(data: _Data, at: int, limits: Limits) -> tuple[list[Delivery], int]:
    start = at = _match(_LIST, data, at).end()
    entries: list[tuple[Any, ...]] = []
    while (entry := _DELIVERY.match(data, at)) is not None:
        entries.append(entry.groups())
        at = entry.end()
    if (found := _LIST_END.match(data, at)) is None:
        return _deliveries_one_by_one(data, start, limits)
    _check_length(len(entries), 2 * len(entries), limits)
    end = found.end()
    deliveries = [
        Delivery(
            int(mid),
            text if encoded is None else _decoded(encoded, text),
            None if of is None else _qid(of),
            None if receives is None else int(receives),
            None if pushed_at is None else int(pushed_at),
            None if visible_at is None else int(visible_at),
        )
        for (of, mid, receives, pushed_at, visible_at, encoded, _), text in zip(
            entries, _texts([entry[6] for entry in entries]), strict=True
        )
    ]
    return deliveries, end


def _deliveries_one_by_one(data: _Data, at: int, limits: Limits) -> tuple[list[Delivery], int]:
    """Reads deliveries that have headers, or attributes with which they were pushed."""
    deliveries: list[Delivery] = []
    elements = 0
    while (entry := _DELIVERY_THERE.match(data, at)) is not None:
        of, mid, receives, pushed_at, visible_at, priority, group, expires_at, headers, encoded, text = entry.groups()
        pairs = () if headers is None else _pairs(headers)
        elements += 3 + len(pairs)
        if len(pairs) > HEADERS:
            raise _NotPlainError
        deliveries.append(
            Delivery(
                int(mid),
                _payload(encoded, text),
                None if of is None else _qid(of),
                _whole(receives),
                _whole(pushed_at),
                _whole(visible_at),
                priority=_whole(priority),
                group=None if group is None else _value(group),
                expires_at=_whole(expires_at),
                headers=dict(pairs),
            )
        )
        at = entry.end()
    _check_length(len(deliveries), elements, limits)
    return deliveries, _match(_LIST_END, data, at).end()


def _mids(data: _Data, at: int, request: bool, limits: Limits) -> tuple[list[int | Receipt], int]:
    found = _match(_MIDS, data, at)
    mids: list[int | Receipt] = [
        Receipt(int(mid), int(receives)) if receives else int(mid) for receives, mid in _A_MID.findall(found[1])
    ]
    _check_length(len(mids), len(mids), limits)
    if request and not mids:
        raise _NotPlainError
    return mids, found.end()


def _delete(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
    found = _MID.match(data, at)
    if found is None:
        mids, end = _mids(data, at, request, limits)
        return DeleteMessage(qid, mids=mids), end
    status, receives, pushed_at, visible_at, mid = found.groups()
    if status or pushed_at or visible_at:  # a DeleteMessage has no such fields: the parser passes over them
        raise _NotPlainError
    return DeleteMessage(qid, int(mid), None if receives is None else int(receives)), found.end()


def _copy(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
    """Reads an answer to copy-message. Declines requests, which have `queues`."""
    if request:
        raise _NotPlainError
    mids, end = _mids(data, at, request, limits)
    return CopyMessage(qid, mids=mids), end


def _release_or_extend(cls: type[ReleaseMessage] | type[ExtendMessage]) -> _Reader:
    def read(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
        found = _match(_MID, data, at)
        status, receives, pushed_at, visible_at, mid = found.groups()
        if status or pushed_at:
            raise _NotPlainError
        return cls(qid, int(mid), _whole(receives), visible_at=_whole(visible_at)), found.end()

    return read


def _get(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
    payload = priority = group = expires_at = None
    headers: list[tuple[str, str]] = []
    if data.startswith(_HEADERS_OPEN, at):
        headers, at = _read_headers(data, at, limits)
    if data.startswith(_OPEN, at):  # as in `_push`
        start = at + len(_OPEN)
        stop = data.find(b"<", start)
        if not data.startswith(_PAYLOAD_END, stop):
            raise _NotPlainError
        payload = _text(bytes(data[start:stop]))
        at = stop + len(_PAYLOAD_END)
    elif (encoded := _ENCODED_ONE.match(data, at)) is not None:
        payload, at = _payload(encoded[1], encoded[2]), encoded.end()
    if (found := _MID.match(data, at)) is not None:
        status, receives, pushed_at, visible_at, mid = found.groups()
    else:
        found = _match(_MID_THERE, data, at)
        status, receives, pushed_at, visible_at, priority, group, expires_at, mid = found.groups()
    message = GetMessage(
        qid,
        int(mid),
        False,
        None,
        payload,
        None if status is None else status.decode(),
        None if receives is None else int(receives),
        None if pushed_at is None else int(pushed_at),
        None if visible_at is None else int(visible_at),
    )
    if headers:
        message.headers = dict(headers)
    if priority is not None:
        message.priority = int(priority)
    if group is not None:
        message.group = _value(group)
    if expires_at is not None:
        message.expires_at = int(expires_at)
    return message, found.end()


def _ping(data: _Data, at: int, qid: str | None, request: bool, limits: Limits) -> Found:
    if qid is not None:
        raise _NotPlainError
    return Ping(), _match(_ONLY, data, at).end()


_READERS: dict[bytes, _Reader] = {
    b"push-message": _push,
    b"receive-message": _receive,
    b"delete-message": _delete,
    b"copy-message": _copy,
    b"get-message": _get,
    b"release-message": _release_or_extend(ReleaseMessage),
    b"extend-message": _release_or_extend(ExtendMessage),
    b"ping": _ping,
    b"get-claim": _claim,
    b"stage-messages": _stage,
}


class PlainReader:
    """Reads plain documents within limits.

    1. A message that `read` returns is the one that the framer and the parser would make of the same bytes.
    2. A declined document changes no later result: the caller goes on with the framer.
    3. It keeps some KiB of a stream at most, whatever comes.

    Assumes nothing about the bytes, and must never look at a byte more than a few times.
    """

    def __init__(self, limits: Limits, serving: bool = False) -> None:
        """serving: see `Peer`."""
        # The next document of a stream differs from an earlier one in its ids and its body alone, so its head is known.
        self._before = b""  # the bytes of the last head up to the value of `req`, or else to the first `>`
        self._has_req = False  # the last head has a `req`
        # The last heads that begin so, each behind its bytes from the end of its last id on; by the byte at `_TELLING`.
        self._heads: dict[int, tuple[bytes, _Head]] = {}
        self._limits = limits
        self._serving = serving
        self._fits = (
            limits.depth >= _DEPTH and limits.attributes >= _ATTRIBUTES and limits.elements >= _ELEMENTS
        )  # otherwise nothing is plain

    def read(  # noqa: C901, PLR0912 - its steps, without a call each
        self, data: bytes | bytearray, at: int = 0
    ) -> Found | None:
        """Reads the plain document that begins at an offset, with or without white space before it. Returns None if the
        document is not plain or not complete. Does not look at what stands behind the document."""
        known = resp = None
        before = self._before
        if before and data.startswith(before, at):
            start = at + len(before)
            stop = behind_req = data.find(b'"', start, start + REQ + 1) if self._has_req else start - 1
            begun = 0  # where the value of `resp` begins, if there is one
            if self._has_req and stop > 0 and data.startswith(_RESP, stop):
                begun = stop + len(_RESP)
                stop = data.find(b'"', begun, begun + REQ + 1)
            if 0 < stop < len(data) - _TELLING:
                known = self._heads.get(data[stop + _TELLING])
        try:
            if known is not None and data.startswith(known[0], stop):
                behind, (reader, qid, request, values) = known
                req: bytes | bytearray | None = data[start:behind_req] if self._has_req else None
                if begun:
                    resp = data[begun:stop]
                body = stop + len(behind)
            else:
                (reader, qid, request, values), req, resp, body = self._read_head(data, at)
            found = reader(data, body, qid, request, self._limits)
            message, end = found
            if end - at > self._limits.document:
                raise _NotPlainError
            for field, value in values:
                setattr(message, field, value)
            if not request:
                message._type = "response"  # type: ignore[misc]
            if req is not None:
                # `_value` without its call, as nearly every document has one.
                if req.translate(_NAME) != req:
                    raise _NotPlainError
                message._req = req.decode()  # type: ignore[misc]
            if resp is not None:
                if resp.translate(_NAME) != resp:
                    raise _NotPlainError
                message._resp = resp.decode()  # type: ignore[misc]
        except _NotPlainError:
            if known is not None and known[1][1] is None and data.startswith(known[0] + _QID_OPEN, stop):
                self._heads.clear()  # a head without a queue is the beginning of one with a queue
                return self.read(data, at)
            return None
        return found

    def _read_head(self, data: _Data, at: int) -> tuple["_Head", bytes | None, bytes | None, int]:
        """Reads a head, and remembers it. Returns it with its `req` and `resp`, and the offset behind it."""
        matched = _HEAD.match(data, at)
        if matched is None or not self._fits:
            raise _NotPlainError
        kind, req, resp, attributes, op, written = matched.groups()
        request = kind != b"response" or self._serving
        qid = None if written is None else _qid(written)
        if request and qid is None and op != b"ping":
            raise _NotPlainError
        values = _attributes(op, attributes) if attributes else ()
        if op == b"stage-messages" and len(values) < _STAGE_NUMBERS:
            raise _NotPlainError  # the parser reports which number is missing
        head, end = (_READERS[op], qid, request, values), matched.end()
        # A long head has white space in it, which must not stay in memory while the client is idle. A `resp` is known
        # only behind a `req`: that is how answers to requests look. A head without a queue would stand for the
        # beginning of one with a queue, where both occur.
        is_whole = qid is not None or op in _WITHOUT_QUEUE
        if is_whole and end - at <= _LONGEST_HEAD and (resp is None or req is not None):
            # Without `req`, the last quote before the `>` stands for the one behind `req`.
            start, stop = matched.span(2) if req is not None else (mark := data.index(b">", at), mark - 1)
            before = bytes(data[at:start])
            if before != self._before or len(self._heads) == _HEADS:
                self._before, self._has_req = before, req is not None
                self._heads.clear()
            if resp is not None:
                stop = matched.end(3)
            # A copy, and not a part of the buffer, which the head would otherwise keep in memory.
            self._heads[data[stop + _TELLING]] = bytes(data[stop:end]), head
        return head, req, resp, end
