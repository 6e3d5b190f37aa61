"""The interface of an engine whose messages another server keeps, and which may take long to answer.

Each method blocks until the other server has answered, and is called in a thread, by several threads at once. What a
method has returned from is done, and is as durable as the other server makes it: there is no commit.
"""

import threading
from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from .engine import Feature, Message, Options, Queue


class RemoteEngine(Protocol):
    """Finds queues at another server. Meanings and errors are those of Engine and Queue. Methods that ask the other
    server also raise RemoteError, after they have tried again where that may help."""

    name: ClassVar[str]
    cannot: ClassVar[frozenset[Feature]]

    def describe(self) -> str:
        """Returns a warning for the log of a server that starts; empty if there is none."""

    def queues(self) -> Collection[str]:
        """Returns the names of all queues, in no order. Called for every request, outside of threads: it answers from
        memory. The collection never changes; a later call may return another one."""

    def create(self, qid: str, options: Options) -> None:
        """Makes a queue. One that the other server has already is taken up as it is, with its messages.
        QueueExistsError, BadQueueNameError; UnsupportedError for options that the engine cannot honour."""

    def options(self, qid: str) -> Options:
        """Returns the options of a queue; asks the other server for those that it keeps. NoSuchQueueError."""

    def configure(self, qid: str, options: Options) -> None:
        """See Engine."""

    def remove(self, qid: str, *, force: bool) -> None:
        """Removes a queue and, with force, its messages. NoSuchQueueError; QueueNotEmptyError without force."""

    def queue(self, qid: str) -> Queue:
        """Returns a queue, without asking the other server. NoSuchQueueError."""

    def receive(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float = 0,
        stop: threading.Event | None = None,
    ) -> list[Message]:
        """Receives as Engine.receive does. When nothing is visible, waits for a message: at most `wait` seconds, and
        not much more than a second after `stop` is set. Does not poll a server that can be waited for."""

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """See Engine."""

    def close(self) -> None:
        """Closes the connections. The messages stay at the other server."""
