"""Short recorded runs of a journal that is short of space: a log that reuses its segments, and a full disk."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from qs_storage.disk import Disk, has_no_room
from qs_storage.engine import SECOND, Draft, Durability, Engine, Options, Receipt, State
from qs_storage.journal.log import pool
from qs_storage.journal.upkeep.checkpoint import NAME
from support.power_loss.check import VARIANTS
from support.power_loss.disk import Entry, QuietDisk, RecordingDisk
from support.power_loss.engines import small_journal
from support.power_loss.file_system import Image
from support.power_loss.log_world import small_segments
from support.power_loss.short_files import ShortRun
from support.storage.engines import JournalEngine, ManualClock, upkeep

COLD = [b"%d" % number * 100 for number in range(1000)]
"""Payloads of messages that stay: some three segments."""
_HOT = 40


def open_engine(root: str, disk: Disk, durability: Durability = Durability.ALWAYS) -> JournalEngine:
    return JournalEngine(root, clock=ManualClock(), durability=durability, disk=disk, cache=0)


def hot(number: int) -> bytes:
    """Returns the payload of a message that is soon deleted."""
    return b"%d" % number * 9000


def push_cold(engine: JournalEngine) -> None:
    """Makes two queues, and pushes the messages that stay."""
    for qid in ("cold", "hot"):
        engine.create(qid, Options())
    for begin in range(0, len(COLD), 100):
        engine.queue("cold").push([Draft(payload) for payload in COLD[begin : begin + 100]])
        engine.commit()
    upkeep(engine)


def go_round(engine: JournalEngine, answered: Callable[[int], object] = lambda number: None) -> None:
    """Pushes messages, each of which is deleted with the push of the next, until compaction has copied all messages
    that stay. answered: is told the number of each of these messages."""
    push_cold(engine)
    store = engine._journal.store
    assert store is not None
    last = store.log.number
    before: list[int] = []
    for number in range(_HOT):
        new = engine.queue("hot").push([Draft(hot(number))])
        for mid in before:
            engine.queue("hot").delete(Receipt(mid))
        before = new
        engine.commit()
        answered(number)
        upkeep(engine)
    assert (store.log.segments.oldest or 0) > last


def payloads(engine: JournalEngine, qid: str) -> list[bytes | None]:
    """Returns the payloads of a queue's messages."""
    queue = engine.queue(qid)
    return [queue.read(Receipt(mid)).payload for mid in queue.list_mids(State.ALL, 9999, -1)]


class Circle(ShortRun):
    """Checks that a start finds the same messages with and without the checkpoint."""

    durability = Durability.ALWAYS

    def run(self, disk: RecordingDisk) -> None:
        with pytest.MonkeyPatch.context() as patch:
            small_segments(patch)
            engine = open_engine(disk.root, disk, self.durability)
            go_round(engine, lambda number: self._answer(engine, disk, number + 1))
            engine.close()

    def _answer(self, engine: JournalEngine, disk: RecordingDisk, number: int) -> None:
        if self.durability is not Durability.NONE:
            if (sync := engine.background_sync()) is not None:
                sync()
            disk.mark("answered", number)

    def wanted(self) -> list[int]:
        return super().wanted()[::15]

    def look(self, root: str, image: Image, answered: int) -> None:
        for _ in range(2):
            disk = QuietDisk()
            engine = open_engine(root, disk, self.durability)
            if answered:
                assert payloads(engine, "cold") == COLD
                assert payloads(engine, "hot") in ([hot(answered - 1)], [hot(answered)])
            disk.end()
            with suppress(FileNotFoundError):
                Path(root, ".journal", NAME).unlink()


class CircleBehind(Circle):
    """Checks the runs of `Circle` with durability INTERVAL."""

    durability = Durability.INTERVAL


class CircleNotSynced(Circle):
    """Checks that the server starts with durability NONE, which promises nothing more."""

    durability = Durability.NONE


_BLOCK = 4096
_LARGEST = 1 << 17
"""Bytes of the largest segment."""
_FULL = 800_000
"""Bytes of the run's disk: six of the largest segments and some small files."""
_AMPLE = 4_000_000
_LOTS = 10**6
Held = dict[int, bytes]
"""The payloads of the messages in the queue, by id."""


class SmallDisk(RecordingDisk):
    """Holds a given number of bytes of files, in whole blocks, and refuses more. Names and attributes take no space."""

    def __init__(self, root: str, size: int | None = None) -> None:
        """size: None: the size of the present files, so that no byte is free."""
        super().__init__(root)
        self._size = self._used() if size is None else size

    def _used(self) -> int:
        found = {}
        for above, _, names in os.walk(self.root):
            for name in names:
                status = os.lstat(f"{above}/{name}")
                found[status.st_ino] = _in_blocks(status.st_size)
        return sum(found.values())

    def free_bytes(self, path: str) -> int:
        return max(self._size - self._used(), 0)

    def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        self._require(fd, os.lseek(fd, 0, os.SEEK_CUR) + len(data))
        return super()._write(fd, data)

    def _pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        self._require(fd, offset + len(data))
        return super()._pwrite(fd, data, offset)

    def _require(self, fd: int, end: int) -> None:
        """Raises OSError if the disk cannot hold the file up to that end."""
        grows = _in_blocks(end) - _in_blocks(os.fstat(fd).st_size)
        if grows > 0 and grows > self.free_bytes(self.root):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _in_blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


