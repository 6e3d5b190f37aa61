"""Parses a document's bytes into a message. This is the only module that uses lxml.

1. A message that is returned came from a document that is valid against qs.xsd, after elements and attributes of other
   namespaces were taken out.
2. Whatever is wrong with a document is one ProtocolError, also if the XML library raises something unforeseen.
3. No entity is expanded, no DTD loaded, no file or connection opened.
4. The time that a document takes grows with its bytes, whatever they are.

The schema by itself does not ensure point 4: lxml works out a path for every fault, and libxml2 keeps 50 bytes for
every white space before a name. So three things are refused before the schema sees them: elements of answers in a
request, a list over its bound, a value over VALUE. And a short list is validated in one go, but a long one entry by
entry, up to the first faulty entry.

Assumes that the framer has cut out the document and bounded its length, depth, attributes and elements.
"""

import copy
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from lxml import etree

from .errors import BAD_REQUEST, MALFORMED, NOT_IMPLEMENTED, ProtocolError
from .fields import NS, RefusedError, plans
from .limits import HEADERS, LIST, REQ, VALUE, Limits
from .messages import Error, Message
from .text import escape_inline
from .wire import ANSWERED, NAMESPACE

LIBXML = ".".join(map(str, etree.LIBXML_VERSION))
"""The version of the library that parses."""
_ROOT, _OP, _PAYLOAD, _ERROR, _MESSAGE, _HEADERS, _HEADER = (
    f"{NS}{name}" for name in ("qs", "op", "payload", "error", "message", "headers", "header")
)
# How many times `list_length` entries each list may have: names are short, and a batch of Spark has thousands of parts.
_LISTS = {
    f"{NS}messages": 1, f"{NS}m": 1, f"{NS}queues": 10, f"{NS}parts": 10, f"{NS}figures": 10, f"{NS}claims": 10,
}  # fmt: skip
_ANSWERED = frozenset(f"{NS}{name}" for name in ANSWERED)
_TEXTS = frozenset(f"{NS}{name}" for name in ("payload", "token", "principal", "error"))
"""The elements whose text may be longer than VALUE: no pattern of the schema looks at it."""
_TYPES = ("request", "response", "error")
_DOCTYPE = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\r\n]++|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
_AT_ONCE = 100
"""The longest list that is validated in one go, which takes a third of the time. With a fault in each attribute of each
entry that is 3,200 faults, and some 10 ms."""


def _new_parser() -> etree.XMLParser:
    """Makes a parser for one document."""
    # One parser for all documents would be slow for ever after a document of very many attributes: each further one
    # would take a hundred times as long. And all threads would share its log of errors.
    return etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False,
        huge_tree=True, collect_ids=False, remove_pis=True,
    )  # fmt: skip


_XSD = etree.fromstring(pkgutil.get_data(__name__, "qs.xsd") or b"", _new_parser())
_XS = "{http://www.w3.org/2001/XMLSchema}"
_SCHEMA = etree.XMLSchema(_XSD)
_KINDS = {
    f"{NS}{child.get('name')}": child.get("type")
    for child in _XSD.iterfind("{*}element/{*}complexType/{*}all/{*}element")
}
"""The children of qs, and their types."""


def _schema_of_entries() -> tuple[etree.XMLSchema, dict[str, frozenset[str]]]:
    """Returns a schema like qs.xsd, in which lists may hold anything and their entries are valid as roots; and a dict:
    list -> the tags of its entries."""
    # `_fault` validates a long list entry by entry with this schema, which is made from qs.xsd, so that there is one
    # contract.
    xsd: Any = copy.deepcopy(_XSD)
    entries = {}
    for kind in {_KINDS[name] for name in _LISTS}:
        content = xsd.find(f"{_XS}complexType[@name='{kind}']/*")
        declared = [(entry.get("name", ""), entry.get("type", "")) for entry in content.iterfind(f"{_XS}element")]
        anything = etree.Element(f"{_XS}sequence")
        etree.SubElement(anything, f"{_XS}any", processContents="skip", minOccurs="0", maxOccurs="unbounded")
        content.getparent().replace(content, anything)
        for name, of in declared:
            etree.SubElement(xsd, f"{_XS}element", name=name, type=of)
        entries[kind] = frozenset(f"{NS}{name}" for name, _ in declared)
    return etree.XMLSchema(xsd), {name: entries[_KINDS[name]] for name in _LISTS}


_SCHEMA_OF_ENTRIES, _ENTRIES = _schema_of_entries()
_PATTERN_IN_MESSAGE = re.compile(r"not accepted by the pattern '(.*)'\.$", re.DOTALL)
_WHERE = re.compile(r"Element '(?:\{[^}]*\})?([^']*)'(?:, attribute '([^']*)')?")


