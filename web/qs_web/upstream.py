"""The connections to the queue server: one set for the page itself, and one for each token that visitors use.

`Identity` has the page's own TLS and token, read from files. `Upstream` is the queue server as one principal sees it: a
client that all requests of this principal share, and a cache of the answer that most pages begin with. `Upstreams` has
one for each principal.
"""

from collections.abc import Callable
from dataclasses import replace

import trio

from qs_client import AsyncQueueClient, QueueClient, QueueInfo
from qs_client.security import Security, Token
from qs_serving.errors import start_errors

from .history import History, Totals

_SECONDS = 10.0
"""Seconds that one exchange with the queue server may take."""
_FRESH = 1.0
"""Seconds for which an answer to `queue-stats` is shown again: pages that are open at the same time share one
answer."""
_SHARE = 10
"""An answer is shown again for this many times the time that it took. So pages take the queue server a tenth of its
time at most: an answer about ten thousand queues costs it half a second."""
_SOON = 0.2
"""Seconds that a page waits for a new answer before it shows the old one."""
_LATE = 1.2
"""Seconds after which a page does not show an old answer any more, or twice as long as the answer took: the queue
server is then stuck, and a page has to say so within 2 s."""
_MOST = 64
"""Principals whose connections are kept. The one that was not used for the longest time is closed for another."""


class Identity:
    """The TLS context and the token of the page. The files are read when it is made, and by `reload`."""

    def __init__(self, read: Callable[[], Security], *, shows_certificate: bool = False) -> None:
        """read: loads the files, and raises OSError or ValueError; shows_certificate: whether TLS shows a certificate
        of the page. Raises StartError, which names the file, if the files cannot be used."""
        self._read = read
        self._shows_certificate = shows_certificate
        self.current: Security
        """The TLS context and the token of the page's own connections."""
        self.version = 0
        """Grows each time that the files are read. Connections of an older version are replaced."""
        self.reload()

    @property
    def about(self) -> str:
        """Describes, for the log, how the page authenticates at the queue server."""
        tls = "in the clear" if self.current.context is None else "with TLS"
        return f"{tls}, {'without a token' if self.current.token is None else 'with a token'}"

    @property
    def has_credentials(self) -> bool:
        """Tells whether the page may have more rights than an anonymous client, by its token or by a certificate that
        TLS shows."""
        return self.current.token is not None or self._shows_certificate

    def of_visitor(self, token: Token | None) -> Security:
        """Returns the security of a visitor's connections: the page's TLS and the visitor's token. token: None for a
        visitor without one. The page's own token is never a part of it."""
        return replace(self.current, token=token)

    def reload(self) -> None:
        """Reads the files again, for connections that begin from now on. Raises StartError if they cannot be used: the
        earlier ones then stay in use."""
        with start_errors():
            self.current = self._read()
        self.version += 1


class _Query:
    """A `queue-stats` request that is under way. All pages that need its answer wait for the same one."""

    def __init__(self, begun: float, version: int) -> None:
        """begun: the time of sending; version: `Upstream._version` at that time: the answer has no later change."""
        self.begun = begun
        self.version = version
        self.ended = trio.Event()
        self.error: Exception | None = None


