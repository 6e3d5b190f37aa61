"""Keeps the patterns of durable names: each queue that matches one has the durable name.

A pattern is kept on the server as the name of an empty queue, whose option `where` is the condition of the names. So
queues that appear while no member is connected, or while the bus is down, have the name too.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from qs_client.errors import NotFound, ServerError, ServerUnavailable
from qs_schemas import errors
from qs_serving.access.principal import compile_patterns

from .durable_names import DurableNames, kind_of
from .queue_names import NamePattern, is_of_bus, pattern_in, queue_of, queue_of_pattern
from .rights import RefusedError

if TYPE_CHECKING:
    from .feeds import DurableName
    from .upstream import Upstream

_logger = logging.getLogger(__name__)
_MOST = 32
"""Patterns of a subscription. As many of the costliest take 20 ms to compile, in the event loop."""
_ANOTHER = (
    "the name {!r} of the pattern {!r} has {}; subscribe with what it has, or change it on the queue server, here and "
    "for the name of each queue: qs set '{}' --where CONDITION"
)


def compiled(patterns: Sequence[str]) -> re.Pattern[str]:
    """Returns an expression whose `fullmatch` accepts each queue that one of the patterns accepts. Raises RefusedError
    for too many patterns."""
    if len(patterns) > _MOST:
        raise RefusedError(errors.BAD_REQUEST, f"a subscription has at most {_MOST} patterns, not {len(patterns)}")
    found = compile_patterns(patterns)
    assert found is not None  # noqa: S101 - a request names one queue at least
    return found


class _Kept(NamedTuple):
    accepts: re.Pattern[str]
    where: str | None


class NamePatterns:
    """Finds the patterns of durable names on the server, and makes the names of the queues that match.

    Ensures that a queue has its names before the bus takes messages from it, as far as the bus knows the queue before.
    Assumes that only the server stores patterns. This class must never make a name on a queue that the owner of the
    pattern may not read: the name would take the messages of the queue.
    """

    def __init__(self, upstream: Upstream, names: DurableNames, may_read: Callable[[str | None, str], bool]) -> None:
        """may_read: tells whether an owner may read a queue now."""
        self._upstream = upstream
        self._names = names
        self._may_read = may_read
        self._kept: dict[NamePattern, _Kept] = {}

    @property
    def lock(self) -> trio.Lock:
        """The lock of the durable names."""
        return self._names.lock

    def __bool__(self) -> bool:
        """True if there are patterns."""
        return bool(self._kept)

    def accept(self, qid: str) -> bool:
        """Tells whether a queue matches a pattern."""
        return any(kept.accepts.fullmatch(qid) for kept in self._kept.values())

    async def keep(self, pattern: NamePattern, where: str | None) -> None:
        """Keeps a pattern, with the condition of its names, from now on. Waits for the server. Raises RefusedError."""
        qid = queue_of_pattern(pattern)
        while True:
            await self._upstream.connected.wait()
            try:
                async with self._names.lock:
                    has = await self._names.make(qid, None, where)
                    self._kept[pattern] = _Kept(compiled([pattern.pattern]), has)
            except ServerUnavailable:
                await trio.lowlevel.checkpoint()
            except ServerError as error:
                raise RefusedError(kind_of(error), f"the queue for the pattern cannot be created: {error}") from None
            else:
                break
        if has != where:
            condition = "no condition" if has is None else f"the condition {has!r}"
            raise RefusedError(errors.CONFLICT, _ANOTHER.format(pattern.name, pattern.pattern, condition, qid))

    async def find(self, existing: Iterable[str]) -> None:
        """Finds the patterns that the server keeps. Call this with the lock of the names held. Raises
        ServerUnavailable.

        existing: all queues of the server.
        """
        found = {pattern: qid for qid in existing if (pattern := pattern_in(qid)) is not None}
        for pattern in set(self._kept).difference(found):
            del self._kept[pattern]
        for pattern, qid in found.items():
            if pattern not in self._kept:
                with contextlib.suppress(NotFound):
                    self._kept[pattern] = _Kept(compiled([pattern.pattern]), await self._names.where(qid))

    async def make(self, qids: Iterable[str]) -> None:
        """Makes the names that patterns give to queues. Call this with the lock of the names held. Raises
        ServerUnavailable."""
        wanted = [(name, where) for qid in qids if not is_of_bus(qid) for name, where in self._missing(qid)]
        made = []
        for name, where in wanted:
            try:
                made.append((name, await self._names.make(queue_of(name), name.qid, where)))
            except ServerUnavailable:
                raise
            except (ServerError, RefusedError) as error:
                _logger.warning("the name %r of the queue %r cannot be made: %s", name.name, name.qid, error)
        # Only now: with the first name, the bus begins to take messages from the queue.
        for name, where in made:
            self._names.add(name, where)

    def _missing(self, qid: str) -> list[tuple[DurableName, str | None]]:
        """Returns the names that a queue should have and has not."""
        known = self._names.of(qid)
        return [
            (pattern.name_of(qid), kept.where)
            for pattern, kept in self._kept.items()
            if kept.accepts.fullmatch(qid) and pattern.name_of(qid) not in known and self._may_read(pattern.owner, qid)
        ]
