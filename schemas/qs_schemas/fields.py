"""Makes a message from the elements of a valid document, by plans that are worked out once for each class.

A plan has a reader for each element that its class has a field for. All other elements are passed over, so that a
client may send back the entries of an answer as they came.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from .errors import BAD_REQUEST, NOT_FOUND, ErrorCode
from .headers import checked_headers
from .limits import REASON
from .messages import (
    OPERATIONS,
    Claim,
    Delivery,
    Draft,
    Figure,
    Message,
    Part,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
    SetQueue,
)
from .text import from_base64
from .wire import (
    CLAIM,
    DELIVERY,
    DRAFT,
    NAMESPACE,
    OPTIONS,
    PART,
    QUEUE,
    Kind,
    attribute,
    attributes_of,
    fields_of,
    strip,
)

NS = f"{{{NAMESPACE}}}"
_MID, _ENTRY, _PAYLOAD = f"{NS}mid", f"{NS}message", f"{NS}payload"
_AN_ID = re.compile("[0-9]{1,18}")
_NO_ID = 0
"""The list's entry for an id that this protocol cannot have. No message has it."""


class Element(Protocol):
    """Describes an element of a tree. The tag of an element is `{namespace}name`; the tag of a comment is not a str.

    lxml's elements are the only implementation. This module does not import lxml, not even for types, so that programs
    without lxml can import this module.
    """

    @property
    def tag(self) -> Any: ...
    @property
    def text(self) -> str | None: ...
    @property
    def tail(self) -> str | None: ...
    def get(self, key: str) -> str | None: ...
    def items(self) -> Any: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


class RefusedError(Exception):
    """Reports that a document is well-formed XML but breaks the contract. The stream can be read further."""

    def __init__(self, text: str, error: ErrorCode = BAD_REQUEST) -> None:
        super().__init__(text)
        self.text = text
        self.error = error


_Values = dict[str, Any]
_Kinds = dict[str, tuple[str, Callable[[str], Any]]]
"""Attribute -> field, and the function that reads its value."""
_Read = Callable[[Element], Any]
_Reader = Callable[[_Values, Element], None]


def _kinds(kinds: dict[str, Kind]) -> _Kinds:
    return {attribute(field): (field, read) for field, (read, _) in kinds.items()}


def _read_attributes(element: Element, kinds: _Kinds, values: _Values) -> None:
    for name, value in element.items():
        kind = kinds.get(name)
        if kind is not None:
            values[kind[0]] = kind[1](value)


def _values(element: Element, kinds: _Kinds) -> _Values:
    values: _Values = {}
    _read_attributes(element, kinds, values)
    return values


_DRAFT, _DELIVERY, _QUEUE, _OPTIONS = _kinds(DRAFT), _kinds(DELIVERY), _kinds(QUEUE), _kinds(OPTIONS)
_CLAIM, _PART = _kinds(CLAIM), _kinds(PART)


def _text(element: Element) -> str:
    return strip(element.text or "")


def _reason(element: Element) -> str:
    """Reads the reason of a release or a reject. Raises RefusedError if the reason is too long."""
    reason = element.text or ""
    # The bound is in bytes of UTF-8, as the reason is kept in memory. The schema counts characters.
    if (size := len(reason.encode())) > REASON:
        raise RefusedError(f"'reason' has {size} bytes of UTF-8, and at most {REASON} bytes are kept: shorten it")
    return reason


def _whole(element: Element) -> int:
    return int(element.text or "")


def _mid(element: Element) -> int | str:
    """Reads the id of a message. Returns the text itself if it is not an id of this protocol."""
    text = _text(element)
    return text if _AN_ID.fullmatch(text) is None else int(text)


def _mid_or_receipt(element: Element, request: bool) -> int | Receipt:
    mid = _mid(element)
    if isinstance(mid, str):
        if not request:
            raise RefusedError("'mid' has to be a message id: a decimal number of at most 18 digits")
        mid = _NO_ID
    receives = element.get("receives")
    return mid if receives is None else Receipt(mid, int(receives))


