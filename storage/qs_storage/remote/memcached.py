"""The `memcached` engine: queues in memcached servers, as volatile as they are, for several qs servers."""

import re
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from hashlib import blake2b
from heapq import merge
from typing import ClassVar

from ..engine import (
    SECOND,
    Clock,
    Feature,
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    Receipt,
    RemoteError,
    UnsupportedError,
)
from ..names import directory_of
from ..remote_engine import RootedEngine
from .memcached_layout import Entry, ItemKeys
from .memcached_queue import POLL_INTERVAL, MemcachedQueue, Visible
from .memcached_servers import MemcachedServers

DEFAULT_SERVERS = (("127.0.0.1", 11211),)
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_LONGEST_NAME = 120
"""Bytes of a queue's name in keys, which have 250 at most."""
_Taken = list[tuple[MemcachedQueue, list[tuple[Entry, int]]]]


class Notifier:
    """Counts this process's changes of each queue, and wakes the threads that wait for one. Thanks to the counts, a
    change between a look and the wait is noticed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._changes: dict[str, int] = {}

    def notify(self, qid: str) -> None:
        """Reports a change of a queue."""
        with self._condition:
            self._changes[qid] = self._changes.get(qid, 0) + 1
            self._condition.notify_all()

    def changes(self, qids: Sequence[str]) -> list[int]:
        """Returns the counts of changes, for `wait`."""
        with self._condition:
            return [self._changes.get(qid, 0) for qid in qids]

    def wait(self, qids: Sequence[str], seen: list[int], seconds: float) -> bool:
        """Waits for a change. seen: the counts from `changes`. Returns False if none came within so many seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: [self._changes.get(qid, 0) for qid in qids] != seen, seconds)


