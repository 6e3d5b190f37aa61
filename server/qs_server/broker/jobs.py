"""The work that the broker runs in its batches: the requests of a connection, or a function of the server itself.

Work knows nothing of sockets, and the broker nothing of operations.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from qs_schemas import PushMessage

from .calling import Call

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Tells why a handler cannot answer yet. With call, it waits for the end of that call; else with qids, for a
    message in one of these queues, at most `wait` seconds from its first pause; with neither, for `wait` seconds, 0:
    until others had their turn."""

    qids: tuple[str, ...] = ()
    wait: float = 0
    call: Call[Any] | None = None
    order: int = field(default_factory=count(1).__next__)
    """Increases from pause to pause: who began to wait earlier comes first."""

    @property
    def is_asked_for(self) -> bool:
        """True if the pause does not count as time of the request: a wait for messages, or a deliberate delay."""
        return bool(self.qids or self.wait)


class Work(Protocol):
    """The part of a request batch or a job that the committer uses."""

    @property
    def weight(self) -> int:
        """The amount of work, in messages."""

    @property
    def runnable(self) -> bool:
        """True if there is something to do now."""

    @property
    def pause(self) -> Pause | None:
        """Why the work waits, None if it does not."""

    @property
    def left(self) -> int:
        """The number of requests without an answer; for a job, 1 until it has run."""

    ended: Callable[[], None] | None
    """Called by the committer, in the loop, after the work's batch. The committer sets it to None first."""

    early_commits: int
    """The engine's `early_commits` when this work was last advanced."""

    @property
    def peer(self) -> str:
        """The address of the client, empty for the server itself."""

    def pushes(self) -> list[PushMessage]:
        """Returns the next requests, as far as they are pushes of one message each to the same queue."""

    def pushed(self, mids: Iterable[int]) -> None:
        """Answers the first of the requests that `pushes` returned. mids: the ids of their messages."""

    def advance(self, *, pushing: bool | None) -> None:
        """Runs the next requests. pushing: True to stop before the first that is not a push, False before the first
        push, None to run all."""

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """Answers pushes that failed in the commit with their errors, by (queue, id)."""

    def fail(self, error: Exception) -> None:
        """Answers all requests with the error of a failed commit."""


class Job:
    """Runs a function on the engine once, as part of a batch."""

    pause = None
    peer = ""

    @property
    def runnable(self) -> bool:
        return self.left > 0

    def __init__(self, function: Callable[[], object] = lambda: None, weight: int = 1) -> None:
        """weight: the amount of work, in messages."""
        self._function = function
        self.weight = weight
        self.left = 1
        self.failed = False
        self.ended: Callable[[], None] | None = None
        self.early_commits = 0

    def pushes(self) -> list[PushMessage]:
        return []

    def pushed(self, mids: Iterable[int]) -> None:
        """Does nothing, as `pushes` returns nothing."""

    def advance(self, *, pushing: bool | None) -> None:
        if not pushing:
            self.left = 0
            try:
                self._function()
            except OSError as error:
                self.fail(error)  # without an error for the rest of the batch

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """Does nothing, as a job pushes nothing."""

    def fail(self, error: Exception) -> None:
        self.failed = True
        _logger.error("background work of the server failed: %s", error)