def _documentation() -> dict[str, str]:
    """Returns the documentation of the schema's patterns: pattern -> words for people."""
    return {
        pattern.get("value", ""): simple.findtext(f"{_XS}annotation/{_XS}documentation", "")
        for simple in _XSD.iter(f"{_XS}simpleType")
        for pattern in simple.iter(f"{_XS}pattern")
    }


_EXPECTED = _documentation()


def parse(document: bytes, limits: Limits = Limits(), serving: bool = False) -> Message:  # noqa: B008 - frozen
    """Parses a document into its message.

    document: one whole document, as the framer gives it; serving: see `Peer`. Raises ProtocolError: 400 if the document
    is not well-formed (this one closes the connection), is not valid, or lacks what its operation needs; 404 if a
    request names a message by an id that is not in the form of this server; 501 if the operation is unknown.
    """
    root = _tree(document)
    req = root.get("req")  # read first, so that a client is told which of its documents was wrong
    try:
        # Comments would cut the text of an element in two. The framer passes them, and few documents have any.
        if b"!" in document and b"<!--" in document:  # the first test is quick, and mostly enough
            _strip_foreign(root)
        return _message(root, len(document), limits, serving)
    except RefusedError as refused:
        error, text = refused.error, refused.text
    except Exception as unforeseen:  # the requests before this one have to be answered
        error, text = BAD_REQUEST, f"the document cannot be read: {type(unforeseen).__name__}: {unforeseen}"
    # A req that is too long is itself an error, and is not sent back.
    raise ProtocolError(error, text, None if req is None or len(req) > REQ else req)


