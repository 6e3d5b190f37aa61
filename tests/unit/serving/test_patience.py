"""Time that is given to others: a moment in which the process did not run is not theirs."""

import trio
import trio.testing

from qs_serving.patience import within

settled = trio.testing.wait_all_tasks_blocked


async def test_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """A call that is done in time succeeds; any other ends with the time. The condition is called again and again."""
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
