"""Many messages cut into the lists that one document can carry. Bounded in number and in bytes, and lazily."""

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

from qs_schemas import Draft

from .bounds import seconds

T = TypeVar("T")

MOST = 1000
"""Entries of one list: the protocol's bound."""

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of one list's payloads as they are written: half of what a server takes by default, as their markup comes on
top. A single message that is larger travels alone."""


def draft(payload: bytes | str | Draft) -> Draft:
    """A payload as an entry of a list. TypeError when it is neither bytes nor text: `bytes(5)` would be five NULs."""
    if isinstance(payload, Draft):
        seconds(payload.delay, "delay")
        return payload
    if not isinstance(payload, bytes | bytearray | memoryview | str):
        raise TypeError(f"a payload is bytes or str, not {type(payload).__name__}")
    return Draft(payload)


def drafts_in_batches(payloads: Iterable[bytes | str | Draft]) -> Iterator[list[Draft]]:
    """The messages in order, in lists that one document each can carry. Takes no more than a list's worth ahead."""
    if isinstance(payloads, str | bytes | bytearray | memoryview):
        raise TypeError("several payloads are wanted, not one: push() takes one")
    batch: list[Draft] = []
    size = 0
    for entry in map(draft, payloads):
        written = _longest(entry.payload)
        if batch and (len(batch) == MOST or size + written > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += written
    if batch:
        yield batch


def in_batches(entries: Iterable[T]) -> Iterator[list[T]]:
    """The entries in order, in lists of at most MOST."""
    left = iter(entries)
    while batch := list(itertools.islice(left, MOST)):
        yield batch


def _longest(payload: bytes | str) -> int:
    """No payload is written longer: as text, in which `&`, line breaks and angle brackets are escaped, or as base64."""
    raw = payload.encode() if isinstance(payload, str) else bytes(payload)
    escaped = 4 * (raw.count(b"&") + raw.count(b"\n") + raw.count(b"\r")) + 3 * (raw.count(b"<") + raw.count(b">"))
    return len(raw) + max(escaped, len(raw) // 3 + 3)
