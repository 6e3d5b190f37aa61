"""A step of the wall clock changes none of the promises of a storage, also over a restart."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.storage.engines import ENGINES, LOTS, SteppedMachine, upkeep_slice

from qs_storage.clock import ServerClock
from qs_storage.directories import DirectoriesEngine
from qs_storage.engine import SECOND, Draft, Message, NoSuchMessageError, Options, Receipt, State

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
STEPS = [400 * SECOND, -HOUR]
RESTARTS = ["running", "stopped", "killed"]
JOURNAL = ["journal-always", "journal-none"]
WITH_LETTERS = [*JOURNAL, "files-none", "files-sidecar"]
WITH_WINDOWS = [*WITH_LETTERS, "dirq-simple-none", "dirq-none"]


class Shop:
    """A server's clock and its engine, on a machine whose wall clock is stepped."""

    def __init__(self, root: Path, engine: str, restart: str) -> None:
        self._directory = root
        self.machine = SteppedMachine(root)
        self._make: Callable[[Path], Any] = ENGINES[engine]
        self._restart = restart
        self._open()

    def _open(self) -> None:
        self.clock: ServerClock = self.machine.start()
        self.engine = cast(DirectoriesEngine, self._make(self._directory)(self.clock.now))

    def close(self) -> None:
        self.engine.close()
        self.clock.close()

    def step(self, micros: int) -> None:
        """Sets the wall clock, and restarts the server before or after that, or leaves it running."""
        self.passes(2 * SECOND)
        if self._restart == "stopped":
            self.close()
        elif self._restart == "killed":
            self.engine.commit()
            self.engine._journal.close()
            self.engine._watch.close()
        self.machine.wall.now += micros
        if self._restart != "running":
            self._open()
        self.passes(2 * SECOND)

    def passes(self, micros: int) -> None:
        """Lets time pass as a server does: it reads the clock, ends what is due, and does the upkeep."""
        self.machine.passes(micros)
        self.clock.now()
        self.engine.expire(1000)
        upkeep_slice(self.engine)

    def push(self, qid: str = "q", **about: Any) -> int:
        (mid,) = self.engine.queue(qid).push([Draft(b"x", **about)])
        self.engine.commit()
        return mid

    def pushed_at(self) -> int:
        """Returns when the last message was pushed, by its id."""
        queue = self.engine.queue("q")
        return queue.get(queue.last_mid, peek=True, visibility=None).pushed_at

    def receive(self, qid: str = "q", visibility: int | None = None) -> list[Message]:
        found = self.engine.receive([qid], 10, visibility, LOTS)
        self.engine.commit()
        return found

    def comes_after(self, qid: str = "q") -> int:
        """Returns the microseconds until a message is visible, by the machine, within 0.1 s."""
        began = self.machine.steady()
        while not self.receive(qid):
            self.passes(SECOND // 10)
            assert self.machine.steady() - began < 2 * HOUR
        return self.machine.steady() - began


@pytest.fixture(name="shop")
def _shop(tmp_path: Path, engine: str, restart: str) -> Iterator[Shop]:
    shop = Shop(tmp_path, engine, restart)
    yield shop
    shop.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", JOURNAL)
def test_a_key_stores_once(shop: Shop, step: int) -> None:
    """A step between a push with a key and its repeat: stored once, and ids go on increasing."""
    shop.engine.create("q", Options())
    first = shop.push(key="k")
    shop.step(step)
    assert shop.push(key="k") == first
    assert shop.push(key="other") > first
    assert len(shop.engine.queue("q").list_mids(State.ALL, 10, -1)) == 2


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", JOURNAL)
def test_a_key_ends(shop: Shop, step: int) -> None:
    """A key that is used again after ten minutes is stored again, also if the clock was an hour ahead at its push."""
    shop.engine.create("q", Options())
    first = shop.push(key="k")
    shop.step(step)
    shop.passes(10 * MINUTE)
    assert shop.push(key="k") > first


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", WITH_WINDOWS)
def test_a_window_lasts_its_length(shop: Shop, step: int) -> None:
    """A window of 10 s ends after 10 s, whatever step was made meanwhile."""
    shop.engine.create("q", Options())
    mid = shop.push()
    assert [message.mid for message in shop.receive(visibility=10 * SECOND)] == [mid]
    shop.step(step)
    assert 5.8 * SECOND <= shop.comes_after() <= 6.4 * SECOND


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", WITH_WINDOWS)
def test_a_back_off_lasts_its_length(shop: Shop, step: int) -> None:
    """A back-off of 20 s, give or take a tenth, begins with the end of a window of 1 s, whatever step follows."""
    shop.engine.create("q", Options(backoff=20 * SECOND))
    shop.push()
    shop.receive(visibility=SECOND)
    shop.step(step)
    assert (1 + 18 - 4.2) * SECOND <= shop.comes_after() <= (1 + 22.5 - 3.5) * SECOND


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", WITH_WINDOWS)
def test_a_delay_lasts_its_length(shop: Shop, step: int) -> None:
    """A delay of 20 s, and one of a release, end after 20 s."""
    shop.engine.create("q", Options())
    shop.push(delay=20 * SECOND)
    shop.step(step)
    assert 15.5 * SECOND <= shop.comes_after() <= 16.5 * SECOND
    (mid,) = shop.engine.queue("q").list_mids(State.ALL, 10, -1)
    shop.engine.queue("q").release(Receipt(mid), 20 * SECOND)
    shop.engine.commit()
    shop.step(-step)
    assert 15.5 * SECOND <= shop.comes_after() <= 16.5 * SECOND


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", WITH_LETTERS)
def test_a_dead_letter_keeps_its_times(shop: Shop, step: int) -> None:
    """A message dies when its window ends, not by a step; `dead-at` follows `pushed-at` by what the window took, and
    the retention of the dead-letter queue counts from there."""
    shop.engine.create("letters", Options(retention=30 * SECOND))
    shop.engine.create("q", Options(dead_letter="letters", max_receives=1))
    shop.push()
    shop.receive(visibility=10 * SECOND)
    shop.step(step)
    assert len(shop.engine.queue("q").list_mids(State.ALL, 10, -1)) == 1
    shop.passes(7 * SECOND)
    (mid,) = shop.engine.queue("letters").list_mids(State.ALL, 10, -1)
    origin = shop.engine.queue("letters").get(mid, peek=True, visibility=None).origin
    assert origin is not None
    assert 10 * SECOND <= origin.at - origin.pushed_at <= 11.5 * SECOND
    shop.step(-step)
    shop.passes(24 * SECOND)
    assert len(shop.engine.queue("letters").list_mids(State.ALL, 10, -1)) == 1
    shop.passes(4 * SECOND)
    with pytest.raises(NoSuchMessageError):
        shop.engine.queue("letters").get(mid, peek=True, visibility=None)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", WITH_WINDOWS)
def test_retention_lasts_its_length(shop: Shop, step: int) -> None:
    """A message is there for its retention of 60 s, and no longer."""
    shop.engine.create("q", Options(retention=60 * SECOND))
    mid = shop.push()
    shop.step(step)
    shop.passes(54 * SECOND)
    assert shop.engine.queue("q").get(mid, peek=True, visibility=None).mid == mid
    shop.passes(4 * SECOND)
    with pytest.raises(NoSuchMessageError):
        shop.engine.queue("q").get(mid, peek=True, visibility=None)


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("engine", WITH_WINDOWS)
def test_ids_increase_and_keep_the_time(shop: Shop) -> None:
    """Through steps in both directions ids increase, and tell within 2 % how much time is between two pushes."""
    shop.engine.create("q", Options())
    before, pushed = shop.push(), shop.pushed_at()
    for step in (HOUR, -HOUR, 400 * SECOND, -2 * HOUR):
        began = shop.machine.steady()
        shop.step(step)
        assert shop.push() > before
        took = shop.machine.steady() - began
        assert 0.98 * took <= shop.pushed_at() - pushed <= 1.02 * took
        before, pushed = shop.engine.queue("q").last_mid, shop.pushed_at()
