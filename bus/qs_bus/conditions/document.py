"""Parses the payload of a message once, however many conditions look at it.

Must never read a file or the network, expand an entity, or let a payload choose how much memory its tree takes.
"""

import codecs
import re
from threading import local

from lxml import etree

LEVELS = 64
"""Elements inside one another. The text of an element is read again for each element around it, so that this bounds
what `//` costs. No document that people write is as deep."""

MARKS = 1_000_000
"""Signs `<` and `=` of a payload, which bound its elements, texts and attributes. A tree takes up to 250 bytes for each
sign, so 250 MB, while a payload of the smallest elements would take 50 times its bytes."""

_SHALLOW = LEVELS * len("<a></a>") + len("<a/>")
"""Bytes of the shortest document that is deeper than `LEVELS`. No encoding needs less than a byte for a character."""
_SMALL = 64 * 1024
"""Bytes of a payload whose tree may take what it takes: 3 MB at most."""
_ENCODING = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']([A-Za-z0-9._-]+)")
_DECLARATION = 1024
"""Bytes in which the declaration of an encoding is looked for."""


class _Tools(local):
    """Holds what parses a payload, for each thread its own: lxml locks a parser, and the event loop must not wait for
    a thread that parses a large payload."""

    def __init__(self) -> None:
        # The defaults of lxml that matter are said again: libxml2's own bounds hold (huge_tree), and nothing is
        # fetched. An entity needs a DOCTYPE, which `_parse` refuses; until then libxml2 bounds what entities grow to.
        self.parser = etree.XMLParser(
            resolve_entities=False, load_dtd=False, dtd_validation=False, no_network=True, huge_tree=False
        )
        # Each step visits the elements of one level once.
        self.too_deep = etree.XPath(f"({'/*' * (LEVELS + 1)} and true())", regexp=False)


_tools = _Tools()


class Document:
    """Parses a payload when its tree is first asked for, and at most once.

    Ensures that the tree has at most `LEVELS` levels and no entities, and that parsing takes time and memory in
    proportion to the payload. Any other payload has no tree: one that is not well-formed, has a DOCTYPE or more marks
    than `MARKS`, and one with a text that is longer than libxml2 reads, 10 MB.

    One thread at a time may use a document; it may move from one to another.
    """

    __slots__ = ("_payload", "_tree")

    def __init__(self, payload: bytes) -> None:
        """payload: the bytes of the message, in any encoding that XML declares."""
        self._payload: bytes | None = payload
        self._tree: etree._ElementTree | None = None

    @property
    def tree(self) -> etree._ElementTree | None:
        """The parsed payload; None for a payload that has no elements."""
        if self._payload is not None:
            payload, self._payload = self._payload, None
            self._tree = _parse(payload)
        return self._tree


def _parse(payload: bytes) -> etree._ElementTree | None:
    """Returns the tree of a payload, None if the payload is none that conditions look into."""
    if not _is_moderate(payload):
        return None
    try:
        tree = etree.fromstring(payload, _tools.parser).getroottree()
    except (etree.XMLSyntaxError, ValueError):  # ValueError: an encoding that lxml does not know
        return None
    if tree.docinfo.internalDTD is not None:
        return None
    if len(payload) >= _SHALLOW and _tools.too_deep(tree):
        return None
    return tree


def _is_moderate(payload: bytes) -> bool:
    """Tells whether a payload may be parsed: whether it may be XML, and its tree takes a moderate amount of memory."""
    # Encodings without this byte are those of EBCDIC.
    if b"<" not in payload:
        return False
    if len(payload) <= _SMALL:
        return True
    declared = _ENCODING.match(payload[:_DECLARATION])
    if declared is not None and not _marks_are_ascii(declared[1].decode("ascii")):
        return False
    return payload.count(b"<") + payload.count(b"=") <= MARKS


def _marks_are_ascii(encoding: str) -> bool:
    """Tells whether the marks that are counted are these bytes in an encoding, as in all that are in use but UTF-7 and
    EBCDIC."""
    try:
        encoded = "<=".encode(encoding)
    except (LookupError, UnicodeError):
        return False
    # UTF-7 may hide any sign, and Python's codec just does not do so.
    return b"<" in encoded and b"=" in encoded and codecs.lookup(encoding).name != "utf-7"
