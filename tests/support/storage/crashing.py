"""A journal engine for tests of faults: its disk refuses what a test says, and it crashes and starts again.

An engine's memory of its log can be compared: before a batch and after the batch was taken back, or before the end of a
process and after the next start.
"""

import errno
import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from qs_storage.engine import SECOND, Draft, Durability, Message, Options, State, UnfinishedError
from qs_storage.journal.log import pool
from qs_storage.journal.log.log import Transaction
from qs_storage.journal.queues.queue import LogQueue
from qs_storage.journal.queues.store import PayloadStore
from qs_storage.journal.upkeep.compaction import Compaction
from support.storage.engines import LOTS, FaultyDisk, JournalEngine, ManualClock, compact

HOUR = 3600 * SECOND


def segments_of(monkeypatch: pytest.MonkeyPatch, first: int, largest: int) -> None:
    """Makes segments of these sizes, except where a frame needs more."""
    for name, size in (("FIRST_SEGMENT", first), ("LARGEST_SEGMENT", largest), ("SMALLEST", 4096), ("SMALL_LOG", 0)):
        monkeypatch.setattr(pool, name, size)


class PickyDisk(FaultyDisk):
    """A disk that refuses operations on certain files. `create` is the opening of a file that may have to be made."""

    def __init__(self) -> None:
        super().__init__()
        self._refusals: list[tuple[str, str, int]] = []
        self._left: list[float] = []
        self._hooks: list[tuple[str, str, Callable[[], None]]] = []

    def refuse(self, operation: str, pattern: str, error: int = errno.ENOSPC, *, times: float = float("inf")) -> None:
        """pattern: of paths, in the form of a shell; for a rename it is compared with the new path."""
        self._refusals.append((operation, pattern, error))
        self._left.append(times)

    def before(self, operation: str, pattern: str, action: Callable[[], None]) -> None:
        """Calls the action before the next operation of that kind on such a file, once."""
        self._hooks.append((operation, pattern, action))

    @property
    def waiting(self) -> bool:
        """Tells whether there are actions that have not been called yet."""
        return bool(self._hooks)

    def disarm(self) -> None:
        super().disarm()
        self._refusals.clear()
        self._left.clear()
        self._hooks.clear()

    def _look(self, operation: str, path: str) -> None:
        for hook in [each for each in self._hooks if each[0] == operation and fnmatchcase(path, each[1])]:
            self._hooks.remove(hook)
            hook[2]()
        for number, (refused, pattern, error) in enumerate(self._refusals):
            if refused == operation and self._left[number] > 0 and fnmatchcase(path, pattern):
                self._left[number] -= 1
                raise OSError(error, os.strerror(error), path)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        self._look("create" if flags & os.O_CREAT else "open", path)
        return super().open(path, flags, mode)

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        self._look("rename", new)
        super().rename(old, new)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._look("unlink", path)
        super().unlink(path)

    def setxattr(self, path: str, name: str, value: bytes, **named: Any) -> None:  # type: ignore[override]
        self._look("setxattr", path)
        super().setxattr(path, name, value, **named)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._look("fsync", _path(fd))

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._look("fdatasync", _path(fd))

    def _syncfs(self, fd: int) -> None:
        self._look("_syncfs", _path(fd))

    def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        self._look("_write", _path(fd))
        return super()._write(fd, data)

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        self._look("_pwrite", _path(fd))
        return super()._pwrite(fd, data, offset)


def _path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


