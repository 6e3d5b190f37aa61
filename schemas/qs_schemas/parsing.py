"""Parses a document's bytes into a message. This is the only module that uses lxml.

The parser expands no entity, loads no DTD and opens no file or connection. Every document is validated against
qs.xsd, after what belongs to other namespaces has been taken out.
"""

import copy
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from lxml import etree

from .errors import MALFORMED, NOT_IMPLEMENTED, ProtocolError
from .fields import NS, RefusedError, plans
from .limits import LIST, REQ, Limits
from .messages import Error, Message
from .text import escape_inline
from .wire import NAMESPACE

LIBXML = ".".join(map(str, etree.LIBXML_VERSION))
"""The version of the library that parses."""
_ROOT, _OP, _PAYLOAD, _ERROR = (f"{NS}{name}" for name in ("qs", "op", "payload", "error"))
# How many times `list_length` entries they may have: names are short, and a batch of Spark has thousands of parts.
_LISTS = {f"{NS}messages": 1, f"{NS}m": 1, f"{NS}queues": 10, f"{NS}parts": 10, f"{NS}figures": 10}
_TYPES = ("request", "response", "error")
_PARSER = etree.XMLParser(
    # UTF-8, whatever a declaration says. huge_tree lifts libxml2's own bounds; the framer's hold.
    encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=True,
    collect_ids=False, remove_pis=True,
)  # fmt: skip
_DOCTYPE = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\r\n]++|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
_XSD = etree.fromstring(pkgutil.get_data(__name__, "qs.xsd") or b"", _PARSER)
_SCHEMA = etree.XMLSchema(_XSD)
_CHILDREN = frozenset(
    f"{NS}{child.get('name')}" for child in _XSD.iterfind("{*}element/{*}complexType/{*}all/{*}element")
)
# Of a longer list this many entries are validated at once: lxml works out a path for each fault, in time that grows
# with the list.
_AT_ONCE = 500
_PATTERN_IN_MESSAGE = re.compile(r"not accepted by the pattern '(.*)'\.$", re.DOTALL)
_WHERE = re.compile(r"Element '(?:\{[^}]*\})?([^']*)'(?:, attribute '([^']*)')?")


def _documentation() -> dict[str, str]:
    """Returns the schema's patterns with their documentation: pattern -> words."""
    xs = "{http://www.w3.org/2001/XMLSchema}"
    return {
        pattern.get("value", ""): simple.findtext(f"{xs}annotation/{xs}documentation", "")
        for simple in _XSD.iter(f"{xs}simpleType")
        for pattern in simple.iter(f"{xs}pattern")
    }


_EXPECTED = _documentation()


def parse(document: bytes, limits: Limits = Limits(), serving: bool = False) -> Message:  # noqa: B008 - frozen
    """Parses a document into its message.

    document: one whole document, as the framer gives it; serving: see `Peer`. Raises ProtocolError: 400 when it is
    not well-formed (closes), not valid, or lacks what its operation needs; 404 when a request names a message by an id
    that is not one of ours; 501 when the operation is unknown.
    """
    if _DOCTYPE.match(document) is not None:  # the framer passes no DTD; if it did, no entity is read here
        raise ProtocolError(MALFORMED, "not well-formed: a DOCTYPE is refused")
    try:
        root = etree.fromstring(document, _PARSER)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise ProtocolError(MALFORMED, f"not well-formed: {error}") from None
    req = root.get("req")
    try:
        if b"!" in document and b"<!--" in document:  # the first test is quick, and mostly enough
            _strip_foreign(root)
        return _message(root, req, limits, serving)
    except RefusedError as refused:
        req = None if req is None or len(req) > REQ else req
        raise ProtocolError(refused.error, refused.text, req) from None


def _message(root: etree._Element, req: str | None, limits: Limits, serving: bool) -> Message:
    if root.tag != _ROOT:
        name = etree.QName(root)
        raise RefusedError(
            f"the root element is '{name.localname[:100]}' in namespace '{(name.namespace or '')[:200]}'; "
            f"it has to be 'qs' in namespace '{NAMESPACE}'"
        )
    children = [(child.tag, child) for child in root]
    op, long = None, []
    for tag, child in children:
        if tag == _OP:
            op = child
            if len(op) != 1 or op[0].tag not in _PLANS:
                _check_operation(op)
        elif tag in _LISTS and _is_long(child, limits.list_length * _LISTS[tag]):
            long.append(child)
    tags = dict(children)
    usual = not long and len(tags) == len(children) and _CHILDREN.issuperset(tags)
    if not usual or not _SCHEMA.validate(root):
        _validate(root, children, long, failed=usual)
    kind = _type(root, serving)
    if kind == "error":
        return _error(root)
    if op is None:
        raise RefusedError("the element 'op' is missing: it says which operation is meant")
    return _PLANS[op[0].tag].message(children, op, {"type": kind, "req": req, "resp": root.get("resp")})


