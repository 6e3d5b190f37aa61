"""The keys of pushes: which message a key stands for, so that a push that is repeated stores nothing.

A key is claimed with memcached's add before its message is stored, and tells the id afterwards. Whoever finds a claim
without an id looks whether the message has come all the same: the one who claimed it may have been killed.
"""

import time
from collections.abc import Sequence
from hashlib import blake2b

from ...engine import SECOND, Clock, Draft
from .pages import Pages
from .servers import CALL_TIMEOUT, NoRoomError, Servers

WINDOW = 300 * SECOND
_EXPIRE = WINDOW // SECOND + 1
"""Seconds. memcached rounds the end of an item down to its own seconds; what counts is the time that stands in it."""
_PATIENCE = 2 * CALL_TIMEOUT
_PAUSE = 0.05
"""Seconds for which a claim of somebody else is waited for, and between two looks: memcached does not say when it is
done. Nobody who is alive takes longer."""


class PushKeys:
    """Of one queue. Methods raise RemoteError, `claim` also NoRoomError."""

    def __init__(self, pages: Pages, servers: Servers, clock: Clock) -> None:
        self._pages = pages
        self._servers = servers
        self._clock = clock

    def claim(self, drafts: Sequence[Draft], tokens: Sequence[bytes]) -> "Claims":
        """Claims the keys of a push that are not known yet. tokens: of the payloads."""
        with self._pages.alone():
            generation = self._pages.make().head.generation
        claims = Claims(self._servers, self._clock(), len(drafts))
        try:
            for index, (draft, token) in enumerate(zip(drafts, tokens, strict=True)):
                if draft.key is None:
                    continue
                digest = blake2b(draft.key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
                key = self._pages.keys.push_key(generation, digest)
                if key in claims.held:
                    claims.same[index] = claims.held[key]
                elif (mid := self._claim_one(key, token)) is None:
                    claims.held[key] = index
                else:
                    claims.known[index] = mid
        except NoRoomError:
            claims.release()
            raise
        return claims

    def _claim_one(self, key: str, token: bytes) -> int | None:
        """None: the key is claimed; else the message it stands for."""
        ours = _value(-1, self._clock(), token)
        until = time.monotonic() + _PATIENCE
        while not self._servers.add(key, ours, _EXPIRE):
            value, swap = self._servers.gets([key]).get(key, (None, b""))
            if value is None:
                continue
            mid, at, other = _parsed(value)
            if other == token:
                break
            if at > self._clock() - WINDOW:
                mid = mid if mid >= 0 else self._find(key, at, other)
                if mid >= 0:
                    return mid
                if time.monotonic() < until:
                    time.sleep(_PAUSE)
                    continue
            if self._servers.cas(key, ours, swap, _EXPIRE):
                break
        return None

    def _find(self, key: str, at: int, token: bytes) -> int:
        """The message with a token, whose push began at that time; ids are never less than the time. -1: none."""
        for page in self._pages.scan(at - 1):
            for entry in page.entries:
                if entry.token == token:
                    self._servers.set_many({key: _value(entry.mid, at, token)}, _EXPIRE)
                    return entry.mid
        return -1


class Claims:
    """The keys of one push."""

    def __init__(self, servers: Servers, at: int, count: int) -> None:
        self.held: dict[str, int] = {}
        """Claimed keys, each with the index of its draft."""
        self.same: dict[int, int] = {}
        """Drafts that have the key of another one before them."""
        self.known: dict[int, int] = {}
        """Drafts that are there already, and their ids."""
        self._servers = servers
        self._at = at
        self._count = count

    def fresh(self) -> list[int]:
        """The indexes of the drafts that are to be stored."""
        return [index for index in range(self._count) if index not in self.known and index not in self.same]

    def settle(self, mids: Sequence[int], tokens: Sequence[bytes]) -> list[int]:
        """The fresh ones have been stored under these ids. tokens: of all. The ids of all."""
        found = dict(zip(self.fresh(), mids, strict=True)) | self.known
        found |= {index: found[first] for index, first in self.same.items()}
        values = {key: _value(found[index], self._at, tokens[index]) for key, index in self.held.items()}
        self._servers.set_many(values, _EXPIRE)
        return [found[index] for index in range(self._count)]

    def release(self) -> None:
        """Nothing has been stored."""
        self._servers.delete(self.held)


def _value(mid: int, at: int, token: bytes) -> bytes:
    return f"{mid} {at} {token.hex()}".encode()


def _parsed(value: bytes) -> tuple[int, int, bytes]:
    mid, at, token = value.decode().split()
    return int(mid), int(at), bytes.fromhex(token)
