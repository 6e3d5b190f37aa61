"""The `sqs` engine. What its queues mean for ids, order and windows, and what they cannot do, is in docs/sqs.md."""

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from ...dead_letter_policy import check_dead_letter
from ...disk import Disk
from ...engine import (
    Clock,
    Feature,
    Message,
    NoSuchQueueError,
    Options,
    Origin,
    QueueExistsError,
    StorageError,
    UnsupportedError,
)
from ...settings import storage_in
from ..registry import QueueRegistry
from .client import CallPolicy, SqsClient
from .kept_options import ARN, NAMES, changed, check_options, read, source_of, without
from .long_polls import LongPolls
from .messages import MOST_ENTRIES, Received
from .queue_calls import QueueCalls, check_prefix
from .receipts import Held, Receipts
from .sqs_queue import SqsQueue


class SqsEngine:
    """See RemoteEngine."""

    name: ClassVar[str] = "sqs"
    cannot: ClassVar[frozenset[Feature]] = frozenset(Feature) - {
        Feature.KEEP,
        Feature.DURABLE,
        Feature.SHARED,
        Feature.SET,
        Feature.DEAD,
        Feature.RETENTION,
    }

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
        """Asks SQS nothing yet. clock: runs with SQS's; endpoint: None for Amazon's; region: None for the
        environment's; prefix: of all names at SQS. StorageError."""
        check_prefix(prefix)
        policy = policy or CallPolicy()
        self._root = root
        self._prefix = prefix
        self._client = SqsClient(endpoint, region, policy)
        self._registry = QueueRegistry(root, self.name, disk, self._open)
        self.queues, self.queue = self._registry.queues, self._registry.queue
        self._clock = clock
        self._receipts = Receipts(clock)
        self._polls = LongPolls(
            lambda qid, *asked: self.queue(qid).receive(*asked), self._give_back, self._client.policy
        )
        self._given: dict[str, int] = {}
        """The greatest ids of queues that were removed."""

    def describe(self) -> str:
        return ""

    def _open(self, qid: str, options: Options) -> SqsQueue:
        calls = QueueCalls(self._client, qid, self._prefix)
        given = self._given.get(qid, -1)
        return SqsQueue(qid, options, calls, self._receipts, self._clock, given, self._polls.note_visible)

    def create(self, qid: str, options: Options) -> None:
        options = replace(options, storage=self.name)
        check_options(options)
        asked = {} if qid in self.queues() else self._to_change(qid, without(options), options)
        self._registry.create(qid, without(options), lambda queue: queue.make(asked))

    def options(self, qid: str) -> Options:
        """Asks SQS: other programs may have changed them. RemoteError."""
        queue = self.queue(qid)
        try:
            return read(queue.options, queue.calls.attributes(NAMES), self._prefix)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise queue.calls.not_sqs(error) from None

    def configure(self, qid: str, options: Options) -> None:
        check_options(options)
        queue = self.queue(qid)
        queue.set_attributes(self._to_change(qid, self.options(qid), options))
        self._registry.configure(qid, without(options))

    def _to_change(self, qid: str, old: Options, new: Options) -> dict[str, str]:
        """Returns the attributes to change. Makes a missing dead-letter queue. UnsupportedError,
        DeadLetterCycleError."""
        if not new.dead_letter or (new.dead_letter, new.max_receives) == (old.dead_letter, old.max_receives):
            return changed(old, new, "")
        storage = storage_in(self._root, new.dead_letter, "of the server's own")
        check_dead_letter(qid, new, self._chain(new.dead_letter), storage)
        if storage is None:
            with contextlib.suppress(QueueExistsError):
                self.create(new.dead_letter, Options())
        return changed(old, new, self.queue(new.dead_letter).calls.attributes([ARN])[ARN])

    def _chain(self, qid: str) -> dict[str, Options]:
        """Returns a queue and the dead-letter queues after it, with their options."""
        chain: dict[str, Options] = {}
        while qid in self.queues() and qid not in chain:
            chain[qid] = self.options(qid)
            qid = chain[qid].dead_letter
        return chain

    def remove(self, qid: str, *, force: bool) -> None:
        self._given[qid] = self._registry.remove(qid, force=force).given

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
        """Receives in no promised order; returns by id."""
        deadline = time.monotonic() + wait
        windows = {queue: queue.window(visibility) for queue in map(self.queue, dict.fromkeys(qids))}
        if count <= 0:
            return []
        count = min(count, self._receipts.room())
        # One queue is asked with the long poll itself, which finds what an immediate answer may miss.
        received = _collect(windows, count, max_bytes) if len(windows) > 1 or wait <= 0 else []
        if not received and wait > 0:
            asked = min(count, MOST_ENTRIES)
            received = self._polls.wait({queue.qid: windows[queue] for queue in windows}, asked, deadline, stop)
            if len(received) >= asked:
                received = _collect(windows, count, max_bytes, received)
        by_name = {queue.qid: queue for queue in windows}
        wanted = self._first(received, count, max_bytes)
        return sorted((self._hand_out(by_name[each.qid], each) for each in wanted), key=lambda message: message.mid)

    def _first(self, received: list[Received], count: int, max_bytes: int) -> list[Received]:
        """Returns the first messages that fit. Gives the others back."""
        received.sort(key=lambda each: each.mid)
        fitting, room = 0, max_bytes
        for each in received[:count]:
            room -= len(each.payload)
            if room < 0 and fitting:
                break
            fitting += 1
        self._give_back(received[fitting:])
        return received[:fitting]

    def _give_back(self, received: Sequence[Received]) -> None:
        for qid in dict.fromkeys(each.qid for each in received):
            with contextlib.suppress(NoSuchQueueError):
                self.queue(qid).give_back([each for each in received if each.qid == qid])

    def _hand_out(self, queue: SqsQueue, received: Received) -> Message:
        held = Held(received.message, received.handle, received.receives, received.until)
        mid = self._receipts.add(queue.qid, received.mid, held)
        queue.note_received(mid)
        message = Message(queue.qid, mid, "delivered", held.receives, received.pushed_at, held.until, received.payload)
        source = source_of(received.source, self._prefix)
        if source is not None:
            message.origin = Origin(source, received.mid, 0, 0, "receives", received.pushed_at)
        return message

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        self.queue(qid)
        raise UnsupportedError(
            f"queue {qid!r} has the storage 'sqs', and SQS does not copy messages: push the payload to the other queues"
        )

    def close(self) -> None:
        self._client.close()
        self._polls.close()
        self._client.disconnect()


def _collect(
    windows: dict[SqsQueue, int], count: int, max_bytes: int, first: Iterable[Received] = ()
) -> list[Received]:
    """Receives ten by ten from each queue in turn. first: was received before, and counts. When SQS fails on the
    way, returns what there is; RemoteError if nothing."""
    found = {(each.qid, each.message): each for each in first}
    room = max_bytes - sum(len(each.payload) for each in found.values())
    turns = list(windows)
    while turns and len(found) < count and room >= 0:
        queue = turns.pop(0)
        try:
            batch = queue.receive(windows[queue], count - len(found), 0)
        except StorageError:
            if not found:
                raise
            break
        new = [each for each in batch if (each.qid, each.message) not in found]
        found |= {(each.qid, each.message): each for each in batch}
        room -= sum(len(each.payload) for each in new)
        if new and windows[queue]:  # without a window the same ones would come again
            turns.append(queue)
    return list(found.values())
