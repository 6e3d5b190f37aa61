"""The `memcached` engine: every operation is a few round trips to memcached servers, which several qs servers may use.

It is as volatile as they are: what it holds is gone when they end, and some of it when they run out of memory and have
not been started with -M. It records no history: that is written by one thread, and here many are at work.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from heapq import merge
from typing import ClassVar

from ...disk import Disk
from ...engine import (
    SECOND,
    Clock,
    Feature,
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    OtherMessageError,
    QueueNotEmptyError,
    Receipt,
    UnsupportedError,
)
from ...lifecycle import Lifecycle
from ..engine import RemoteEngine, RemoteError
from .layout import Keys
from .queue import MemcachedQueue
from .receiving import Found
from .rows import Entry
from .servers import Servers
from .waiting import LOOK_EVERY, Changes

DEFAULT_SERVERS = (("127.0.0.1", 11211),)


class MemcachedEngine(RemoteEngine):
    """Queues in memcached. Many threads may call it at once."""

    name: ClassVar[str] = "memcached"
    cannot: ClassVar[frozenset[Feature]] = RemoteEngine.cannot | {Feature.DURABLE}

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        servers: Sequence[tuple[str, int]] = DEFAULT_SERVERS,
        disk: Disk | None = None,
        lifecycle: Lifecycle | None = None,
        namespace: str = "qs",
    ) -> None:
        """servers: host and port of each memcached; all that share queues name the same ones, in any order. lifecycle:
        is told nothing. namespace: what all keys begin with. RemoteError when the client library is not installed,
        UnsupportedError for a namespace that cannot be; nothing is connected yet."""
        self._servers = Servers(servers, namespace)
        self._namespace = namespace
        Keys(namespace, "q")
        self._queues: dict[str, MemcachedQueue] = {}
        self._opening = threading.Lock()
        self._changes = Changes()
        super().__init__(root, clock=clock, disk=disk, lifecycle=lifecycle)

    def describe(self) -> str:
        """A line for the log of a server that starts."""
        where = self._servers.describe()
        return f"memcached at {where}: volatile: messages are gone when it restarts or evicts them"

    # -- queues

    def queue(self, qid: str) -> MemcachedQueue:
        options = self.options(qid)
        queue = self._queues.get(qid)
        if queue is not None and queue.options is options:
            return queue
        with self._opening:  # one for all threads, as they wait for each other there
            queue = self._queues.get(qid)
            if queue is None or queue.options is not options:  # it has been removed and made again
                queue = self._queues[qid] = self._open(qid, options)
            return queue

    def _open(self, qid: str, options: Options) -> MemcachedQueue:
        keys, changed = Keys(self._namespace, qid), partial(self._changes.note, qid)
        return MemcachedQueue(qid, options, keys, self._servers, self._clock, changed)

    def _make(self, qid: str, options: Options) -> None:
        if options.timestamps != "us":
            raise UnsupportedError("the storage 'memcached' has no files: timestamps cannot be chosen")
        self._open(qid, options).make()

    def _unmake(self, qid: str, *, force: bool) -> None:
        if not self.queue(qid).unmake(force=force):
            raise QueueNotEmptyError(f"queue {qid!r} is not empty")
        self._queues.pop(qid, None)
        self._changes.note(qid)

    # -- messages

    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        """held: makes no difference. When this process is killed, the messages come back when their windows end."""
        queues = {qid: self.queue(qid) for qid in sorted(set(qids))}
        messages: list[Message] = []
        while count > 0 and not messages:
            taken = self._take(list(queues.values()), count, visibility, max_bytes)
            if not taken:
                break
            failed: RemoteError | None = None
            for queue, entries in taken:
                try:
                    messages += queue.deliver(entries)
                except RemoteError as error:
                    failed = error
            if failed is not None and not messages:
                raise failed
        return sorted(messages, key=lambda message: message.mid)

    @staticmethod
    def _take(
        queues: Sequence[MemcachedQueue], count: int, visibility: int | None, max_bytes: int
    ) -> list[tuple[MemcachedQueue, list[tuple[Entry, int]]]]:
        """Those that are oldest and visible, made invisible. Others may be faster with some of them: then it looks
        again, unless it has got any."""
        with ExitStack() as stack:
            for queue in queues:  # in the order of their names, so that no two threads wait for each other
                stack.enter_context(queue.pages.alone())
            while True:
                looks = [queue.visible(count, max_bytes) for queue in queues]
                chosen = _choose([found for _, found in looks], count, max_bytes)
                taken: list[tuple[MemcachedQueue, list[tuple[Entry, int]]]] = []
                for queue, (look, _), found in zip(queues, looks, chosen, strict=True):
                    try:
                        entries = [] if look is None else queue.take(look, found, visibility)
                    except RemoteError:
                        if taken:  # what was taken of others is to be delivered
                            return taken
                        raise
                    if entries:
                        taken.append((queue, entries))
                if taken or not any(chosen):
                    return taken

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
        until = time.monotonic() + wait
        while True:
            seen = self._changes.counts(qids)
            messages = self.receive(qids, count, visibility, max_bytes)
            if messages or count <= 0:
                if len(messages) == count:
                    for qid in set(qids):
                        self._changes.note(qid)  # there may be more for those whose look this one has been, too
                return messages
            while not self._changes.wait(qids, seen, self._pause(qids, until)):
                if stop.is_set() or time.monotonic() >= until:
                    return []
                if self._claim_look(qids):
                    break
            if stop.is_set():
                return []

    def _pause(self, qids: Sequence[str], until: float) -> float:
        """Seconds until there is something to do."""
        due = min(self.queue(qid).next_visible() for qid in qids)
        return max(min(until - time.monotonic(), LOOK_EVERY, (due - self._clock()) / SECOND), 0.0)

    def _claim_look(self, qids: Sequence[str]) -> bool:
        """Whether it is this thread's turn to look, and not that of another one which waits for the same."""
        now = time.monotonic()
        return any(self.queue(qid).claim_look(now) for qid in qids)

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        source = self.queue(qid)
        targets = {name: self.queue(name) for name in into if name != qid}
        message = source.read(Receipt(mid))
        done: list[MemcachedQueue] = []
        try:
            for target in targets.values():
                if target.insert(mid, message.payload or b""):
                    done.append(target)
                else:
                    self._check_same(target, message)
        except Exception:
            for target in done:
                _take_back(target, mid)
            raise

    @staticmethod
    def _check_same(target: MemcachedQueue, message: Message) -> None:
        try:
            other = target.read(Receipt(message.mid))
        except NoSuchMessageError:
            return  # it has been there
        if other.payload != message.payload:
            raise OtherMessageError(f"queue {target.qid!r} holds another message with the id {message.mid}")

    def close(self) -> None:
        """Lets go of the connections. The messages stay in memcached."""
        self._servers.close()


def _choose(found: Sequence[Sequence[Found]], count: int, max_bytes: int) -> list[list[Found]]:
    """Of visible messages by queue, the oldest: so many, and as many as fit, but for the first."""
    chosen: list[list[Found]] = [[] for _ in found]
    merged = merge(*([(each.mid, each.size, index, each) for each in part] for index, part in enumerate(found)))
    for nth, (_, size, index, each) in enumerate(merged):
        max_bytes -= size
        if nth >= count or (nth and max_bytes < 0):
            break
        chosen[index].append(each)
    return chosen


def _take_back(target: MemcachedQueue, mid: int) -> None:
    """A copy that was not to be alone. Somebody may have received it meanwhile, or memcached be gone."""
    try:
        target.delete(Receipt(mid))
    except (NoSuchMessageError, NoSuchQueueError, RemoteError):
        return
