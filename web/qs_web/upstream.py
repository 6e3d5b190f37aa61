"""The queue server as one principal sees it: a client that all requests of the principal share, and a short memory of
the answer that most pages begin with."""

from collections.abc import Callable

import trio

from qs_client import AsyncQueueClient, QueueClient, QueueInfo
from qs_client.security import Security

from .history import Totals

_SECONDS = 10.0
"""Seconds that one exchange with the queue server may take."""
_FRESH = 1.0
"""Seconds for which an answer to `queue-stats` is shown again: pages that are open at the same time share it."""
_SHARE = 10
"""An answer is shown again for this many times the time that the queue server took for it. Ten thousand queues cost it
half a second."""
_SOON = 0.2
"""Seconds that a page waits for a new answer before it shows the old one."""
_LATE = 1.2
"""Seconds after which a page does not show an old answer any more, or twice as long as the answer took."""

OnStats = Callable[[float, list[QueueInfo]], None]
"""Gets every new answer of `stats`, with the time when it came."""


class _Asking:
    """A question to the queue server that is under way. begun: the time; version: of what is asked for."""

    def __init__(self, begun: float, version: int) -> None:
        self.begun = begun
        self.version = version
        self.ended = trio.Event()
        self.error: Exception | None = None


class Upstream:
    """The queue server as one principal sees it. client: connects when it is first used, and again after failures;
    bus: of the bus, None if there is none; total: the sums of the server's queues."""

    def __init__(
        self,
        server: tuple[str, int],
        bus: tuple[str, int] | None,
        security: Security,
        clock: Callable[[], float],
        on_stats: OnStats,
    ) -> None:
        """server, bus: host and port; security: how connections begin; clock: seconds that only grow."""
        tls, token = security.context, security.token
        self.client = AsyncQueueClient(*server, timeout=_SECONDS, tls=tls, token=token)
        self.bus = None if bus is None else AsyncQueueClient(*bus, timeout=_SECONDS, tls=tls, token=token)
        # A large answer takes long to read. In a thread, other pages do not wait for that.
        self._reader = QueueClient(*server, timeout=_SECONDS, tls=tls, token=token)
        self.total = Totals()
        self._clock = clock
        self._on_stats = on_stats
        self._stats: list[QueueInfo] | None = None
        self._fresh_until = 0.0
        self._took = 0.0
        self._version = 0  # counts changes that the visitor has made
        self._shown = 0  # the version of _stats
        self._asking: _Asking | None = None

    async def stats(self) -> list[QueueInfo]:
        """Returns the figures of all queues that the principal may see, sorted by name. They are at most a second old,
        or as old as an answer takes the queue server ten times, if that is longer. The list is shared: do not change
        it. ServerError, ServerUnavailable as the client raises them; trio.TooSlowError."""
        if self._stats is not None and self._clock() < self._fresh_until:
            return self._stats
        asking = self._begin()
        patience = float("inf") if self._stats is None else _LATE if self._shown != self._version else _SOON
        with trio.move_on_after(patience):
            await asking.ended.wait()
        if asking.error is not None:
            raise asking.error
        if self._stats is None or (self._asking is asking and self._is_late(asking)):
            raise trio.TooSlowError
        return self._stats

    def _begin(self) -> _Asking:
        """Returns the question that is under way, or begins one."""
        if self._asking is None:
            self._asking = _Asking(self._clock(), self._version)
            trio.lowlevel.spawn_system_task(self._ask, self._asking)
        return self._asking

    def _is_late(self, asking: _Asking) -> bool:
        return self._clock() - asking.begun > max(_LATE, 2 * self._took)

    async def _ask(self, asking: _Asking) -> None:
        """Asks the queue server, in the background: what a page does not wait for, the next page shows."""
        try:
            stats = await trio.to_thread.run_sync(self._reader.stats, abandon_on_cancel=True)
            now = self._clock()
            self._took = now - asking.begun
            self._stats, self._shown = stats, asking.version
            if self._shown == self._version:
                self._fresh_until = now + max(_FRESH, _SHARE * self._took)
            self.total.observe(now, stats)
            self._on_stats(now, stats)
        except Exception as error:  # the waiting pages raise it
            asking.error = error
            self._stats = None
        finally:
            self._asking = None
            asking.ended.set()

    async def fresh_stats(self) -> list[QueueInfo]:
        """Returns the figures as they are now, however long that takes the queue server. Otherwise like `stats`."""
        self.forget()
        wanted = self._version
        while True:
            asking = self._begin()
            await asking.ended.wait()
            if asking.error is not None:
                raise asking.error
            if asking.version >= wanted and self._stats is not None:
                return self._stats

    def forget(self) -> None:
        """Makes the next `stats` ask again, after a change."""
        self._fresh_until = 0.0
        self._version += 1

    async def close(self) -> None:
        """Closes the connections. Calls that wait raise ServerUnavailable."""
        await self.client.disconnect()
        if self.bus is not None:
            await self.bus.disconnect()
        if self._asking is None:
            self._reader.disconnect()
