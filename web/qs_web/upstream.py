"""The queue server as one principal sees it: a client that all requests of the principal share, and a short memory of
the answer that most pages begin with."""

from collections.abc import Callable

import trio

from qs_client import AsyncQueueClient, QueueInfo
from qs_client.security import Security

_SECONDS = 10.0
"""How long an action may take the queue server."""
_FRESH = 1.0
"""Seconds for which an answer to `queue-stats` is shown again: pages that are open at the same time share it."""


class Upstream:
    """The queue server as one principal sees it. client: connects when it is first used, and again after failures."""

    def __init__(
        self, server: tuple[str, int], security: Security, on_stats: Callable[[list[QueueInfo]], None] = lambda _: None
    ) -> None:
        """server: host and port; security: how connections begin; on_stats: gets every fresh answer of `stats`."""
        host, port = server
        self.client = AsyncQueueClient(host, port, timeout=_SECONDS, tls=security.context, token=security.token)
        self._on_stats = on_stats
        self._asking = trio.Lock()
        self._stats: list[QueueInfo] = []
        self._asked = -_FRESH

    async def stats(self) -> list[QueueInfo]:
        """Returns the figures of all queues that the principal may see, at most a second old, sorted by name. The list
        is shared: do not change it. ServerError, ServerUnavailable as the client raises them."""
        async with self._asking:
            now = trio.current_time()
            if now - self._asked >= _FRESH:
                self._stats = await self.client.stats()
                self._asked = now
                self._on_stats(self._stats)
            return self._stats

    def forget(self) -> None:
        """Makes the next `stats` ask again, after a change."""
        self._asked = -_FRESH

    async def close(self) -> None:
        """Closes the connections. Calls that wait raise ServerUnavailable."""
        await self.client.disconnect()
