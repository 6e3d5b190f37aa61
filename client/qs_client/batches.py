"""Cuts many messages into lists that one document can carry, bounded in number and bytes. Lazily."""

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

from qs_schemas import Draft

from .bounds import check_attributes, seconds

T = TypeVar("T")

MOST = 1000
"""Entries of one list: the protocol's bound."""

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of a list's serialized payloads and headers: half of a server's default bound, as markup is added. A larger
message is sent alone."""

_TAGS, _MOST_ESCAPED = 20, 6
"""Bytes, at most, of half of the tags of a header, and of a character of its text: `&quot;`."""


def checked_payload(payload: bytes | str) -> bytes | str:
    """Checks a payload and returns it. Raises TypeError if it is neither bytes nor text: `bytes(5)` would be five NULs,
    and a `Draft` would lose all that it says beside the payload where that has arguments of its own."""
    if not isinstance(payload, bytes | bytearray | memoryview | str):
        raise TypeError(f"a payload is bytes or str, not {type(payload).__name__}")
    return payload


def _draft(payload: bytes | str | Draft) -> Draft:
    """Returns a payload as an entry of a list."""
    if isinstance(payload, Draft):
        seconds(payload.delay, "delay")
        if payload.unique or payload.priority is not None or payload.expires is not None:
            check_attributes(payload)
        return payload
    return Draft(payload if type(payload) is bytes or type(payload) is str else checked_payload(payload))


def drafts_in_batches(payloads: Iterable[bytes | str | Draft]) -> Iterator[list[Draft]]:
    """Yields the messages in order, in lists for one document each. Reads ahead by one list at most."""
    if isinstance(payloads, str | bytes | bytearray | memoryview):
        raise TypeError("several payloads are wanted, not one: push() takes one")
    batch: list[Draft] = []
    size = 0
    for entry in map(_draft, payloads):
        written = _longest(entry.payload)
        if entry.headers:
            texts = itertools.chain.from_iterable(entry.headers.items())
            written += sum(_TAGS + _MOST_ESCAPED * len(text) for text in texts)
        if batch and (len(batch) == MOST or size + written > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += written
    if batch:
        yield batch


def in_batches(entries: Iterable[T], most: int = MOST) -> Iterator[list[T]]:
    """Yields the entries in order, in lists of at most `most`."""
    left = iter(entries)
    while batch := list(itertools.islice(left, most)):
        yield batch


def _longest(payload: bytes | str) -> int:
    """Returns an upper bound of the payload's serialized size: as escaped text or as base64.

    The size is computed from the length, because serializing each message twice would double the work of a large push.
    """
    raw = payload.encode() if isinstance(payload, str) else bytes(payload)
    escaped = 4 * (raw.count(b"&") + raw.count(b"\n") + raw.count(b"\r")) + 3 * (raw.count(b"<") + raw.count(b">"))
    return len(raw) + max(escaped, len(raw) // 3 + 3)
