"""Delays between attempts, and when a subscription whose connection is lost is made again."""

import itertools
import logging
from itertools import islice

import pytest

from qs_client import Disconnected, NoAnswer, NotFound, ProtocolMismatch, ServerUnavailable, ShuttingDown
from qs_client.backoff import Outages, delays


def test_delays_grow_up_to_the_most() -> None:
    """The bound doubles from the first to the most, and stays there."""
    bounds = list(islice(delays(uniform=lambda low, high: high), 8))
    assert bounds == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])


def test_delays_have_full_jitter() -> None:
    """A delay is anything from nothing up to its bound."""
    asked: list[float] = []

    def uniform(low: float, high: float) -> float:
        asked.append(low)
        return high / 4

    assert list(islice(delays(1, 10, 3, uniform), 4)) == [0.25, 0.75, 2.25, 2.5]
    assert asked == [0, 0, 0, 0]


def test_delays_with_first_over_the_most() -> None:
    """No delay is over the most, and by default each is drawn within the bounds."""
    assert list(islice(delays(5, 2, uniform=lambda low, high: high), 2)) == [2, 2]
    assert all(0 <= delay <= 2 for delay in islice(delays(), 100))


GONE = ServerUnavailable("gone")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def outages(clock: Clock, reconnect: bool | float, *, begun: bool = True) -> Outages:
    made = Outages("'q'", reconnect, clock=clock, pauses=lambda: itertools.count(1.0))
    if begun:
        made.over()
    return made


def test_outages_first_attempt_raises() -> None:
    """An error before the first success is raised: the address may be wrong."""
    with pytest.raises(ServerUnavailable):
        outages(Clock(), True, begun=False).pause_after(GONE)


def test_outages_for_ever_with_growing_pauses() -> None:
    """With True it goes on however long the outage is; the pauses begin anew after a subscription that has lasted."""
    clock = Clock()
    policy = outages(clock, True)
    for expected in (1.0, 2.0, 3.0):
        assert policy.pause_after(GONE) == expected
        clock.now += 1_000_000
    policy.over()
    clock.now += 10.0
    policy.over()  # the async client says it with each message
    assert policy.pause_after(ShuttingDown(503, "shutting-down", "bye")) == 1.0


def test_outages_pauses_grow_when_subscriptions_do_not_last() -> None:
    """A server that takes each subscription and ends it at once is not asked without a pause."""
    clock = Clock()
    policy = outages(clock, True)
    for expected in (1.0, 2.0, 3.0):
        clock.now += 9.0
        assert policy.pause_after(GONE) == expected
        policy.over()


def test_outages_give_up_after_their_seconds() -> None:
    """With a number, the last attempt is at the end of these seconds of one outage; the next outage has its own."""
    clock = Clock()
    policy = outages(clock, 2.5)
    assert policy.pause_after(GONE) == 1.0
    clock.now += 1.0
    assert policy.pause_after(GONE) == 1.5
    clock.now += 1.5
    with pytest.raises(ServerUnavailable):
        policy.pause_after(GONE)
    policy.over()
    clock.now += 10.0
    assert policy.pause_after(GONE) == 1.0


@pytest.mark.parametrize(
    ("error", "reconnect"),
    [
        (GONE, False),
        (GONE, 0),
        (ProtocolMismatch("http"), True),
        (Disconnected("closed"), True),
        (NotFound(404, "not-found", "no queue"), True),
    ],
)
def test_outages_raise_what_waiting_does_not_cure(error: Exception, reconnect: bool | float) -> None:
    """Without reconnect every error is raised; with it, those that another attempt does not cure."""
    with pytest.raises(type(error)):
        outages(Clock(), reconnect).pause_after(error)


def test_outages_log_one_line_for_each_end(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once when it begins and once when it is over; subscribing for the first time is not."""
    caplog.set_level(logging.INFO, "qs_client")
    policy = outages(Clock(), True)
    assert not caplog.records
    for error in (GONE, GONE, NoAnswer("silent")):
        policy.pause_after(error)
    policy.over()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "gone (subscribing to 'q' again until that succeeds)"),
        ("WARNING", "subscribed to 'q' again"),
    ]
