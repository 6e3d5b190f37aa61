"""Checks payloads with an XSD.

1. A payload that is valid is well-formed XML in any encoding that libxml2 knows, has no DOCTYPE, and is a document of
   the schema.
2. Only the first fault is looked for: lxml works out a path for each fault, and a list of 4,000 wrong elements would
   take 20 ms. So the first bytes are checked while they are parsed, in pieces, up to the piece with the first fault.
3. No file is read and no connection opened, for the schema as for a payload: includes and imports come from the bytes
   of the source, by `_Included`, and libxml2 follows `xsi:schemaLocation` only where it has no schema.
"""

import re
from typing import Any
from urllib.parse import unquote

from lxml import etree

from .faults import PayloadFault, SchemaError, UncheckedError, shortened
from .plain_xsd import is_plain
from .sources import Source, parse_xsd

_NO_MEMORY = 2
"""The code of libxml2 (XML_ERR_NO_MEMORY) with which lxml reports a document for which there is no memory."""
_FEW = 200
"""Tags and attributes of a payload all of which may have a fault: that is half a millisecond."""
_EARLY = 16 * 1024
"""Bytes of a payload that are checked while they are parsed. Not more: a text with many references comes in as many
parts, and libxml2 would go through what it has for each of them, which takes a minute for 8 MiB."""
_PIECE = 1024
_BASE = "qs-schemas:///"
"""The URI of the directory. It means nothing to anybody, so that nothing is found under it but what `_Included` has."""
_LINES = 65535
"""libxml2 has no greater number of a line in a tree."""
_DOCTYPE = re.compile(r"\ufeff?(?:[ \t\r\n]++|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
_STEP = re.compile(r"(?:([^:@/\[\]]+):)?([^:@/\[\]]+)(?:\[([0-9]+)\])?")
"""Matches a step of a path: its prefix, its name or an asterisk, and its place among elements of that name."""
_SUBJECT = re.compile(r"Element '(?:\{[^}]*\})?([^']*)'(?:, attribute '(?:\{[^}]*\})?([^']*)')?: ")
_NAMESPACE = re.compile(r"(?<=['( ])\{[^{}'\s]*\}(?=\w)")
_FACET = re.compile(r"\[facet '[^']*'\] (The value )?")
_STEPS = 8
"""The most steps of a path that are told, the last ones."""


class Xsd:
    """A compiled XSD. For one thread at a time: the log of errors belongs to it."""

    def __init__(self, source: Source) -> None:
        """Compiles a source. Raises SchemaError."""
        parser = _parser()
        parser.resolvers.add(_Included(source.files))
        root = etree.fromstring(source.files[source.main], parser, base_url=f"{_BASE}{source.main}")
        try:
            self._schema = etree.XMLSchema(root)
        except etree.XMLSchemaParseError as error:
            raise SchemaError(_why_not_compiled(source.main, error)) from None
        self.is_plain = is_plain([parse_xsd(path, content) for path, content in source.files.items()])

    def fault(self, payload: bytes) -> PayloadFault | None:
        """Returns the first thing that is wrong with a payload, or None."""
        try:
            return self._fault(payload)
        except UncheckedError as error:
            return PayloadFault.unchecked(error)

    def _fault(self, payload: bytes) -> PayloadFault | None:
        if not payload:
            return PayloadFault(None, "", "is empty: an XML document is wanted")
        parser = _parser()
        try:
            root = etree.fromstring(payload, parser)
        except etree.XMLSyntaxError as error:
            if getattr(error, "code", None) == _NO_MEMORY:
                raise MemoryError from None
            return _not_well_formed(*error.position, str(error.msg))
        if refused := _doctype(payload, root):
            return refused
        for entry in parser.error_log:
            # lxml lets pass an error of namespaces, such as an undeclared prefix, that a mere warning follows.
            if entry.level >= etree.ErrorLevels.ERROR:
                return _not_well_formed(entry.line, entry.column, entry.message)
        may_have_many = payload.count(b"<") + payload.count(b"=") > _FEW
        if may_have_many and (fault := self._early_fault(payload)):
            return fault
        return None if self._validate(root) else _of_entry(self._first(), root)

    def _validate(self, root: Any) -> bool:
        try:
            return self._schema.validate(root)
        except etree.XMLSchemaValidateError:  # libxml2 gives up, for instance after very many tries of a pattern
            raise UncheckedError("as the library gives up on it") from None

    def _first(self) -> Any:
        log: Any = self._schema.error_log  # lxml-stubs has no index
        return log[0]

    def _early_fault(self, payload: bytes) -> PayloadFault | None:
        """Returns the first fault if it is among the first bytes of a well-formed payload."""
        parser = _parser(self._schema)
        for at in range(0, min(len(payload), _EARLY), _PIECE):
            try:
                parser.feed(payload[at : at + _PIECE])
            except etree.XMLSyntaxError:  # not seen so far
                return None
            if len(log := parser.feed_error_log):
                # The parser knows no line. The tree of what it has read does: faults at its end, where the rest is
                # missing, come after the first one.
                root = etree.fromstring(payload[: at + _PIECE], _parser(recover=True))
                if root is None or self._validate(root):
                    return _of_entry(log[0], None)
                return _of_entry(self._first(), root)
        return None


class _Included(etree.Resolver):
    """Gives libxml2 the files that a schema refers to, from memory, and nothing else."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def resolve(self, system_url: Any, public_id: Any, context: Any = None) -> Any:
        path = unquote(system_url or "").removeprefix(_BASE)
        # For None lxml would look for the file itself, in the file system and on the network.
        return self.resolve_string(self._files.get(path, b""), context, base_url=system_url or _BASE)


def _parser(schema: Any = None, *, recover: bool = False) -> Any:
    # A parser for each payload: one for all would be slow for ever after a document of very many attributes. Never with
    # collect_ids=False, which makes libxml2 read the file of an external DTD.
    return etree.XMLParser(
        schema=schema, recover=recover, resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False
    )


def _doctype(payload: bytes, root: Any) -> PayloadFault | None:
    """Refuses a document with a DOCTYPE: its entities could grow, and nobody needs to read more than elements."""
    info = root.getroottree().docinfo
    if info.internalDTD is None:
        return None
    try:
        found = _DOCTYPE.match(payload.decode(info.encoding or "utf-8", "replace"))
    except LookupError:
        found = None
    line = None if found is None else found[0].count("\n") + 1
    return PayloadFault(line, "", "has a DOCTYPE, which is refused")


def _not_well_formed(line: int, column: int, message: str) -> PayloadFault:
    where = f", column {column}" if column > 0 else ""
    text = re.sub(r", line \d+, column \d+$", "", message.strip())
    return PayloadFault(line or None, "", f"is not well-formed XML{where}: {_lower(shortened(text))}")


def _of_entry(entry: Any, root: Any) -> PayloadFault:
    """Returns the fault of an entry of the schema's log. root: the tree that was checked, None if there is none."""
    message = entry.message
    subject = _SUBJECT.match(message)
    element, attribute = ("", None) if subject is None else subject.groups()
    line: int | None = entry.line or None
    if root is not None and entry.path:
        found = _element_at(root, entry.path)
        element, line = _path(found) or element, found.sourceline or line
    if line is not None and line >= _LINES:
        line = None
    if attribute is not None:
        element = f"{element}/@{attribute}"
    return PayloadFault(line, element, _reason(message if subject is None else message[subject.end() :]))


def _element_at(root: Any, path: str) -> Any:
    """Returns the element that libxml2 names by a path, or the one above it that can be found. The path is no XPath
    that could be evaluated: nothing tells what its prefixes mean, and an element may give one of them another meaning
    than its parent does."""
    element = root
    for step in path.split("/")[2:]:
        name = _STEP.fullmatch(step)
        if name is None:  # an attribute
            break
        prefix, local, number = name.groups()
        children = [
            child for child in element.iterchildren(etree.Element)
            if local == "*" or (child.prefix == prefix and etree.QName(child).localname == local
                                and (prefix is not None or child.tag == local))
        ]  # fmt: skip
        if len(children) < (at := int(number or 1)):
            break
        element = children[at - 1]
    return element


def _reason(message: str) -> str:
    text = _FACET.sub(lambda found: "the value " if found[1] else "", message)
    text = _NAMESPACE.sub("", text).replace("atomic type", "type").strip().removesuffix(".")
    return _lower(shortened(text))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _path(element: Any) -> str:
    """Returns the path of an element below the root, without namespaces; empty for the root."""
    steps: list[str] = []
    while (parent := element.getparent()) is not None and len(steps) < _STEPS:
        before = sum(1 for _ in element.itersiblings(element.tag, preceding=True))
        several = before or next(element.itersiblings(element.tag), None) is not None
        name = etree.QName(element).localname
        steps.append(f"{name}[{before + 1}]" if several else name)
        element = parent
    if parent is not None:
        steps.append("…")
    return shortened("/".join(reversed(steps)), 200)


def _why_not_compiled(main: str, error: etree.XMLSchemaParseError) -> str:
    for entry in error.error_log:
        if entry.level >= etree.ErrorLevels.ERROR:
            file = unquote(entry.filename or "").removeprefix(_BASE) or main
            return f"{file}:{entry.line}: {_reason(entry.message)}"
    return f"{main}: {_reason(str(error))}"
