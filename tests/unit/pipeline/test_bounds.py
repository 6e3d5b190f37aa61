"""The greatest id of a queue, found by asking for the next one after a number."""

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_pipeline.bounds import GREATEST, greatest


class Asked:
    """A sorted list, and how often it was asked."""

    def __init__(self, mids: list[int]) -> None:
        self._mids = mids
        self.times = 0

    def after(self, mid: int) -> int | None:
        self.times += 1
        place = bisect.bisect_right(self._mids, mid)
        return self._mids[place] if place < len(self._mids) else None


@given(st.sets(st.integers(1, GREATEST)))
def test_any_set(mids: set[int]) -> None:
    """The greatest id is found in any set of ids; it is 0 when there are none."""
    assert greatest(Asked(sorted(mids)).after) == max(mids, default=0)


@pytest.mark.parametrize("count", [1, 1000, 1_000_000])
def test_few_questions(count: int) -> None:
    """A queue that was filled in the course of an hour takes tens of questions, not one for each page."""
    first = 1_760_000_000_000_000
    mids = list(range(first, first + 3_600_000_000, 3_600_000_000 // count))
    asked = Asked(mids)
    assert greatest(asked.after) == mids[-1]
    assert asked.times < 80
