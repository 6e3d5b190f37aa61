"""An engine in memory that gathers requests, for the tests of the server: its sweeps come when a test asks for them."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from qs_storage.engine import (
    Draft,
    Feature,
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    Stats,
    StorageError,
)
from qs_storage.remote_engine import Delete, Extend, Operation, Push, Receive, Reject, Release, RemoteQueue, end_all

FAR = 1 << 62
"""The end of each window: microseconds."""


@dataclass
class Kept:
    """A message in memory."""

    draft: Draft
    receives: int = 0
    hidden: bool = False
    held: bool = False


class MemoryQueue(RemoteQueue):
    """A queue of `GatheringInMemory`."""

    last_mid = -1
    redrive = None

    def __init__(self, qid: str, options: Options, engine: "GatheringInMemory") -> None:
        super().__init__(qid, options)
        self.engine = engine
        self.kept: dict[int, Kept] = {}

    def stats(self) -> Stats:
        return Stats(ready=sum(not each.hidden for each in self.kept.values()), storage=self.options.storage)

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        with self.engine.lock:
            return self.engine.release(Release(self.qid, receipt, delay, counts=count, reason=reason))


class GatheringInMemory:
    """Keeps messages in memory. Without `auto`, nothing is done until `sweep` is called; with it, a thread sweeps."""

    name: ClassVar[str] = "gathering"
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.TELLS, Feature.COPY})

    def __init__(self, *qids: str, auto: bool = False) -> None:
        self.lock = threading.RLock()
        self.opened: dict[str, MemoryQueue] = {}
        self.submitted: list[list[Operation[Any]]] = []
        """The operations of each call of `submit`."""
        self.known = self.answering = True
        self.refuses: Callable[[Operation[Any]], StorageError | None] = lambda operation: None
        self.late = False
        """True to give messages to receives that are stopped, as if they had come just before."""
        self._mid = 0
        self._pending: list[Operation[Any]] = []
        self._more = threading.Event()
        self.idle = threading.Event()  # never set: for tests that wait a moment in a thread
        self._ends = False
        for qid in qids:
            self.create(qid, Options(storage=self.name))
        self._thread = threading.Thread(target=self._serve, daemon=True) if auto else None
        if self._thread is not None:
            self._thread.start()

    # -- queues

    def describe(self) -> str:
        return ""

    def figures(self) -> Mapping[str, float]:
        return {}

    def queues(self) -> Collection[str]:
        return self.opened.keys()

    def answers(self) -> bool:
        return self.answering

    def knows(self, qid: str) -> bool:
        return self.known

    def queue(self, qid: str) -> MemoryQueue:
        if qid not in self.opened:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        return self.opened[qid]

    def create(self, qid: str, options: Options) -> None:
        if qid in self.opened:
            raise QueueExistsError(f"'{qid}' is already an existing queue")
        options.storage = self.name
        self.opened = {**self.opened, qid: MemoryQueue(qid, options, self)}

    def options(self, qid: str) -> Options:
        return self.queue(qid).options

    def configure(self, qid: str, options: Options) -> None:
        self.queue(qid).options = options

    def remove(self, qid: str, *, force: bool) -> None:
        self.queue(qid)
        self.opened = {other: queue for other, queue in self.opened.items() if other != qid}

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._ends = True
        self._more.set()
        if self._thread is not None:
            self._thread.join()

    # -- operations

    def submit(self, operations: Sequence[Operation[Any]]) -> None:
        with self.lock:
            self.submitted.append(list(operations))
            self._pending += operations
        self._more.set()

    def stop(self, operation: Operation[Any]) -> None:
        with self.lock:
            if operation not in self._pending or self.late:
                return
            self._pending.remove(operation)
        operation.succeed([])
        end_all([operation])

    def receive(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float = 0,
        stop: threading.Event | None = None,
        held: bool = False,
        given: bool = False,
    ) -> list[Message]:
        until = time.monotonic() + wait
        receive = Receive(qids, count, visibility, max_bytes, held=held, given=given)
        while True:
            with self.lock:
                found = self._receive(receive)
            if found or time.monotonic() >= until or (stop is not None and stop.wait(0.01)):
                return found

    def sweep(self) -> None:
        """Does all operations that were submitted, and ends them together. Receives that wait stay."""
        with self.lock:
            pending = sorted(self._pending, key=lambda operation: isinstance(operation, Receive))
            self._pending = []
            now = time.monotonic()
            ended = []
            for operation in pending:
                try:
                    if (error := self.refuses(operation)) is not None:
                        raise error
                    result = _DO[type(operation)](self, operation)
                except StorageError as error:
                    operation.fail(error)
                else:
                    if isinstance(operation, Receive) and not result and not operation.stopped:
                        operation.deadline = operation.deadline or now + operation.wait_seconds
                        if now < operation.deadline:
                            self._pending.append(operation)
                            continue
                    operation.succeed(result)
                ended.append(operation)
        end_all(ended)

    def _serve(self) -> None:
        while not self._ends:
            self._more.wait(1)
            self._more.clear()
            self.sweep()

    def _push(self, push: Push) -> list[int]:
        queue = self.queue(push.qid)
        capacity = queue.options.capacity
        if capacity is not None and len(queue.kept) + len(push.drafts) > capacity:
            raise QueueFullError("the queue is full")
        mids = []
        for draft in push.drafts:
            self._mid += 1
            queue.kept[self._mid] = Kept(draft)
            mids.append(self._mid)
        return mids

    def _receive(self, receive: Receive) -> list[Message]:
        found: list[Message] = []
        if receive.stopped and not self.late:
            return found
        kept = [(mid, qid, each) for qid in receive.qids for mid, each in self.queue(qid).kept.items()]
        for mid, qid, each in kept if receive.given else sorted(kept, key=lambda entry: entry[0]):
            if len(found) == receive.count:
                break
            if not each.hidden:
                each.hidden, each.held = True, receive.held
                each.receives += 1
                payload, headers = each.draft.payload, each.draft.headers
                found.append(Message(qid, mid, "delivered", each.receives, mid, FAR, payload, headers=headers))
        return found

    def _held_by(self, qid: str, receipt: Receipt) -> Kept:
        each = self.queue(qid).kept.get(receipt.mid)
        if each is None:
            raise NoSuchMessageError(f"there is no message {receipt.mid} in queue {qid!r}")
        if receipt.receives is not None and receipt.receives != each.receives:
            raise StaleReceiptError(f"message {receipt.mid} was received again")
        return each

    def _delete(self, delete: Delete) -> list[StorageError | None]:
        results: list[StorageError | None] = []
        self.queue(delete.qid)
        for receipt in delete.receipts:
            try:
                self._held_by(delete.qid, receipt)
                del self.queue(delete.qid).kept[receipt.mid]
                results.append(None)
            except StorageError as error:
                results.append(error)
        return results

    def release(self, release: Release) -> int | None:
        self._held_by(release.qid, release.receipt).hidden = False
        return None

    def _reject(self, reject: Reject) -> None:
        self._held_by(reject.qid, reject.receipt)
        del self.queue(reject.qid).kept[reject.receipt.mid]

    def _extend(self, extend: Extend) -> int:
        self._held_by(extend.qid, extend.receipt)
        return extend.visibility or 1


_DO: dict[type[Operation[Any]], Callable[[GatheringInMemory, Any], Any]] = {
    Push: GatheringInMemory._push,
    Receive: GatheringInMemory._receive,
    Delete: GatheringInMemory._delete,
    Release: GatheringInMemory.release,
    Reject: GatheringInMemory._reject,
    Extend: GatheringInMemory._extend,
}
