"""The journal engine against a model in memory: crashes, commits that fail, and writing back at any moment."""

import copy
import errno
import os

import hypothesis.strategies as st
import pytest
from engine_machine import WINDOWS, EngineMachine, Known
from engines import FaultyDisk
from examples import examples
from hypothesis import HealthCheck, settings
from hypothesis.stateful import multiple, precondition, rule
from qs_server.storage.journal.ledger import SpillLimits

from qs_server.storage.engine import Background, Draft, Durability
from qs_server.storage.journal import supply
from qs_server.storage.journal.engine import JournalEngine

KEYS = st.none() | st.sampled_from(["a", "b", "c"])


class JournalMachine(EngineMachine):
    """What is not committed is lost in a crash, all of it; what is committed is not."""

    durability = Durability.NONE
    attributes = True
    mids = EngineMachine.mids
    engine: JournalEngine

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self.disk = FaultyDisk(attributes=self.attributes)
        self.spill: Background | None = None
        self.ran = False
        super().__init__()
        self.engine.commit()
        self.save()

    def open(self) -> JournalEngine:
        return JournalEngine(
            self.root, clock=self.clock, durability=self.durability, disk=self.disk, limits=SpillLimits(age=10)
        )

    def save(self) -> None:
        """What a crash goes back to."""
        self.saved = copy.deepcopy((self.model, self.keys))

    def lose(self) -> None:
        self.model, self.keys = copy.deepcopy(self.saved)

    # -- what only this engine does

    @rule(target=mids, keys=st.lists(KEYS, min_size=1, max_size=4), payload=st.binary(max_size=9))
    def push_with_keys(self, keys: list[str | None], payload: bytes) -> object:
        last = self.engine.last_mid("q")
        found = self.engine.push("q", [Draft(payload, 0, key) for key in keys])
        for mid, key in zip(found, keys, strict=True):
            if key is not None and key in self.keys:
                assert mid == self.keys[key]
                continue
            assert mid > last
            last = mid
            self.model[mid] = Known(payload)
            if key is not None:
                self.keys[key] = mid
        self.engine.flush()
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

    @rule()
    def commit(self) -> None:
        self.engine.commit()
        self.save()

    @rule(error=st.sampled_from([errno.ENOSPC, errno.EDQUOT]), payload=st.binary(max_size=9))
    def commit_fails(self, error: int, payload: bytes) -> None:
        """All that was asked for since the last one has not happened."""
        self.engine.push("q", [Draft(payload)])
        self.disk.arm(1, error, "_pwrite")
        with pytest.raises(OSError, match=r"space|quota"):
            self.engine.commit()
        self.disk.disarm()
        held = {mid: known for mid, known in self.model.items() if known.held}
        self.lose()
        for mid, known in self.model.items():
            if known.held and mid not in held:
                known.held = True

    # -- writing back

    @rule()
    @precondition(lambda self: self.spill is None)
    def begin_spill(self) -> None:
        self.spill, self.ran = self.engine.begin_spill(), False

    @rule()
    @precondition(lambda self: self.spill is not None and not self.ran)
    def run_spill(self) -> None:
        assert self.spill is not None
        self.spill.run()
        self.ran = True

    @rule()
    @precondition(lambda self: self.spill is not None and self.ran)
    def finish_spill(self) -> None:
        assert self.spill is not None
        self.engine.finish_spill(self.spill)
        self.spill = None

    # -- new processes

    @rule()
    def reopen(self) -> None:
        if self.spill is not None and not self.ran:
            self.spill.run()
        self.spill = None
        self.engine.close()
        for known in self.model.values():
            if known.held:
                known.until, known.held = 0, False
        names = os.listdir(f"{self.root}/q")
        expected = {f"{mid}.{known.until}" if known.until else str(mid) for mid, known in self.model.items()}
        assert {name for name in names if name[0] != "."} == expected
        assert len(os.listdir(f"{self.root}/.journal")) <= 2, os.listdir(f"{self.root}/.journal")
        self.engine = self.open()
        self.engine.commit()
        self.save()

    @rule()
    def crash(self) -> None:
        self.disk.crash()
        self.engine._watch.close()
        self.spill = None
        self.lose()
        for known in self.model.values():
            if known.held:
                known.until, known.held = 0, False
        self.engine = self.open()


class SyncedMachine(JournalMachine):
    """Each commit is synced."""

    durability = Durability.ALWAYS


class SidecarMachine(JournalMachine):
    """On a file system without extended attributes."""

    attributes = False


@pytest.fixture
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("FIRST_SEGMENT", 20480), ("LARGEST_SEGMENT", 20480), ("SMALLEST", 4096)):
        monkeypatch.setattr(supply, name, size)


@pytest.mark.usefixtures("_small_segments")
@pytest.mark.parametrize("machine", [JournalMachine, SyncedMachine, SidecarMachine])
def test_engine_is_as_its_model(machine: type[JournalMachine]) -> None:
    """Any sequence of operations, commits, failures, crashes and spills leaves the engine as the model has it."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples(40),
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()