def parse_payload(payload: bytes) -> Any:
    """Parses a payload that is an XML document of its own, in the encoding that it declares. Returns its root element.

    Expands no entity and loads nothing. Raises ValueError if the payload is not well-formed.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False)
    try:
        return etree.fromstring(payload, parser)
    except etree.XMLSyntaxError as error:
        raise ValueError(str(error)) from None


def _tree(document: bytes) -> etree._Element:
    """Returns the root of a document. Raises ProtocolError if the document or its namespaces are not well-formed."""
    if _DOCTYPE.match(document) is not None:  # the framer passes no DTD; even if it did, no entity is read here
        raise ProtocolError(MALFORMED, "not well-formed: a DOCTYPE is refused")
    parser = _new_parser()
    try:
        root = etree.fromstring(document, parser)
    except Exception as error:  # mostly an XMLSyntaxError; whatever it is, there is no tree
        raise ProtocolError(MALFORMED, f"not well-formed: {error}") from None
    for entry in parser.error_log:
        # lxml lets pass an error of namespaces, such as an undeclared prefix, that a mere warning follows.
        if entry.level >= etree.ErrorLevels.ERROR:
            raise ProtocolError(MALFORMED, f"not well-formed: {entry.message[:500]}, line {entry.line}")
    return root


def _message(root: etree._Element, length: int, limits: Limits, serving: bool) -> Message:
    if root.tag != _ROOT:
        namespace, _, name = str(root.tag).rpartition("}")
        raise RefusedError(
            f"the root element is '{name[:100]}' in namespace '{namespace[1:201]}'; "
            f"it has to be 'qs' in namespace '{NAMESPACE}'"
        )
    children = [(child.tag, child) for child in root]  # lxml makes an object of each look at a tree: once is enough
    tags = dict(children)
    op = tags.get(_OP)
    if op is not None and (len(op) != 1 or op[0].tag not in _PLANS):
        _check_operation(op)
    kind = _type(root, serving)
    if kind == "request":
        _check_request(tags)
    for tag, child in children:
        if tag in _LISTS:
            _check_list(child, limits)
    for headers in _headers_of(root):
        _check_headers(headers)
    may_be_long = length > VALUE  # no value is longer than its document
    # The usual document has each child once and nothing foreign. For others the schema would log every further fault.
    usual = len(tags) == len(children) and _KINDS.keys() >= tags.keys()
    fault = _fault(root, children, may_be_long) if usual else None
    if fault is not None or not usual:
        _check_stripped(root, children, may_be_long, fault)
    if kind == "error":
        return _error(root)
    if op is None:
        raise RefusedError("the element 'op' is missing: it says which operation is meant")
    envelope = {"type": kind, "req": root.get("req"), "resp": root.get("resp")}
    return _PLANS[op[0].tag].message(children, op, envelope)


def _type(root: etree._Element, serving: bool) -> str:
    """Returns the message's type. serving: True for a server, to which every document is a request, or an error if the
    document says so."""
    kind = root.get("type", "request")
    if serving and kind != "error":
        return "request"
    if kind not in _TYPES:
        raise RefusedError(f"'type' of 'qs' has to be request, response or error, not {kind[:100]!r}")
    return kind


# -- refused before the schema looks at it ------------------------------------------------------------------------


def _check_operation(op: etree._Element) -> None:
    """Refuses an unknown operation with 501, before the schema would refuse it with 400."""
    names = [child.tag for child in op]
    for name in names:
        if name not in _PLANS and isinstance(name, str) and name.startswith(NS):
            raise RefusedError(f"unknown operation '{name[len(NS) :][:100]}'", NOT_IMPLEMENTED)
    if not names:
        raise RefusedError("the element 'op' is empty: it has to contain the operation, as in <op><ping/></op>")


def _check_list(element: etree._Element, limits: Limits) -> None:
    """Refuses a list over its bound."""
    bound = limits.list_length * _LISTS[element.tag]
    if len(element) > bound:
        raise RefusedError(f"'{_name(element)}' has {len(element)} entries; at most {bound} are taken at once")


def _headers_of(root: etree._Element) -> Iterator[etree._Element]:
    """Yields the elements `headers` of a document, and none that is inline XML of a payload."""
    for headers in root.iter(_HEADERS):
        holder: Any = headers.getparent()
        if holder.tag == _MESSAGE and holder.getparent().tag in _LISTS:
            holder = holder.getparent().getparent()
        if holder is root:
            yield headers


def _check_headers(headers: etree._Element) -> None:
    """Refuses more headers than a message may have, and values that are too long."""
    if len(headers) > HEADERS:
        raise RefusedError(
            f"line {headers.sourceline}: 'headers' has {len(headers)} entries; a message has at most {HEADERS}"
        )
    _check_attributes(headers)
    for header in headers.iterchildren(_HEADER):
        _check_attributes(header)


def _check_request(tags: dict[Any, Any]) -> None:
    """Refuses in a request the elements that only answers have. Attributes of answers are ignored instead, so that a
    client may send back the entries of an answer as they came."""
    for tag in tags:
        if tag in _ANSWERED:
            raise RefusedError(f"'{tag[len(NS) :]}' is for answers: a request cannot have it")


def _check_values(root: etree._Element, children: list[tuple[Any, Any]]) -> None:
    """Refuses values that are too long."""
    _check_attributes(root)
    for tag, child in children:
        if tag in _LISTS:
            _check_attributes(child)
            for entry in child:
                if entry.tag in _ENTRIES[tag]:
                    _check_value(entry)
        elif tag in _TEXTS:
            _check_attributes(child)
        elif tag in _KINDS:
            _check_value(child)


def _check_value(element: etree._Element) -> None:
    text = element.text
    if text is not None and len(text) > VALUE:
        raise _too_long(element, f"'{_name(element)}'", text)
    _check_attributes(element)


def _check_attributes(element: etree._Element) -> None:
    name: Any
    for name, value in element.items():
        if len(value) > VALUE and not _is_foreign(name):
            raise _too_long(element, f"'{name[:100]}' of '{_name(element)}'", value)


def _too_long(element: etree._Element, subject: str, value: Any) -> RefusedError:
    return RefusedError(f"line {element.sourceline}: {subject} has {len(value)} characters; at most {VALUE} are taken")


def _name(element: etree._Element) -> str:
    return str(element.tag).rpartition("}")[2][:500]


# -- the schema ---------------------------------------------------------------------------------------------------


def _fault(root: etree._Element, children: list[tuple[Any, Any]], may_be_long: bool) -> str | None:
    """Returns the first error that the schema finds in a document, or None if the document is valid. may_be_long: True
    if a value may be longer than VALUE; such a value is refused first."""
    if may_be_long:
        _check_values(root, children)
    lists = [(child, _ENTRIES[tag]) for tag, child in children if tag in _LISTS]
    # lxml may log all faults of a short list: see `_AT_ONCE`.
    if all(len(child) <= _AT_ONCE for child, _ in lists) and sum(map(len, _headers_of(root))) <= _AT_ONCE:
        return None if _SCHEMA.validate(root) else _explain(_SCHEMA.error_log)
    if not _SCHEMA_OF_ENTRIES.validate(root):
        return _explain(_SCHEMA_OF_ENTRIES.error_log)
    for child, entries in lists:
        for entry in child:
            if entry.tag not in entries:
                return _not_expected(entry)
            if not _SCHEMA_OF_ENTRIES.validate(entry):
                return _explain(_SCHEMA_OF_ENTRIES.error_log)
    return None


def _check_stripped(
    root: etree._Element, children: list[tuple[Any, Any]], may_be_long: bool, fault: str | None
) -> None:
    """Removes elements and attributes of other namespaces, and raises RefusedError if the document is still not valid.
    Called only for the few documents that are not valid as they came. fault: the schema's error in the document as it
    came."""
    unexpected = _unexpected(children)
    if unexpected is not None:  # checked here: the schema would log every other fault too
        raise RefusedError(_not_expected(unexpected))
    # Foreign elements make a document invalid, and foreign attributes may, so only an invalid document is searched for
    # them.
    if _strip_foreign(root):
        fault = _fault(root, children, may_be_long)
    if fault is not None:
        raise RefusedError(fault)


def _not_expected(element: etree._Element) -> str:
    return f"line {element.sourceline}: Element '{_name(element)}': This element is not expected."


def _unexpected(children: list[tuple[Any, Any]]) -> Any:
    """Returns the first child of `qs` that is unknown or repeated, or None if there is none."""
    due = set(_KINDS)
    for tag, child in children:
        if tag in due:
            due.remove(tag)
        elif not _is_foreign(tag):
            return child
    return None


# -- elements and attributes of other namespaces ------------------------------------------------------------------


def _strip_foreign(root: etree._Element) -> bool:
    """Removes comments, and elements and attributes of other namespaces, except inside of payloads. Returns True if
    there were any."""
    stripped = False
    pending = [root]
    while pending:
        element = pending.pop()
        for name in [name for name in element.attrib if _is_foreign(name)]:
            del element.attrib[name]
            stripped = True
        if element.tag != _PAYLOAD:
            children = list(element)
            kept = [child for child in children if not _is_foreign(child.tag)]
            if len(kept) < len(children):
                _keep_only(element, children, set(kept))
                stripped = True
            pending += kept
    return stripped


def _is_foreign(name: object) -> bool:
    """Tells whether a tag or an attribute's name is of another namespace. The tag of a comment is not a str."""
    return not isinstance(name, str) or (name.startswith("{") and not name.startswith(NS))


