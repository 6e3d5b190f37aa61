"""The jobs that the broker runs in its batches: the requests of a connection, or a function of the server itself.

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
    """Says why a handler cannot answer yet. With qids, it waits for a message in one of these queues, for `wait`
    seconds from its first pause; with call, until that call is done, whatever the queues that it waits for; with
    neither, for `wait` seconds, or only until others had their turn."""

    qids: tuple[str, ...] = ()
    wait: float = 0
    call: Call[Any] | None = None
    order: int = field(default_factory=count(1).__next__)
    """Smaller for those that began to wait earlier."""

    @property
    def is_asked_for(self) -> bool:
        """True if the time of the pause does not count as time that the request takes: for messages that may come, and
        for an answer that is given late on purpose."""
        return bool(self.qids or self.wait)


class Work(Protocol):
    """The part of a request batch or a job that the committer uses."""

    @property
    def weight(self) -> int:
        """Amount of work, in messages."""

    @property
    def runnable(self) -> bool:
        """True if there is something to do now."""

    @property
    def pause(self) -> Pause | None:
        """The reason why it waits, None if it does not."""

    @property
    def left(self) -> int:
        """Number of requests without an answer; for a job, 1 until it has run."""

    ended: Callable[[], None] | None
    """Called by the committer, in the loop, after a batch that it was in; the committer sets it to None first."""

    early_commits: int
    """The engine's `early_commits` when something was last done for this work."""

    @property
    def peer(self) -> str:
        """Address of the client that sent the requests, empty for the server itself."""

    def pushes(self) -> list[PushMessage]:
        """Returns the next requests, up to the first that is not a push of one message to the same queue."""

    def pushed(self, mids: Iterable[int]) -> None:
        """Answers the requests that `pushes` returned, as they are done. mids: their ids."""

    def advance(self, *, pushing: bool | None) -> None:
        """Runs the next requests. pushing: True to stop before the first that is no push, False before the first push,
        None to run all."""

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """Answers pushes with the error that has undone them."""

    def fail(self, error: Exception) -> None:
        """Answers everything with the error of a commit that has failed."""


class Job:
    """Runs a function on the engine once, in a batch of its own or with requests."""

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
        """Does nothing, as `pushes` returns nothing."""

    def advance(self, *, pushing: bool | None) -> None:
        if not pushing:
            self.left = 0
            try:
                self._function()
            except OSError as error:
                self.fail(error)  # no fault of the others in the batch

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """Does nothing, as a job pushes nothing."""

    def fail(self, error: Exception) -> None:
        self.failed = True
        _logger.error("leases or changes of other programs could not be followed: %s", error)
