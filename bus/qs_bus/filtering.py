"""Evaluates the conditions of a feed: which messages each of them lets through.

Large payloads are evaluated in a thread, so that the event loop goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import trio

from .conditions import Document

if TYPE_CHECKING:
    from .conditions import Condition
    from .feeds import DurableName, HeldMessage, Member

LARGE = 16 * 1024
"""Bytes of a message from which on it is evaluated in a thread. 100 conditions with `//` take some 5 ms for as many
bytes; the way to a thread and back takes 0.1 ms."""
_THREADS = 2
"""Threads that evaluate at a time, for all feeds of a bus. More would only compete with the event loop."""

Matching: TypeAlias = list[int]
"""Which of some messages each condition lets through: an integer for each condition, with a bit for each message."""


@dataclass(slots=True)
class FilterCounts:
    """Counts what conditions decide, once for each subscriber and each name that has the condition. let_through:
    messages that matched; kept_back: those that did not."""

    let_through: int = 0
    kept_back: int = 0


class Group(NamedTuple):
    """Holds those members and names of a feed that have the same condition, so that it is evaluated once for all.

    condition: None for those that get every message; counts: what the condition has decided in this feed.
    """

    condition: Condition | None
    members: dict[Member, None]
    names: dict[DurableName, None]
    counts: FilterCounts

    def copy(self) -> Group:
        """Returns the group as it is now, with the same counts."""
        return self._replace(members=self.members.copy(), names=self.names.copy())


def matching(conditions: Sequence[Condition | None], messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> Matching:
    """Evaluates each condition for each message. messages: payloads and headers. No condition lets all through."""
    found = [0] * len(conditions)
    for at, (payload, headers) in enumerate(messages):
        document, bit = Document(payload), 1 << at
        for index, condition in enumerate(conditions):
            if condition is None or condition.matches(document, headers):
                found[index] |= bit
    return found


def chosen(messages: list[HeldMessage], bits: int) -> list[HeldMessage]:
    """Returns the messages whose bits are set."""
    if bits == (1 << len(messages)) - 1:
        return messages
    return [message for at, message in enumerate(messages) if bits >> at & 1]


class Evaluator:
    """Runs evaluations in threads, and has the counts of all conditions of a bus.

    Ensures that the result comes back to the event loop, unless the bus ends before. Must never wait for a thread at
    the end of the bus.
    """

    def __init__(self) -> None:
        self.counts = FilterCounts()
        self.nursery: trio.Nursery | None = None
        """Runs the evaluations. None while the bus does not run: no message comes then."""
        self._threads = trio.CapacityLimiter(_THREADS)

    def start(self, evaluate: Callable[[], Matching], then: Callable[[Matching], None]) -> None:
        """Calls a function in a thread, and another one with its result in the event loop."""
        if self.nursery is not None:
            self.nursery.start_soon(self._run, evaluate, then)

    async def _run(self, evaluate: Callable[[], Matching], then: Callable[[Matching], None]) -> None:
        then(await trio.to_thread.run_sync(evaluate, abandon_on_cancel=True, limiter=self._threads))