def _queue_info(element: Element) -> QueueInfo:
    return QueueInfo(_text(element), **_values(element, _QUEUE))


def _figure(element: Element) -> Figure:
    labels = {name: value for name, value in element.items() if not name.startswith("{")}
    name, text = labels.pop("name"), _text(element)
    return Figure(name, float(text) if "." in text else int(text), labels)


def _options_reader(removes: bool) -> _Read:
    """Makes the reader of `options`. removes: True if an empty value is allowed and removes the option."""

    def options(element: Element) -> QueueOptions:
        given = [(_OPTIONS[name], value) for name, value in element.items() if name in _OPTIONS]
        removed = frozenset(field for (field, _), value in given if field != "storage" and not strip(value))
        if removed and not removes:
            name = attribute(min(removed))
            raise RefusedError(f"'{name}' of 'options' is empty: only set-queue takes that, and removes the option")
        values = {field: read(value) for (field, read), value in given if field not in removed}
        return QueueOptions(**values, removed=removed)

    return options


# -- payloads ---------------------------------------------------------------------------------------------------------


def _payload_reader(inline: Callable[[Element], str]) -> _Read:
    def payload(element: Element) -> bytes:
        text = element.text or ""
        encoded = element.get("encoding") is not None
        if len(element):
            if any(isinstance(child.tag, str) for child in element):
                if encoded:
                    raise RefusedError("the payload says encoding='base64' and holds elements")
                return inline(element).encode()
            # The children that are left are comments, whose text does not belong to the payload.
            text += "".join([child.tail or "" for child in element])
        if not encoded:
            return text.encode()
        try:
            return from_base64(text)
        except ValueError:
            raise RefusedError("the payload says encoding='base64' and is something else") from None

    return payload


def _given_headers(element: Element) -> dict[str, str]:
    """Reads the headers that a producer gives. Raises RefusedError if they are not allowed."""
    try:
        return checked_headers((header.get("name"), header.text or "") for header in element)
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _headers(element: Element) -> dict[str, str]:
    """Reads the headers of a message that was delivered."""
    return {header.get("name"): header.text or "" for header in element}


def _entry_reader(cls: type[Draft] | type[Delivery], payload: _Read) -> _Read:
    """Makes the reader of a `message`, whose children come in any order."""
    kinds, headers = (_DRAFT, _given_headers) if cls is Draft else (_DELIVERY, _headers)

    def entry(element: Element) -> Draft | Delivery:
        values = _values(element, kinds)
        for child in element:
            if child.tag == _PAYLOAD:
                values["payload"] = payload(child)
            else:
                values["headers"] = headers(child)
        if cls is Delivery and "mid" not in values:
            raise RefusedError("a message of an answer has no 'mid'")
        return cls(**values)

    return entry


# -- where the parts of a document stand in a message ---------------------------------------------------------------

# child of qs: (field, how it is read)
_FIELDS: dict[str, tuple[str, _Read]] = {
    "qid": ("qid", _text),
    "count": ("count", _whole),
    "token": ("token", lambda element: element.text or ""),
    "principal": ("principal", lambda element: element.text or ""),
    "reason": ("reason", _reason),
    "consumer": ("consumer", _text),
    "producer": ("producer", _text),
    "claim": ("claim", lambda element: Claim(**_values(element, _CLAIM))),
    "claims": ("claims", lambda element: [Claim(**_values(claim, _CLAIM)) for claim in element]),
    "parts": ("chosen", lambda element: [Part(**_values(part, _PART)) for part in element]),
    "figures": ("figures", lambda element: list(map(_figure, element))),
}


def _field_reader(field: str, read: _Read) -> _Reader:
    def reader(values: _Values, element: Element) -> None:
        values[field] = read(element)

    return reader


def _list_reader(field: str, read: _Read) -> _Reader:
    def reader(values: _Values, element: Element) -> None:
        values[field] = [read(child) for child in element]

    return reader


def _mid_reader(kinds: _Kinds, named: bool) -> _Reader:
    """Makes the reader of `mid`. named: True if a request names its message by `mid`; if False, the reader ignores the
    `mid` of a request."""

    def reader(values: _Values, element: Element) -> None:
        if named or values["type"] != "request":
            values["mid"] = _mid(element)
            _read_attributes(element, kinds, values)

    return reader


