"""Tests time-outs: calls at a later time, and time in steps, which a pause of the process hardly shortens."""

import trio
import trio.testing

from qs_serving.timers import STEPS, Countdown, Timers, within

settled = trio.testing.wait_all_tasks_blocked


async def test_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """A call that is done in time succeeds; any other ends at its deadline. The condition is called again and again."""
    done = trio.Event()
    assert not await within(10, done.wait)
    assert trio.current_time() == 10
    done.set()
    assert await within(10, done.wait)


async def test_a_pause_of_the_process(mock_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    """A pause, however long, uses up one part of five."""
    done = trio.Event()
    found: list[bool] = []

    async def wait() -> None:
        found.append(await within(10, done.wait))

    nursery.start_soon(wait)
    for _ in range(4):
        await settled()
        mock_clock.jump(1000)
    await settled()
    assert found == []
    done.set()
    await settled()
    assert found == [True]


async def test_timers_call_in_the_order_of_their_times(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Each call is made once, at its time, whatever the order in which they were added; not after it is cancelled."""
    timers, called = Timers(), list[tuple[str, float]]()
    nursery.start_soon(timers.serve)

    def add(name: str, delay: float) -> object:
        return timers.add(delay, lambda: called.append((name, trio.current_time())))

    add("c", 30)
    await settled()
    add("a", 10)
    cancelled = timers.add(15, lambda: called.append(("never", 0)))
    add("b", 20)
    await trio.sleep(12)
    timers.cancel(cancelled)
    timers.cancel(cancelled)
    await trio.sleep(100)
    assert called == [("a", 10), ("b", 20), ("c", 30)]


async def test_timers_that_a_call_adds(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    """A call may add a timer that is due at once, and cancel the one that comes next."""
    timers, called = Timers(), list[str]()
    nursery.start_soon(timers.serve)
    second = timers.add(2, lambda: called.append("second"))

    def first() -> None:
        called.append("first")
        timers.add(0, lambda: called.append("at once"))
        timers.cancel(second)

    timers.add(1, first)
    await trio.sleep(10)
    assert called == ["first", "at once"]


async def test_timers_keep_no_cancelled_ones(nursery: trio.Nursery) -> None:
    """Ten thousand timers that are added and cancelled one by one leave nothing behind."""
    timers = Timers()
    keep = timers.add(1000, lambda: None)
    for _ in range(10_000):
        timers.cancel(timers.add(100, lambda: None))
    assert len(timers._due) <= 2
    timers.cancel(keep)


async def test_countdown_counts_steps(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    """All steps together take the time; `reset` gives all of it again, and ends the present step."""
    timers, ends = Timers(), list[float]()
    nursery.start_soon(timers.serve)

    def step() -> None:
        ends.append(trio.current_time())
        if not countdown.count_step():
            countdown.run(10)

    countdown = Countdown(timers, step)
    countdown.run(10)
    countdown.run(10)  # it is running already
    await trio.sleep(5)
    countdown.reset()
    assert not countdown.begun
    await trio.sleep(95)
    assert ends == [2, 4]
    countdown.run(10)
    await trio.sleep(100)
    assert ends[2:] == [100 + 2 * number for number in range(1, STEPS + 1)]