class MemcachedEngine(RootedEngine[MemcachedQueue]):
    """The engine over memcached servers. See RemoteEngine.

    Ensures, with any number of qs servers on the same memcached servers: a message is received by one of them at a
    time, oldest first over several queues. Assumes that all of them name the same servers and namespace.

    Promises nothing about a restart of memcached: messages are as volatile as its memory."""

    name: ClassVar[str] = "memcached"
    cannot: ClassVar[frozenset[Feature]] = frozenset(
        {
            Feature.DURABLE,
            Feature.HELD,
            Feature.GIVEN,
            Feature.CLAIM,
            Feature.MILLISECONDS,
            Feature.SET,
            Feature.PAUSE,
            Feature.DEAD,
            Feature.REDRIVE,
            Feature.RETENTION,
            Feature.REASON,
            Feature.BACKOFF,
            Feature.UNIQUE,
            Feature.PRIORITY,
            Feature.EXPIRES,
            Feature.GROUP,
            Feature.PACE,
            Feature.TELLS,
        }
    )

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        servers: Sequence[tuple[str, int]] = DEFAULT_SERVERS,
        namespace: str = "qs",
    ) -> None:
        """Connects to nothing yet. servers: the same for all qs servers that share queues, in any order; namespace: the
        beginning of all keys, 1 to 40 characters of A-Za-z0-9_.-. UnsupportedError for a wrong namespace."""
        if not _NAMESPACE.fullmatch(namespace):
            raise UnsupportedError(f"a namespace is 1 to 40 of A-Za-z0-9_.-; this is {namespace!r}")
        self._servers = MemcachedServers(servers, namespace)
        self._namespace = namespace
        self._clock = clock
        super().__init__(root)
        self._notifier = Notifier()

    def describe(self) -> str:
        where = self._servers.describe()
        return f"memcached at {where}: volatile: messages are gone when it restarts or evicts them"

    # -- queues

    def open_queue(self, qid: str, options: Options) -> MemcachedQueue:
        keys = ItemKeys(f"{self._namespace}:{_name_in_keys(qid)}")
        return MemcachedQueue(qid, options, keys, self._servers, self._clock, partial(self._notifier.notify, qid))

    def check_options(self, options: Options) -> None:
        if options.timestamps != "us":
            raise UnsupportedError("the storage 'memcached' has no files: timestamps cannot be chosen")
        super().check_options(options)

    def configure(self, qid: str, options: Options) -> None:
        raise UnsupportedError(f"the options of a queue of the storage {self.name!r} cannot be changed")

    def remove(self, qid: str, *, force: bool) -> None:
        super().remove(qid, force=force)
        self._notifier.notify(qid)

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
        held: bool = False,
        given: bool = False,
    ) -> list[Message]:
        until = time.monotonic() + wait
        while True:
            seen = self._notifier.changes(qids)
            messages = self._receive_visible(qids, count, visibility, max_bytes)
            if messages or count <= 0:
                if len(messages) == count:
                    for qid in set(qids):
                        self._notifier.notify(qid)  # there may be more, for those who wait for one look of all
                return messages
            while not self._notifier.wait(qids, seen, self._pause(qids, until)):
                if (stop is not None and stop.is_set()) or time.monotonic() >= until:
                    return []
                if any(self.queue(qid).start_poll() for qid in qids):
                    break
            if stop is not None and stop.is_set():
                return []

    def _pause(self, qids: Sequence[str], until: float) -> float:
        """Returns the seconds to wait before looking for messages again."""
        due = min(self.queue(qid).next_due() for qid in qids)
        return max(min(until - time.monotonic(), POLL_INTERVAL, (due - self._clock()) / SECOND), 0.0)

    def _receive_visible(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int
    ) -> list[Message]:
        queues = [self.queue(qid) for qid in sorted(set(qids))]
        messages: list[Message] = []
        while count > 0 and not messages:
            taken = self._take(queues, count, visibility, max_bytes)
            if not taken:
                break
            failed: RemoteError | None = None
            for queue, entries in taken:
                try:
                    messages += queue.deliver(entries)
                except RemoteError as error:
                    failed = error
            # Otherwise those of other queues are delivered; the next receive says it again.
            if failed is not None and not messages:
                raise failed
        return sorted(messages, key=lambda message: message.mid)

    @staticmethod
    def _take(queues: Sequence[MemcachedQueue], count: int, visibility: int | None, max_bytes: int) -> _Taken:
        """Hides the oldest visible messages and returns them. Looks again if other processes took all of them."""
        with ExitStack() as stack:
            for queue in queues:  # in the order of their names, so that no two threads wait for each other
                stack.enter_context(queue.pages.locked())
            while True:
                looks = [queue.look(count, max_bytes) for queue in queues]
                chosen = _choose([visible for _, visible in looks], count, max_bytes)
                taken: _Taken = []
                for queue, (snapshot, _), visible in zip(queues, looks, chosen, strict=True):
                    try:
                        entries = [] if snapshot is None else queue.take(snapshot, visible, visibility)
                    except RemoteError:
                        if taken:  # from other queues: it is delivered
                            return taken
                        raise
                    if entries:
                        taken.append((queue, entries))
                if taken or not any(chosen):
                    return taken

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        source = self.queue(qid)
        targets = {name: self.queue(name) for name in into if name != qid}
        message = source.read(Receipt(mid))
        done: list[MemcachedQueue] = []
        try:
            for target in targets.values():
                if target.insert(message):
                    done.append(target)  # noqa: PERF401 - they are what has to be taken back
        except Exception:
            for target in done:
                with suppress(NoSuchMessageError, NoSuchQueueError, RemoteError):  # it may be gone
                    target.delete(Receipt(mid))
            raise

    def close(self) -> None:
        self._servers.close()


def _name_in_keys(qid: str) -> str:
    """Returns a queue's name in keys, hashed if it is long. BadQueueNameError."""
    name = directory_of(qid)
    if len(name) > _LONGEST_NAME:  # "=" is in no directory's name
        name = "=" + blake2b(qid.encode(), digest_size=16).hexdigest()
    return name


def _choose(visible: Sequence[Sequence[Visible]], count: int, max_bytes: int) -> list[list[Visible]]:
    """Returns the oldest visible messages by queue: at most count, and as many as fit, but at least one."""
    chosen: list[list[Visible]] = [[] for _ in visible]
    merged = merge(*([(each.mid, each.size, index, each) for each in part] for index, part in enumerate(visible)))
    for nth, (_, size, index, each) in enumerate(merged):
        max_bytes -= size
        if nth >= count or (nth and max_bytes < 0):
            break
        chosen[index].append(each)
    return chosen
