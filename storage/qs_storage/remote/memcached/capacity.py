"""Keeps a queue within its capacity: counts its messages in an item of memcached, as no page knows them all."""

import contextlib
import time
from collections.abc import Callable, Iterator

from ...engine import QueueFullError
from .page_reader import PageReader
from .servers import Servers

_RECOUNT = 5.0
"""Seconds between two full counts. The item's number is too large after a crash, or when memcached evicts messages."""


class Capacity:
    """Reserves room before a message is stored, gives it back after a removal. Call inside PageReader.locked."""

    def __init__(
        self, reader: PageReader, servers: Servers, capacity: int | None, generation: Callable[[], bytes]
    ) -> None:
        self._reader = reader
        self._servers = servers
        self._capacity = capacity
        self._generation = generation
        self._counted = -_RECOUNT

    @contextlib.contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Reserves room for messages that are stored in the with block. QueueFullError."""
        if self._capacity is None:
            yield
            return
        key = self._reader.keys.count(self._generation())
        if not self._add(key, count, self._capacity):
            held = self._recount(key)
            if not self._add(key, count, self._capacity):
                raise QueueFullError(
                    f"queue {self._reader.qid!r} holds {held} messages; its capacity is {self._capacity}"
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
        return sum(len(page.entries) for page in self._reader.scan(-1))

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
        if self._capacity is not None and (generation := self._reader.generation()) is not None:
            self._servers.count(self._reader.keys.count(generation), -count)
