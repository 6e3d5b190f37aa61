"""Delays between attempts: their bounds, and their randomness."""

from itertools import islice

import pytest

from qs_client.backoff import delays


def test_bounds_grow_up_to_the_most() -> None:
    """The bound doubles from the first to the most, and stays there."""
    bounds = list(islice(delays(uniform=lambda low, high: high), 8))
    assert bounds == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])


def test_full_jitter() -> None:
    """A delay is anything from nothing up to its bound."""
    asked: list[float] = []

    def uniform(low: float, high: float) -> float:
        asked.append(low)
        return high / 4

    assert list(islice(delays(1, 10, 3, uniform), 4)) == [0.25, 0.75, 2.25, 2.5]
    assert asked == [0, 0, 0, 0]


def test_a_first_over_the_most() -> None:
    """No delay is over the most, and by default each is drawn within the bounds."""
    assert list(islice(delays(5, 2, uniform=lambda low, high: high), 2)) == [2, 2]
    assert all(0 <= delay <= 2 for delay in islice(delays(), 100))
