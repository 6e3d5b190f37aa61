"""Headers of messages as bytes, for storages that keep all of a message's headers in one place.

What other programs have written may be anything: what cannot be a header is left out, and never stops a consumer.
"""

import json
import re
from collections.abc import Iterable

from .engine import Headers

MOST = 32
"""Headers of a message."""
MOST_BYTES = 8 << 10
"""Bytes of all names and texts of a message in UTF-8."""
OURS = "qs-"
"""Begins names that are the server's own."""
_is_name = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def carried(text: str) -> str:
    """Replaces the characters that no answer can carry: XML does not allow them."""
    return _NOT_IN_XML.sub("\ufffd", text)


def headers_among(pairs: Iterable[tuple[object, object]]) -> Headers:
    """Returns the pairs of another program that can be headers, in their order, as many as a message may have."""
    found: list[tuple[str, str]] = []
    names: set[str] = set()
    room = MOST_BYTES
    for name, text in pairs:
        if not (isinstance(name, str) and isinstance(text, str) and _is_name(name)):
            continue
        folded, text = name.lower(), carried(text)  # noqa: PLW2901 - as it can be carried
        room -= len(name) + len(text.encode())
        if room < 0 or len(found) == MOST:
            break
        if folded not in names and not folded.startswith(OURS):
            names.add(folded)
            found.append((name, text))
    return tuple(found)


def pack_headers(headers: Headers) -> bytes:
    """Returns headers as bytes without a line feed, empty for none."""
    return json.dumps(headers, ensure_ascii=False, separators=(",", ":")).encode() if headers else b""


def unpack_headers(content: bytes) -> Headers:
    """Returns the headers in the result of `pack_headers`, or in what another program has written in its place."""
    if not content:
        return ()
    try:
        return headers_among([(name, text) for name, text in json.loads(content)])
    except (ValueError, TypeError, RecursionError):
        return ()
