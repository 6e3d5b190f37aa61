"""Batches of a queue's producers: staged part by part, published as a whole, and never twice.

A producer that does not know whether its batch was published publishes it again, with the same number. A task that
failed stages its part again, as another attempt; which attempts count is said when the batch is published.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from .batch_files import BatchFiles, Publication
from .engine import BatchTooLargeError, NoSuchPartError, StorageError

_logger = logging.getLogger(__name__)
MOST_BYTES = 256 << 20
"""Bytes that a batch may have on disk: its messages are in memory together, and stored in one go."""


class Publisher(Protocol):
    """What is asked of a queue."""

    qid: str
    alone: bool
    """Whether no other server has the queue."""

    def is_there(self) -> bool:
        """Whether it has not been removed, nor its directory."""

    def publish_batch(
        self,
        payloads: list[bytes],
        producer: str,
        batch: int,
        begin: Callable[[int, int], None],
        done: Callable[[], None],
    ) -> None:
        """Stores messages, in order, and makes them visible; all or none, also in a crash. begin: is told the ids
        before anything is certain, the first one and how many; done: makes it certain, and says so to the next start.
        QueueFullError."""

    def undo_batch(self, first: int, payloads: list[bytes] | None, count: int) -> None:
        """What was stored, from that id on, of a batch that was not published is gone. payloads: None when they are not
        known any more. OSError: nobody gets any of it before this has been called again."""

    def finish_batch(self, first: int) -> None:
        """A batch that may be certain is visible if it is, whoever began to store it."""


class Batches:
    """Of one queue. Every method may raise OSError, BadQueueNameError for the producer, and StorageError when a file
    about that one is damaged."""

    def __init__(self, queue: Publisher, files: BatchFiles) -> None:
        self._queue = queue
        self._files = files

    def stage(self, producer: str, name: tuple[int, int, int], payloads: Sequence[bytes]) -> None:
        """Adds messages to an attempt at a part of a batch (batch, part, attempt): durable, and invisible. Nothing is
        kept for a batch that is published."""
        if name[0] > self._files.published(producer):
            self._files.append(producer, name, payloads)

    def publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> None:
        """The messages of these parts (number, attempt) become visible, in order of the numbers; whatever else was
        staged for the batch, or for one before it, is dropped. Nothing happens when the batch is published, or one
        after it. NoSuchPartError, BatchTooLargeError, QueueFullError."""
        self._check()
        with self._files.locked():
            self._check()
            self._finish(producer)
            if batch > self._files.published(producer):
                self._publish(producer, batch, sorted(parts))
            self._files.make_certain(producer, anew=not self._queue.alone)
            self._files.end(producer)
            self._files.clear(producer, batch)

    def _check(self) -> None:
        if not self._queue.is_there():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._queue.qid)

    def _publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> None:
        size = sum(self._files.size(producer, (batch, *part)) for part in parts)
        if size > MOST_BYTES:
            raise BatchTooLargeError(
                f"batch {batch} of producer {producer!r} has {size} bytes; {MOST_BYTES} is the most: publish it as "
                "several batches"
            )
        payloads = self._payloads(producer, batch, parts)

        def begin(first: int, count: int) -> None:
            self._files.begin(producer, Publication(batch, parts, first, count))

        def done() -> None:
            self._files.publish(producer, batch)

        if payloads:
            self._queue.publish_batch(payloads, producer, batch, begin, done)
        else:
            done()

    def _payloads(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> list[bytes]:
        payloads: list[bytes] = []
        for number, attempt in parts:
            found = self._files.payloads(producer, (batch, number, attempt))
            if found is None:
                raise NoSuchPartError(
                    f"producer {producer!r} has not staged part {number} of batch {batch}, attempt {attempt}, on queue "
                    f"{self._queue.qid!r}"
                )
            payloads += found
        return payloads

    def _finish(self, producer: str) -> None:
        """What an earlier publication has left, of a server that ended or failed in the middle."""
        publication = self._files.publishing(producer)
        if publication is None:
            return
        self._queue.finish_batch(publication.first)
        if publication.batch > self._files.published(producer):
            payloads: list[bytes] | None = None
            with contextlib.suppress(NoSuchPartError, StorageError, OSError):  # then it goes by what is in memory
                payloads = self._payloads(producer, publication.batch, publication.parts)
            self._queue.undo_batch(publication.first, payloads, publication.count)
        self._files.end(producer)

    def settle(self) -> bool:
        """When the queue has been opened: of a publication that a crash interrupted everything is there, or nothing;
        then its parts are staged still. Whether that could be done; if not, nothing is visible of it all the same."""
        if not self._files.exist():
            return True
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._files.locked())
            except OSError as error:
                _logger.error("the batches of queue %r cannot be locked: %s", self._queue.qid, error)
            failed = [producer for producer in self._files.producers() if not self._settle(producer)]
            return not failed

    def _settle(self, producer: str) -> bool:
        self._files.clear_left_behind(producer)
        try:
            self._finish(producer)
        except (OSError, StorageError) as error:
            _logger.error(
                "what a crash has left of a batch of producer %r on queue %r could not be put right: %s",
                producer,
                self._queue.qid,
                error,
            )
            return False
        return True
