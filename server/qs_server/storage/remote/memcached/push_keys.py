"""The keys of pushes: which message a key stands for, so that a push that is repeated stores nothing.

A key is claimed with memcached's add before its message is stored, and tells the id afterwards. Whoever finds a claim
without an id looks whether the message has come all the same: the process that claimed it may have been killed.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b

from ...engine import SECOND, Clock, Draft
from .page_reader import PageReader, Snapshot
from .servers import CALL_TIMEOUT, NoRoomError, Servers

WINDOW = 300 * SECOND
_EXPIRE = WINDOW // SECOND + 1
"""Seconds. memcached rounds the end of an item down to its own seconds; the time in the item is what counts."""
_CLAIM_TIMEOUT = 2 * CALL_TIMEOUT
"""Seconds for which a claim of another process is waited for: one that is alive does not take longer."""
_CLAIM_POLL = 0.05
"""Seconds between two looks at such a claim: memcached does not tell when it is done."""


class PushKeys:
    """The keys of pushes to one queue. Methods raise RemoteError, `claim` also NoRoomError."""

    def __init__(self, reader: PageReader, servers: Servers, clock: Clock, make: Callable[[], Snapshot]) -> None:
        """make: reads the queue's head, and makes one if there is none."""
        self._reader = reader
        self._servers = servers
        self._clock = clock
        self._make = make

    def claim(self, drafts: Sequence[Draft], tokens: Sequence[bytes]) -> "Claims":
        """Claims the keys of a push that are not in use. tokens: of the payloads."""
        with self._reader.locked():
            generation = self._make().head.generation
        claims = Claims(self._servers, self._clock(), len(drafts))
        try:
            for index, (draft, token) in enumerate(zip(drafts, tokens, strict=True)):
                if draft.key is None:
                    continue
                digest = blake2b(draft.key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
                key = self._reader.keys.push_key(generation, digest)
                if key in claims.held:
                    claims.same[index] = claims.held[key]
                elif (mid := self._claim_one(key, token)) is None:
                    claims.held[key] = index
                else:
                    claims.stored[index] = mid
        except NoRoomError:
            claims.release()
            raise
        return claims

    def _claim_one(self, key: str, token: bytes) -> int | None:
        """Claims a key, or returns the message that it stands for."""
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
        """Returns the message with a token, whose push began at that time; -1: there is none. Ids are never less than
        the time of their push."""
        for page in self._reader.scan(at - 1):
            for entry in page.entries:
                if entry.token == token:
                    self._servers.set_many({key: _encode(entry.mid, at, token)}, _EXPIRE)
                    return entry.mid
        return -1


class Claims:
    """The keys of one push."""

    def __init__(self, servers: Servers, at: int, count: int) -> None:
        """at: when the push began; count: how many drafts it has."""
        self.held: dict[str, int] = {}
        """Claimed keys, each with the index of its draft."""
        self.same: dict[int, int] = {}
        """Drafts with the key of an earlier draft of the push, and that draft."""
        self.stored: dict[int, int] = {}
        """Drafts that an earlier push has stored, and their ids."""
        self._servers = servers
        self._at = at
        self._count = count

    def fresh(self) -> list[int]:
        """Returns the indexes of the drafts that have to be stored."""
        return [index for index in range(self._count) if index not in self.stored and index not in self.same]

    def settle(self, mids: Sequence[int], tokens: Sequence[bytes]) -> list[int]:
        """Writes the ids of the fresh drafts to their keys. tokens: of all drafts. Returns the ids of all."""
        found = dict(zip(self.fresh(), mids, strict=True)) | self.stored
        found |= {index: found[first] for index, first in self.same.items()}
        values = {key: _encode(found[index], self._at, tokens[index]) for key, index in self.held.items()}
        self._servers.set_many(values, _EXPIRE)
        return [found[index] for index in range(self._count)]

    def release(self) -> None:
        """Gives up the claims: nothing has been stored."""
        self._servers.delete(self.held)


def _encode(mid: int, at: int, token: bytes) -> bytes:
    return f"{mid} {at} {token.hex()}".encode()


def _decode(value: bytes) -> tuple[int, int, bytes]:
    mid, at, token = value.decode().split()
    return int(mid), int(at), bytes.fromhex(token)
