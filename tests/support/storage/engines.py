"""Engines for tests: how each is made, a clock that tests move, and disks that lack something or fail."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qs_storage import directories
from qs_storage.clock import ServerClock
from qs_storage.directories import (
    DirectoriesEngine,
    DirqEngine,
    DirqSimpleEngine,
    FilesEngine,
    NullEngine,
)
from qs_storage.disk import Disk
from qs_storage.engine import LEFT, SECOND, Draft, Durability, Effects, Engine, NoRoomError, Options
from qs_storage.journal.log.places import Position
from qs_storage.journal.queues.batches import LogBatches
from qs_storage.journal.queues.claims import LogClaims
from qs_storage.journal.queues.queue import LogQueue
from qs_storage.journal.upkeep.maintenance import Maintenance

EPOCH = 1_760_000_000_000_000
"""The time of the tests' clock at its start, in microseconds."""
LOTS = 1 << 40
"""A bound on the bytes of a receive that no receive reaches."""


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: int = EPOCH) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def tick(self) -> None:
        """Moves the clock on by 1."""
        self.now += 1


class SteppedMachine:
    """A machine whose clocks tests move: time moves both, a step moves the wall clock alone."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.wall, self.steady = ManualClock(), ManualClock(7 * SECOND)
        self.boots = 1
        self.interrupted_for = 0  # how long a process stands still before each look at the wall clock

    def start(self, disk: Disk | None = None) -> ServerClock:
        return ServerClock(
            self.root, disk or Disk(), self.read_wall, lambda: self.steady.now * 1000, f"boot-{self.boots}"
        )

    def read_wall(self) -> int:
        self.passes(self.interrupted_for)
        return self.wall.now

    def passes(self, micros: int) -> None:
        self.wall.now += micros
        self.steady.now += micros

    def boot(self, takes: int) -> None:
        self.wall.now += takes
        self.steady.now = SECOND
        self.boots += 1


class JournalEngine(directories.JournalEngine):
    """The journal's engine for tests without a broker. In the broker's place it secures free bytes before a batch, and
    ends a batch for a request that does not fit in."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        without_broker[id(self._journal.store)] = self

    def queue(self, qid: str) -> Any:
        self.begin_batch()
        return super().queue(qid)

    def create(self, qid: str, options: Options) -> None:
        self.begin_batch()
        super().create(qid, options)

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        try:
            super().copy(qid, mid, into)
        except NoRoomError as error:
            self.next_batch(error)
            super().copy(qid, mid, into)

    def expire(self, count: int) -> int:
        self.begin_batch()
        return super().expire(count)

    def begin_batch(self) -> None:
        store = self._journal.store
        if store is not None and not store.transaction.changed and store.transaction.left < LEFT:
            self.secure()

    def next_batch(self, lacked: NoRoomError) -> None:
        """Ends a batch, and begins one with the bytes that the first one lacked."""
        self.commit()
        self.secure(lacked)

    def close(self) -> None:
        without_broker.pop(id(self._journal.store), None)
        super().close()


without_broker: dict[int, JournalEngine] = {}
"""Engines without a broker, by the ids of their stores."""


def _in_next_batch(kind: type, name: str) -> None:
    """Replaces a method of queues without a broker by one that ends the batch if the request does not fit in."""
    method = getattr(kind, name)

    def call(self: Any, *args: Any, **named: Any) -> Any:
        try:
            return method(self, *args, **named)
        except NoRoomError as error:
            engine = without_broker.get(id(getattr(self, "store", None) or self._store))
            if engine is None:
                raise
            engine.next_batch(error)
            return method(self, *args, **named)

    setattr(kind, name, call)


for _name in ("push", "release", "extend", "delete", "purge", "reject", "move"):
    _in_next_batch(LogQueue, _name)
for _name in ("claim", "acknowledge", "release"):
    _in_next_batch(LogClaims, _name)
for _name in ("stage", "publish"):
    _in_next_batch(LogBatches, _name)


def always(disk: Disk) -> Callable[[], Disk]:
    """Returns a function that gives each engine this disk."""
    return lambda: disk


class WithoutAttributes(Disk):
    """A file system that has no extended attributes."""

    def _refuse(self, *args: Any, **named: Any) -> Any:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    getxattr = listxattr = setxattr = removexattr = _refuse


class Crash(BaseException):
    """Stands for the end of the process."""


OPERATIONS = (
    "open",
    "_write",
    "_pwrite",
    "_copy_range",
    "fsync",
    "fdatasync",
    "_syncfs",
    "rename",
    "link",
    "unlink",
    "setxattr",
    "mkdir",
)
"""The operations that can be made to fail."""


