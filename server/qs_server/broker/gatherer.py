"""Begins operations at engines that gather requests, and wakes the sessions whose operations have ended.

How it works. Such an engine does the operations of many clients together, and needs no thread for each. All that the
sessions add in a poll cycle is submitted in one call at its end. What the engine ends together wakes the loop once, and
all sessions concerned then send their answers.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import trio

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

    Ensures that each operation's `ended` is called once, in the loop, after the operation has ended, unless the loop
    has ended before.

    Assumes that all its methods are called in the loop's thread, and that `submit` is called after `add`: at the end of
    the poll cycle, of the batch or of the wake-up in which something was added. `ended` must raise nothing."""

    def __init__(self, woken: Callable[[], object]) -> None:
        """woken: called after sessions were woken, which may have added operations or scheduled work."""
        self._woken = woken
        self._ended: dict[Operation[Any], Callable[[Any], None]] = {}
        self._on_end = self._end  # one object, by which an engine finds operations that end for the same caller
        self._token: trio.lowlevel.TrioToken | None = None
        self.begun: dict[GatheringEngine, list[Operation[Any]]] = {}
        """The operations that `submit` submits, by their engines."""

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
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        begun, self.begun = self.begun, {}
        for engine, operations in begun.items():
            engine.submit(operations)

    def stop(self, engine: GatheringEngine, operation: Operation[Any]) -> None:
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
        try:
            if self._token is not None:
                self._token.run_sync_soon(self._wake, operations)
        except trio.RunFinishedError:
            pass  # all connections are closed

    def _wake(self, operations: Sequence[Operation[Any]]) -> None:
        ended = self._ended.pop
        for operation in operations:
            ended(operation)(operation)
        self._woken()


def _given_back(release: Release) -> None:
    try:
        release.result()
    except (NoSuchQueueError, NoSuchMessageError, StaleReceiptError):
        return  # it was acknowledged or received meanwhile
    except StorageError as error:
        mid, qid = release.receipt.mid, release.qid
        _logger.warning("message %d of %r stays hidden until its window ends: %s", mid, qid, error)
