"""A pace lets out so many messages, and says when the next may go."""

import random

import pytest

from qs_storage.engine import SECOND
from qs_storage.pace import Pace


def take(pace: Pace, rate: float, now: int, most: int = 10**9) -> int:
    """Takes what may go now, at most so many."""
    found = min(pace.room(rate, now), most)
    pace.count(found)
    return found


@pytest.mark.parametrize("rate", [0.5, 1, 1.5, 7, 100, 2500])
def test_a_queue_that_is_always_behind_keeps_its_rate(rate: float) -> None:
    """In ten seconds from its first message it hands out ten times its rate, also if it is woken late each time."""
    pace, now, taken = Pace(), 5 * SECOND, 0
    chance = random.Random(rate)
    begin = now
    while now < begin + 10 * SECOND:
        taken += take(pace, rate, now)
        assert pace.next > now
        now = pace.next + chance.randrange(2000)
    assert taken == pytest.approx(10 * rate, rel=0.05, abs=1)


def test_a_second_of_messages_goes_at_once_after_a_pause() -> None:
    """And no more in that second, however long the pause was."""
    pace, now = Pace(), 3600 * SECOND
    assert take(pace, 50, now) == 50
    assert [take(pace, 50, now + at) for at in (1, SECOND // 2, SECOND - 1)] == [0, 0, 0]
    assert pace.next == now + SECOND


def test_a_window_begins_with_its_first_message() -> None:
    """A look at the pace begins no window: a second with a burst has no more than that."""
    pace = Pace()
    assert pace.room(10, SECOND) == 10  # as with each push into the queue
    assert take(pace, 10, SECOND + 900_000) == 10
    assert pace.next == 2 * SECOND + 900_000
    assert pace.room(10, pace.next - 1) == 0


def test_no_second_has_more_than_the_rate_after_a_burst() -> None:
    """The window after one that was used up spreads its messages."""
    pace, now = Pace(), SECOND
    went = [(now, take(pace, 10, now))]
    while now < 5 * SECOND:
        now += SECOND // 100
        went.append((now, take(pace, 10, now)))
    for begin, _ in went:
        assert sum(number for at, number in went if begin <= at < begin + SECOND) <= 11


def test_what_is_left_of_a_window_may_go_at_once() -> None:
    """Single messages within the rate do not wait for each other."""
    pace = Pace()
    assert [take(pace, 5, SECOND + at, 1) for at in range(6)] == [1, 1, 1, 1, 1, 0]


def test_a_new_rate_holds_at_once() -> None:
    """A changed rate begins with a window of its own."""
    pace = Pace()
    assert take(pace, 5, SECOND) == 5
    assert pace.room(1, SECOND + 1) == 1


def test_a_clock_that_goes_back_keeps_nothing_waiting() -> None:
    """A new window begins."""
    pace = Pace()
    assert take(pace, 5, 100 * SECOND) == 5
    assert take(pace, 5, SECOND) == 5


def test_a_pace_goes_on_from_its_state() -> None:
    """A pace that is made from the state of another at every step lets out the same: servers share one so."""
    pace, state, now = Pace(), Pace().state, SECOND
    chance = random.Random(1)
    for _ in range(200):
        now += chance.randrange(SECOND // 10)
        number = chance.randrange(4)
        shared = Pace.of(*state) if state[0] else Pace()
        assert take(shared, 7, now, number) == take(pace, 7, now, number)
        assert shared.next == pace.next
        state = shared.state
