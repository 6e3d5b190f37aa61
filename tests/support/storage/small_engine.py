"""A journal engine on a disk that is nearly full, with small segments."""

from pathlib import Path

from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Draft, Durability, Options
from qs_storage.journal.queues.queue import LogQueue
from support.storage.engines import JournalEngine, ManualClock, upkeep

SEGMENT = 64 << 10
"""Bytes of the segments in which the size of the disk is counted."""


class SmallDisk(Disk):
    """A disk with a number of bytes for the files of the journal."""

    capacity = 1 << 40

    def __init__(self, directory: str) -> None:
        self._of = directory

    def free_bytes(self, path: str) -> int:
        return max(self.capacity - self.used(), 0)

    def used(self) -> int:
        return sum(self.lstat(f"{self._of}/{name}").st_size for name in self.files_in(self._of))


class SmallEngine:
    """An engine on a disk that is nearly full, with the queue `q`."""

    def __init__(self, root: Path, segments: int | None) -> None:
        """segments: the size of the disk; None for a root with the queue, and a disk without a free byte."""
        self.disk = SmallDisk(f"{root}/.journal")
        self.disk.capacity = self.disk.used() if segments is None else segments * SEGMENT
        self.root = root
        self.clock = ManualClock()
        self.first = 0
        self.start()
        if segments is not None:
            self.engine.create("q", Options("journal"))
            self.engine.commit()

    def start(self) -> None:
        self.engine = JournalEngine(
            str(self.root), clock=self.clock, durability=Durability.NONE, disk=self.disk, cache=0
        )

    def close(self) -> None:
        """Closes the files, without the last commit of a clean stop."""
        self.engine._journal.close()
        self.engine._watch.close()

    @property
    def queue(self) -> LogQueue:
        return self.engine._journal.queues["q"]

    def commit(self) -> None:
        """Ends a batch and does a piece of upkeep, like a server."""
        self.engine.commit()
        upkeep(self.engine, slices=1)

    def rest(self) -> None:
        for _ in range(200):
            self.clock.now += SECOND
            if self.engine.effects().next_upkeep is None:
                return
            self.commit()

    def fill(self, size: int = 3900) -> list[int]:
        """Pushes messages, each in a batch of its own, until several in turn are refused: the first refusals may free
        space. Returns the ids."""
        mids: list[int] = []
        refused = 0
        for _ in range(10_000):
            self.clock.tick()
            try:
                self.engine.begin_batch()
                mids += self.queue.push([Draft(bytes([len(mids) % 256]) * size)])
                refused = 0
            except OSError:
                refused += 1
                if refused == 5:
                    return mids
            self.commit()
        raise AssertionError("the disk is never full")

    def pushes(self) -> bool:
        """Tells whether a push is accepted."""
        try:
            self.engine.begin_batch()
            self.queue.push([Draft(bytes(3900))])
        except OSError:
            return False
        self.commit()
        return True
