"""The `sqs` engine. What its queues mean for ids, order and windows, and what they cannot do, is in docs/sqs.md."""

import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from ...disk import Disk
from ...engine import Clock, Feature, Message, Options, QueueNotEmptyError, StorageError, UnsupportedError
from ..registry import QueueRegistry
from .api import SqsApi, window_in_seconds
from .call_policy import CallPolicy
from .client import SqsClient
from .long_polls import LongPolls
from .messages import MOST_ENTRIES, Received
from .names import check_prefix
from .queue import SqsQueue
from .receipts import Held, Receipts


class SqsEngine:
    """Queues at an SQS endpoint; see RemoteEngine."""

    name: ClassVar[str] = "sqs"
    cannot: ClassVar[frozenset[Feature]] = frozenset(Feature) - {Feature.KEEP, Feature.DURABLE, Feature.SHARED}

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        endpoint: str | None = None,
        region: str | None = None,
        disk: Disk | None = None,
        prefix: str = "",
        policy: CallPolicy | None = None,
    ) -> None:
        """Asks SQS nothing before the first call. clock: has to go with the time, as SQS's does. endpoint: a URL, None
        for Amazon's; region: None for that of the environment. prefix: of all names at SQS. StorageError."""
        check_prefix(prefix)
        policy = policy or CallPolicy()
        self._client = SqsClient(endpoint, region, policy)
        self._registry = QueueRegistry(root, self.name, disk)
        self._clock = clock
        self._api = SqsApi(self._client, prefix, clock, policy)
        self._receipts = Receipts(clock)
        self._polls = LongPolls(self._api.receive, self._api.give_back, policy)
        self._queues: dict[str, SqsQueue] = {}
        self._opening = threading.Lock()

    def describe(self) -> str:
        return ""

    # -- queues

    def queues(self) -> Collection[str]:
        return self._registry.queues()

    def queue(self, qid: str) -> SqsQueue:
        options = self._registry.options(qid)
        with self._opening:
            queue = self._queues.get(qid)
            if queue is None or queue.options is not options:  # it has been removed and made again
                given = -1 if queue is None else queue.given
                queue = SqsQueue(qid, options, self._api, self._receipts, self._clock, given)
                self._queues[qid] = queue
            return queue

    def create(self, qid: str, options: Options) -> None:
        def make(options: Options) -> None:
            if options.capacity is not None:
                raise UnsupportedError("the storage 'sqs' has no capacity: SQS takes messages without a bound")
            if options.timestamps != "us":
                raise UnsupportedError("the storage 'sqs' has ids in microseconds only (timestamps)")
            self._api.make(qid, window_in_seconds(options.visibility))

        self._registry.create(qid, options, make)

    def remove(self, qid: str, *, force: bool) -> None:
        def unmake() -> None:
            if not force and (held := sum(self._api.counts(qid))):
                raise QueueNotEmptyError(f"queue {qid!r} holds about {held} messages at SQS")
            self._api.remove(qid)
            self._receipts.forget(qid)

        self._registry.remove(qid, unmake)

    # -- messages

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
        """Receives messages in no promised order; they are returned by id."""
        deadline = time.monotonic() + wait
        queues = {qid: self.queue(qid) for qid in qids}
        windows = {qid: queue.window(visibility) for qid, queue in queues.items()}
        if count <= 0:
            return []
        count = min(count, self._receipts.room())
        # One queue is asked with the long poll itself, which finds what an immediate answer may miss.
        received = self._collect(windows, count, max_bytes) if len(windows) > 1 or wait <= 0 else []
        if not received and wait > 0:
            asked = min(count, MOST_ENTRIES)
            received = self._polls.wait(windows, asked, deadline, stop)
            if len(received) >= asked:
                received = self._collect(windows, count, max_bytes, received)
        wanted = self._first(received, count, max_bytes)
        return sorted((self._hand_out(queues[each.qid], each) for each in wanted), key=lambda message: message.mid)

    def _collect(
        self, windows: dict[str, int], count: int, max_bytes: int, first: Iterable[Received] = ()
    ) -> list[Received]:
        """Receives ten by ten from each queue in turn, until none has any, or it is enough. first: was received before,
        and is part of it. When SQS fails on the way, returns what there is by then; RemoteError if nothing."""
        found = {(each.qid, each.message): each for each in first}
        room = max_bytes - sum(len(each.payload) for each in found.values())
        queues = list(windows)
        while queues and len(found) < count and room >= 0:
            qid = queues.pop(0)
            try:
                batch = self._api.receive(qid, windows[qid], count - len(found), 0)
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

    def _first(self, received: list[Received], count: int, max_bytes: int) -> list[Received]:
        """Returns the first messages, as many as are wanted and fit. The others are given back."""
        received.sort(key=lambda each: each.mid)
        fitting, room = 0, max_bytes
        for each in received[:count]:
            room -= len(each.payload)
            if room < 0 and fitting:
                break
            fitting += 1
        self._api.give_back(received[fitting:])
        return received[:fitting]

    def _hand_out(self, queue: SqsQueue, received: Received) -> Message:
        held = Held(received.message, received.handle, received.receives, received.until)
        mid = self._receipts.add(queue.qid, received.mid, held)
        queue.note_seen(mid)
        queue.counters.add("delivered")
        return Message(queue.qid, mid, "delivered", held.receives, received.pushed_at, held.until, received.payload)

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        self._registry.options(qid)
        raise UnsupportedError(
            f"queue {qid!r} has the storage 'sqs', and SQS does not copy messages: push the payload to the other queues"
        )

    def close(self) -> None:
        self._client.close()
        self._polls.close()
        self._client.disconnect()
