"""Serializes a message to bytes: one document, one line, no prefixes, `\r\n` at its end.

So a client needs no parser to find the end of an answer: each line is one. For an early client of bucker an empty line
follows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .checked import text
from .framing import EMPTY_LINE
from .headers import checked_headers
from .limits import EARLY_LIST, GROUP, KEY, QID, REQ, TOKEN
from .messages import (
    OPERATIONS,
    Claim,
    Delivery,
    Draft,
    Error,
    Figure,
    ListMessages,
    Message,
    Part,
    PublishStaged,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
    StageMessages,
)
from .text import UNESCAPED, escape, escape_payload, escape_payloads, to_base64
from .wire import (
    CLAIM,
    DELIVERY,
    DRAFT,
    NAMESPACE,
    OPTIONS,
    PART,
    QUEUE,
    YES_OR_NO,
    Kind,
    attribute,
    attributes_of,
    fields_of,
    seconds,
    strip,
)

_HEAD = f'<qs xmlns="{NAMESPACE}"'
LINE_END = b"\r\n"
_END, _EARLY_END = b"</qs>" + LINE_END, b"</qs>" + EMPTY_LINE
_BASE64 = b' encoding="base64"'
_Named = tuple[tuple[str, str, Callable[[Any], str], bool | None], ...]
"""Field, beginning of its attribute, writer of the value, and a value besides None that is not written."""


def _named(kinds: Mapping[str, Kind]) -> _Named:
    return tuple(
        (field, f' {attribute(field)}="', kind[1] or escape, None if kind is YES_OR_NO else False)
        for field, kind in kinds.items()
    )


def _attributes(source: object, named: _Named) -> str:
    """Writes the attributes of a message or an entry."""
    written = ""
    for field, start, write, omitted in named:
        value = getattr(source, field)
        if value is not None and value is not omitted:
            written += f'{start}{write(value)}"'
    return written


def write_payload(payload: bytes | str, shortest: bool = False) -> bytes:
    """Writes the element of a payload. shortest: True to write text as base64 too where base64 is shorter: a payload of
    millions of line breaks would grow five times, and a request has to be within the server's limit."""
    raw = payload.encode() if type(payload) is str else payload if type(payload) is bytes else _raw(payload)
    if raw.isascii() and raw.translate(UNESCAPED) == raw:  # most are, and this saves the calls below
        return b"<payload>" + raw + b"</payload>"
    return _payload(raw, escape_payload(raw), shortest)


def write_payloads(payloads: Sequence[bytes | str], shortest: bool = False) -> list[bytes]:
    """Writes the element of each payload like `write_payload`, in less time."""
    if len(payloads) == 1:
        return [write_payload(payloads[0], shortest)]
    # Without a call for each: most payloads are bytes or a str, and need no escape.
    raw = [
        payload if type(payload) is bytes else payload.encode() if type(payload) is str else _raw(payload)
        for payload in payloads
    ]
    return [
        b"<payload>%b</payload>" % one if text is one else _payload(one, text, shortest)
        for one, text in zip(raw, escape_payloads(raw), strict=True)
    ]


