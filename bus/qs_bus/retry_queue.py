"""Requests of the bus to the queue server: collected, sent in batches, and kept until they succeed."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from qs_client import ServerError

K = TypeVar("K")
T = TypeVar("T")
_logger = logging.getLogger(__name__)
_RETRY_AFTER = 1
"""Seconds before a batch that the server has refused is sent again."""


class RetryQueue(Generic[K, T]):
    """Work items of one kind: key -> items, done in the order in which they were added. The keys take turns."""

    def __init__(self, what: str, most: int) -> None:
        """what: names the kind of work in the log; most: items of one key in a batch, at most."""
        self._what = what
        self._most = most
        self._items: dict[K, deque[T]] = {}
        self._resting: dict[K, float] = {}
        """Keys whose batch the server has refused -> when it is sent again."""
        self._more = trio.Event()
        self._empty: trio.Event | None = None
        self._busy = False

    def add(self, key: K, item: T) -> None:
        """Adds an item."""
        items = self._items.get(key)
        if items is None:
            items = self._items[key] = deque()
            self._more.set()
        items.append(item)

    def discard(self, key: K) -> list[T]:
        """Drops the items of a key and returns them, except for a batch that is under way."""
        self._resting.pop(key, None)
        return list(self._items.pop(key, ()))

    async def serve(self, do: Callable[[K, list[T]], Awaitable[None]]) -> None:
        """Does everything that is added. Never returns normally.

        A failed batch keeps its place. After a ServerError it is tried again in a second, and other keys go on
        meanwhile; any other exception, as of a lost connection, ends the loop. do: is called with a key and a batch,
        and may remove from the batch what it has done before it fails.
        """
        while True:
            key = await self._next()
            items = self._items.pop(key)
            batch = [items.popleft() for _ in range(min(len(items), self._most))]
            if items:
                self._items[key] = items
            self._busy = True
            try:
                await do(key, batch)
            except ServerError as error:
                self._put_back(key, batch)
                self._rest(key, error)
            except BaseException:
                self._put_back(key, batch)
                raise
            else:
                if self._resting.pop(key, None) is not None:
                    _logger.warning("%s works again", self._what)
            finally:
                self._busy = False
            if not self._items and self._empty is not None:
                self._empty.set()

    async def _next(self) -> K:
        """Waits for a key whose batch can be done now."""
        while True:
            now = trio.current_time()
            for key in self._items:
                if self._resting.get(key, 0) <= now:
                    return key
            self._more = trio.Event()
            with trio.move_on_at(min((self._resting[key] for key in self._items), default=float("inf"))):
                await self._more.wait()

    def _rest(self, key: K, error: ServerError) -> None:
        if key not in self._resting:
            _logger.warning("%s failed; the bus keeps trying: %s", self._what, error)
        self._resting[key] = trio.current_time() + _RETRY_AFTER

    def _put_back(self, key: K, batch: list[T]) -> None:
        if batch:
            self._items.setdefault(key, deque()).extendleft(reversed(batch))

    async def emptied(self) -> None:
        """Waits until everything has been done."""
        while self._items or self._busy:
            self._empty = trio.Event()
            await self._empty.wait()
