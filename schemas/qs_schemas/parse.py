"""From a document's bytes to a message. The only module that uses lxml.

The parser expands no entity, loads no DTD and opens no file or connection. Every document is validated against
qs.xsd, after what belongs to other namespaces has been taken out.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

from lxml import etree

from .errors import BAD_REQUEST, MALFORMED, NOT_IMPLEMENTED, ErrorCode, ProtocolError
from .limits import REQ, Limits
from .messages import (
    OPERATIONS,
    Claim,
    Delivery,
    Draft,
    Error,
    Message,
    Part,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
)
from .text import escape, from_base64
from .wire import CLAIM, DELIVERY, DRAFT, MID, NAMESPACE, OP, OPTIONS, PART, QUEUE, Kind, attribute, fields_of

_NS = f"{{{NAMESPACE}}}"
_PARSER = etree.XMLParser(
    # Whatever a declaration says: UTF-8. huge_tree lifts libxml2's own bounds; the framer's hold.
    encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=True,
)  # fmt: skip
_XSD = etree.fromstring((files(__package__) / "qs.xsd").read_bytes(), _PARSER)
_SCHEMA = etree.XMLSchema(_XSD)
_PATTERN_IN_MESSAGE = re.compile(r"not accepted by the pattern '(.*)'\.$", re.DOTALL)
_WHERE = re.compile(r"Element '(?:\{[^}]*\})?([^']*)'(?:, attribute '([^']*)')?")


def _documentation() -> dict[str, str]:
    """What the schema says of each pattern, in words."""
    xs = "{http://www.w3.org/2001/XMLSchema}"
    return {
        pattern.get("value", ""): simple.findtext(f"{xs}annotation/{xs}documentation", "")
        for simple in _XSD.iter(f"{xs}simpleType")
        for pattern in simple.iter(f"{xs}pattern")
    }


_EXPECTED = _documentation()


class _Refused(Exception):
    """A document that is XML and not what the contract says."""

    def __init__(self, text: str, error: ErrorCode = BAD_REQUEST) -> None:
        self.text = text
        self.error = error


def parse(document: bytes, limits: Limits = Limits()) -> Message:  # noqa: B008 - frozen
    """The message that a document stands for.

    document: one whole document, as the framer gives it. Raises ProtocolError: 400 when it is not well-formed (closes),
    not valid, or lacks what its operation needs; 501 when the operation is unknown.
    """
    try:
        root = etree.fromstring(document, _PARSER)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise ProtocolError(MALFORMED, f"not well-formed: {error}") from None
    req = root.get("req")
    try:
        return _message(root, document, limits)
    except _Refused as refused:
        text = refused.text
        raise ProtocolError(refused.error, text, req if req is None or len(req) <= REQ else None) from None


def _message(root: etree._Element, document: bytes, limits: Limits) -> Message:
    if root.tag != f"{_NS}qs":
        name = etree.QName(root)
        raise _Refused(
            f"the root element is '{name.localname}' in namespace '{name.namespace or ''}'; "
            f"it has to be 'qs' in namespace '{NAMESPACE}'"
        )
    if document.count(b"xmlns") > 1 or b"<!--" in document:
        _strip_foreign(root)
    op = root.find(f"{_NS}op")
    cls = None if op is None else _operation(op)
    if not _SCHEMA.validate(root):
        raise _Refused(_explain(_SCHEMA.error_log))
    kind = root.get("type", "request")
    if kind == "error":
        return _error(root)
    if cls is None or op is None:
        raise _Refused("the element 'op' is missing: it says which operation is meant")
    message = cls(type=kind, req=root.get("req"), resp=root.get("resp"))
    _fill(message, op, OP)
    for child in root:
        if child is not op:
            _CHILDREN[child.tag](message, child, limits)
    if kind == "request":
        _check_required(message)
    return message


def _operation(op: etree._Element) -> type[Message] | None:
    """The class of the operation named; None when XSD will say what is wrong. Unknown ones are 501, so XSD must not."""
    names = [child.tag for child in op]
    for name in names:
        if name.startswith(_NS) and name[len(_NS) :] not in OPERATIONS:
            raise _Refused(f"unknown operation '{name[len(_NS) :][:100]}'", NOT_IMPLEMENTED)
    if not names:
        raise _Refused("the element 'op' is empty: it has to contain the operation, as in <op><ping/></op>")
    return OPERATIONS.get(names[0][len(_NS) :]) if len(names) == 1 else None


def _check_required(message: Message) -> None:
    for group in message.required:
        if not any(getattr(message, field) not in (None, []) for field in group):
            names = " or ".join(f"'{attribute(field)}'" for field in group).replace("'mids'", "'messages'")
            raise _Refused(f"{message.op} needs {names}, and it is missing or empty")


# -- what is not ours ---------------------------------------------------------------------------------------------


def _strip_foreign(element: etree._Element) -> None:
    """Takes out comments, and elements and attributes of other namespaces, but for what a payload holds."""
    for name in [name for name in element.attrib if name.startswith("{") and not name.startswith(_NS)]:
        del element.attrib[name]
    if element.tag == f"{_NS}payload":
        return
    for child in list(element):
        tag = child.tag
        if not isinstance(tag, str) or (tag.startswith("{") and not tag.startswith(_NS)):
            _remove(element, child)
        else:
            _strip_foreign(child)


def _remove(parent: etree._Element, child: etree._Element) -> None:
    before = child.getprevious()
    if child.tail:
        if before is None:
            parent.text = (parent.text or "") + child.tail
        else:
            before.tail = (before.tail or "") + child.tail
    parent.remove(child)


# -- values -------------------------------------------------------------------------------------------------------


def _values(element: etree._Element, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    get = element.attrib.get
    return {field: read(value) for field, (read, _) in kinds.items() if (value := get(attribute(field))) is not None}


_FIELDS = {cls: fields_of(cls) for cls in OPERATIONS.values()}
_BY_ATTRIBUTE = {id(kinds): {attribute(f): (f, kind[0]) for f, kind in kinds.items()} for kinds in (OP, MID)}


def _fill(message: Message, element: etree._Element, kinds: Mapping[str, Kind]) -> None:
    """Sets the fields that the class has and the element's attributes carry."""
    if not element.attrib:
        return
    known, fields = _BY_ATTRIBUTE[id(kinds)], _FIELDS[type(message)]
    for name, value in element.attrib.items():
        field, read = known.get(name, ("", str))
        if field in fields:
            setattr(message, field, read(value))


