"""Subscribers that come and go, late and slow, while bus and server stand still or are killed: nothing is lost."""

from pathlib import Path

import pytest
from support.bus_churn import Scale, churn, seed_or

SEED = 20261122
SHORT = Scale(subscribers=40, messages=2000, stalls=4, kills=2, stall=0.6, seconds=100)
LONG = Scale(subscribers=200, messages=20_000, stalls=25, kills=5, stall=2, seconds=500)


@pytest.mark.slow  # some 6 s: everything is killed and stands still, several times
def test_subscribers_that_come_and_go(tmp_path: Path) -> None:
    """Every message that was asked for is handled by somebody, and by the name; every other one is in its queue, also
    when clients that had been taken for silent got it."""
    assert churn(tmp_path, SHORT, seed_or(SEED)).subscriptions > SHORT.subscribers // 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_subscribers_that_come_and_go(tmp_path: Path) -> None:
    """Like `test_subscribers_that_come_and_go`, with 200 subscribers and 20,000 messages. Takes one to two minutes."""
    counted = churn(tmp_path, LONG, seed_or(SEED + 1))
    assert counted.unasked > 0
