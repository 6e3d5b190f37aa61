"""Parses XML payloads and XSD files. The only module of the pipeline that uses lxml.

It never reads from the network, expands an entity or loads a DTD: a document with a DOCTYPE is refused unparsed. The
driver reads an XSD with all files that it includes; tasks get the bytes and read no file.
"""

import os.path
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lxml import etree

from .errors import SchemaMismatchError, UsageError

_XS = "{http://www.w3.org/2001/XMLSchema}"
_NAMING_FILES = tuple(f"{_XS}{name}" for name in ("include", "import", "redefine", "override"))
_OPTIONS: dict[str, Any] = {
    "resolve_entities": False, "no_network": True, "load_dtd": False, "dtd_validation": False, "collect_ids": False,
    "remove_comments": True, "remove_pis": True,
}  # fmt: skip
# huge_tree lifts libxml2's bound of 10 MB on a text, and bounds the depth by 2048. No entity can be declared.
_PAYLOAD_OPTIONS = _OPTIONS | {"encoding": "utf-8", "huge_tree": True}
# Possessive, so that it never goes back: a payload may begin with megabytes of comments.
_DOCTYPE = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\r\n]++|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
# The end of a message of libxml2: nobody who reads it here could do so.
_ADVICE = ", use XML_PARSE_HUGE"


class MisfitError(Exception):
    """Says why a payload does not fit."""


@dataclass(frozen=True, slots=True)
class Xsd:
    """An XSD that has been read and checked.

    path: the absolute path of the named file; files: that file first, then those that it includes and imports, as path
    and bytes; namespace: the target namespace, None without one; elements: the sorted names of its global elements in
    that namespace.
    """

    path: str
    files: tuple[tuple[str, bytes], ...]
    namespace: str | None
    elements: tuple[str, ...]

    def tag(self, name: str) -> str:
        """Returns the name of an element with its namespace, as lxml writes it."""
        return name if self.namespace is None else f"{{{self.namespace}}}{name}"


# -- reading an XSD, on the driver -----------------------------------------------------------------------------------


def read_xsd(path: str) -> Xsd:
    """Reads an XSD of this machine with the files that it includes and imports, and compiles it.

    Raises UsageError if a file cannot be read, and SchemaMismatchError if one is not an XSD 1.0, has a DOCTYPE, or
    names a file that is not on this machine. Both name the file, and the line if there is one.
    """
    main = os.path.abspath(path)
    # All of them now, on the driver: tasks get bytes, and read no file of their machine.
    files = dict(_reachable(main))
    roots = {place: root for place, (_, root) in files.items()}
    namespace = roots[main].get("targetNamespace")
    elements = {
        str(child.get("name"))
        for root in roots.values()
        # A schema without a namespace takes that of the one that includes it.
        if root.get("targetNamespace", namespace) == namespace
        for child in root.iterfind(f"{_XS}element")
    }
    xsd = Xsd(main, tuple((place, data) for place, (data, _) in files.items()), namespace, tuple(sorted(elements)))
    try:
        _compile(xsd)
    except etree.XMLSchemaParseError as error:
        first = error.error_log[0]
        place = f"{_local(first.filename) or main}, line {first.line}"
        raise SchemaMismatchError(f"{place}: this is no valid XSD 1.0: {_one_line(first.message)}") from error
    return xsd


def _reachable(main: str) -> Iterator[tuple[str, tuple[bytes, Any]]]:
    """Yields the file and all files that it names, each once, as path, bytes and root element."""
    todo, seen = [(main, "")], {main}
    while todo:
        place, named_at = todo.pop(0)
        try:
            data = Path(place).read_bytes()
        except OSError as error:
            raise UsageError(f"{named_at}{place}: {error.strerror or error}") from error
        root = _schema_root(place, data)
        yield place, (data, root)
        for target, line in _named_files(place, root):
            if target not in seen:
                seen.add(target)
                todo.append((target, f"{place}, line {line}: "))