def _type(root: etree._Element, serving: bool) -> str:
    """Returns the message's type. A server is sent requests and errors only, whatever else the document says."""
    kind = root.get("type", "request")
    if serving and kind != "error":
        return "request"
    if kind not in _TYPES:
        raise RefusedError(f"'type' of 'qs' has to be request, response or error, not {kind[:100]!r}")
    return kind


def _is_long(element: etree._Element, bound: int) -> bool:
    """Returns whether a list is to be validated in parts. Refuses one over the bound, before the schema looks at its
    entries."""
    if len(element) > bound:
        name = etree.QName(element).localname
        raise RefusedError(f"'{name}' has {len(element)} entries; at most {bound} are taken at once")
    return len(element) > 2 * _AT_ONCE


def _unexpected(children: list[tuple[Any, Any]]) -> Any:
    """Returns the first child of qs that is unknown or there already, or None."""
    due = set(_CHILDREN)
    for tag, child in children:
        if tag in due:
            due.remove(tag)
        elif not _is_foreign(tag):
            return child
    return None


def _validate(root: etree._Element, children: list[tuple[Any, Any]], long: list[Any], failed: bool) -> None:
    """Refuses what the schema refuses. Only for what is not as usual: strips what is foreign.

    long: the lists that are validated in parts; failed: whether the schema has refused the document as it came.
    """
    unexpected = _unexpected(children)
    if unexpected is not None:
        # Checked here: the schema would log every other fault too.
        name = unexpected.tag.replace(NS, "")[:500]
        raise RefusedError(f"line {unexpected.sourceline}: Element '{name}': This element is not expected.")
    # Foreign elements make it invalid, foreign attributes may: only then is it worth looking for them.
    if not _strip_foreign(root) and failed:
        raise RefusedError(_explain(_SCHEMA.error_log))
    for child in long:
        empty = etree.Element(child.tag, dict(child.attrib))
        empty.text, empty.tail, empty.sourceline = child.text, child.tail, child.sourceline
        root.replace(child, empty)
    if not _SCHEMA.validate(root) or not all(_SCHEMA.validate(part) for child in long for part in _in_parts(child)):
        raise RefusedError(_explain(_SCHEMA.error_log))


def _in_parts(element: etree._Element) -> Iterator[etree._Element]:
    """Documents that have some of the entries each, copied: a move would rewrite declarations of inline XML."""
    entries = list(copy.copy(element))
    for start in range(0, len(entries), _AT_ONCE):
        root = etree.Element(_ROOT)
        part = etree.SubElement(root, element.tag)
        part.sourceline = element.sourceline
        part.extend(entries[start : start + _AT_ONCE])
        yield root


def _check_operation(op: etree._Element) -> None:
    """Refuses an unknown operation, before the schema is asked: that is 501."""
    names = [child.tag for child in op]
    for name in names:
        if name not in _PLANS and isinstance(name, str) and name.startswith(NS):
            raise RefusedError(f"unknown operation '{name[len(NS) :][:100]}'", NOT_IMPLEMENTED)
    if not names:
        raise RefusedError("the element 'op' is empty: it has to contain the operation, as in <op><ping/></op>")


# -- what is not ours ---------------------------------------------------------------------------------------------


def _strip_foreign(root: etree._Element) -> bool:
    """Takes out comments, and elements and attributes of other namespaces, but for what a payload holds.
    Returns whether there were any."""
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
    """Returns whether a tag or an attribute's name is of another namespace. The tag of a comment is no text."""
    return not isinstance(name, str) or (name.startswith("{") and not name.startswith(NS))


def _keep_only(element: etree._Element, children: list[etree._Element], kept: set[etree._Element]) -> None:
    """Removes the other children. Their tails go to what stands before, joined once: there may be very many."""
    last = None
    texts = [element.text or ""]
    for child in children:
        tail = child.tail or ""
        if child not in kept:
            texts.append(tail)
            element.remove(child)
            continue
        _set_text(element, last, texts)
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
    # Of a copy: a serializer writes every declaration that stands above an element, and of a copy those that it uses.
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
    """Returns the first error of the schema, without its namespace, and with what was expected."""
    entries = list(log)
    if not entries:
        return "the document is not valid against qs.xsd"
    for entry in entries:
        pattern, where = _PATTERN_IN_MESSAGE.search(entry.message), _WHERE.search(entry.message)
        if pattern and where and pattern.group(1) in _EXPECTED:
            subject = f"'{where.group(2)}' of '{where.group(1)}'" if where.group(2) else f"'{where.group(1)}'"
            return f"line {entry.line}: {subject} has to be {_EXPECTED[pattern.group(1)]}"
    message = entries[0].message.replace(NS, "")
    return f"line {entries[0].line}: {message[:500]}"
