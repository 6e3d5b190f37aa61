"""Shows payloads to people: XML and JSON indented, other text as it is, the rest in hexadecimal.

A content type that came with a payload chooses among these, and makes of an image a file to save. Payloads and content
types come from anybody who may push. So what this module returns is text, which templates escape like everything else,
whatever the content type says; indenting changes no meaning; and the time and memory that it takes are bounded by the
bytes of a payload, not by what they say: 512 KiB of JSON, 200 levels deep, would become 100 MB of spaces.
"""

import json
import re
from dataclasses import dataclass

from lxml import etree

PRETTY_MOST = 512 * 1024
"""Bytes of the largest payload that is indented."""
INDENTED_MOST = 4 * PRETTY_MOST
"""Characters that indenting may add."""
SHOWN_MOST = 256 * 1024
"""Characters that one page shows of a payload."""
HEX_MOST = 4096
"""Bytes that one page shows in hexadecimal."""
_PREVIEW = 120
"""Characters of the line that stands for a payload in a table."""
_BREAKS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]')
_SCAN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_DEEPEST = 200
"""Levels of JSON and XML that are indented. lxml's own functions call themselves for each level."""
_CONTROLS = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\t\n\r"}
_CONTROLS |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
"""Characters that are shown as a mark: controls, and those that turn the direction of the text around them."""


@dataclass(frozen=True, slots=True)
class View:
    """A payload on a page."""

    kind: str
    """XML, JSON, text, image or binary."""
    text: str
    """The characters that are shown."""
    cut: int
    """The number of characters, or of bytes in hexadecimal, that are not shown."""
    view: str
    """The way in which it is shown: pretty, text or hex."""
    views: tuple[str, ...]
    """The ways in which it can be shown: none for an image."""


def kind_of(content_type: str) -> str | None:
    """Returns the kind of payload that a content type names: XML, JSON, text or image; None if the payload itself has
    to tell."""
    name = content_type.partition(";")[0].strip().lower()
    if name.startswith("image/"):
        return "image"
    if name in {"text/xml", "application/xml"} or name.endswith("+xml"):
        return "XML"
    if name == "application/json" or name.endswith("+json"):
        return "JSON"
    return "text" if name.startswith("text/") else None


def _decoded(payload: bytes) -> str | None:
    """Returns the text of a payload, None if the payload is not UTF-8 or has a NUL."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def visible(text: str) -> str:
    """Returns a text with U+FFFD in the place of characters that are invisible, or hide others."""
    return text.translate(_CONTROLS)


def preview(payload: bytes) -> str:
    """Returns the beginning of a payload in one line."""
    text = _decoded(payload[: 4 * _PREVIEW])
    if text is None:
        try:  # the bound may have cut a character
            text = payload[: 4 * _PREVIEW].decode(errors="strict" if len(payload) <= 4 * _PREVIEW else "ignore")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text or len(text) < min(len(payload), 4 * _PREVIEW) // 5:
            return payload[:40].hex(" ")
    return visible(" ".join(text[: 2 * _PREVIEW].split()))[:_PREVIEW]


def indent_json(text: str) -> str | None:
    """Returns JSON with one member a line, None if the text is not JSON, is too deep, or would become too long.
    Numbers, strings and the order of members stay as they are written, so duplicate members stay too."""
    try:
        # Only to find out whether it is JSON: what `json` reads, it would write differently. Numbers are read as text,
        # since Python refuses to read one of more than 4300 digits.
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    if not _fits_indented_json(text):
        return None
    lines: list[str] = []
    line = ""
    depth = 0
    for match in _SCAN.finditer(text):
        part = match.group()
        if part in "{[":
            depth += 1
            lines.append(line + part)
            line = "  " * depth
        elif part in "}]":
            depth -= 1
            if line.strip():
                lines.append(line)
            opened = lines[-1]
            if opened.rstrip().endswith(("{", "[")) and not line.strip():  # an empty payload
                line = lines.pop() + part
            else:
                line = "  " * depth + part
        elif part == ",":
            lines.append(line + ",")
            line = "  " * depth
        elif part == ":":
            line += ": "
        else:
            line += part
    return "\n".join([*lines, line])


def _fits_indented_json(text: str) -> bool:
    """Tells whether JSON is not too deep, and whether indenting adds few enough characters."""
    depth = added = 0
    for match in _BREAKS.finditer(text):
        part = match.group()
        depth += (part in "{[") - (part in "}]")
        added += 0 if part[0] == '"' else 2 * depth + 1
        if depth > _DEEPEST or added > INDENTED_MOST:
            return False
    return True


def _pretty(payload: bytes, text: str, said: str | None) -> tuple[str, str] | None:
    """Returns kind and text of a payload that can be indented. said: the kind that its content type names."""
    if len(payload) > PRETTY_MOST:
        return None
    start = text.lstrip()[:1]
    kind = said or ("XML" if start == "<" else "JSON" if start in {"{", "["} else None)
    indented = indent_xml(payload, INDENTED_MOST) if kind == "XML" else indent_json(text) if kind == "JSON" else None
    return None if kind is None or indented is None else (kind, indented)


def view_payload(payload: bytes, wanted: str, offset: int = 0, content_type: str = "") -> View:
    """Returns the view of a payload. wanted: pretty, text or hex, else the best; offset: bytes that the view in
    hexadecimal leaves out; content_type: what the producer says that the payload is, or empty."""
    said = kind_of(content_type)
    if said == "image":
        return View("image", "", 0, "", ())
    text = _decoded(payload)
    if text is None and said == "text":  # another character set, or damaged: the letters that are ASCII can be read
        text = payload.decode(errors="replace")
    pretty = None if text is None else _pretty(payload, text, said)
    kind = "binary" if text is None else "text" if pretty is None else pretty[0]
    views = (*(["pretty"] if pretty else []), *(["text"] if text is not None else []), "hex")
    view = wanted if wanted in views else views[0]
    if view == "hex" or text is None:
        part = payload[offset : offset + HEX_MOST]
        return View(kind, hex_dump(part, offset), len(payload) - offset - len(part), "hex", views)
    shown = pretty[1] if pretty is not None and view == "pretty" else text
    return View(kind, visible(shown[:SHOWN_MOST]), max(len(shown) - SHOWN_MOST, 0), view, views)


def hex_dump(data: bytes, offset: int = 0) -> str:
    """Returns bytes as lines of 16: the offset, the bytes in hexadecimal, and as ASCII."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in part)
        lines.append(f"{offset + at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {shown}")
    return "\n".join(lines)


def indent_xml(payload: bytes, most: int) -> str | None:
    """Returns an XML document with one element a line, None if the payload is not XML, has a document type, is too
    deep, or would get more than `most` characters longer."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False, recover=False
    )
    if b"<!DOCTYPE" in payload:  # nothing that one declares is looked at: no entity, no other file
        return None
    try:
        root = etree.fromstring(payload, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    if not _fits_indented_xml(root, most):
        return None
    tree = root.getroottree()
    etree.indent(tree)
    return etree.tostring(tree, encoding="unicode")


def _fits_indented_xml(root: etree._Element, most: int) -> bool:
    """Tells whether a tree is not too deep, and whether indenting adds few enough characters."""
    depth = added = 0
    for event, _ in etree.iterwalk(root, events=("start", "end")):
        depth += 1 if event == "start" else -1
        added += 2 * depth + 1
        if depth > _DEEPEST or added > most:
            return False
    return True
