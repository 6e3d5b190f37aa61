"""Wrong tokens: when they are answered, and the log of them, on a clock of its own."""

import pytest
import trio
from trio.testing import MockClock

from qs_serving.access.failures import Failures


async def test_serve_logs_one_line_a_second(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """The first wrong token is logged at once; ten thousand a second make one line a second with their number, and none
    is lost."""
    failures = Failures()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(failures.serve)
        await trio.testing.wait_all_tasks_blocked()
        failures.note("a:1")
        await trio.sleep(0.5)
        assert [record.getMessage() for record in caplog.records] == ["a wrong token, the last from a:1"]
        for _ in range(30):
            for number in range(1000):
                failures.note(f"b:{number}")
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    counts = [int(record.getMessage().split()[0]) for record in caplog.records[1:]]
    assert len(counts) <= 5
    assert sum(counts) == 30_000 == failures.total - 1


async def test_serve_sleeps_while_nothing_fails(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """After a second without a wrong token, the next one is logged at once again."""
    failures = Failures()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(failures.serve)
        for _ in range(2):
            await trio.sleep(10)
            failures.note("a:1")
        await trio.sleep(0.1)
        assert len(caplog.records) == 2
        nursery.cancel_scope.cancel()


def test_note_spreads_answers() -> None:
    """Each wrong token is answered after 100 ms; of more than a thousand a second, a thousand are answered each second,
    in order."""
    now = 50.0
    failures = Failures(lambda: now)
    assert failures.note("a:1") == pytest.approx(0.1)
    now += 1
    assert failures.note("a:1") == pytest.approx(0.1)
    delays = [failures.note("a:1") for _ in range(5000)]
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(5.1)
    now += 5
    assert failures.note("a:1") == pytest.approx(0.101)
    now += 1
    assert failures.note("a:1") == pytest.approx(0.1)
