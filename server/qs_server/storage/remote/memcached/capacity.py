"""How many messages a queue holds, for those that have a capacity: a number of its own, as no page knows them all."""

import contextlib
import time
from collections.abc import Iterator

from ...engine import QueueFullError
from .pages import Pages
from .reading import Look
from .servers import Servers

_RECOUNT = 5.0
"""Seconds. The number is too large after a process was killed between two steps, or memcached gave messages up. So a
full queue is counted, which reads all its pages, but not for each push that it refuses."""


class Capacity:
    """Of one queue; it does nothing for one without. The methods are called by a thread that is alone with the pages.

    Room is taken before a message is stored, and given back after it is removed, so no queue ever holds more.
    """

    def __init__(self, pages: Pages, capacity: int | None, servers: Servers) -> None:
        self._pages = pages
        self._capacity = capacity
        self._servers = servers
        self._counted = -_RECOUNT

    @contextlib.contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        """For storing messages inside. QueueFullError."""
        if self._capacity is None:
            yield
            return
        look = self._pages.make()
        if not self._take(look, count, self._capacity):
            held = self._recount(look)
            if not self._take(look, count, self._capacity):
                raise QueueFullError(
                    f"queue {self._pages.qid!r} holds {held} messages; its capacity is {self._capacity}"
                )
        try:
            yield
        except QueueFullError:
            self.left(count)
            raise

    def _take(self, look: Look, count: int, capacity: int) -> bool:
        key = self._pages.keys.count(look.head.generation)
        held = self._servers.count(key, count)
        if held is None:
            self._servers.add(key, str(self._count(look)).encode())
            held = self._servers.count(key, count) or count
        if held <= capacity:
            return True
        self._servers.count(key, -count)
        return False

    def _count(self, look: Look) -> int:
        return sum(len(page.entries) for page in self._pages.scan(-1))

    def _recount(self, look: Look) -> int:
        """Corrects the number, unless it changes meanwhile. How many there are."""
        key = self._pages.keys.count(look.head.generation)
        value, token = self._servers.gets([key]).get(key, (b"0", b"0"))
        if time.monotonic() - self._counted < _RECOUNT:
            return int(value)
        held = self._count(look)
        if held != int(value):
            self._servers.cas_in_reserve(key, str(held).encode(), token)
        self._counted = time.monotonic()
        return held

    def left(self, count: int) -> None:
        """Messages are not there, or not any more."""
        if self._capacity is not None and (look := self._pages.look()) is not None:
            self._servers.count(self._pages.keys.count(look.head.generation), -count)