class FaultyDisk(Disk):
    """A disk that fails when it is told to. Counts the calls that could fail, and knows the open descriptors."""

    def __init__(self, *, attributes: bool = True) -> None:
        self.attributes = attributes
        self.calls = 0
        self.fail_at = 0
        """The number of the call that fails, from 1; 0 for none."""
        self.lasting = False
        """Whether all later calls fail too, except unlink: removing a file works on a full disk."""
        self.only: str | None = None
        """An operation, None for all: other calls are neither counted nor fail."""
        self.error: Callable[[], BaseException] = Crash
        self.failed: list[str] = []
        self.descriptors: set[int] = set()

    def arm(self, at: int, error: int | type[BaseException], only: str | None = None, *, lasting: bool = False) -> None:
        """Makes the at-th call from now on fail."""
        self.calls, self.fail_at, self.only, self.lasting, self.failed = 0, at, only, lasting, []
        self.error = error if isinstance(error, type) else lambda: OSError(error, os.strerror(error))

    def disarm(self) -> None:
        self.fail_at = 0

    def crash(self) -> None:
        """Closes all files, like the end of a process."""
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors.clear()

    def _step(self, operation: str) -> None:
        if self.only is not None and operation != self.only:
            return
        self.calls += 1
        if self.fail_at and (
            self.calls == self.fail_at or (self.lasting and self.calls > self.fail_at and operation != "unlink")
        ):
            self.failed.append(operation)
            raise self.error()

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        self._step("open")
        fd = os.open(path, flags, mode)
        self.descriptors.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.descriptors.discard(fd)
        os.close(fd)

    def setxattr(self, path: str, name: str, value: bytes, **named: Any) -> None:  # type: ignore[override]
        if not self.attributes:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        self._step("setxattr")
        os.setxattr(path, name, value, **named)

    def getxattr(self, path: str, name: str, **named: Any) -> bytes:  # type: ignore[override]
        if not self.attributes:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        return os.getxattr(path, name, **named)

    def listxattr(self, path: str, **named: Any) -> list[str]:  # type: ignore[override]
        if not self.attributes:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        return os.listxattr(path, **named)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._step("fsync")

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._step("fdatasync")

    def _syncfs(self, fd: int) -> None:
        self._step("_syncfs")

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        self._step("_pwrite")
        return os.pwrite(fd, data, offset)

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        self._step("rename")
        os.rename(old, new)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._step("unlink")
        os.unlink(path)

    def link(self, old: str, new: str, **named: Any) -> None:  # type: ignore[override]
        self._step("link")
        os.link(old, new, **named)

    def mkdir(self, path: str) -> None:  # type: ignore[override]
        self._step("mkdir")
        os.mkdir(path)

    def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        self._step("_write")
        return os.write(fd, data)

    def _copy_range(self, source: int, target: int, count: int) -> int:  # type: ignore[override]
        self._step("_copy_range")
        return os.copy_file_range(source, target, count)


_effects = DirectoriesEngine.effects


def maintenance_of(engine: DirectoriesEngine) -> Maintenance:
    """Returns the maintenance of the engine's log, which has to be open."""
    maintenance = engine._journal.maintenance
    assert maintenance is not None
    return maintenance


def checkpointed(engine: DirectoriesEngine) -> Position | None:
    """Returns the position of the last checkpoint that the engine's log has begun or read."""
    return maintenance_of(engine).checkpointed


def compact(engine: DirectoriesEngine, upto: int | None = None) -> None:
    """Compacts all segments of the engine's log up to this one, None for all but the last."""
    journal = engine._journal
    store, room = journal.open(), journal.room
    assert room is not None
    last = store.log.number - 1 if upto is None else upto
    while (oldest := maintenance_of(engine).compaction.oldest) is not None and oldest <= last:
        room.compact(float("inf"), 1 << 62)
        room.commit()


def overlooks_work(engine: DirectoriesEngine) -> bool:
    """Tells whether the log's upkeep has work, or none, and has not noticed that. Every test of an engine asks at each
    commit, because only some states make the maintenance look. Changes nothing."""
    maintenance = engine._journal.maintenance
    if maintenance is None or maintenance._running is not None or maintenance._store.log.failed is not None:
        return False
    before = dict(vars(maintenance))
    maintenance._look()
    found = maintenance._has_work
    vars(maintenance).update(before)
    return found is not maintenance._has_work


def _kept_effects(engine: DirectoriesEngine) -> Effects:
    found = _effects(engine)
    assert not overlooks_work(engine)
    kept = engine.__dict__.setdefault("kept_effects", ({}, {}))
    kept[0].update(found.arrived)
    kept[1].update(found.failed)
    return found


DirectoriesEngine.effects = _kept_effects  # type: ignore[method-assign] # tests commit and look at effects apart


def arrived(engine: Engine) -> dict[str, int]:
    """Returns the queues in which messages have become visible since the last call, each with its number of visible
    messages."""
    return _take(engine, 0)


def failed(engine: Engine) -> dict[tuple[str, int], OSError]:
    """Returns the pushes that have failed since the last call, by queue and first id."""
    return _take(engine, 1)


def _take(engine: Engine, which: int) -> Any:
    engine.effects()
    kept = engine.kept_effects[which]  # type: ignore[attr-defined] # see above
    found = dict(kept)
    kept.clear()
    return found


