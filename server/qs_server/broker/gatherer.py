"""Begins operations at engines that gather requests, and wakes the sessions whose operations have ended.

How it works. Such an engine does the operations of many clients together, and needs no thread for each. All that the
sessions add in a poll cycle is submitted in one call at its end. What the engine ends together wakes the hub once, and
all sessions concerned then send their answers.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qs_serving.hub import Hub
from qs_storage.engine import (
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Receipt,
    StaleReceiptError,
    StorageError,
)
from qs_storage.remote_engine import GatheringEngine, Operation, Receive, Release

_logger = logging.getLogger(__name__)


class Gatherer:
    """Carries operations between the sessions and the engines that gather requests.

    Ensures that each operation's `ended` is called once, in the loop, after the operation has ended, unless the server
    has stopped before. The hub calls it like any reader, so that what these calls begin belongs to a poll cycle.

    Assumes that all its methods are called in the loop's thread, and that `submit` is called after `add`: at the end of
    the poll cycle or of the batch in which something was added. `ended` must raise nothing."""

    def __init__(self) -> None:
        self._ended: dict[Operation[Any], Callable[[Any], None]] = {}
        self._on_end = self._end  # one object, by which an engine finds operations that end for the same caller
        self._come: deque[Sequence[Operation[Any]]] = deque()  # those that have ended, and were not told of
        self._hub: Hub | None = None
        self._descriptor = -1
        self._closing = threading.Lock()  # the kernel may give the descriptor's number to another file
        self.watched = False
        self.begun: dict[GatheringEngine, list[Operation[Any]]] = {}
        """The operations that `submit` submits, by their engines."""

    def open(self, hub: Hub) -> None:
        """Begins to be woken by engines, as a reader of the hub."""
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hub = hub
        hub.watch(self)

    def close(self) -> None:
        """Ends `open`. Operations that end later are not told of: all connections are closed."""
        if self._hub is not None:
            self._hub.drop(self)
        with self._closing:
            os.close(self._descriptor)
            self._descriptor = -1

    def fileno(self) -> int:
        return self._descriptor

    def add(self, engine: GatheringEngine, operation: Operation[Any], ended: Callable[[Any], None]) -> None:
        """Adds an operation. ended: called with the operation when it has ended."""
        operation.on_end(self._on_end)
        self._ended[operation] = ended
        begun = self.begun.get(engine)
        if begun is None:
            self.begun[engine] = [operation]
        else:
            begun.append(operation)

    def submit(self) -> None:
        """Submits what was added, in one call for each engine."""
        begun, self.begun = self.begun, {}
        for engine, operations in begun.items():
            engine.submit(operations)
            if self._hub is not None:
                self._hub.spins = False

    def stop(self, engine: GatheringEngine, operation: Receive) -> None:
        """Ends a receive that waits soon, because nobody wants its result any more."""
        operation.stopped = True
        if operation not in self.begun.get(engine, ()):  # else the engine sees that when it gets the operation
            engine.stop(operation)

    def give_back(self, engine: GatheringEngine, messages: Iterable[Message]) -> None:
        """Makes received messages visible again, which nobody waits for any more."""
        for message in messages:
            receipt = Receipt(message.mid, message.receives)
            release = Release(message.qid, receipt, None, counts=True, reason=None)
            self.add(engine, release, _given_back)

    def give_back_result(self, engine: GatheringEngine, operation: Operation[Any]) -> None:
        """Makes the messages of a receive visible again that was given up. Does nothing for other operations."""
        if isinstance(operation, Receive):
            try:
                self.give_back(engine, operation.result())
            except StorageError:
                return  # it has received nothing

    def _end(self, operations: Sequence[Operation[Any]]) -> None:
        """Called by the engine, in any thread."""
        self._come.append(operations)
        with self._closing:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def ready(self) -> int:
        """Tells the sessions of the operations that have ended. Called by the hub."""
        os.eventfd_read(self._descriptor)
        ended = self._ended.pop
        while self._come:
            for operation in self._come.popleft():
                ended(operation)(operation)
        return 0


def _given_back(release: Release) -> None:
    try:
        release.result()
    except (NoSuchQueueError, NoSuchMessageError, StaleReceiptError):
        return  # it was acknowledged or received meanwhile
    except StorageError as error:
        mid, qid = release.receipt.mid, release.qid
        _logger.warning("message %d of %r stays hidden until its window ends: %s", mid, qid, error)