def _schema_root(place: str, data: bytes) -> Any:
    if _DOCTYPE.match(data) is not None:
        raise SchemaMismatchError(f"{place} has a DOCTYPE, which is refused: remove it")
    try:
        root = etree.fromstring(data, etree.XMLParser(**_OPTIONS))
    except etree.XMLSyntaxError as error:
        raise SchemaMismatchError(f"{place} is no XSD: it is not well-formed: {_one_line(error.msg)}") from error
    if root.tag != f"{_XS}schema":
        raise SchemaMismatchError(f"{place} is no XSD: its root is {root.tag!r}, not '{_XS}schema'")
    return root


def _named_files(place: str, root: Any) -> Iterator[tuple[str, int]]:
    """Yields the absolute paths of the files that a schema includes and imports, with the line that names each."""
    for child in root.iterchildren(*_NAMING_FILES):
        location = child.get("schemaLocation")
        if location is not None:
            parts = urlsplit(location.strip())
            if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
                raise SchemaMismatchError(
                    f"{place}, line {child.sourceline}: {location} is not read from the "
                    "network: put a copy beside the XSD, and name the copy"
                )
            target = os.path.join(os.path.dirname(place), unquote(parts.path))
            yield os.path.normpath(target), int(child.sourceline)


def _local(url: str | None) -> str | None:
    """Returns the path in a file's URL. libxml2 makes such URLs from the base URL and the names in a schema."""
    return None if url is None or not url.startswith("file:") else os.path.normpath(unquote(urlsplit(url).path))


class _FilesInMemory(etree.Resolver):
    """Gives libxml2 the files of an Xsd, and an empty document in place of any other: it must never open one itself."""

    def __init__(self, files: Iterable[tuple[str, bytes]]) -> None:
        self._files = dict(files)

    def resolve(self, system_url: str, public_id: str, context: Any = None) -> Any:
        data = self._files.get(_local(system_url) or "", b"")
        return self.resolve_string(data, context, base_url=system_url)


def _compile(xsd: Xsd) -> etree.XMLSchema:
    parser = etree.XMLParser(**_OPTIONS)
    parser.resolvers.add(_FilesInMemory(xsd.files))
    return etree.XMLSchema(etree.fromstring(xsd.files[0][1], parser, base_url=Path(xsd.path).as_uri()))


# -- parsing payloads, in tasks --------------------------------------------------------------------------------------


class PayloadParser:
    """Parses payloads that must be XML documents in UTF-8.

    Ensures that a payload is read in time proportional to its size: it is validated while it is parsed, as validation
    of a parsed document would take time that grows with the square of the number of faults. No entity is expanded, and
    nothing is fetched.
    """

    def __init__(self, xsd: Xsd | None, root: str | None) -> None:
        """xsd: the schema that validates documents, None for no validation; root: the required name of the root
        element, `{namespace}name`, or `name` in any namespace; None for any."""
        self._plain = etree.XMLParser(**_PAYLOAD_OPTIONS)
        self._validating = etree.XMLParser(**_PAYLOAD_OPTIONS, schema=None if xsd is None else _compile(xsd))
        self._root = root

    def parse(self, body: bytes) -> Any:
        """Returns the root element of a payload, without comments and processing instructions. Raises MisfitError,
        which says what is wrong: the syntax first, then the root, then what is not valid."""
        # A search for bytes costs nothing beside the pattern, and nearly no payload has one.
        if b"<!DOCTYPE" in body and _DOCTYPE.match(body) is not None:
            raise MisfitError("it has a DOCTYPE, which is refused")
        try:
            element = etree.fromstring(body, self._validating)
        except etree.XMLSyntaxError as error:
            # A syntax error first, then another root, as each explains better than what follows from it.
            self._require_root(self._well_formed(body))
            raise MisfitError(f"not valid: {_one_line(error.msg)}") from None
        self._require_root(element)
        return element

    def _well_formed(self, body: bytes) -> Any:
        """Parses without validation, for the better message about a syntax error."""
        try:
            return etree.fromstring(body, self._plain)
        except etree.XMLSyntaxError as error:
            raise MisfitError(f"not well-formed: {_one_line(error.msg).partition(_ADVICE)[0]}") from None

    def _require_root(self, element: Any) -> None:
        if self._root is not None and self._root not in (element.tag, element.tag.rpartition("}")[2]):
            raise MisfitError(f"the root is {element.tag!r}, not {self._root!r}")


def _one_line(message: str | None) -> str:
    return " ".join((message or "").split())