@dataclass
class Bench:
    """An engine, the function that makes it, and its clock."""

    make: Callable[[Callable[[], int]], Engine]
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.engine = self.make(self.clock)
        self.abandoned: list[Engine] = []
        """Engines that were left as by a crash, and cannot be ended before the test."""

    def close(self) -> None:
        """Closes the engine, and those that were abandoned."""
        for engine in (self.engine, *self.abandoned):
            engine.close()

    def reopen(self) -> Engine:
        """Closes the engine and makes a new one over the same directory."""
        self.engine.close()
        self.engine = self.make(self.clock)
        return self.engine

    def queue(self, qid: str = "q", **options: Any) -> str:
        """Makes a new queue."""
        self.engine.create(qid, Options(**options))
        return qid

    def push(self, *payloads: bytes, qid: str = "q", delay: int = 0) -> list[int]:
        """Pushes messages, each on its own, visible and durable. The clock moves on by 1 for each."""
        mids: list[int] = []
        for payload in payloads:
            mids += self.engine.queue(qid).push([Draft(payload, delay)])
            self.clock.tick()
        self.engine.commit()
        return mids


def files_engine(
    durability: Durability, disk: Callable[[], Disk] = Disk, *, kind: type[DirectoriesEngine] = FilesEngine
) -> Callable[[Path], Callable[[Callable[[], int]], Engine]]:
    """Returns a function that makes an engine. disk: called for each engine; kind: the engine's class."""
    return lambda root: lambda clock: kind(str(root), clock=clock, durability=durability, disk=disk())


class CompactingEngine(JournalEngine):
    """An engine that does all upkeep at once, after each commit."""

    def commit(self) -> Effects:
        effects = super().commit()
        for _ in range(100):
            if effects.next_upkeep is None:
                break
            upkeep = self.begin_upkeep()
            effects = super().commit()
            if upkeep is not None:
                upkeep.run()
                self.finish_upkeep(upkeep)
                effects = self.effects()
        return effects


def journal_engine(
    durability: Durability,
    disk: Callable[[], Disk] = Disk,
    *,
    cache: int = 1 << 20,
    compacting: bool = False,
    **more: Any,
) -> Callable[[Path], Callable[[Callable[[], int]], Engine]]:
    """Returns a function that makes an engine. disk: called for each engine; compacting: upkeep is done after each
    commit; more: arguments of the engine."""
    kind = CompactingEngine if compacting else JournalEngine
    return lambda root: (
        lambda clock: kind(str(root), clock=clock, durability=durability, disk=disk(), cache=cache, **more)
    )


ENGINES = {
    "files-always": files_engine(Durability.ALWAYS),
    "files-none": files_engine(Durability.NONE),
    "files-sidecar": files_engine(Durability.NONE, WithoutAttributes),
    "journal-always": journal_engine(Durability.ALWAYS),
    "journal-none": journal_engine(Durability.NONE),
    "journal-cold": journal_engine(Durability.NONE, cache=0),
    "journal-compacting": journal_engine(Durability.ALWAYS, compacting=True),
    "dirq-simple-always": files_engine(Durability.ALWAYS, kind=DirqSimpleEngine),
    "dirq-simple-none": files_engine(Durability.NONE, kind=DirqSimpleEngine),
    "dirq-simple-sidecar": files_engine(Durability.NONE, WithoutAttributes, kind=DirqSimpleEngine),
    "dirq-always": files_engine(Durability.ALWAYS, kind=DirqEngine),
    "dirq-none": files_engine(Durability.NONE, kind=DirqEngine),
    "dirq-sidecar": files_engine(Durability.NONE, WithoutAttributes, kind=DirqEngine),
}
"""Name -> root directory -> clock -> engine. All of these keep messages, in the root."""

EVERY_ENGINE = {**ENGINES, "null": files_engine(Durability.ALWAYS, kind=NullEngine)}
"""These engines, and the one that keeps no messages. The engines of other servers are in contract_bench."""


def upkeep_slice(engine: Engine) -> None:
    """Does one slice of upkeep, due or not: begins it in a batch, commits, and runs the work of another thread."""
    work = engine.begin_upkeep()
    engine.commit()
    if work is not None:
        work.run()
        engine.finish_upkeep(work)


def upkeep(engine: Engine, now: int = 0, slices: int = 100) -> None:
    """Does the upkeep of the journal's engine: compaction, checkpoints, spare segments. now: microseconds; 0: work that
    was put off is not due yet; slices: how many at most."""
    for _ in range(slices):
        due = engine.effects().next_upkeep
        if due is None or due > now:
            return
        upkeep_slice(engine)


class FileServers:
    """The servers of a test, in the order of their starts."""

    def __init__(self) -> None:
        self._benches: list[Bench] = []

    def start(self, root: Path, disk: Disk) -> Bench:
        """Starts a server on a root, which is made if it is missing, beside those that run."""
        root.mkdir(exist_ok=True)
        bench = Bench(files_engine(Durability.ALWAYS, always(disk))(root))
        self._benches.append(bench)
        return bench

    def kill(self, *, but: int = 0) -> None:
        """Kills all servers except the first ones. but: how many stay."""
        while len(self._benches) > but:
            self._benches.pop().engine._watch.close()  # type: ignore[attr-defined]