class FullDisk(ShortRun):
    """Checks a full disk: pushes are refused, deletes and compaction use what the pool keeps for them, the server stops
    and is killed in between, and at the end pushes work again.

    After any power loss, a start on a disk without a free byte has what was answered, and deletes work. With free
    space, pushes work, and the pool is whole.
    """

    every = False
    """Whether all variants are played at each point."""

    def __init__(self, directory: Path) -> None:
        self.held: list[Held] = [{}]
        """The content of the queue after each step; at first there is no queue."""
        with _small_segments():
            super().__init__(directory)

    def make_disk(self, root: str) -> SmallDisk:
        return SmallDisk(root, _FULL)

    # -- the run --------------------------------------------------------------------------------------------------

    def run(self, disk: RecordingDisk) -> None:
        self._disk, self._clock = disk, ManualClock()
        self._engine = _open(disk, self._clock)
        self._engine.create("q", Options())
        self._answer({})
        while self._push():
            if len(self.held) % 5 == 0:
                self._upkeep()
        self._was_short = False
        self._delete_most()
        assert self._was_short
        for _ in range(6):
            self._upkeep()
            pushed = self._push()
        assert pushed
        assert _pool_is_whole(self._engine)
        self._engine.close()

    def _answer(self, held: Held) -> None:
        self._engine.commit()
        self.held.append(held)
        self._disk.mark("answered", len(self.held) - 1)

    def _push(self) -> bool:
        """Pushes four messages. Returns False when the disk is full."""
        payloads = [b"%05d" % (len(self.held) * 10 + number) * 580 for number in range(4)]
        try:
            mids = self._engine.queue("q").push([Draft(payload) for payload in payloads])
        except OSError as error:
            if not has_no_room(error):
                raise
            return False
        self._answer({**self.held[-1], **dict(zip(mids, payloads, strict=True))})
        return True

    def _delete_most(self) -> None:
        """Deletes ten of each twelve messages one by one, first without upkeep. Now and then the server stops or is
        killed, and a producer tries a push."""
        mids = list(self.held[-1])
        for number, mid in enumerate(mids):
            if number % 12 >= 10:
                continue
            self._engine.queue("q").delete(Receipt(mid))
            self._answer({each: payload for each, payload in self.held[-1].items() if each != mid})
            self._was_short |= not _pool_is_whole(self._engine)
            if number % 24 == 5:
                self._restart(kill=number % 48 == 5)
            elif number % 12 == 8:
                self._push()
            elif number > len(mids) // 2:
                self._upkeep()

    def _restart(self, *, kill: bool) -> None:
        if kill:
            self._disk.end()
            self._engine._watch.close()  # type: ignore[attr-defined]
        else:
            self._engine.close()
        self._engine = _open(self._disk, self._clock)

    def _upkeep(self) -> None:
        self._clock.now += 2 * SECOND
        upkeep(self._engine, self._clock.now, 3)

    # -- what a power loss leaves ---------------------------------------------------------------------------------

    def check(self, log: list[Entry] | None = None, *, ordered: bool = False) -> int:
        with _small_segments():
            return super().check(log, ordered=ordered)

    def wanted(self) -> list[int]:
        return super().wanted()[:: 1 if self.every else 3]

    def _variants(self, number: int) -> tuple[str, ...]:
        """Returns one variant, in turn: each needs two starts."""
        return self.variants if self.every else (VARIANTS[(number + number // 4) % 4],)

    def look(self, root: str, image: Image, answered: int) -> None:
        """Looks at an image. If nothing was answered, the first start may not be over, which needs free space."""
        disk = SmallDisk(root, None if answered else _AMPLE)
        engine = _open(disk)
        held = _look(engine)
        assert held in self.held[answered : answered + 2]
        if answered:
            for mid in list(held)[:2]:
                engine.queue("q").delete(Receipt(mid))
                engine.commit()
                del held[mid]
        disk.end()
        engine._watch.close()  # type: ignore[attr-defined]
        engine = _open(SmallDisk(root, _AMPLE))
        assert _look(engine) == held
        if held:
            engine.queue("q").push([Draft(b"there is room")])
            engine.commit()
            upkeep(engine)
            assert _pool_is_whole(engine)
        engine.close()


def _pool_is_whole(engine: Engine) -> bool:
    """Tells whether the pool has the bytes for deletes and compaction. Before the first write since a start it may lack
    them."""
    journal = engine._journal  # type: ignore[attr-defined]
    return bool(journal.room._pool.is_whole(journal.store.log.segments.largest))


@contextmanager
def _small_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small_journal(patch)
        patch.setattr(pool, "LARGEST_SEGMENT", _LARGEST)
        yield


def _open(disk: RecordingDisk, clock: ManualClock | None = None) -> Engine:
    return JournalEngine(disk.root, clock=clock or ManualClock(), durability=Durability.ALWAYS, disk=disk, cache=0)


def _look(engine: Engine) -> Held:
    if "q" not in engine.queues():
        return {}
    queue = engine.queue("q")
    found = {mid: queue.read(Receipt(mid)).payload for mid in queue.list_mids(State.ALL, _LOTS, -1)}
    assert None not in found.values()
    return found
