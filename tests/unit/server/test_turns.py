"""Turns of background work: one at a time, in the order of asking, with a rest between."""

from itertools import pairwise

import trio
from trio.testing import MockClock

from qs_server.broker.background import Turns


async def test_take_alternates_between_two_kinds(autojump_clock: MockClock) -> None:
    """Each waits for the other's slice and the rest after it, and none comes twice in a row while the other waits."""
    turns, slices = Turns(), list[tuple[str, float]]()

    async def work(name: str) -> None:
        for _ in range(4):
            async with turns.take():
                slices.append((name, trio.current_time()))
                await trio.sleep(1)
                turns.rest(3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "compaction")
        nursery.start_soon(work, "expiry")
    assert all(before[0] != after[0] for before, after in pairwise(slices))
    assert [after[1] - before[1] for before, after in pairwise(slices)] == [4.0] * 7


async def test_take_is_released_by_work_that_fails(autojump_clock: MockClock) -> None:
    """When work fails, its time slice ends, and the next one does not wait for ever."""
    turns = Turns()
    try:
        async with turns.take():
            raise OSError(28, "No space left on device")
    except OSError:
        pass
    with trio.fail_after(1):
        async with turns.take():
            pass
