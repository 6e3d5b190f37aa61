"""Tests when the engine's upkeep is done: at its time, and with as much time for requests as a slice takes."""

from itertools import pairwise

import pytest
import trio
from support.servers.memory import source
from trio.testing import MockClock, wait_all_tasks_blocked

from qs_server.broker.background import Turns, UpkeepLoop
from qs_server.broker.committer import Committer
from qs_server.broker.jobs import Job, Waiters
from qs_server.broker.subscriptions import Subscriptions
from qs_storage.engine import SECOND, Durability, Effects, Engine

_IDLE = 0.005
"""Seconds of real time in which all tasks wait, after which the clock jumps."""
_SLICE = 0.1
_WORK = 5.0


class Work:
    """Takes five seconds in a thread, by the loop's clock, which does not jump by itself meanwhile."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        clock.autojump_threshold = float("inf")

    def run(self) -> None:
        trio.from_thread.run_sync(self._clock.jump, _WORK)
        trio.from_thread.run_sync(setattr, self._clock, "autojump_threshold", _IDLE)


class Upkept:
    """An engine that has nothing but upkeep: so many slices of a tenth of a second, the first one due at a time."""

    room = 1 << 30

    def secure(self, size: int | None = None) -> None: ...

    def roll_back(self) -> None: ...

    def __init__(self, clock: MockClock, slices: int, due: int, work: bool) -> None:
        self.clock, self.slices, self.due, self.work = clock, slices, due, work
        self.begun: list[float] = []
        self.finished = 0

    def effects(self) -> Effects:
        return Effects({}, {}, None, self.next_upkeep(), commit_is_cheap=True)

    commit = effects

    def next_upkeep(self) -> int | None:
        return self.due if self.slices else None

    def begin_upkeep(self) -> Work | None:
        self.slices -= 1
        self.begun.append(trio.current_time())
        self.clock.jump(_SLICE)
        return Work(self.clock) if self.work else None

    def finish_upkeep(self, work: Work) -> None:
        self.finished += 1


@pytest.fixture
def clock() -> MockClock:
    """A clock that goes on when all tasks wait."""
    return MockClock(rate=0, autojump_threshold=_IDLE)


def run(clock: MockClock, slices: int, due: int, *instruments: trio.abc.Instrument, work: bool = False) -> Upkept:
    """Returns what an engine has been asked for within a minute."""
    engine = Upkept(clock, slices, due, work)

    async def main() -> None:
        storage: Engine = engine  # type: ignore[assignment]
        subscriptions = Subscriptions(source(storage), now)
        committer = Committer(storage, Durability.ALWAYS, Waiters(), subscriptions)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(UpkeepLoop(storage, committer, Turns(), now).serve)
            await wait_all_tasks_blocked()
            committer.upkeep.set(engine.next_upkeep())
            await trio.sleep(60)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock, instruments=instruments)
    return engine


def now() -> int:
    return round(trio.current_time() * SECOND)


def test_upkeep_waits_for_its_time(clock: MockClock) -> None:
    """No upkeep begins before the time that the engine names."""
    [begun] = run(clock, 1, 20 * SECOND).begun
    assert begun >= 20


def test_upkeep_rests_as_long_as_slice_took(clock: MockClock) -> None:
    """After each slice there is a rest as long as the slice was, and then the next one follows."""
    begun = run(clock, 20, 0).begun
    assert len(begun) == 20
    assert [after - before for before, after in pairwise(begun)] == pytest.approx([2 * _SLICE] * 19)


def test_upkeep_gives_back_work_of_thread(clock: MockClock) -> None:
    """Work that a slice leaves to a thread is back in the engine before the next slice, without a longer pause."""
    engine = run(clock, 3, 0, work=True)
    assert engine.finished == 3
    assert [after - before for before, after in pairwise(engine.begun)] == pytest.approx([2 * _SLICE + _WORK] * 2)


class Steps(trio.abc.Instrument):
    """When the loop has gone on with a task."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if "UpkeepLoop" in task.name:
            self.times.append(trio.current_time())


def test_upkeep_rest_after_last_slice_wakes_nobody(clock: MockClock) -> None:
    """The rest after it ends unnoticed."""
    steps = Steps()
    [begun] = run(clock, 1, 0, steps).begun
    assert not [time for time in steps.times if begun + _SLICE < time < 60]  # when it is cancelled


class Fault(Job):
    """Work that breaks the batch it is in."""

    def advance(self, pushing: bool | None) -> None:
        raise RuntimeError("a fault")


async def test_upkeep_gives_back_work_after_broken_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of something else that is in the batch does not end the upkeep."""
    engine = Upkept(MockClock(), 2, 0, work=False)
    storage: Engine = engine  # type: ignore[assignment]
    committer = Committer(storage, Durability.ALWAYS, Waiters(), Subscriptions(storage, now))

    class Broken:
        def run(self) -> None:
            trio.from_thread.run_sync(committer.scheduled.append, Fault())

    engine.begin_upkeep = lambda: engine.__setattr__("slices", engine.slices - 1) or Broken()  # type: ignore[method-assign]
    committer.upkeep.set(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.serve)
        nursery.start_soon(UpkeepLoop(storage, committer, Turns(), now).serve)
        with trio.fail_after(10):
            while engine.finished < 2:
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert "a fault" in caplog.text
