"""The connections to the queue server: one set for the page itself, and one for each token that visitors use."""

from collections.abc import Callable

from qs_client.security import Security, Token

from .identity import Identity
from .upstream import OnStats, Upstream

_MOST = 64
"""Principals whose connections are kept. The one that was not used for the longest time gives way."""


class Upstreams:
    """The queue server as each principal sees it."""

    def __init__(
        self,
        server: tuple[str, int],
        bus: tuple[str, int] | None,
        identity: Identity,
        clock: Callable[[], float],
        on_stats: OnStats,
    ) -> None:
        """server, bus, clock, on_stats: as in `Upstream`."""
        self._server = server
        self._bus = bus
        self._identity = identity
        self._clock = clock
        self._on_stats = on_stats
        self._kept: dict[tuple[int, Token | None, bool], Upstream] = {}  # the last one used is last
        self._closing: list[Upstream] = []

    def __len__(self) -> int:
        """Returns how many are there, with those that are still to be closed."""
        return len(self._kept) + len(self._closing)

    @property
    def own(self) -> Upstream:
        """The queue server as the page's own token sees it: for metrics, and for visitors of an open page."""
        return self._get(self._identity.current.token, own=True)

    def of_visitor(self, token: Token | None) -> Upstream:
        """The queue server as a token sees it, None for a client that says nothing."""
        return self._get(token, own=False)

    def security(self, token: Token | None) -> Security:
        """Returns what connections of a visitor begin with."""
        return self._identity.of_visitor(token)

    def _get(self, token: Token | None, *, own: bool) -> Upstream:
        key = (self._identity.version, token, own)
        upstream = self._kept.pop(key, None)
        if upstream is None:
            security = self._identity.of_visitor(token)
            upstream = Upstream(self._server, self._bus, security, self._clock, self._on_stats)
            outdated = [old for old in self._kept if old[0] != self._identity.version]
            for old in outdated or list(self._kept)[: -_MOST + 1]:
                self._closing.append(self._kept.pop(old))
        self._kept[key] = upstream
        return upstream

    def drop(self, upstream: Upstream) -> None:
        """Gives up an upstream whose token the queue server does not accept: others keep their place."""
        for key in [key for key, kept in self._kept.items() if kept is upstream]:
            self._closing.append(self._kept.pop(key))

    async def close_unused(self) -> None:
        """Closes the connections of those that gave way. Call it after each request."""
        while self._closing:
            await self._closing.pop().close()

    async def close(self) -> None:
        """Closes all connections."""
        self._closing += self._kept.values()
        self._kept.clear()
        await self.close_unused()