class Upstream:
    """The queue server with the rights of one principal.

    1. `stats` shows a visitor the visitor's own changes: figures that were asked for before a change are not shown
       after it.
    2. At most one `queue-stats` is under way for a principal, however many pages are open.
    3. Figures of a queue server that does not answer are not shown as if they were new: `stats` raises instead.
    4. Nothing is sent unless a page or a scrape asks.
    """

    def __init__(
        self,
        server: tuple[str, int],
        bus: tuple[str, int] | None,
        security: Security,
        clock: Callable[[], float],
        history: History,
    ) -> None:
        """server, bus: host and port, None without a bus; security: how connections begin; clock: returns seconds that
        only grow; history: gets every new answer of `stats`."""
        tls, token = security.context, security.token
        self.client = AsyncQueueClient(*server, timeout=_SECONDS, tls=tls, token=token)
        """A client of the queue server. It connects when it is first used, and again after failures."""
        self.bus = None if bus is None else AsyncQueueClient(*bus, timeout=_SECONDS, tls=tls, token=token)
        """A client of the bus, None without a bus to show."""
        # A large answer takes long to read. In a thread, other pages do not wait for that.
        self._reader = QueueClient(*server, timeout=_SECONDS, tls=tls, token=token)
        self.total = Totals()
        """The sums over the queues that this principal sees."""
        self._clock = clock
        self._history = history
        self._stats: list[QueueInfo] | None = None
        self._fresh_until = 0.0
        self._took = 0.0
        self._version = 0  # counts changes that the visitor has made
        self._shown = 0  # the version of _stats
        self._query: _Query | None = None

    async def stats(self) -> list[QueueInfo]:
        """Returns the figures of all queues that the principal may see, sorted by name.

        They are at most a second old, or ten times as old as the answer took, if that is longer. The list is shared: do
        not change it. Raises ServerError and ServerUnavailable as the client does, and trio.TooSlowError if the queue
        server does not answer in time.
        """
        if self._stats is not None and self._clock() < self._fresh_until:
            return self._stats
        query = self._begin_query()
        # Without an old answer there is nothing else to show: the caller has a time-out of its own. After a change of
        # the visitor the old answer would deny it, so it is shown only when the new one is late.
        patience = float("inf") if self._stats is None else _LATE if self._shown != self._version else _SOON
        with trio.move_on_after(patience):
            await query.ended.wait()
        if query.error is not None:
            raise query.error
        if self._stats is None or (self._query is query and self._is_late(query)):
            raise trio.TooSlowError
        return self._stats

    def _begin_query(self) -> _Query:
        """Returns the query that is under way, or begins one."""
        if self._query is None:
            self._query = _Query(self._clock(), self._version)
            # A system task, so that it outlives the request: an answer that came too late for it serves the next page.
            trio.lowlevel.spawn_system_task(self._run, self._query)
        return self._query

    def _is_late(self, query: _Query) -> bool:
        return self._clock() - query.begun > max(_LATE, 2 * self._took)

    async def _run(self, query: _Query) -> None:
        """Asks the queue server in the background, and keeps the answer."""
        try:
            stats = await trio.to_thread.run_sync(self._reader.stats, abandon_on_cancel=True)
            now = self._clock()
            self._took = now - query.begun
            self._stats, self._shown = stats, query.version
            if self._shown == self._version:
                self._fresh_until = now + max(_FRESH, _SHARE * self._took)
            self.total.observe(now, stats)
            self._history.observe_queues(now, stats)
        except Exception as error:  # the waiting pages raise it
            query.error = error
            self._stats = None
        finally:
            self._query = None
            query.ended.set()

    async def fresh_stats(self) -> list[QueueInfo]:
        """Returns figures that were asked for after this call, however long that takes. Otherwise like `stats`.
        Prometheus gives a scrape the time of asking, and would record old figures as new ones."""
        self.invalidate()
        wanted = self._version
        while True:  # a query that is under way may have been sent before
            query = self._begin_query()
            await query.ended.wait()
            if query.error is not None:
                raise query.error
            if query.version >= wanted and self._stats is not None:
                return self._stats

    def invalidate(self) -> None:
        """Makes the next `stats` ask again, after a change."""
        self._fresh_until = 0.0
        self._version += 1

    async def close(self) -> None:
        """Closes the connections. Calls that wait raise ServerUnavailable."""
        await self.client.disconnect()
        if self.bus is not None:
            await self.bus.disconnect()
        if self._query is None:  # otherwise a thread is using it, and ends by its time-out
            self._reader.disconnect()


class Upstreams:
    """Keeps an `Upstream` for each principal.

    1. Two visitors share connections only if they have the same token. The page's own connections are never a
       visitor's.
    2. At most 64 are kept. A wrong token keeps none (`drop`), or 64 guesses would cut off all who have signed in. What
       is dropped is closed by the next `close_unused`, which follows each request.
    3. After `Identity.reload`, connections that began with the old files are closed as soon as another is needed.
    """

    def __init__(
        self,
        server: tuple[str, int],
        bus: tuple[str, int] | None,
        identity: Identity,
        clock: Callable[[], float],
        history: History,
    ) -> None:
        """server, bus, clock, history: as for `Upstream`."""
        self._server = server
        self._bus = bus
        self._identity = identity
        self._clock = clock
        self._history = history
        self._kept: dict[tuple[int, Token | None, bool], Upstream] = {}  # the last one used is last
        self._closing: list[Upstream] = []

    def __len__(self) -> int:
        """Returns how many upstreams there are, including those that are still to be closed."""
        return len(self._kept) + len(self._closing)

    @property
    def own(self) -> Upstream:
        """The queue server with the rights of the page's own token: for metrics, and for visitors of an open page."""
        return self._get(self._identity.current.token, own=True)

    def of_visitor(self, token: Token | None) -> Upstream:
        """Returns the queue server with the rights of a token. token: None for an anonymous client."""
        return self._get(token, own=False)

    def security(self, token: Token | None) -> Security:
        """Returns the security of a visitor's connections."""
        return self._identity.of_visitor(token)

    def _get(self, token: Token | None, *, own: bool) -> Upstream:
        key = (self._identity.version, token, own)
        upstream = self._kept.pop(key, None)
        if upstream is None:
            security = self._identity.of_visitor(token)
            upstream = Upstream(self._server, self._bus, security, self._clock, self._history)
            outdated = [old for old in self._kept if old[0] != self._identity.version]
            for old in outdated or list(self._kept)[: -_MOST + 1]:
                self._closing.append(self._kept.pop(old))
        self._kept[key] = upstream
        return upstream

    def drop(self, upstream: Upstream) -> None:
        """Drops an upstream whose token the queue server does not accept, so that it does not take a slot from the
        others."""
        for key in [key for key, kept in self._kept.items() if kept is upstream]:
            self._closing.append(self._kept.pop(key))

    async def close_unused(self) -> None:
        """Closes the connections that were dropped. Call it after each request."""
        while self._closing:
            await self._closing.pop().close()

    async def close(self) -> None:
        """Closes all connections."""
        self._closing += self._kept.values()
        self._kept.clear()
        await self.close_unused()