def _raw(payload: bytes | str) -> bytes:
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def _payload(raw: bytes, text: bytes | None, shortest: bool) -> bytes:
    """Writes the element of a payload. text: the escaped payload, None if XML cannot carry the payload as text."""
    if text is None or (shortest and len(text) > len(_BASE64) + (len(raw) + 2) // 3 * 4):
        return b"<payload%b>%b</payload>" % (_BASE64, to_base64(raw))
    return b"<payload>" + text + b"</payload>"


_DRAFT, _DELIVERY, _QUEUE, _OPTIONS = _named(DRAFT), _named(DELIVERY), _named(QUEUE), _named(OPTIONS)
_CLAIM, _PART = _named(CLAIM), _named(PART)


def _messages(entries: Sequence[Draft | Delivery], shortest: bool = False) -> bytes:
    parts: list[bytes] = []
    payloads = write_payloads([entry.payload for entry in entries], shortest)
    for entry, payload in zip(entries, payloads, strict=True):
        named = _DRAFT if isinstance(entry, Draft) else _DELIVERY
        parts.append(f"<message{_attributes(entry, named)}>".encode())
        if entry.headers:
            parts.append(write_headers(entry.headers))
        parts += (payload, b"</message>")
    return b"".join(parts)


def write_headers(headers: Mapping[str, str]) -> bytes:
    """Writes the element of a message's headers."""
    written = [
        f'<header name="{escape(text("headers", name))}">{escape(text("headers", value))}</header>'
        for name, value in headers.items()  # an entry may have been added to the dict
    ]
    return f"<headers>{''.join(written)}</headers>".encode()


def _mids(mids: Sequence[int | Receipt]) -> bytes:
    written = [
        f'<mid receives="{mid.receives}">{mid.mid}</mid>' if isinstance(mid, Receipt) else f"<mid>{int(mid)}</mid>"
        for mid in mids
    ]
    return "".join(written).encode()


class WrittenQueues(list[Any]):
    """Holds the `queues` of a long answer, which a server writes in slices, so that other clients do not wait for the
    whole answer.

    The list keeps the names, and of the figures only the bytes that are sent: a hundred thousand objects that live
    until an answer is sent would make Python's garbage collector go over all that the server has, for up to a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def add(self, queues: Sequence[str | QueueInfo]) -> None:
        """Adds queues, and writes their bytes at once."""
        self.extend([queue.qid if isinstance(queue, QueueInfo) else queue for queue in queues])
        self.pieces.append(_entries(queues))


def _entries(queues: Sequence[str | QueueInfo]) -> bytes:
    written = [
        f"<queue{_attributes(queue, _QUEUE)}>{escape(queue.qid)}</queue>"
        if isinstance(queue, QueueInfo)
        else f"<queue>{escape(text('queues', queue))}</queue>"  # an entry may have been added to the list
        for queue in queues
    ]
    return "".join(written).encode()


def _queues(queues: Sequence[str | QueueInfo]) -> bytes:
    pieces = queues.pieces if isinstance(queues, WrittenQueues) else [_entries(queues)]
    return b"".join([b"<queues>", *pieces, b"</queues>"])


def _options(options: QueueOptions) -> bytes:
    written = _attributes(options, _OPTIONS)
    # An option that is removed is written with an empty value: a missing attribute leaves the option alone.
    for field, start, *_ in _OPTIONS:
        if field in options.removed and getattr(options, field) is None:
            written += f'{start}"'
    return f"<options{written}/>".encode()


def _claim(claim: Claim) -> bytes:
    return f"<claim{_attributes(claim, _CLAIM)}/>".encode()


def _claims(claims: Sequence[Claim]) -> bytes:
    return b"<claims>" + b"".join(map(_claim, claims)) + b"</claims>"


def _chosen(parts: Sequence[Part]) -> bytes:
    return f"<parts>{''.join(f'<part{_attributes(part, _PART)}/>' for part in parts)}</parts>".encode()


def _figures(figures: Sequence[Figure]) -> bytes:
    written: list[str] = []
    for figure in figures:
        labels = "".join([f' {label}="{escape(value)}"' for label, value in figure.labels.items()])
        value = figure.value if isinstance(figure.value, int) else seconds(figure.value)
        written.append(f'<figure name="{escape(figure.name)}"{labels}>{value}</figure>')
    return f"<figures>{''.join(written)}</figures>".encode()


def _element(name: str) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        return f"<{name}>{escape(str(value))}</{name}>".encode()

    return write


# Written in this order, in which the plain reader of the other side expects them. A field that is None is left out, and
# so are headers if there are none, and an empty list, unless `_keep_empty` wants it.
_CHILDREN: dict[str, Callable[[Any], bytes]] = {
    "qid": _element("qid"), "consumer": _element("consumer"), "producer": _element("producer"),
    "token": _element("token"), "principal": _element("principal"), "count": _element("count"),
    "reason": _element("reason"), "options": _options,
    "queues": _queues, "claim": _claim, "claims": _claims, "chosen": _chosen, "figures": _figures,
    "headers": write_headers, "payload": write_payload,
}  # fmt: skip
# Both lists stand in the one element `messages`, or `m` for early clients.
_LISTS: dict[str, Callable[[Any], bytes]] = {"messages": _messages, "mids": _mids}
# For a request, whose document has to be within the server's limit.
_SHORTEST: dict[str, Callable[[Any], bytes]] = {
    "payload": lambda payload: write_payload(payload, True),
    "messages": lambda entries: _messages(entries, True),
}


# field: (the most characters, True for a name: without control characters, and stripped of white space)
_LENGTHS = {
    "qid": (QID, True), "consumer": (QID, True), "producer": (QID, True), "name": (QID, True),
    "dead_letter": (QID, True), "queues": (QID, True), "key": (KEY, False), "req": (REQ, False),
    "subscription": (REQ, False), "token": (TOKEN, False),
}  # fmt: skip
_LENGTHS_OF_PUSH = {**_LENGTHS, "group": (GROUP, False)}


def check_lengths(message: Message) -> None:
    """Checks the bounds of all texts of a request before it is sent: names, keys, ids and headers. Raises ValueError,
    which names the field, the length and the bound. The types of qs.xsd have the same bounds, for clients that do not
    use this package."""
    lengths = _LENGTHS
    if isinstance(message, PushMessage | StageMessages):  # no other request has more to check
        lengths = _LENGTHS_OF_PUSH
        for holder in (message, *message.messages):
            if headers := getattr(holder, "headers", None):
                checked_headers(headers.items())
    for field, (most, is_name) in lengths.items():
        for value in _texts_of(message, field):
            if 0 < len(value) <= most and (value.isprintable() or not is_name):
                continue
            kept = strip(value) if is_name else value
            # A token that is too long is still a secret.
            shown = "" if field == "token" else f" {kept[:40]!r}{'…' if len(kept) > 40 else ''}"
            if len(kept) > most or not (kept or field == "req"):
                raise ValueError(f"{field}{shown} has {len(kept)} characters, and 1 to {most} are allowed")
            if is_name and not _CONTROLS.isdisjoint(kept):
                raise ValueError(f"{field}{shown} has a control character, and none are allowed")


_CONTROLS = frozenset(map(chr, (*b"\t\n\r", *range(0x7F, 0xA0))))
"""The control characters that XML can carry. Of the others `serialize` says that it cannot."""


def _texts_of(message: Message, field: str) -> list[str]:
    """Returns all values of a field of text in a message, its options, and the entries of its lists."""
    if field == "queues":
        queues: list[str] = getattr(message, field, [])
        if isinstance(message, QueueStats):  # its entries are figures of an answer
            return []
        return [queue if queue.__class__ is str else text(field, queue) for queue in queues]
    holders = [message, getattr(message, "options", None)]
    if field in ("key", "group"):
        holders += getattr(message, "messages", ())
    found = (getattr(holder, field, None) for holder in holders)
    return [value for value in found if isinstance(value, str)]


class _Plan:
    """Holds where the fields of a message class stand in its documents, worked out once for each class."""

    def __init__(self, cls: type[Message], shortest: Mapping[str, Callable[[Any], bytes]]) -> None:
        fields = fields_of(cls)
        self.op, self.mid = map(_named, attributes_of(cls))
        self.has_mid = "mid" in fields
        self.lists = tuple((field, shortest.get(field, write)) for field, write in _LISTS.items() if field in fields)
        self.children = tuple(
            (field, shortest.get(field, write)) for field, write in _CHILDREN.items() if field in fields
        )


# Answers are written as they are quickest, requests as they are shortest: only these have to be within a server's
# limit.
_PLANS = {cls: _Plan(cls, {}) for cls in OPERATIONS.values()}
_REQUEST_PLANS = {cls: _Plan(cls, _SHORTEST) for cls in OPERATIONS.values()}


def serialize(message: Message, early: bool = False) -> bytes:
    """Writes the document of a message, with its line end.

    early: True for an early client: the document ends with an empty line, as such a client's own documents do, and the
    answer to list-messages has at most 200 ids, in `m`, where such clients look for them. Raises ValueError if a field
    holds a character that XML cannot carry (payloads can hold any), and TypeError for a bare Message.
    """
    end = _EARLY_END if early else _END
    head = f'{_HEAD} type="{escape(message.type)}"'
    if message.req is not None:
        head += f' req="{escape(message.req)}"'
    if message.resp is not None:
        head += f' resp="{escape(message.resp)}"'
    if isinstance(message, Error):
        return f'{head} xml:lang="en-US">{_error(message)}'.encode() + end
    plan = (_REQUEST_PLANS if message.type == "request" else _PLANS).get(type(message))
    if plan is None:
        raise TypeError(f"{type(message).__name__} is not the message of an operation")
    parts = [f"{head}><op{_attributes(message, plan.op)}><{message.op}/></op>".encode()]
    for field, write in plan.children:
        value = getattr(message, field)
        if value is None or value == {} or (value == [] and not _keep_empty(message, field)):
            continue
        parts.append(write(value))
    if plan.has_mid and message.mid is not None:  # type: ignore[attr-defined]
        parts.append(f"<mid{_attributes(message, plan.mid)}>{int(message.mid)}</mid>".encode())  # type: ignore[attr-defined]
    if plan.lists:
        most = EARLY_LIST if early and isinstance(message, ListMessages) else None
        entries = b"".join([write(value[:most]) for field, write in plan.lists if (value := getattr(message, field))])
        if entries or _keep_empty(message, "messages"):
            tag = b"m" if isinstance(message, ListMessages) and (message.early or most is not None) else b"messages"
            parts.append(b"<%b>%b</%b>" % (tag, entries, tag))
    parts.append(end)
    return b"".join(parts)


def _keep_empty(message: Message, field: str) -> bool:
    """Tells whether an empty list is written: where it is the answer, where a request needs it, and where a request of
    an early client carries `m`."""
    if isinstance(message, ListMessages) and message.early:
        return True
    if isinstance(message, StageMessages):
        return message.type == "request"
    if message.type != "response" or isinstance(message, PublishStaged):
        return False
    if field == "messages":
        return message.op in ("list-messages", "receive-message", "get-claim", "redrive-messages") or (
            message.op in ("get-message", "delete-message", "copy-message") and message.mid is None  # type: ignore[attr-defined]
        )
    return field in ("claims", "figures") or (field == "queues" and message.op in ("list-queues", "queue-stats"))


def _error(error: Error) -> str:
    return f'<error code="{int(error.code)}" type="{escape(error.kind)}">{escape(error.text)}</error>'
