"""The files engine against a model in memory, while other processes work on the same directory."""

import itertools
import os

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import consumes, invariant, precondition, rule
from support.examples import run_machine
from support.storage.engines import EPOCH, WithoutAttributes
from support.storage.model import WINDOWS, CrashingMachine, Known

from qs_storage.directories import FilesEngine
from qs_storage.disk import Disk
from qs_storage.engine import Durability


class FilesMachine(CrashingMachine):
    """Shared with others."""

    disk: type[Disk] = Disk
    mids = CrashingMachine.mids

    def __init__(self) -> None:
        self.foreign = itertools.count(EPOCH - 10**9, 7)
        super().__init__()

    def open(self) -> FilesEngine:
        return FilesEngine(self.root, clock=self.clock, durability=Durability.NONE, disk=self.disk())

    # -- what others do

    def path(self, mid: int, until: int = 0) -> str:
        return f"{self.root}/q/{mid}" + (f".{until}" if until else "")

    def on_disk(self, mid: int) -> str:
        """Returns where a message is on disk: expired ones may have been renamed back, or not yet."""
        for path in (self.path(mid), self.path(mid, self.model[mid].until)):
            if os.path.exists(path):
                return path
        [name] = [name for name in os.listdir(f"{self.root}/q") if name.split(".")[0] == str(mid)]
        return f"{self.root}/q/{name}"

    @rule(target=mids, payload=st.binary(max_size=9))
    @precondition(lambda self: not self.blind)
    def foreign_publish(self, payload: bytes) -> int:
        mid = next(self.foreign) if len(self.model) % 2 else self.engine.queue("q").last_mid + 3
        with open(self.path(mid) + ".new", "xb") as file:
            file.write(payload)
        os.rename(self.path(mid) + ".new", self.path(mid))
        self.model[mid] = Known(payload)
        self.engine.refresh()
        return mid

    @rule(target=mids, payload=st.binary(max_size=9))
    @precondition(lambda self: not self.blind)
    def foreign_write(self, payload: bytes) -> int:
        """A file that a shell put there."""
        mid = next(self.foreign)
        with open(self.path(mid), "xb") as file:
            file.write(payload)
        self.model[mid] = Known(payload)
        self.engine.refresh()
        return mid

    @rule(mid=mids, window=WINDOWS)
    @precondition(lambda self: not self.blind)
    def foreign_receive(self, mid: int, window: int) -> None:
        known = self.model.get(mid)
        if known is None or os.path.basename(self.on_disk(mid)) != str(mid):
            return
        until = self.clock.now + window
        os.rename(self.path(mid), self.path(mid, until))
        known.until, known.delayed, known.receives = until, False, max(known.receives, 1)

    @rule(mid=mids)
    @precondition(lambda self: not self.blind)
    def foreign_requeue(self, mid: int) -> None:
        """Requeues a message as vsqs does when a window has ended, or an impatient administrator before."""
        known = self.model.get(mid)
        if known is not None and (path := self.on_disk(mid)) != self.path(mid):
            os.rename(path, self.path(mid))
            known.until, known.delayed = 0, False

    @rule(mid=consumes(mids))
    @precondition(lambda self: not self.blind)
    def foreign_delete(self, mid: int) -> None:
        if mid in self.model:
            os.unlink(self.on_disk(mid))
            del self.model[mid]

    @rule(mid=mids, until=WINDOWS, steps=st.integers(1, 5))
    def foreign_detour(self, mid: int, until: int, steps: int) -> None:
        """Away and back again: what the engine does next is right, and the reports about it come mixed with these."""
        if mid in self.model:
            path = self.on_disk(mid)
            away = self.path(mid, self.clock.now + until)
            if away != path:
                os.rename(path, away)
                os.rename(away, path)
                self.blind = steps

    @invariant()
    def nothing_stays_behind(self) -> None:
        names = os.listdir(f"{self.root}/q")
        assert not [name for name in names if name.endswith((".new", ".tmp")) or name.startswith(".batch")]


class SidecarMachine(FilesMachine):
    """On a file system without extended attributes."""

    disk = WithoutAttributes


@pytest.mark.parametrize("machine", [FilesMachine, SidecarMachine])
def test_files_engine_is_as_its_model(machine: type[FilesMachine]) -> None:
    """Any sequence of operations, reopenings, crashes and foreign changes leaves the engine as the model has it."""
    run_machine(machine, 60)