def _messages_reader(fields: frozenset[str], read_entry: _Read, named: bool) -> _Reader:
    """Makes the reader of `messages`. named: True if a request names its messages by the ids in the list; if False, the
    reader ignores the ids of a request."""

    def reader(values: _Values, element: Element) -> None:
        request = values["type"] == "request"
        if "mids" in fields and (named or not request):
            values["mids"] = [_mid_or_receipt(child, request) for child in element if child.tag == _MID]
        if "messages" in fields:
            values["messages"] = [read_entry(child) for child in element if child.tag == _ENTRY]

    return reader


def _early_reader(messages: _Reader) -> _Reader:
    def reader(values: _Values, element: Element) -> None:
        values["early"] = True
        messages(values, element)

    return reader


class Plan(NamedTuple):
    """Reads the messages of one class. Passes over elements and attributes that the class has no field for."""

    cls: type[Message]
    op: _Kinds
    children: dict[str, _Reader]

    def message(self, children: Iterable[tuple[str, Element]], op: Element, envelope: _Values) -> Message:
        """Makes the message of a valid document. children: the root's children, each with its tag; envelope: the values
        of type, req and resp. Raises RefusedError when a field is missing or its value is wrong."""
        values = envelope
        _read_attributes(op, self.op, values)
        for tag, child in children:
            reader = self.children.get(tag)
            if reader is not None:
                reader(values, child)
        request = values["type"] == "request"
        if request:
            self._check_required(values)
        if isinstance(mid := values.get("mid"), str):
            if request:
                raise RefusedError(f"no message has the id {mid[:100]!r}", NOT_FOUND)
            # An answer may have an id in a foreign form: the message can still be read, and pushed again.
            values["mid"] = None
        return self.cls(**values)

    def _check_required(self, values: _Values) -> None:
        for group in self.cls.required:
            for field in group:
                value = values.get(field)
                if value is not None and (value != [] or field in self.cls.may_be_empty):
                    break
            else:
                names = " or ".join(f"'{attribute(field)}'" for field in group).replace("'mids'", "'messages'")
                raise RefusedError(f"{self.cls.op} needs {names}, and it is missing or empty")


def plans(inline: Callable[[Element], str]) -> dict[str, Plan]:
    """Makes the plan of each operation: tag of the operation -> plan. inline: returns the text of a payload's inline
    XML."""
    payload = _payload_reader(inline)
    return {f"{NS}{name}": _plan(cls, payload) for name, cls in OPERATIONS.items()}


def _names(cls: type[Message], field: str) -> bool:
    """Tells whether the requests of a class name their messages by this field."""
    return field in cls.selects or any(field in group for group in cls.required)


def _plan(cls: type[Message], payload: _Read) -> Plan:
    fields = fields_of(cls)
    children = {name: _field_reader(field, read) for name, (field, read) in _FIELDS.items() if field in fields}
    if "options" in fields:
        children["options"] = _field_reader("options", _options_reader(removes=cls is SetQueue))
    if "payload" in fields:
        children["payload"] = _field_reader("payload", payload)
    if "headers" in fields:
        children["headers"] = _field_reader("headers", _given_headers if cls is PushMessage else _headers)
    of_op, of_mid = attributes_of(cls)
    if "mid" in fields:
        children["mid"] = _mid_reader(_kinds(of_mid), _names(cls, "mid"))
    if "queues" in fields:
        children["queues"] = _list_reader("queues", _queue_info if cls is QueueStats else _text)
    if "mids" in fields or "messages" in fields:
        answers = cls.op in ("get-message", "receive-message", "get-claim")
        read_entry = _entry_reader(Delivery if answers else Draft, payload)
        children["messages"] = _messages_reader(fields, read_entry, _names(cls, "mids"))
    if "early" in fields:
        children["m"] = _early_reader(children["messages"])
    return Plan(cls, _kinds(of_op), {f"{NS}{name}": reader for name, reader in children.items()})
