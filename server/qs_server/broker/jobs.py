"""What the broker runs in its batches: the requests of a connection, or a function of the server itself.

A job knows nothing of sockets, and the broker nothing of operations.
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
    """Why a handler cannot answer yet: it waits for a message in one of the queues, so many seconds from when it first
    said so; or until a call is done; or, without either, only so many seconds, or until others had their turn."""

    qids: tuple[str, ...] = ()
    wait: float = 0
    call: Call[Any] | None = None
    order: int = field(default_factory=count(1).__next__)
    """Smaller for those that began to wait earlier."""


class Work(Protocol):
    """What a batch advances."""

    @property
    def weight(self) -> int:
        """How much work it is, in messages."""

    @property
    def runnable(self) -> bool:
        """Whether there is something to do now."""

    @property
    def pause(self) -> Pause | None:
        """What it waits for, if that is why it is not runnable."""

    @property
    def left(self) -> int:
        """How many requests have no answer yet; of a job, 1 until it has run."""

    ended: Callable[[], None] | None
    """What the committer calls in the loop when a batch that it was in is over; it sets this to None before."""

    early_commits: int
    """The engine's `early_commits` when something was last done for this work."""

    @property
    def peer(self) -> str:
        """The address of the client whose requests these are; empty when it is nobody's."""

    def pushes(self) -> list[PushMessage]:
        """The requests with which it goes on, as far as each pushes one message to the same queue, and nothing else is
        asked of it."""

    def pushed(self, mids: Iterable[int]) -> None:
        """Answers what `pushes` gave, as it has been done. mids: the id of each."""

    def advance(self, *, pushing: bool | None) -> None:
        """Does what there is to do: up to the next that is of the other kind, if only pushes or only others are
        wanted; None: all."""

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """Pushes have come to nothing after they were answered."""

    def fail(self, error: Exception) -> None:
        """The commit has failed: nothing that was done can be answered for."""


class Job:
    """A function to run once on the engine, for nobody in particular."""

    pause = None
    peer = ""

    @property
    def runnable(self) -> bool:
        return self.left > 0

    def __init__(self, function: Callable[[], object] = lambda: None, weight: int = 1) -> None:
        """weight: how much work it is, in messages."""
        self._function = function
        self.weight = weight
        self.left = 1
        self.failed = False
        self.ended: Callable[[], None] | None = None
        self.early_commits = 0

    def pushes(self) -> list[PushMessage]:
        return []

    def pushed(self, mids: Iterable[int]) -> None:
        """Does nothing, as `pushes` gives none."""

    def advance(self, *, pushing: bool | None) -> None:
        if not pushing:
            self.left = 0
            try:
                self._function()
            except OSError as error:
                self.fail(error)  # no fault of the others in the batch

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """None are its own."""

    def fail(self, error: Exception) -> None:
        self.failed = True
        _logger.error("leases or changes of other programs could not be followed: %s", error)
