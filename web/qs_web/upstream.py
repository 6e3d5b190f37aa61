"""The queue server as one principal sees it: a client that all requests of the principal share, and a short memory of
the answer that most pages begin with."""

from collections.abc import Callable

import trio

from qs_client import AsyncQueueClient, QueueInfo
from qs_client.security import Security

from .totals import Totals

_SECONDS = 10.0
"""How long one exchange with the queue server may take."""
_FRESH = 1.0
"""Seconds for which an answer to `queue-stats` is shown again: pages that are open at the same time share it."""

OnStats = Callable[[float, list[QueueInfo]], None]
"""Gets every fresh answer of `stats`, with the time when it came."""


class Upstream:
    """The queue server as one principal sees it. client: connects when it is first used, and again after failures;
    total: the sums of its queues."""

    def __init__(
        self, server: tuple[str, int], security: Security, clock: Callable[[], float], on_stats: OnStats
    ) -> None:
        """server: host and port; security: how connections begin; clock: seconds that only grow."""
        host, port = server
        self.client = AsyncQueueClient(host, port, timeout=_SECONDS, tls=security.context, token=security.token)
        self.total = Totals()
        self._clock = clock
        self._on_stats = on_stats
        self._asking = trio.Lock()
        self._stats: list[QueueInfo] = []
        self._asked = -_FRESH

    async def stats(self) -> list[QueueInfo]:
        """Returns the figures of all queues that the principal may see, at most a second old, sorted by name. The list
        is shared: do not change it. ServerError, ServerUnavailable as the client raises them."""
        async with self._asking:
            if self._clock() - self._asked >= _FRESH:
                self._stats = await self.client.stats()
                self._asked = now = self._clock()
                self.total.observe(now, self._stats)
                self._on_stats(now, self._stats)
            return self._stats

    def forget(self) -> None:
        """Makes the next `stats` ask again, after a change."""
        self._asked = -_FRESH

    async def close(self) -> None:
        """Closes the connections. Calls that wait raise ServerUnavailable."""
        await self.client.disconnect()
