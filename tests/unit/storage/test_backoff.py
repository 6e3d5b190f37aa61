"""The time for which a message that was received in vain stays hidden."""

import contextlib
import sys
from pathlib import Path
from types import FrameType

import pytest
from support.storage.engines import JournalEngine, ManualClock

from qs_storage.engine import SECOND, Draft, Durability, Options
from qs_storage.policy import backoff_of, contradiction_in

MID = 1_760_000_000_000_000


@pytest.mark.parametrize(("receives", "seconds"), [(1, 2), (2, 4), (3, 8), (4, 10), (1000, 10)])
def test_it_doubles(receives: int, seconds: int) -> None:
    """Twice as long after each receive, up to the longest, give or take a tenth; the messages spread over that."""
    options = Options(backoff=2 * SECOND, backoff_max=10 * SECOND)
    found = [backoff_of(options, MID + number, receives) / SECOND for number in range(500)]
    assert 0.9 * seconds <= min(found) < 0.92 * seconds
    assert 1.08 * seconds < max(found) <= 1.1 * seconds
    assert abs(sum(found) / 500 - seconds) < 0.01 * seconds


def test_the_longest_by_default() -> None:
    """Without backoff-max, the longest back-off is an hour."""
    assert 3240 * SECOND <= backoff_of(Options(backoff=SECOND), MID, 40) <= 3960 * SECOND


def test_it_is_the_same_each_time() -> None:
    """The ids of messages and their receives alone choose within the spread: these are numbers of another process."""
    options = Options(backoff=60 * SECOND)
    assert [backoff_of(options, MID + 7, receives) for receives in (1, 2, 3)] == [64_524_250, 119_881_301, 221_428_253]


@pytest.mark.parametrize(("options", "receives"), [(Options(), 3), (Options(backoff=SECOND), 0)])
def test_none(options: Options, receives: int) -> None:
    """A queue without back-off hides nothing, nor does one a message that was never received."""
    assert backoff_of(options, MID, receives) == 0


def test_the_shortest() -> None:
    """A back-off is never over before it begins."""
    assert backoff_of(Options(backoff=1), MID, 1) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (Options(), None),
        (Options(backoff=SECOND), None),
        (Options(backoff=SECOND, backoff_max=SECOND), None),
        (Options(backoff_max=SECOND), "needs"),
        (Options(backoff=2 * SECOND, backoff_max=SECOND), "1 seconds"),
        (Options(backoff=3601 * SECOND), "3600 seconds"),
    ],
)
def test_options_that_contradict(options: Options, word: str | None) -> None:
    """The longest back-off needs a shortest, which is not longer."""
    found = contradiction_in(options)
    assert found is None if word is None else word in (found or "")


def test_many_windows_that_end(tmp_path: Path) -> None:
    """A thousand windows that end together take some 7 ms in the journal: few calls for each message. All requests wait
    for them, and hundreds of thousands may be due; so a request itself ends only some."""
    clock, calls = ManualClock(), 0
    engine = JournalEngine(str(tmp_path), clock=clock, durability=Durability.NONE)
    with contextlib.closing(engine):
        engine.create("q", Options("journal", backoff=60 * SECOND))
        queue = engine.queue("q")
        queue.push([Draft(b"x")] * 1000)
        engine.receive(["q"], 1000, SECOND, 1 << 20)
        engine.commit()
        clock.now += 2 * SECOND
        assert queue.expire() == 150  # before a request

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            assert queue.expire(1000) == 850
        finally:
            sys.setprofile(None)
        assert queue.stats().delayed == 1000
        assert calls < 15_000
