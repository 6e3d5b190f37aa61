"""The items of a queue in memcached beside its pages: payloads, the keys of pushes, and the count of messages."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from ..engine import SECOND, Clock, Headers, QueueFullError, RemoteError
from ..headers import pack_headers, unpack_headers
from .memcached_layout import Entry, ItemKeys
from .memcached_pages import Pages
from .memcached_servers import CALL_TIMEOUT, MemcachedServers, NoRoomError

CHUNK = 500_000
"""Bytes. memcached's items are 1 MiB at most, and those above 512 KiB cost it more."""
_AT_ONCE = 8 * 1024 * 1024
"""Bytes sent to memcached, about, before its answers are read."""
_WINDOW = 300 * SECOND
"""How long a push is remembered by its key."""
_EXPIRE = _WINDOW // SECOND + 1
"""Seconds. memcached rounds the end of an item down to its own seconds; the time in the item is what counts."""
_CLAIM_TIMEOUT = 2 * CALL_TIMEOUT
"""Seconds to wait for another process's claim: a process that is alive settles its claim sooner."""
_CLAIM_POLL = 0.05
"""Seconds between two looks at such a claim."""
_RECOUNT = 5.0
"""Seconds between two full counts. The item's number is too large after a crash, or when memcached evicts messages."""


_HEADED = 0x80
"""The bit in the ninth byte of a token that says that headers, and a line feed, are in front of the payload. A list has
far fewer messages than would need that bit."""


class StoredPayload(NamedTuple):
    """A payload in memcached: the token in its keys, and its size, with that of the headers in front of it."""

    token: bytes
    size: int