def _text(element: etree._Element) -> str:
    return (element.text or "").strip()


def _payload(element: etree._Element) -> bytes:
    elements = [child for child in element if isinstance(child.tag, str)]
    if not elements:
        # What is left are comments: their text is not the payload's.
        text = (element.text or "") + "".join(child.tail or "" for child in element)
        if element.get("encoding") is None:
            return text.encode()
        try:
            return from_base64(text)
        except ValueError:
            raise _Refused("the payload says encoding='base64' and is something else") from None
    if element.get("encoding") is not None:
        raise _Refused("the payload says encoding='base64' and holds elements")
    inner = [escape(element.text or "")]
    for child in element:
        tail, child.tail = child.tail, None
        if isinstance(child.tag, str):  # without the namespace declarations that only stand above it
            etree.cleanup_namespaces(child)
        inner.append(etree.tostring(child, encoding="unicode"))
        inner.append(escape(tail or ""))
    return "".join(inner).encode()


# -- children of qs -----------------------------------------------------------------------------------------------

_Reader = Callable[[Message, etree._Element, Limits], None]


def _setter(field: str, read: Callable[[etree._Element], Any]) -> _Reader:
    def fill(message: Message, element: etree._Element, limits: Limits) -> None:
        if field in _FIELDS[type(message)]:
            setattr(message, field, read(element))

    return fill


def _read_mid(message: Message, element: etree._Element, limits: Limits) -> None:
    if "mid" in _FIELDS[type(message)]:
        message.mid = int(_text(element))  # type: ignore[attr-defined]
        _fill(message, element, MID)


