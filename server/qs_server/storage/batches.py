"""Batches of a queue's producers: staged part by part, published as a whole, and never twice.

A producer that does not know whether its batch was published publishes it again, with the same number. A task that
failed stages its part again, as another attempt; which attempts count is said when the batch is published.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from .batch_files import BatchFiles, Publication
from .engine import BatchTooLargeError, NoSuchPartError

_logger = logging.getLogger(__name__)
MOST_BYTES = 256 << 20
"""Bytes that a batch may have on disk: its messages are in memory together, and stored in one go."""


class Publisher(Protocol):
    """What is asked of a queue."""

    qid: str

    def publish_batch(
        self,
        payloads: list[bytes],
        producer: str,
        batch: int,
        begin: Callable[[int, int], None],
        done: Callable[[], None],
    ) -> None:
        """Stores messages, in order, and makes them visible; all or none, also in a crash. begin: is told the ids
        before anything is stored, the first one and how many, where they follow one another; done: makes it certain,
        and says so to the next start. QueueFullError."""

    def take_back(self, mid: int, payload: bytes) -> None:
        """Deletes a message, at a start, if it is that one."""

    def hold_fast(self) -> None:
        """Everything that was done so far survives a power loss, if anything does."""


class Batches:
    """Of one queue. Every method may raise OSError, and BadQueueNameError for the producer."""

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
        if batch <= self._files.published(producer):
            self._files.clear(producer, batch)
            return
        parts = sorted(parts)
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
        self._files.end(producer)
        self._files.clear(producer, batch)

    def _payloads(self, producer: str, batch: int, parts: Sequence[Sequence[int]]) -> list[bytes]:
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

    def settle(self) -> None:
        """When the queue has been opened: what was stored of a publication that a crash interrupted is deleted. Its
        parts are staged still."""
        for producer in self._files.producers():
            publication = self._files.publishing(producer)
            if publication is None:
                continue
            try:
                payloads = self._payloads(producer, publication.batch, publication.parts)
            except NoSuchPartError as error:
                _logger.error("what was stored of an unfinished batch stays: %s", error)
                continue
            _logger.warning(
                "batch %d of producer %r on queue %r was being published when the server stopped: it is not published",
                publication.batch,
                producer,
                self._queue.qid,
            )
            for mid, payload in enumerate(payloads, publication.first):
                self._queue.take_back(mid, payload)
            self._queue.hold_fast()
            self._files.end(producer)
