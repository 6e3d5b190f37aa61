"""Writes text and payloads so that XML can carry them and one document stays one line; reads and writes base64.

Most text needs no change. So each function begins with a cheap check, made of a few calls into C. Payloads of a list
are joined by a byte that XML text cannot have, converted with one call, and split again: that takes half the time for a
list of small payloads.
"""

import base64
import functools
import re
from collections.abc import Callable, Sequence

SPACES = re.compile(rb"[ \t\r\n]*+")
"""Matches the white space of XML, as much as there is."""
BLANK = 0x20
"""The greatest byte that may be white space."""
SEPARATOR = 0
"""The byte that joins payloads. A payload that has it is not text of XML."""
_SEPARATOR = bytes((SEPARATOR,))
_MOST_PAYLOADS = 64
_MOST_BYTES = 1 << 18
"""Payloads, and bytes of all of them, that are joined at a time. Up to these bounds calls cost more than bytes, and the
joined bytes stay in a processor's cache."""
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r"))
_WRITTEN = ((b"&", b"&amp;"), (b"<", b"&lt;"), (b">", b"&gt;"), (b"\n", b"&#10;"), (b"\r", b"&#13;"))
"""`&` first, so that what the others yield is not escaped again. Line breaks, so that a document stays one line, and
since XML reads a carriage return as a line feed."""
_MARKUP = _CONTROLS + b"".join(raw for raw, _ in _WRITTEN)
UNESCAPED = bytes(byte if byte not in _MARKUP else byte ^ 1 for byte in range(256))
"""A table for `bytes.translate`: ASCII that it leaves unchanged needs no escape. This check is quicker than to delete
the bytes and to compare lengths."""
# The same table, and the control characters, for several payloads that are joined.
_UNESCAPED_JOINED = bytes(byte if byte not in _MARKUP or byte == SEPARATOR else byte ^ 1 for byte in range(256))
_CONTROLS_JOINED = bytes(set(_CONTROLS) - {SEPARATOR})
# A table for ASCII text: text that it leaves unchanged needs no escape.
_SIMPLE = bytes(byte if 32 <= byte < 127 and byte not in b'<>&"' else byte ^ 1 for byte in range(256))
_NONCHARACTERS = ("\ufffe".encode(), "\uffff".encode())


def map_payloads(
    payloads: Sequence[bytes],
    convert_joined: Callable[[bytes], bytes | None],
    convert: Callable[[bytes], bytes | None],
) -> Sequence[bytes | None]:
    """Converts each payload, and returns the results in the same order.

    convert_joined: converts several payloads that are joined by SEPARATOR, and returns the results joined in the same
    way, or None if it cannot; convert: converts one payload. Neither function turns any other byte into a SEPARATOR.
    """
    # A payload that is not text makes `convert_joined` give up on all payloads that are joined with it: then each is
    # converted alone, and the result is the same.
    found: list[bytes | None] = []
    for at in range(0, len(payloads), _MOST_PAYLOADS):
        some = payloads[at : at + _MOST_PAYLOADS]
        joined = _SEPARATOR.join(some) if sum(map(len, some)) <= _MOST_BYTES else None
        if joined is None or joined.count(_SEPARATOR) != len(some) - 1 or (done := convert_joined(joined)) is None:
            found += map(convert, some)
        else:
            found += some if done is joined else done.split(_SEPARATOR)
    return found


@functools.cache  # made when first needed: sets of so many characters take a tenth of a program's start
def _remarkable() -> re.Pattern[str]:
    """Returns a pattern of the characters that are not a Char of XML 1.0 (production 2) or have to be escaped."""
    return re.compile("[^\x20\x21\x23-\x25\x27-\x3b\x3d\x3f-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@functools.cache
def _not_xml() -> re.Pattern[str]:
    """Returns a pattern of the characters that XML 1.0 cannot carry at all, not even escaped."""
    return re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Escapes text for an element or an attribute in double quotes. Tab and line breaks become character references, so
    that neither a line reader nor attribute normalization (XML 1.0, 2.11 and 3.3.3) changes them.

    Raises ValueError if XML cannot carry one of the characters.
    """
    if text.isascii():
        written = text.encode()  # bytes are quicker to check: they have tables
        if written.translate(_SIMPLE) == written:
            return text
    elif _remarkable().search(text) is None:
        return text
    bad = _not_xml().search(text)
    if bad is not None:
        raise ValueError(f"XML cannot carry the character U+{ord(bad.group()):04X} in {text[:100]!r}")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return text.replace("\t", "&#9;").replace("\n", "&#10;").replace("\r", "&#13;")


def replace_uncarriable(text: str) -> str:
    """Replaces characters that XML cannot carry by U+FFFD, for error texts that quote a peer's input."""
    return _not_xml().sub("\N{REPLACEMENT CHARACTER}", text)


def is_plain(text: str) -> bool:
    """Tells whether the text can stand between double quotes unescaped."""
    return _remarkable().search(text) is None


def escape_inline(text: str) -> str:
    """Escapes the text between the elements of an inline payload as an XML serializer does: line breaks stay as they
    are."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def escape_payload(payload: bytes) -> bytes | None:
    """Escapes a payload for an element. Returns None if XML cannot carry the payload as text, and it has to travel as
    base64."""
    # Bytes throughout: a payload is the long part of a document, and most need no change at all.
    return _escaped(payload, UNESCAPED, _CONTROLS)


def escape_payloads(payloads: Sequence[bytes]) -> Sequence[bytes | None]:
    """Escapes each payload like `escape_payload`, in less time."""
    return map_payloads(payloads, lambda joined: _escaped(joined, _UNESCAPED_JOINED, _CONTROLS_JOINED), escape_payload)


def _escaped(payload: bytes, as_it_is: bytes, controls: bytes) -> bytes | None:
    if not payload.isascii() and not is_xml_text(payload):
        return None
    if payload.translate(as_it_is) == payload:
        return payload
    if len(payload.translate(None, controls)) != len(payload):
        return None
    for raw, written in _WRITTEN:
        payload = payload.replace(raw, written)
    return payload


def is_xml_text(payload: bytes) -> bool:
    """Tells whether the payload is UTF-8 without noncharacters. Does not look for control characters, which XML cannot
    carry either: the callers have tables for those."""
    if any(noncharacter in payload for noncharacter in _NONCHARACTERS):
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def to_base64(payload: bytes) -> bytes:
    """Encodes a payload as one line of base64 (RFC 4648, section 4)."""
    return base64.b64encode(payload)


def from_base64(text: str) -> bytes:
    """Decodes base64 text, and ignores white space in it. Raises ValueError if the text is not base64."""
    return base64.b64decode(text.encode("ascii").translate(None, b" \t\r\n"), validate=True)
