"""Looks for the queues that match the patterns of subscribers and of durable names."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf

import trio

from qs_client.errors import ServerError, ServerUnavailable
from qs_schemas import errors
from qs_serving.timers import Timers, within

from .fanout import FanOut
from .patterns import NamePatterns
from .queue_names import is_of_bus
from .rights import RefusedError, Rights
from .upstream import Upstream

_logger = logging.getLogger(__name__)
_LOOK_EACH = 1
"""Seconds between looks for queues that match patterns: each look is a list of all queues."""
_READ_AFTER = 10
"""Seconds before the bus asks again whether it may read a queue that matches a pattern."""


class QueueWatch:
    """Compares the queues of the server with patterns: those that are there when somebody subscribes, and those that
    appear later.

    Ensures that a queue which matches is opened within a second, with its durable names, as long as there is a pattern;
    without patterns the server is asked for nothing. Must never open a queue that the bus may not read: each attempt
    would be a line in the log.
    """

    def __init__(
        self,
        monitored: Sequence[str],
        upstream: Upstream,
        feeds: Mapping[str, FanOut],
        open_queues: Callable[[list[str]], None],
        *,
        names: NamePatterns,
        timers: Timers,
    ) -> None:
        """monitored: the queues of -q, empty for all queues; feeds: queue -> feed; open_queues: called with queues
        that match, also with some that are open; names: the patterns of durable names."""
        self.names = names
        self._monitored = monitored
        self._upstream = upstream
        self._feeds = feeds
        self._open = open_queues
        self._timers = timers
        self._patterns: Counter[re.Pattern[str]] = Counter()  # those of subscribers
        self._looked_at: set[str] = set()  # queues that have been compared with the patterns
        self._look_now = trio.Event()

    def add(self, patterns: re.Pattern[str]) -> None:
        """Looks for the queues that match the patterns of a subscriber, from now on."""
        self._patterns[patterns] += 1
        self.look_again()

    def remove(self, patterns: re.Pattern[str]) -> None:
        """Ends what `add` has begun."""
        self._patterns[patterns] -= 1
        self._patterns += Counter()  # without those that nobody has

    def look_again(self) -> None:
        """Compares all queues with the patterns as soon as possible: patterns or rights have changed."""
        if self._patterns or self.names:
            self._looked_at.clear()
            self._look_now.set()

    def gone(self, qid: str) -> None:
        """Notes that a queue has been deleted. It may come back before the next look."""
        self._looked_at.discard(qid)

    def look_later(self, qid: str) -> None:
        """Compares a queue that the bus may not read with the patterns again after a while."""
        self._timers.add(_READ_AFTER, partial(self._looked_at.discard, qid))

    async def matching(self, patterns: re.Pattern[str], rights: Rights) -> list[str]:
        """Returns the queues that match the patterns of a client, and that client and bus may read. Waits for the
        server, except with -q. Raises RefusedError."""

        def matches(qid: str) -> bool:
            return patterns.fullmatch(qid) is not None and not is_of_bus(qid) and rights.may_read(qid)

        if self._monitored:
            return list(filter(matches, self._monitored))
        while True:
            await self._upstream.connected.wait()
            try:
                existing = await self._upstream.queues()
                return [qid for qid in filter(matches, existing) if await self._is_readable(qid)]
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                raise RefusedError(errors.INTERNAL, f"the queue server does not list its queues: {error}") from None

    async def _is_readable(self, qid: str) -> bool:
        """Tells whether the server lets the bus read a queue. Raises ServerUnavailable."""
        feed = self._feeds.get(qid)
        if feed is not None and feed.asked_for:
            return not feed.forbidden
        return not await self._upstream.why_unreadable(qid)

    async def make_names(self, qids: Iterable[str]) -> None:
        """Makes the names that patterns give to queues, before the bus takes messages from them. Does nothing without
        a connection: the next one begins with that."""
        if self.names and self._upstream.connected.is_set():
            with suppress(ServerUnavailable):
                async with self.names.lock:
                    await self.names.make(qids)

    async def run(self) -> None:
        """Looks for queues that match patterns, as long as there are patterns. Never returns."""
        failing = False
        while True:
            # With -q there are no queues to find: only patterns and rights change.
            polls = not self._monitored and (self._patterns or self.names)
            await within(_LOOK_EACH if polls else inf, self._look_now.wait)
            self._look_now = trio.Event()
            await self._upstream.connected.wait()
            try:
                await self._look()
                failing = False
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                if not failing:
                    _logger.warning("the bus cannot look for queues that match patterns: %s", error)
                failing = True

    async def _look(self) -> None:
        """Compares the queues that are new with the patterns, and opens those that match."""
        async with self.names.lock:
            existing = await self._upstream.queues()
            await self.names.find(existing)
        monitored = self._monitored or existing
        self._looked_at.intersection_update(monitored)
        new = [qid for qid in monitored if qid not in self._looked_at and not is_of_bus(qid)]
        self._looked_at.update(new)
        wanted = [qid for qid in new if self._is_wanted(qid)]
        readable = []
        for qid in wanted:
            if await self._is_readable(qid):
                readable.append(qid)
            else:
                self.look_later(qid)
        await self.make_names(readable)
        self._open(readable)

    def _is_wanted(self, qid: str) -> bool:
        return self.names.accept(qid) or any(patterns.fullmatch(qid) for patterns in self._patterns)
