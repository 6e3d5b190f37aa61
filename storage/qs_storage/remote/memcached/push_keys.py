"""The keys of pushes, by which a repeated push stores nothing.

A key is claimed with memcached's add before its message is stored, and holds the id afterwards. Another process that
finds a claim without an id searches for the message: the claim's process may have been killed.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b

from ...engine import SECOND, Clock
from .page_reader import PageReader
from .servers import CALL_TIMEOUT, NoRoomError, Servers

WINDOW = 300 * SECOND
_EXPIRE = WINDOW // SECOND + 1
"""Seconds. memcached rounds the end of an item down to its own seconds; the time in the item is what counts."""
_CLAIM_TIMEOUT = 2 * CALL_TIMEOUT
"""Seconds to wait for another process's claim, which takes no longer while it lives."""
_CLAIM_POLL = 0.05
"""Seconds between two looks at such a claim."""


class PushKeys:
    """The keys of one push. Methods raise RemoteError, `claim` also NoRoomError."""

    def __init__(self, reader: PageReader, servers: Servers, clock: Clock, tokens: Sequence[bytes]) -> None:
        """tokens: of the payloads of all drafts."""
        self._reader = reader
        self._servers = servers
        self._clock = clock
        self._tokens = tokens
        self._began = clock()
        self._claimed: dict[str, int] = {}  # key -> index of its draft
        self._same: dict[int, int] = {}  # drafts with the key of an earlier draft -> that draft
        self._mids: dict[int, int] = {}  # drafts that are stored -> their ids

    def claim(self, generation: Callable[[], bytes], keys: Sequence[str | None]) -> list[int]:
        """Claims the free keys. generation: returns the queue's. Returns the indexes of the drafts to store."""
        texts = {index: text for index, text in enumerate(keys) if text is not None}
        current = generation() if texts else b""
        try:
            for index, text in texts.items():
                digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
                key = self._reader.keys.push_key(current, digest)
                if key in self._claimed:
                    self._same[index] = self._claimed[key]
                elif (mid := self._claim_one(key, self._tokens[index])) is None:
                    self._claimed[key] = index
                else:
                    self._mids[index] = mid
        except NoRoomError:
            self.release()
            raise
        return [index for index in range(len(keys)) if index not in self._mids and index not in self._same]

    def _claim_one(self, key: str, token: bytes) -> int | None:
        """Claims a key, or returns its message."""
        ours = _encode(-1, self._clock(), token)
        until = time.monotonic() + _CLAIM_TIMEOUT
        while not self._servers.add(key, ours, _EXPIRE):
            value, swap = self._servers.gets([key]).get(key, (None, b""))
            if value is None:
                continue
            mid, at, other = _decode(value)
            if other == token:
                break
            if at > self._clock() - WINDOW:
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
        """Returns the message of a token whose push began at that time, -1: none. Ids are never below it."""
        for page in self._reader.scan(at - 1):
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
        """Gives up the claims after nothing was stored."""
        self._servers.delete(self._claimed)


def _encode(mid: int, at: int, token: bytes) -> bytes:
    return f"{mid} {at} {token.hex()}".encode()


def _decode(value: bytes) -> tuple[int, int, bytes]:
    mid, at, token = value.decode().split()
    return int(mid), int(at), bytes.fromhex(token)
