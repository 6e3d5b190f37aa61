"""Percentiles of many durations in bounded memory: samples that can be merged."""

from collections.abc import Iterable
from typing import Any

import numpy as np

Array = Any  # numpy's own types say more than is of use here

_SAMPLE = 4096
"""Values of one bin in one partition that are kept as they are."""
_KEPT = 2048
"""Values that stand for all of a bin in a partition with more: a rank is off by at most half of their distance."""
_MOST = 1 << 21
"""Values of one queue, or of one hour, in memory. With more, half as many stand for all of them."""


def sample(ordered: Array) -> Array:
    """Returns the values themselves, or, of many, evenly spaced ones that stand for all. ordered: sorted values."""
    if len(ordered) <= _SAMPLE:
        return ordered
    return ordered[_middles(len(ordered), _KEPT)]


def _middles(count: int, kept: int) -> Array:
    """Returns the places of `kept` values that stand for about equally many of `count` sorted values each."""
    return (2 * np.arange(kept, dtype=np.int64) + 1) * count // (2 * kept)


def _weights(count: int, kept: int) -> Array:
    """Returns for how many of `count` values each of `kept` evenly spaced values stands."""
    return np.diff(np.arange(kept + 1, dtype=np.int64) * count // kept)


class Durations:
    """Durations in microseconds, from any number of samples.

    Ensures that percentiles are exact while no sample stands for more values than it has, and that their ranks are off
    by at most a thousandth up to 4 * 10^9 values. Count and maximum are always exact. Never holds more than some
    million values.
    """

    def __init__(self) -> None:
        self.count = 0
        self.most: int | None = None
        self._parts: list[tuple[Array, Array]] = []
        self._held = 0

    def add(self, count: int, most: int, values: Array) -> None:
        """Adds a sample. count: values for which it stands; most: the greatest of these; values: what `sample`
        returned."""
        self._hold(values, _weights(count, len(values)))
        self.count += count
        self.most = most if self.most is None else max(self.most, most)
        if self._held > _MOST:
            ordered, below = self._ordered()
            kept = _MOST // 2
            chosen = np.searchsorted(below, _middles(self.count, kept), side="right")
            self._parts, self._held = [], 0
            self._hold(ordered[chosen], _weights(self.count, kept))

    def _hold(self, values: Array, weights: Array) -> None:
        self._parts.append((values, weights))
        self._held += len(values)

    def _ordered(self) -> tuple[Array, Array]:
        """Returns the values in order, and how many of all values are at most as great as each."""
        values = np.concatenate([values for values, _ in self._parts])
        weights = np.concatenate([weights for _, weights in self._parts])
        order = np.argsort(values, kind="stable")
        return values[order], np.cumsum(weights[order])

    def percentiles(self, ranks: Iterable[float]) -> list[int | None]:
        """Returns the value of the nearest rank for each of the ranks, 0 to 1; None without values. Each is a duration
        that occurred."""
        if not self.count:
            return [None for _ in ranks]
        ordered, below = self._ordered()
        # The first value that is not below the rank; rounded, as 0.95 * 20 is a little more than 19.
        wanted = [max(int(np.ceil(round(rank * self.count, 6))), 1) for rank in ranks]
        return [int(value) for value in ordered[np.searchsorted(below, wanted, side="left")]]