def _read_messages(message: Message, element: etree._Element, limits: Limits) -> None:
    if len(element) > limits.list_length:
        raise _Refused(f"'messages' has {len(element)} entries; at most {limits.list_length} are taken at once")
    fields = _FIELDS[type(message)]
    mids = [child for child in element if child.tag == f"{_NS}mid"]
    entries = [child for child in element if child.tag == f"{_NS}message"]
    if mids and "mids" in fields:
        message.mids = [_mid_or_receipt(child) for child in mids]  # type: ignore[attr-defined]
    if entries and "messages" in fields:
        answers = message.op in ("receive-message", "get-claim")
        message.messages = [_delivery(e) if answers else _draft(e) for e in entries]  # type: ignore[attr-defined]


def _read_early_messages(message: Message, element: etree._Element, limits: Limits) -> None:
    if "early" in _FIELDS[type(message)]:
        message.early = True  # type: ignore[attr-defined]
        _read_messages(message, element, limits)


def _mid_or_receipt(element: etree._Element) -> int | Receipt:
    receives = element.get("receives")
    return int(_text(element)) if receives is None else Receipt(int(_text(element)), int(receives))


def _draft(element: etree._Element) -> Draft:
    return Draft(_payload(element[0]), **_values(element, DRAFT))


def _delivery(element: etree._Element) -> Delivery:
    values = _values(element, DELIVERY)
    if "mid" not in values:
        raise _Refused("a message of an answer has no 'mid'")
    return Delivery(payload=_payload(element[0]), **values)


def _read_queues(message: Message, element: etree._Element, limits: Limits) -> None:
    if "queues" not in _FIELDS[type(message)]:
        return
    if isinstance(message, QueueStats):
        message.queues = [QueueInfo(_text(queue), **_values(queue, QUEUE)) for queue in element]
    else:
        message.queues = [_text(queue) for queue in element]  # type: ignore[attr-defined]


_CHILDREN: dict[str, _Reader] = {
    f"{_NS}{name}": reader
    for name, reader in {
        "qid": _setter("qid", _text),
        "mid": _read_mid,
        "payload": _setter("payload", _payload),
        "messages": _read_messages,
        "m": _read_early_messages,
        "queues": _read_queues,
        "options": _setter("options", lambda e: QueueOptions(**_values(e, OPTIONS))),
        "count": _setter("count", lambda e: int(_text(e))),
        "token": _setter("token", lambda e: e.text or ""),
        "consumer": _setter("consumer", _text),
        "producer": _setter("producer", _text),
        "claim": _setter("claim", lambda e: Claim(**_values(e, CLAIM))),
        "parts": _setter("chosen", lambda e: [Part(**_values(part, PART)) for part in e]),
        "error": lambda message, element, limits: None,
    }.items()
}


# -- errors -------------------------------------------------------------------------------------------------------


def _error(root: etree._Element) -> Error:
    element = root.find(f"{_NS}error")
    if element is None:
        raise _Refused("the element 'error' is missing in a document of type 'error'")
    return Error(
        int(element.get("code", "500")), element.get("type", ""), element.text or "",
        req=root.get("req"), resp=root.get("resp"),
    )  # fmt: skip


def _explain(log: Iterable[etree._LogEntry]) -> str:
    """What the schema has to say, without its namespace, and with what was expected."""
    entries = list(log)
    if not entries:
        return "the document is not valid against qs.xsd"
    for entry in entries:
        pattern, where = _PATTERN_IN_MESSAGE.search(entry.message), _WHERE.search(entry.message)
        if pattern and where and pattern.group(1) in _EXPECTED:
            subject = f"'{where.group(2)}' of '{where.group(1)}'" if where.group(2) else f"'{where.group(1)}'"
            return f"line {entry.line}: {subject} has to be {_EXPECTED[pattern.group(1)]}"
    message = entries[0].message.replace(_NS, "")
    return f"line {entries[0].line}: {message[:500]}"
