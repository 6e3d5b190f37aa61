"""The bus waits for subscribers that return after it was killed, and for the server that notes a subscriber."""

from collections.abc import Mapping

import pytest
import trio
import trio.testing
from support.bus.memory import FakeHub

from qs_bus.monitor import Monitor, SubscriberCounts
from qs_bus.options import BusOptions
from qs_bus.upstream import Upstream
from qs_serving.timers import Timers

settled = trio.testing.wait_all_tasks_blocked
SETTLE = 5


class FakeCounts(SubscriberCounts):
    """Notes when it is told to."""

    def __init__(self) -> None:
        self.done = trio.Event()

    def changed(self) -> None:
        """Ignores changes of the counted queues."""

    async def noted(self) -> None:
        await self.done.wait()

    async def read(self) -> Mapping[str, int]:  # type: ignore[override]
        return {"q": 1}


@pytest.fixture
def counts() -> FakeCounts:
    return FakeCounts()


@pytest.fixture
def monitor(counts: FakeCounts, nursery: trio.Nursery) -> Monitor:
    """Makes a monitor without a server."""
    options = BusOptions(queues=("q",), settle=SETTLE)
    monitor = Monitor(options, lambda feed: None, lambda feed, error, text: None, hub=FakeHub(), timers=Timers())  # type: ignore[arg-type]
    monitor._counts, monitor._background = counts, nursery
    return monitor


async def test_the_bus_stands_still_while_it_waits_for_subscribers(
    monitor: Monitor, counts: FakeCounts, mock_clock: trio.testing.MockClock
) -> None:
    """A pause of the bus does not use up the time that subscribers have to come back; the time itself does."""
    await monitor._expect_subscribers(counts)
    await settled()
    mock_clock.jump(1000)
    await settled()
    assert monitor.feeds["q"].expected == 1
    for _ in range(4):
        mock_clock.jump(SETTLE / 5)
        await settled()
    assert monitor.feeds["q"].expected == 0


async def test_the_bus_stands_still_while_a_subscriber_is_noted(
    monitor: Monitor, counts: FakeCounts, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A pause of the bus does not use up the time that the server has to note a subscriber."""
    feed = monitor.feed("q")
    nursery.start_soon(monitor.note_coming, [feed])
    await settled()
    mock_clock.jump(1000)
    await settled()
    assert feed.coming == 1
    counts.done.set()
    await settled()
    assert feed.coming == 0


@pytest.mark.parametrize(("not_made", "seconds"), [(set(), 0.5), ({"q"}, 10)])
async def test_a_queue_of_q_that_is_deleted(
    monitor: Monitor,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    not_made: set[str],
    seconds: float,
) -> None:
    """A deleted queue of -q is made again soon. If the server forbids that, the bus looks more rarely whether others
    have made it."""
    prepared = trio.Event()

    async def prepare(upstream: Upstream) -> None:
        prepared.set()

    monkeypatch.setattr(monitor, "_prepare", prepare)
    monitor._not_made = not_made
    began = trio.current_time()
    monitor._gone(monitor.feed("q"))
    await prepared.wait()
    assert trio.current_time() - began == pytest.approx(seconds)
