"""The payloads of one queue, in chunks. A payload is stored before its message and removed after it."""

import contextlib
import os
from collections.abc import Iterable, Sequence

from ...engine import RemoteError
from .layout import Entry, Keys
from .servers import NoRoomError, Servers

CHUNK = 500_000
"""Bytes. memcached's items are 1 MiB at most, and those above 512 KiB cost it more."""
_AT_ONCE = 8 * 1024 * 1024
"""Bytes sent to memcached, about, before its answers are read."""


class Payloads:
    """Methods raise RemoteError, `store` also NoRoomError."""

    def __init__(self, keys: Keys, servers: Servers) -> None:
        self._keys = keys
        self._servers = servers

    def store(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Stores payloads, all or none. Returns their tokens."""
        push = os.urandom(8)
        tokens = [push + index.to_bytes(4, "big") for index in range(len(payloads))]
        stored: list[str] = []
        batch: dict[str, bytes] = {}
        size = 0
        try:
            for token, payload in zip(tokens, payloads, strict=True):
                for chunk, key in enumerate(self._chunks(token, len(payload))):
                    batch[key] = payload[chunk * CHUNK : (chunk + 1) * CHUNK]
                    size += len(batch[key])
                    if size >= _AT_ONCE:
                        stored += batch
                        self._servers.set_many(batch)
                        batch, size = {}, 0
            stored += batch
            self._servers.set_many(batch)
        except NoRoomError:
            self._delete(stored)
            raise
        return tokens

    def _chunks(self, token: bytes, size: int) -> list[str]:
        return [self._keys.chunk(token, chunk) for chunk in range(-(-size // CHUNK))]

    def find(self, entries: Iterable[Entry]) -> dict[bytes, bytes]:
        """Returns the complete payloads by token."""
        names = {entry.token: (entry.size, self._chunks(entry.token, entry.size)) for entry in entries}
        items = self._servers.get([key for _, keys in names.values() for key in keys])
        found = {}
        for token, (size, keys) in names.items():
            payload = b"".join([items.get(key, b"") for key in keys]) if len(keys) != 1 else items.get(keys[0], b"")
            if len(payload) == size:
                found[token] = payload
        return found

    def remove(self, entries: Iterable[Entry]) -> None:
        """Raises nothing: what stays only takes room."""
        self._delete([key for entry in entries for key in self._chunks(entry.token, entry.size)])

    def remove_stored(self, tokens: Iterable[bytes], payloads: Iterable[bytes]) -> None:
        """Removes stored payloads that no message has. Raises nothing."""
        pairs = zip(tokens, payloads, strict=True)
        self._delete([key for token, payload in pairs for key in self._chunks(token, len(payload))])

    def _delete(self, keys: list[str]) -> None:
        with contextlib.suppress(RemoteError):
            self._servers.delete(keys)
