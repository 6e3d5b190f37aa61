"""The storage `sqs`: queues whose messages an SQS endpoint keeps.

What that means for ids, order, windows and what cannot be done is in docs/sqs.md.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from ...disk import Disk
from ...engine import (
    Clock,
    Feature,
    Message,
    Options,
    QueueNotEmptyError,
    StorageError,
    UnsupportedError,
)
from ...lifecycle import Lifecycle
from ..engine import RemoteEngine
from .bodies import MOST_ENTRIES
from .connection import Connection
from .mids import Mids
from .names import check_prefix
from .patience import Patience
from .polls import Polls
from .queue import SqsQueue, SqsState
from .queues import LONGEST_WINDOW, QueuesAtSqs, Received, seconds
from .receipts import Held, Receipts

_SAME_PURGE = 5.0
"""Seconds within which a purge that SQS refuses for coming too soon is part of the one before: a purge is asked for in
slices, until nothing is left."""


class SqsEngine(RemoteEngine):
    """For several threads, but for `close`. Nothing is recorded of messages' lives: a record is for one thread."""

    name: ClassVar[str] = "sqs"
    cannot: ClassVar[frozenset[Feature]] = RemoteEngine.cannot | {
        Feature.WHOLE,
        Feature.ORDER,
        Feature.EXACT,
        Feature.KEY,
        Feature.CAPACITY,
        Feature.GET,
        Feature.LIST,
        Feature.COPY,
        Feature.ANY,
        Feature.PART,
        Feature.FIGURES,
    }

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        endpoint: str | None = None,
        region: str | None = None,
        disk: Disk | None = None,
        lifecycle: Lifecycle | None = None,
        prefix: str = "",
        patience: Patience | None = None,
    ) -> None:
        """clock: has to go with the time, as SQS's does. endpoint: a URL, None for Amazon's; region: None for that of
        the environment. prefix: of all names at SQS. Nothing is asked of SQS before the first call. StorageError."""
        check_prefix(prefix)
        patience = patience or Patience()
        self._connection = Connection(endpoint, region, patience)
        super().__init__(root, clock=clock, disk=disk, lifecycle=lifecycle)
        self._sqs = QueuesAtSqs(self._connection, prefix, clock, patience)
        self._polls = Polls(self._sqs.receive, self._sqs.give_back, patience)
        self._state = SqsState(self._sqs, clock, Mids(clock), Receipts(clock))

    # -- queues

    def _make(self, qid: str, options: Options) -> None:
        if options.capacity is not None:
            raise UnsupportedError("the storage 'sqs' has no capacity: SQS takes messages without a bound")
        if options.timestamps != "us":
            raise UnsupportedError("the storage 'sqs' has ids in microseconds only (timestamps)")
        self._sqs.make(qid, seconds(options.visibility, LONGEST_WINDOW, "a visibility window"))

    def _unmake(self, qid: str, *, force: bool) -> None:
        if not force and (held := sum(self._sqs.counts(qid))):
            raise QueueNotEmptyError(f"queue {qid!r} holds about {held} messages at SQS")
        self._sqs.remove(qid)
        self._state.forget(qid)

    def queue(self, qid: str) -> SqsQueue:
        return SqsQueue(qid, self.options(qid), self._state)

    # -- messages

    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        """As Engine says, but in no promised order. held: makes no difference, SQS waits for the end of the window."""
        windows = self._windows(qids, visibility)
        if count <= 0:
            return []
        count = min(count, self._state.receipts.room())
        return self._hand_out(self._collect(windows, count, max_bytes), count, max_bytes)

    def receive_within(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float,
        stop: threading.Event,
    ) -> list[Message]:
        deadline = time.monotonic() + wait
        windows = self._windows(qids, visibility)
        # One queue is asked with the long poll itself, which finds what an immediate answer may miss.
        if len(windows) > 1 or wait <= 0 or count <= 0:
            found = self.receive(qids, count, visibility, max_bytes)
            if found or wait <= 0 or count <= 0:
                return found
        count = min(count, self._state.receipts.room())
        asked = min(count, MOST_ENTRIES)
        received = self._polls.wait(windows, asked, deadline, stop)
        if len(received) >= asked:
            received = self._collect(windows, count, max_bytes, received)
        return self._hand_out(received, count, max_bytes)

    def _windows(self, qids: Iterable[str], visibility: int | None) -> dict[str, int]:
        """Seconds for each queue."""
        windows = {}
        for qid in qids:
            micros = self.options(qid).visibility if visibility is None else visibility
            windows[qid] = seconds(micros, LONGEST_WINDOW, "a visibility window")
        return windows

    def _collect(
        self, windows: dict[str, int], count: int, max_bytes: int, first: Iterable[Received] = ()
    ) -> list[Received]:
        """What the queues have, ten by ten in turn, until none has any, or it is enough. first: was received before,
        and is part of it. When SQS fails on the way, what there is by then; RemoteError when that is nothing."""
        found = {(each.qid, each.message): each for each in first}
        room = max_bytes - sum(len(each.payload) for each in found.values())
        queues = list(windows)
        while queues and len(found) < count and room >= 0:
            qid = queues.pop(0)
            try:
                batch = self._sqs.receive(qid, windows[qid], count - len(found), 0)
            except StorageError:
                if not found:
                    raise
                break
            new = [each for each in batch if (each.qid, each.message) not in found]
            found |= {(each.qid, each.message): each for each in batch}
            room -= sum(len(each.payload) for each in new)
            if new and windows[qid]:  # without a window the same ones would come again
                queues.append(qid)
        return list(found.values())

    def _hand_out(self, received: list[Received], count: int, max_bytes: int) -> list[Message]:
        """The first of them, as many as are wanted and fit; the others are given back."""
        received.sort(key=lambda each: each.mid)
        fitting, room = 0, max_bytes
        for each in received[:count]:
            room -= len(each.payload)
            if room < 0 and fitting:
                break
            fitting += 1
        self._sqs.give_back(received[fitting:])
        messages = [self._handed_out(each) for each in received[:fitting]]
        messages.sort(key=lambda message: message.mid)
        return messages

    def _handed_out(self, received: Received) -> Message:
        qid = received.qid
        held = Held(received.message, received.handle, received.receives, received.until)
        mid = self._state.receipts.add(qid, received.mid, held)
        self._state.mids.saw(qid, mid)
        self._state.count(qid, delivered=1)
        return Message(qid, mid, "delivered", held.receives, received.pushed_at, held.until, received.payload)

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        self.options(qid)
        raise UnsupportedError(
            f"queue {qid!r} has the storage 'sqs', and SQS does not copy messages: push the payload to the other queues"
        )

    def close(self) -> None:
        self._connection.close()
        self._polls.close()
        self._connection.disconnect()