class Payloads:
    """The payloads of one queue, in chunks.

    Ensures that each returned payload is complete. A payload is stored before its message and removed after the
    message. So a crash leaves no message without a payload, but perhaps unused items. Methods raise RemoteError,
    `store` also NoRoomError."""

    def __init__(self, keys: ItemKeys, servers: MemcachedServers) -> None:
        self._keys = keys
        self._servers = servers

    def store(self, contents: Sequence[tuple[bytes, Headers]]) -> list[StoredPayload]:
        """Stores payloads with their headers, all or none."""
        # Random names: an item is never overwritten, so no lock is needed to store one.
        push = os.urandom(8)
        payloads = [
            b"%b\n%b" % (pack_headers(headers), payload) if headers else payload for payload, headers in contents
        ]
        stored = [
            StoredPayload(push + (index | (_HEADED << 24 if headers else 0)).to_bytes(4, "big"), len(payload))
            for index, (payload, (_, headers)) in enumerate(zip(payloads, contents, strict=True))
        ]
        batch: dict[str, bytes] = {}
        size = 0
        try:
            for each, payload in zip(stored, payloads, strict=True):
                for chunk, key in enumerate(self._chunks(each)):
                    batch[key] = payload[chunk * CHUNK : (chunk + 1) * CHUNK]
                    size += len(batch[key])
                    if size >= _AT_ONCE:
                        self._servers.set_many(batch)
                        batch, size = {}, 0
            self._servers.set_many(batch)
        except NoRoomError:
            self.remove(stored)
            raise
        return stored

    def _chunks(self, payload: StoredPayload | Entry) -> list[str]:
        return [self._keys.chunk(payload.token, chunk) for chunk in range(-(-payload.size // CHUNK))]

    def find(self, entries: Iterable[Entry]) -> dict[bytes, tuple[bytes, Headers]]:
        """Returns the complete payloads by token, with their headers."""
        names = {entry.token: (entry.size, self._chunks(entry)) for entry in entries}
        items = self._servers.get([key for _, keys in names.values() for key in keys])
        found: dict[bytes, tuple[bytes, Headers]] = {}
        for token, (size, keys) in names.items():
            payload = b"".join([items.get(key, b"") for key in keys])
            if len(payload) == size and token[8] & _HEADED:
                headers, _, payload = payload.partition(b"\n")
                found[token] = payload, unpack_headers(headers)
            elif len(payload) == size:
                found[token] = payload, ()
        return found

    def remove(self, payloads: Iterable[StoredPayload | Entry]) -> None:
        """Removes payloads. Never raises: an item that stays only takes memory."""
        with contextlib.suppress(RemoteError):
            self._servers.delete([key for payload in payloads for key in self._chunks(payload)])


class PushKeys:
    """The keys of one push, by which a repeated push stores nothing.

    Ensures that of several pushes with a key at the same time, through any servers, one stores its message. A key is
    claimed with memcached's add before its message is stored, and holds the id afterwards. Another process that finds a
    claim without an id searches for the message: the claim's process may have been killed.

    Assumes that memcached does not evict the key meanwhile. Methods raise RemoteError, `claim` also NoRoomError."""

    def __init__(self, pages: Pages, servers: MemcachedServers, clock: Clock, stored: Sequence[StoredPayload]) -> None:
        """stored: the payloads of all drafts."""
        self._pages = pages
        self._servers = servers
        self._clock = clock
        self._tokens = [each.token for each in stored]
        self._began = clock()
        self._claimed: dict[str, int] = {}  # key -> index of its draft
        self._same: dict[int, int] = {}  # drafts with the key of an earlier draft -> that draft
        self._mids: dict[int, int] = {}  # drafts that are stored -> their ids

    def claim(self, keys: Sequence[str | None]) -> list[int]:
        """Claims the free keys. Returns the indexes of the drafts to store. After a NoRoomError call `release`."""
        texts = {index: text for index, text in enumerate(keys) if text is not None}
        generation = self._pages.generation() if texts else b""
        for index, text in texts.items():
            digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            key = self._pages.keys.push_key(generation, digest)
            if key in self._claimed:
                self._same[index] = self._claimed[key]
            elif (mid := self._claim_one(key, self._tokens[index])) is None:
                self._claimed[key] = index
            else:
                self._mids[index] = mid
        return [index for index in range(len(keys)) if index not in self._mids and index not in self._same]

    def _claim_one(self, key: str, token: bytes) -> int | None:
        """Claims a key. Returns the message of a key that is claimed already."""
        # -1: claimed, and not stored yet.
        ours = _encode(-1, self._clock(), token)
        until = time.monotonic() + _CLAIM_TIMEOUT
        while not self._servers.add(key, ours, _EXPIRE):
            value, swap = self._servers.gets([key]).get(key, (None, b""))
            if value is None:
                continue
            mid, at, other = _decode(value)
            if other == token:
                break
            # An older one is over, though memcached still has it.
            if at > self._clock() - _WINDOW:
                mid = mid if mid >= 0 else self._find(key, at, other)
                if mid >= 0:
                    return mid
                if time.monotonic() < until:
                    time.sleep(_CLAIM_POLL)
                    continue
            if self._servers.cas(key, ours, swap, _EXPIRE):
                break
        return None

    def _find(self, key: str, at: int, token: bytes) -> int:
        """Returns the id of the message with a token, -1 without one. Searches only ids from the time at which its push
        began."""
        for page in self._pages.scan(at - 1):
            for entry in page.entries:
                if entry.token == token:
                    self._servers.set_many({key: _encode(entry.mid, at, token)}, _EXPIRE)
                    return entry.mid
        return -1

    def settle(self, stored: dict[int, int]) -> list[int]:
        """Writes the ids of the stored drafts to their keys. Returns the ids of all drafts."""
        mids = stored | self._mids
        mids |= {index: mids[first] for index, first in self._same.items()}
        values = {key: _encode(mids[index], self._began, self._tokens[index]) for key, index in self._claimed.items()}
        self._servers.set_many(values, _EXPIRE)
        return [mids[index] for index in range(len(self._tokens))]

    def release(self) -> None:
        """Gives up the claims on keys. Called if nothing was stored."""
        self._servers.delete(self._claimed)


def _encode(mid: int, at: int, token: bytes) -> bytes:
    return f"{mid} {at} {token.hex()}".encode()


def _decode(value: bytes) -> tuple[int, int, bytes]:
    mid, at, token = value.decode().split()
    return int(mid), int(at), bytes.fromhex(token)


class Capacity:
    """Keeps a queue within its capacity. Counts the queue's messages in an item of memcached, because no page knows all
    of them.

    Ensures that there are never more messages than the capacity: capacity is reserved before a message is stored, and
    given back after a removal. A crash leaves the count too large, which `_recount` corrects. Call inside
    Pages.locked."""

    def __init__(self, pages: Pages, servers: MemcachedServers, capacity: int | None) -> None:
        self._pages = pages
        self._servers = servers
        self._capacity = capacity
        self._counted = -_RECOUNT

    @contextlib.contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Reserves capacity for the messages that are stored in the with block. QueueFullError."""
        if self._capacity is None:
            yield
            return
        key = self._pages.keys.count(self._pages.generation())
        if not self._add(key, count, self._capacity):
            held = self._recount(key)
            if not self._add(key, count, self._capacity):
                raise QueueFullError(
                    f"queue {self._pages.qid!r} holds {held} messages; its capacity is {self._capacity}"
                )
        try:
            yield
        except QueueFullError:
            self.give_back(count)
            raise

    def _add(self, key: str, count: int, capacity: int) -> bool:
        held = self._servers.count(key, count)
        if held is None:
            self._servers.add(key, str(self._count()).encode())
            held = self._servers.count(key, count) or count
        if held <= capacity:
            return True
        self._servers.count(key, -count)
        return False

    def _count(self) -> int:
        return sum(len(page.entries) for page in self._pages.scan(-1))

    def _recount(self, key: str) -> int:
        """Corrects the number, unless it changes meanwhile. Returns how many messages there are."""
        value, token = self._servers.gets([key]).get(key, (b"0", b"0"))
        if time.monotonic() - self._counted < _RECOUNT:
            return int(value)
        held = self._count()
        if held != int(value):
            self._servers.cas_in_reserve(key, str(held).encode(), token)
        self._counted = time.monotonic()
        return held

    def give_back(self, count: int) -> None:
        if self._capacity is not None and (snapshot := self._pages.look()) is not None:
            self._servers.count(self._pages.keys.count(snapshot.head.generation), -count)
