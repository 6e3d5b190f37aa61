"""The engines of dirq's layouts against a model in memory, while the real dirq works on the same directory."""

import itertools
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import consumes, rule
from support.examples import run_machine
from support.storage.directories import LAYOUTS, Foreign, mid_of
from support.storage.engines import EPOCH, WithoutAttributes
from support.storage.model import CrashingMachine, Known

from qs_storage.directories import DirectoriesEngine
from qs_storage.dirq.elements import is_directory, mid_at, name_of
from qs_storage.disk import Disk
from qs_storage.engine import Durability


class SimpleMachine(CrashingMachine):
    """Shared with others."""

    layout = "dirq-simple"
    disk: type[Disk] = Disk
    mids = CrashingMachine.mids

    def __init__(self) -> None:
        self.earlier = itertools.count(EPOCH - 10**9, 7)
        super().__init__()
        self.foreign = Foreign(self.layout, Path(self.root) / "q")

    def open(self) -> DirectoriesEngine:
        return LAYOUTS[self.layout](self.root, clock=self.clock, durability=Durability.NONE, disk=self.disk())

    # -- what others do

    def place(self, mid: int) -> str:
        return next(name for name in self.foreign.names() if mid_of(name) == mid)

    @rule(target=mids, payload=st.binary(max_size=9))
    def foreign_add(self, payload: bytes) -> int:
        mid = mid_of(self.foreign.add(payload))
        self.model[mid] = Known(payload)
        self.engine.refresh()
        return mid

    @rule(target=mids, payload=st.binary(max_size=9))
    def foreign_add_earlier(self, payload: bytes) -> int:
        """Adds an element as a program whose clock is behind."""
        place = self.foreign.add(payload)
        mid = mid_at(next(self.earlier), 5)
        path = Path(self.root) / "q"
        os.rename(path / place, path / place[:8] / name_of(mid))
        self.model[mid] = Known(payload)
        self.engine.refresh()
        return mid

    @rule(mid=consumes(mids))
    def foreign_consume(self, mid: int) -> None:
        """Removes a ready element as another program does. Locks whose windows are over may still be there."""
        if mid in self.model and self.foreign.queue.lock(self.place(mid)):
            self.expire()
            assert not self.model[mid].until
            assert self.foreign.payload(self.place(mid)) == self.model[mid].payload
            self.foreign.queue.remove(self.place(mid))
            del self.model[mid]

    @rule(mid=mids)
    def foreign_browse(self, mid: int) -> None:
        """A lock, and its end, of which the engine hears later."""
        if mid in self.model and self.foreign.queue.lock(place := self.place(mid)):
            self.foreign.queue.unlock(place)

    @rule()
    def foreign_purge(self) -> None:
        """Runs a purge that removes empty directories; the locks are from a time to come."""
        for path in (Path(self.root) / "q").iterdir():
            if is_directory(path.name) and not os.listdir(path):
                path.rmdir()


class NormalMachine(SimpleMachine):
    """Elements are directories."""

    layout = "dirq"


class SidecarMachine(SimpleMachine):
    """On a file system without extended attributes."""

    disk = WithoutAttributes


class NormalSidecarMachine(NormalMachine):
    """Both."""

    disk = WithoutAttributes


@pytest.mark.parametrize("machine", [SimpleMachine, NormalMachine, SidecarMachine, NormalSidecarMachine])
def test_dirq_engine_is_as_its_model(machine: type[SimpleMachine]) -> None:
    """Any sequence of operations, reopenings, crashes and foreign changes leaves the engine as the model has it."""
    run_machine(machine, 20)
