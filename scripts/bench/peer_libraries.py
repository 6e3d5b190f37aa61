"""Queues without a server: the processes of a program share a directory or a file."""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import QUEUE, Peer, Running, Target


class _Client:
    """A client with one message a call, because these libraries have no batches."""

    async def push(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.put(payload)

    async def receive(self, count: int) -> list[Any]:
        found = self.take()
        return [] if found is None else [found]

    async def delete(self, received: Sequence[Any]) -> None:
        for one in received:
            self.done(one)

    def put(self, payload: bytes) -> None:
        raise NotImplementedError

    def take(self) -> Any:
        raise NotImplementedError

    def done(self, one: Any) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Does nothing: most libraries have nothing to close."""


class VsqsClient(_Client):
    """A client of vsqs: messages are directories under one that all clients share."""

    def __init__(self, target: Target) -> None:
        from vsqs.queue import QueueManager  # noqa: PLC0415

        self._manager = QueueManager(target["folder"])
        self._queue = self._manager.get_queue(QUEUE)

    def put(self, payload: bytes) -> None:
        self._queue.publish(payload)

    def take(self) -> str | None:
        mid, _ = self._queue.receive(visibility_timeout=60, timeout=1)
        return mid

    def done(self, one: str) -> None:
        self._queue.delete(one)

    async def close(self) -> None:
        self._manager.close()


class DirqClient(_Client):
    """A client that reads the names of the directory once and goes through them, then reads them again."""

    def __init__(self, target: Target) -> None:
        from dirq.QueueSimple import QueueSimple  # noqa: PLC0415

        self._queue = QueueSimple(target["folder"])

    def put(self, payload: bytes) -> None:
        self._queue.add(payload)

    def take(self) -> str | None:
        for again in range(3):
            name = self._queue.next() if again == 0 else self._queue.first()
            while name:
                if self._queue.lock(name):
                    self._queue.get(name)
                    return str(name)
                name = self._queue.next()
        return None

    def done(self, one: str) -> None:
        self._queue.remove(one)


class PersistQueueClient(_Client):
    """A client of SQLiteAckQueue. Two processes would get the same message, so threads share one object."""

    def __init__(self, queue: Any) -> None:
        from persistqueue.exceptions import Empty  # noqa: PLC0415

        self._queue = queue
        self._empty = Empty

    def put(self, payload: bytes) -> None:
        self._queue.put(payload)

    def take(self) -> int | None:
        try:
            found: int = self._queue.get(timeout=1, raw=True)["pqid"]
        except self._empty:
            return None
        return found

    def done(self, one: int) -> None:
        self._queue.ack(id=one)


class LiteQueueClient(_Client):
    """A client of litequeue: messages are rows of an SQLite file that all clients share."""

    def __init__(self, target: Target) -> None:
        from litequeue import LiteQueue  # noqa: PLC0415

        self._queue = LiteQueue(f"{target['folder']}/queue.db", timeout=30)

    def put(self, payload: bytes) -> None:
        self._queue.put(payload.decode())

    def take(self) -> str | None:
        found = self._queue.pop()
        return None if found is None else found.message_id

    def done(self, one: str) -> None:
        self._queue.done(one)


_shared: dict[str, Any] = {}


async def connect(target: Target) -> _Client:
    """Connects with the client of a library, by the library's key."""
    if target["library"] == "persist-queue":
        if not _shared:
            from persistqueue import SQLiteAckQueue  # noqa: PLC0415

            _shared["queue"] = SQLiteAckQueue(target["folder"], multithreading=True)
        return PersistQueueClient(_shared["queue"])
    made: type[Any] = {"vsqs": VsqsClient, "dirq": DirqClient, "litequeue": LiteQueueClient}[target["library"]]
    client: _Client = made(target)
    return client


@dataclass(frozen=True)
class Library(Peer):
    """A library: there is no server to start, and the folder is the target. settings: the module that must be
    installed."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        if self.key == "litequeue":
            LiteQueueClient({"folder": str(folder)})  # the table is there before many want to make it
        yield Running({"module": "peer_libraries", "folder": str(folder), "library": self.key})


def _library(key: str, module: str, durability: Any, survives: str, **more: Any) -> Peer:
    missing = "" if importlib.util.find_spec(module) else f"pip install {key}"
    fields: dict[str, Any] = {"batches": False, "library": True, "missing": missing, "versions": (key,), **more}
    return Library(key, key, durability, survives, key, **fields)


def peers() -> list[Peer]:
    """Returns the peers with their default options."""
    return [
        _library("vsqs", "vsqs", "none", "what was answered, but for names that are not synced", many_files=True),
        _library("dirq", "dirq", "none", "what the kernel has written", many_files=True),
        _library("persist-queue", "persistqueue", "always", "what was answered (SQLite, WAL, synced)", threads=True),
        _library("litequeue", "litequeue", "none", "what the kernel has written (SQLite, WAL, synchronous NORMAL)"),
    ]
