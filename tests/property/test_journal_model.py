"""The journal engine against a model in memory: crashes, commits that fail, compaction, checkpoints at any time."""

import contextlib
import copy
import errno
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import invariant, multiple, precondition, rule
from support.examples import run_machine
from support.storage.engines import FaultyDisk, JournalEngine
from support.storage.model import WINDOWS, EngineMachine, Known

from qs_storage.engine import Background, Draft, Durability, Receipt
from qs_storage.journal.log import pool
from qs_storage.journal.queues.store import PayloadStore
from qs_storage.journal.upkeep import maintenance, room
from qs_storage.journal.upkeep.checkpoint import NAME as CHECKPOINT

KEYS = st.none() | st.sampled_from(["a", "b", "c"])


class JournalMachine(EngineMachine):
    """A crash loses everything that is not committed, and nothing that is."""

    durability = Durability.NONE
    cache = 1 << 20
    mids = EngineMachine.mids
    engine: JournalEngine

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self.disk = FaultyDisk()
        self.work: Background | None = None
        self.ran = False
        self.noted = 0
        """How many receives there were when their records were last written."""
        self.sequence = 0
        super().__init__()
        self.engine.commit()
        self.save()

    def open(self) -> JournalEngine:
        return JournalEngine(self.root, clock=self.clock, durability=self.durability, disk=self.disk, cache=self.cache)

    @property
    def store(self) -> PayloadStore:
        store = self.engine._journal.store
        assert store is not None
        return store

    def save(self) -> None:
        """Saves the state to which a crash returns."""
        self.before = self.saved = copy.deepcopy((self.model, self.keys))
        self.sequence = self.store.log.sequence

    @invariant()
    def note_what_is_written(self) -> None:
        """A new segment writes everything that was asked for before, committed or not."""
        if self.store.log.sequence > self.sequence:
            self.saved = self.before
            self.sequence = self.store.log.sequence
        self.before = copy.deepcopy((self.model, self.keys))

    def lose(self) -> None:
        self.model, self.keys = copy.deepcopy(self.saved)

    def expire(self) -> None:
        super().expire()
        for known in self.model.values():
            known.held = known.held and known.until > 0 and not known.delayed

    # -- what only this engine does

    @rule(target=mids, keys=st.lists(KEYS, min_size=1, max_size=4), payload=st.binary(max_size=9))
    def push_with_keys(self, keys: list[str | None], payload: bytes) -> object:
        last = self.engine.queue("q").last_mid
        found = self.engine.queue("q").push([Draft(payload, 0, key) for key in keys])
        for mid, key in zip(found, keys, strict=True):
            if key is not None and key in self.keys:
                assert mid == self.keys[key]
                continue
            assert mid > last
            last = mid
            self.model[mid] = Known(payload)
            if key is not None:
                self.keys[key] = mid
        self.engine.effects()
        return multiple(*found)

    @rule(window=WINDOWS)
    def receive_held(self, window: int) -> None:
        self.expire()
        found = self.engine.receive(["q"], 1, window, 1 << 20, held=True)
        ready = sorted(mid for mid, known in self.model.items() if not known.until)
        assert [message.mid for message in found] == ready[:1]
        for message in found:
            known = self.model[message.mid]
            known.receives += 1
            known.until, known.delayed, known.held = max(self.clock.now + window, 1), False, True

    @rule(notes=st.booleans())
    def commit(self, notes: bool) -> None:
        """notes: whether the records of receives are written too if there is nothing else to write."""
        self.engine.commit()
        self.save()
        if notes:
            self.engine._journal.room.commit()
            self.noted = self.engine.queue("q").stats().delivered

    @rule(error=st.sampled_from([errno.ENOSPC, errno.EDQUOT]), payload=st.binary(max_size=9))
    def commit_fails(self, error: int, payload: bytes) -> None:
        """Fails a commit, which takes back every operation since the last one, except receives. Their records, which a
        failed commit may lose, are written first."""
        if self.engine.queue("q").stats().delivered != self.noted:
            self.commit(True)
        store = self.store
        last = store.log.sequence
        self.engine.queue("q").push([Draft(payload)])
        if store.log.sequence > last:  # a new segment was begun, and what was asked for before is in the one before
            self.save()
        self.disk.arm(1, error, "_pwrite")
        with pytest.raises(OSError, match=r"space|quota"):
            self.engine.commit()
        self.disk.disarm()
        self.lose()

    # -- at leisure

    @rule(fill=st.integers(0, 3))
    def begin_upkeep(self, fill: int) -> None:
        """Beside pushes that fill segments, and are deleted at once."""
        for _ in range(fill):
            [mid] = self.engine.queue("q").push([Draft(bytes(6000))])
            self.engine.queue("q").delete(Receipt(mid))
        self.commit(False)
        if self.work is None:
            self.work, self.ran = self.engine.begin_upkeep(), False
            self.commit(False)

    @rule()
    @precondition(lambda self: self.work is not None and not self.ran)
    def run_upkeep(self) -> None:
        assert self.work is not None
        self.work.run()
        self.ran = True

    @rule()
    @precondition(lambda self: self.work is not None and self.ran)
    def finish_upkeep(self) -> None:
        assert self.work is not None
        self.engine.finish_upkeep(self.work)
        self.work = None

    # -- new processes

    def end_of_process(self) -> None:
        self.expire()
        for known in self.model.values():
            if known.held:
                known.until, known.held = 0, False
        self.work = None

    def start(self, *, checkpoint: bool) -> None:
        if not checkpoint:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(f"{self.root}/.journal/{CHECKPOINT}")
        self.engine = self.open()
        self.engine.commit()
        self.noted = 0
        self.save()

    @rule(checkpoint=st.booleans())
    def reopen(self, checkpoint: bool) -> None:
        """checkpoint: whether the one that the stop has written is there for the start."""
        self.engine.close()
        self.end_of_process()
        self.start(checkpoint=checkpoint)

    @rule(checkpoint=st.booleans())
    def crash(self, checkpoint: bool) -> None:
        self.commit(True)  # else receives are lost, which they may be
        self.disk.crash()
        self.engine._watch.close()
        self.end_of_process()
        self.start(checkpoint=checkpoint)


class SyncedMachine(JournalMachine):
    """Each commit is synced."""

    durability = Durability.ALWAYS


class ColdMachine(JournalMachine):
    """Every payload is read from its segment."""

    cache = 0


@pytest.fixture
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("FIRST_SEGMENT", 20480), ("LARGEST_SEGMENT", 20480), ("SMALLEST", 4096), ("SMALL_LOG", 0)):
        monkeypatch.setattr(pool, name, size)
    monkeypatch.setattr(maintenance, "_CHECKPOINT", 1 << 15)
    ticks = count()
    monkeypatch.setattr(room, "perf_counter", lambda: next(ticks) / 1000)


@pytest.mark.usefixtures("_small_segments")
@pytest.mark.parametrize("machine", [JournalMachine, SyncedMachine, ColdMachine])
def test_journal_engine_is_as_its_model(machine: type[JournalMachine]) -> None:
    """Any sequence of operations, failures, crashes and upkeep leaves the engine as the model has it."""
    run_machine(machine, 40)
