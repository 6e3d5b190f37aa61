"""When the window of a message that is being handled is extended. The thread of the sync client, with a real server of
a test's own, is in tests/integration/test_client_handling.py."""

import pytest

from qs_client import Delivery, GetMessage, NotFound, ServerUnavailable, Stale
from qs_client.handling import Hold
from qs_client.waiting import Lease

WALL = 1_760_000_000.0


def hold(message: Delivery | GetMessage, now: list[float]) -> Hold:
    return Hold(message, clock=lambda: now[0], wall_clock=lambda: WALL + now[0])


def micros(seconds: float) -> int:
    return round((WALL + seconds) * 1_000_000)


@pytest.mark.parametrize(
    ("left", "first"),
    [
        (10.0, 5.0),  # half
        (600.0, 15.0),  # the clocks may differ
        (0.04, 0.05),  # no more than 20 a second
        (-3600.0, 1.0),  # they do differ
    ],
)
def test_window_reckoned_from_its_end(left: float, first: float) -> None:
    """The first extension is at half of what is left of the window by this machine's clock, within bounds."""
    held = hold(Delivery(5, b"x", "q", 1, visible_at=micros(left)), [0.0])
    assert held.due == pytest.approx(first)


def test_window_without_end() -> None:
    """Without an end in the answer, the server's default window of 30 s is assumed."""
    assert hold(Delivery(5, b"x", "q", 1), [7.0]).due == pytest.approx(22.0)


def test_window_of_the_subscription() -> None:
    """A subscription with `visibility` says how long the window is, whatever the clocks say."""
    now = [0.0]
    message = GetMessage("q", 5, visible_at=micros(-3600))
    message.lease = Lease(600.0)
    held = hold(message, now)
    assert (held.visibility, held.due) == (600.0, 300.0)
    now[0] = 310.0
    held.extended(micros(-1))
    assert held.due == 610.0


def test_extension_that_fails() -> None:
    """A lost connection is followed by another attempt; a message of somebody else's by none."""
    now = [0.0]
    held = hold(Delivery(5, b"x", "q", 1), now)
    now[0] = 15.0
    held.failed(ServerUnavailable("gone"))
    assert (held.taken, held.due) == (False, 16.0)
    for error in (Stale(409, "stale", "late"), NotFound(404, "not-found", "deleted")):
        held = hold(Delivery(5, b"x", "q", 1), now)
        held.failed(error)
        assert held.taken
