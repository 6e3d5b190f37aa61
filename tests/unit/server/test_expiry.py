"""The loop that ends what is due: slices that end by their time, rests for others, and another try after a failure."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from qs_server.broker.background import ExpiryLoop, Turns
from qs_server.broker.committer import Committer
from qs_server.broker.jobs import Job, Waiters
from qs_server.broker.subscriptions import Subscriptions
from qs_storage.engine import Durability, Effects

MESSAGE = 10
"""Microseconds of work."""


class DueEngine:
    """The part of an engine that the loop uses: some messages are due, and each takes some time of the timer."""

    room = 1 << 30

    def secure(self, size: int | None = None) -> None: ...

    def __init__(self, due: int) -> None:
        self.due = due
        self.slices: list[int] = []
        """Messages of each batch that had some."""
        self.now = 0
        self.failure: OSError | None = None
        self._done = 0

    def expire(self, count: int) -> int:
        if self.failure is not None:
            raise self.failure
        done = min(count, self.due)
        self.due -= done
        self._done += done
        self.now += done * MESSAGE
        return done

    def queues(self) -> tuple[str, ...]:
        return ()

    def commit(self) -> Effects:
        if self._done:
            self.slices.append(self._done)
            self._done = 0
        return self.effects()

    def effects(self) -> Effects:
        return Effects({}, {}, 0 if self.due else None, None, commit_is_cheap=True)

    def roll_back(self) -> None: ...


def loop_of(engine: DueEngine) -> tuple[ExpiryLoop, Committer]:
    clock: Callable[[], int] = lambda: 1  # noqa: E731
    subscriptions = Subscriptions(engine, clock)  # type: ignore[arg-type]
    committer = Committer(engine, Durability.NONE, Waiters(), subscriptions)  # type: ignore[arg-type]
    return ExpiryLoop(engine, committer, Turns(), clock, lambda: engine.now / 1e6), committer  # type: ignore[arg-type]


async def test_expiry_alone_has_no_rests(autojump_clock: MockClock) -> None:
    """With nobody else, slices of 2 ms follow one another without a rest, and others have a turn between them."""
    engine = DueEngine(1_000_000)
    loop, _ = loop_of(engine)
    turns = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.serve)
        while engine.due:
            turns += 1
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert trio.current_time() == 0
    assert (sum(engine.slices), max(engine.slices) * MESSAGE < 5000) == (1_000_000, True)
    assert turns >= len(engine.slices) // 2 > 100


async def test_expiry_beside_requests_rests(autojump_clock: MockClock) -> None:
    """Others have many times as long as a slice, before the next one."""
    engine = DueEngine(2000)
    loop, committer = loop_of(engine)
    starts: list[float] = []

    async def work() -> None:
        while engine.due:
            await committer.run(Job())
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(loop.serve)
        while engine.due:
            seen = len(engine.slices)
            await trio.sleep(0.0001)
            starts += [trio.current_time()] * (len(engine.slices) - seen)
        nursery.cancel_scope.cancel()
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert len(gaps) >= 5
    assert sum(gap >= 0.0079 for gap in gaps) >= len(gaps) - 1  # the first may come before the others' first request


class StalledEngine(DueEngine):
    """Every message takes three seconds, as on a disk that stands still."""

    def expire(self, count: int) -> int:
        done = super().expire(min(count, 1))
        self.now += 3_000_000 * done
        return done


async def test_expiry_rest_after_stall_is_bounded(autojump_clock: MockClock) -> None:
    """A slice that was held up for seconds delays the next one by a quarter of a second at most: it was half a minute,
    in which no window ended."""
    engine = StalledEngine(20)
    loop, committer = loop_of(engine)

    async def work() -> None:
        while engine.due:
            await committer.run(Job())
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.serve)
        await work()
        nursery.cancel_scope.cancel()
    assert 19 * 0.2 < trio.current_time() < 20 * 0.3


async def test_expiry_that_fails_waits_a_second(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """A failed expiry is tried again a second later."""
    engine = DueEngine(10)
    engine.failure = OSError(28, "No space left on device")
    loop, _ = loop_of(engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.serve)
        await trio.sleep(2.5)
        engine.failure = None
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert (engine.due, caplog.text.count("No space left")) == (0, 3)
