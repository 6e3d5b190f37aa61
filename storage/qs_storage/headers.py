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
TRACE = "traceparent"
"""The header with the trace that a producer's work belongs to (W3C Trace Context)."""
_LONGEST_TRACE = 128
"""Characters of a trace that the lifecycle record keeps. Those of W3C's version 00 have 55; a line has some 130."""
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


def trace_of(headers: Iterable[tuple[str, str]]) -> str | None:
    """Returns the trace of a message for the lifecycle record, None without one, or for one that is too long."""
    trace = next((text for name, text in headers if name.lower() == TRACE), "")
    return trace if 0 < len(trace) <= _LONGEST_TRACE else None


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
