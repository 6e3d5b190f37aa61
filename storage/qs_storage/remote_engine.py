"""The interface of an engine whose messages another server keeps. Methods block until that has answered, and are
called in threads, several at once. What has returned is as durable as the other server makes it: there is no commit."""

import threading
from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from .engine import Feature, Message, Options, Queue


class RemoteEngine(Protocol):
    """See Engine and Queue. Methods that ask the other server also raise RemoteError, after trying again."""

    name: ClassVar[str]
    cannot: ClassVar[frozenset[Feature]]

    def describe(self) -> str:
        """Returns a warning for the log of a start, or an empty text."""

    def queues(self) -> Collection[str]:
        """Returns all names, from memory: called for each request, outside of threads. The collection never changes."""

    def create(self, qid: str, options: Options) -> None:
        """Makes a queue, or takes up the other server's. QueueExistsError, BadQueueNameError, UnsupportedError."""

    def options(self, qid: str) -> Options:
        """Asks the other server for options that it keeps. NoSuchQueueError."""

    def configure(self, qid: str, options: Options) -> None:
        """See Engine."""

    def remove(self, qid: str, *, force: bool) -> None:
        """force: with its messages. NoSuchQueueError; QueueNotEmptyError without force."""

    def queue(self, qid: str) -> Queue:
        """Asks no server. NoSuchQueueError."""

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
        """See Engine.receive. Waits at most `wait` seconds for a message, and little more than a second after `stop`
        is set, without polling a server that can be waited for."""

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        """See Engine."""

    def close(self) -> None:
        """Closes the connections. Messages stay."""