class Place:
    """A root directory and its engine. The clock moves on by 1 with each push, and otherwise only by hand."""

    def __init__(self, root: Path, durability: Durability = Durability.ALWAYS) -> None:
        """root: a directory, which is made."""
        root.mkdir()
        self.root = root
        self.disk = PickyDisk()
        self.clock = ManualClock()
        self.durability = durability
        self.start()

    def start(self) -> None:
        """Starts the engine on a sound disk."""
        self.disk.disarm()
        self.engine = JournalEngine(
            str(self.root), clock=self.clock, durability=self.durability, disk=self.disk, cache=0
        )

    def leave(self) -> None:
        """Ends the process without a stop: its descriptors are closed, and nothing is written."""
        self.disk.crash()
        self.engine._watch.close()

    def crash(self) -> None:
        """Ends the process without a stop, and starts another one."""
        self.leave()
        self.start()

    def restart(self) -> None:
        """Stops the engine cleanly, and starts it again."""
        self.engine.close()
        self.start()

    def restart_unfinished(self) -> None:
        """Stops the engine, which says that it leaves messages in the journal, and starts it again."""
        with pytest.raises(UnfinishedError, match="stay in the journal, for the next start"):
            self.engine.close()
        self.start()

    # -- asking ---------------------------------------------------------------------------------------------------

    def queue(self, *qids: str) -> None:
        """Makes new queues, with windows of an hour."""
        for qid in qids:
            self.engine.create(qid, Options(visibility=HOUR))
        self.engine.commit()

    def ask_push(self, qid: str, *payloads: bytes, delay: int = 0) -> list[int]:
        """Pushes messages, and leaves the batch open."""
        self.clock.now += 1
        return self.engine.queue(qid).push([Draft(payload, delay) for payload in payloads])

    def push(self, qid: str, *payloads: bytes, delay: int = 0) -> list[int]:
        """Pushes messages in a batch of their own."""
        mids = self.ask_push(qid, *payloads, delay=delay)
        self.engine.commit()
        return mids

    def receive(self, qid: str, count: int = 1, window: int | None = None) -> list[Message]:
        """Receives in a batch of its own."""
        found = self.engine.receive([qid], count, window, LOTS)
        self.engine.commit()
        return found

    def upkeep(self) -> bool:
        """Does a piece of upkeep, and commits. Tells whether there was any."""
        due = self.engine.effects().next_upkeep
        if due is None or due > self.clock.now:
            return False
        work = self.engine.begin_upkeep()
        try:
            self.engine.commit()
        finally:
            if work is not None:
                work.run()
                self.engine.finish_upkeep(work)
        return True

    def upkeep_all(self) -> None:
        """Runs upkeep until nothing is left to be done."""
        for _ in range(1000):
            if not self.upkeep():
                return
        pytest.fail("it never ends")

    # -- looking --------------------------------------------------------------------------------------------------

    def mids(self, qid: str) -> list[int]:
        return self.engine.queue(qid).list_mids(State.ALL, 10**6, -1)

    def payloads(self, qid: str) -> list[bytes | None]:
        """Returns the payloads of the queue's messages in order; None for one that is not ready."""
        found = (self.engine.queue(qid).get(mid, peek=True, visibility=None) for mid in self.mids(qid))
        return [message.payload for message in found]

    def segments(self) -> list[str]:
        """Returns the segments of the journal that are on disk, sorted."""
        return sorted(name for name in os.listdir(self.root / ".journal") if name.endswith(".segment"))

    @property
    def idles(self) -> bool:
        """Tells whether the engine says that there is no upkeep to do now."""
        due = self.engine.effects().next_upkeep
        return due is None or due > self.clock.now


def places(root: Path) -> Iterator[Place]:
    """Yields, for a fixture, a place, and leaves it as a crash does at the end."""
    place = Place(root / "root")
    yield place
    place.leave()


class LogSession:
    """An engine over a root that can end like a killed process, with access to its log."""

    def __init__(self, root: Path, durability: Durability = Durability.ALWAYS) -> None:
        self.root = root
        self.durability = durability
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        self.disk = FaultyDisk()
        self.engine = JournalEngine(
            str(self.root), clock=self.clock, durability=self.durability, disk=self.disk, cache=0
        )

    def kill(self) -> None:
        """Ends the process without a stop. Starts anew from the segments and the checkpoint, if there is one."""
        self.leave()
        self.start()

    def restart(self) -> None:
        """Ends cleanly, with a checkpoint, and starts anew from the checkpoint."""
        self.engine.close()
        self.start()

    def leave(self) -> None:
        self.disk.crash()
        self.engine._watch.close()

    def create(self, qid: str, **options: Any) -> LogQueue:
        self.engine.create(qid, Options("journal", **options))
        self.engine.commit()
        return self.queue(qid)

    def queue(self, qid: str) -> LogQueue:
        return self.engine._journal.queues[qid]

    @property
    def store(self) -> PayloadStore:
        store = self.engine._journal.store
        assert store is not None
        return store

    @property
    def transaction(self) -> Transaction:
        return self.store.transaction

    @property
    def compaction(self) -> Compaction:
        maintenance = self.engine._journal.maintenance
        assert maintenance is not None
        return maintenance.compaction

    def compact(self, upto: int | None = None) -> None:
        """Compacts all segments up to this one, None for all but the last."""
        compact(self.engine, upto)

    def memory(self) -> dict[str, Any]:
        """Returns everything in memory about the messages, their payloads, and the live bytes of each segment."""
        usage = self.store.usage
        queues = {qid: _memory_of(queue) for qid, queue in self.engine._journal.queues.items()}
        return {**queues, "live": {segment: usage.live[segment] for segment in usage.segments()}, "all": usage.total}


def _memory_of(queue: LogQueue) -> dict[str, Any]:
    index = queue.index
    mids = index.messages.after(-1, 1 << 20)
    return {
        "messages": {
            mid: {
                "payload": queue.payload_of(mid),
                "place": queue.places.get(mid),
                "state": (queue.receives.get(mid, 0), index.expiry(mid), index.is_delayed(mid)),
                "sets": (mid in index.ready, mid in index.new, mid in queue.held),
                "past": (queue.reasons.get(mid), queue.origins.get(mid)),
            }
            for mid in mids
        },
        "bytes": index.bytes,
        "pasts": (sorted(queue.reasons), sorted(queue.origins), sorted(mid for mid in queue.receives)),
        "keys": {key: entry[1:] for key, entry in queue.keys.entries.items()},
        "claims": {
            consumer: (state.acked, {seq: sorted(claim.remaining()) for seq, claim in state.claims.items()})
            for consumer, state in queue.claims.consumers.items()
            if state.acked or state.claims
        },
        "batches": {
            producer: (state.last, {name: dict(part) for name, part in state.staged.items()})
            for producer, state in queue.batches.producers.items()
            if state.last >= 0 or state.staged
        },
        "taken": sorted(queue.taken),
    }