def _keep_only(element: etree._Element, children: list[etree._Element], kept: set[etree._Element]) -> None:
    """Removes all children but those to keep. The text behind a removed child is appended to the text behind the last
    kept child before it, or to the element's own text."""
    last = None
    texts = [element.text or ""]
    for child in children:
        tail = child.tail or ""
        if child not in kept:
            texts.append(tail)
            if len(child):
                # The content of a removed element would keep its namespaces: lxml looks for each of them in all that it
                # has found, which takes a minute for some documents. Content that nobody refers to is dropped at once.
                child.clear()
            element.remove(child)
            continue
        _set_text(element, last, texts)  # joined once: there may be very many
        last, texts = child, [tail]
    _set_text(element, last, texts)


def _set_text(element: etree._Element, last: etree._Element | None, texts: list[str]) -> None:
    if len(texts) == 1:
        return
    if last is None:
        element.text = "".join(texts)
    else:
        last.tail = "".join(texts)


# -- inline XML ---------------------------------------------------------------------------------------------------


def _inline(element: Any) -> str:
    """Serializes the inline XML in a payload."""
    if len(element) > LIST:
        raise RefusedError(f"a payload of more than {LIST} elements side by side has to be sent as text, escaped")
    # Each child is copied: for an original the serializer writes every namespace declaration above it, for a copy only
    # the declarations that it uses.
    children = [etree.tostring(copy.copy(child), encoding="unicode", with_tail=True) for child in element]
    return escape_inline(element.text or "") + "".join(children)


_PLANS = plans(_inline)


# -- errors -------------------------------------------------------------------------------------------------------


def _error(root: etree._Element) -> Error:
    element = root.find(_ERROR)
    if element is None:
        raise RefusedError("the element 'error' is missing in a document of type 'error'")
    return Error(
        int(element.get("code", "500")), element.get("type", ""), element.text or "",
        req=root.get("req"), resp=root.get("resp"),
    )  # fmt: skip


def _explain(log: Any) -> str:
    """Returns the first error of the schema, without its namespace, and with the elements that were expected."""
    entries = list(log)
    if not entries:
        return "the document is not valid against qs.xsd"
    for entry in entries:
        # The schema's pattern tells a person nothing. Its documentation in qs.xsd does.
        pattern, where = _PATTERN_IN_MESSAGE.search(entry.message), _WHERE.search(entry.message)
        if pattern and where and pattern.group(1) in _EXPECTED:
            subject = f"'{where.group(2)}' of '{where.group(1)}'" if where.group(2) else f"'{where.group(1)}'"
            return f"line {entry.line}: {subject} has to be {_EXPECTED[pattern.group(1)]}"
    message = entries[0].message.replace(NS, "")
    return f"line {entries[0].line}: {message[:500]}"
