"""Evaluates the conditions of a feed: which messages each of them lets through.

Large payloads are evaluated in a thread, and many small ones in several passes of the event loop, so that it goes on
meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import trio

from .conditions import Document

if TYPE_CHECKING:
    from .conditions import Condition
    from .feeds import DurableName, HeldMessage, Member

_logger = logging.getLogger(__name__)
LARGE = 16 * 1024
"""Bytes of a message from which on it is evaluated in a thread, however few conditions there are: to parse as many
takes 0.3 ms, and the way to a thread and back 0.1 ms."""
_WORK = 1024 * 1024
"""Bytes times conditions that are evaluated in the event loop together. Conditions with `//` take some 3 ms for
that."""
_TOGETHER = 64
"""Messages in line that are passed on together."""
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

    @property
    def needs_document(self) -> bool:
        """True if there is a condition that asks for the payload."""
        return self.condition is not None and self.condition.needs_document

    def copy(self) -> Group:
        """Returns the group as it is now, with the same counts."""
        return self._replace(members=self.members.copy(), names=self.names.copy())


def matching(conditions: Sequence[Condition | None], messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> Matching:
    """Evaluates each condition for each message. messages: payloads and headers. No condition lets all through."""
    found = [0] * len(conditions)
    for at, (payload, headers) in enumerate(messages):
        document, bit = Document(payload), 1 << at
        for index, condition in enumerate(conditions):
            try:
                matches = condition is None or condition.matches(document, headers)
            except Exception:  # such as a lack of memory in libxml2, which must not end the bus, or lose a message
                _logger.exception("%r lets a message through: its evaluation has failed", condition)
                matches = True
            if matches:
                found[index] |= bit
    return found


def quick(messages: Sequence[HeldMessage], groups: Iterable[Group]) -> int:
    """Returns how many of the first messages are evaluated quickly enough for the event loop."""
    conditions = sum(group.needs_document for group in groups)
    if not conditions:
        return len(messages)
    left = _WORK // conditions
    for count, message in enumerate(messages):
        left -= message.size
        if left < 0 or message.size > LARGE:
            return count
    return len(messages)


def together(messages: Iterable[HeldMessage], groups: Iterable[Group]) -> tuple[list[HeldMessage], bool]:
    """Returns the first messages in line, as many as are evaluated together, and whether that takes a thread. The
    payload of the first must be in memory."""
    here = list(takewhile(lambda message: message.payload is not None, islice(messages, _TOGETHER)))
    count = quick(here, groups)
    # Never several for a thread: lxml lets go of the interpreter for each evaluation, and a thread that evaluates much
    # that is short waits each time until a busy event loop lets go of it.
    return (here[:count], False) if count else (here[:1], True)


def chosen(messages: list[HeldMessage], bits: int) -> list[HeldMessage]:
    """Returns the messages whose bits are set."""
    if bits == (1 << len(messages)) - 1:
        return messages
    return [message for at, message in enumerate(messages) if bits >> at & 1]


class Evaluator:
    """Runs evaluations that are not made at once, and has the counts of all conditions of a bus.

    Ensures that the result comes back to the event loop, unless the bus ends before. Must never wait for a thread at
    the end of the bus.
    """

    def __init__(self) -> None:
        self.counts = FilterCounts()
        self.nursery: trio.Nursery | None = None
        """Runs the evaluations. None while the bus does not run: no message comes then."""
        self._threads = trio.CapacityLimiter(_THREADS)

    def start(self, evaluate: Callable[[], Matching], then: Callable[[Matching], None], *, in_thread: bool) -> None:
        """Calls a function in a thread, or in a later pass of the event loop, and another one with its result in the
        event loop."""
        if self.nursery is not None:
            self.nursery.start_soon(self._run, evaluate, then, in_thread)

    async def _run(self, evaluate: Callable[[], Matching], then: Callable[[Matching], None], in_thread: bool) -> None:
        if in_thread:
            found = await trio.to_thread.run_sync(evaluate, abandon_on_cancel=True, limiter=self._threads)
        else:
            await trio.lowlevel.checkpoint()
            found = evaluate()
        then(found)
