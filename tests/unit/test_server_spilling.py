"""When the engine's work at leisure is done: at its time, seldom while there are many requests, at once when urgent."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from qs_server.committer import Committer
from qs_server.group import Chore
from qs_server.spilling import Spiller
from qs_server.storage.engine import SECOND, Durability, Engine
from qs_server.subscriptions import Subscriptions
from qs_server.waiting import Waiters


class Work:
    """Takes a tenth of a second, by the loop's clock."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock

    def run(self) -> None:
        trio.from_thread.run_sync(self._clock.jump, 0.1)


class Leisurely:
    """An engine that has nothing but work at leisure: so many pieces, the next one due at a time."""

    quick = True

    def __init__(self, clock: MockClock, pieces: int, due: int) -> None:
        self.clock, self.pieces, self.due = clock, pieces, due
        self.urgent = due == 0
        self.begun: list[float] = []
        self.brief: list[float] = []
        self.finished = 0

    def __getattr__(self, name: str) -> object:
        return lambda *args, **named: {} if name.startswith("take_") else None

    def next_spill(self) -> int | None:
        return self.due if self.pieces else None

    @property
    def spill_is_urgent(self) -> bool:
        return self.urgent

    def begin_spill(self, *, brief: bool = False) -> Work | None:
        if not self.pieces:
            return None
        if brief:
            self.brief.append(trio.current_time())
            self.due = 1
            return None
        self.pieces -= 1
        self.begun.append(trio.current_time())
        return Work(self.clock)

    def finish_spill(self, work: Work) -> None:
        self.finished += 1


class Scene:
    def __init__(self, clock: MockClock, nursery: trio.Nursery, pieces: int, due: int) -> None:
        self.engine = Leisurely(clock, pieces, due)
        storage: Engine = self.engine  # type: ignore[assignment]
        subscriptions = Subscriptions(storage, self.now)
        self.committer = Committer(storage, Durability.ALWAYS, Waiters(), subscriptions)
        nursery.start_soon(Spiller(storage, self.committer, self.now).serve)

    def now(self) -> int:
        return round(trio.current_time() * SECOND)

    async def batch(self) -> None:
        await self.committer.run(Chore())


@pytest.fixture
def clock() -> MockClock:
    return MockClock(rate=0, autojump_threshold=0.005)


def test_what_cannot_wait_is_done_in_a_pause(clock: MockClock) -> None:
    """And nothing else is, of a server that has little time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scene = Scene(clock, nursery, 100, 1)
            engine = scene.engine
            engine.urgent = False
            while not engine.finished:
                await scene.batch()
                await trio.sleep(0.005)
            engine.due = 0
            for _ in range(60):
                await scene.batch()
                await trio.sleep(0.005)
            assert len(engine.brief) == 1
            assert len(engine.begun) == 1
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def run(clock: MockClock, pieces: int, due: int, requests: int) -> list[float]:
    """When the pieces were begun, with so many requests every 50 ms for 3 s."""

    async def main() -> list[float]:
        async with trio.open_nursery() as nursery:
            scene = Scene(clock, nursery, pieces, due)
            for _ in range(60):
                for _ in range(requests):
                    await scene.batch()
                await trio.sleep(0.05)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert scene.engine.finished == len(scene.engine.begun)
        return scene.engine.begun

    return trio.run(main, clock=clock)


def test_it_waits_for_its_time(clock: MockClock) -> None:
    """Nothing is begun before the engine says."""
    begun = run(clock, 1, 1 * SECOND, 1)
    assert len(begun) == 1
    assert begun[0] >= 1


def test_a_busy_server_has_little_time_for_it(clock: MockClock) -> None:
    """With many requests, a pause of nine times the length follows each piece."""
    begun = run(clock, 100, 1, 12)
    assert all(after - before >= 0.9 for before, after in pairwise(begun))


def test_an_idle_server_goes_on(clock: MockClock) -> None:
    """With hardly any requests, one piece follows the other."""
    begun = run(clock, 8, 1, 1)
    assert len(begun) == 8
    assert all(after - before < 0.9 for before, after in pairwise(begun))


def test_what_is_urgent_is_done_at_once(clock: MockClock) -> None:
    """Whatever else there is to do, without a pause."""
    begun = run(clock, 10, 0, 6)
    assert len(begun) == 10
    assert begun[-1] - begun[0] < 2
