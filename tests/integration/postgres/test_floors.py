"""The floors of a queue's line: from where a receive reads it."""

import time

import pytest
from support.storage.postgres import needs_postgres

pytestmark = needs_postgres


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, so that no look at the whole line comes."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)


def test_a_floor_rises_while_pushes_come(now: None) -> None:
    """A receive that has read while others pushed raises the floor, up to what they have brought."""
    from qs_storage.postgres.known import Floors

    floors = Floors()
    floors.looked(0)
    before = floors.changes
    floors.lower(90)
    floors.taken([10, 11, 12], before)
    assert floors.ranges({})[0][0] == 13
    before = floors.changes
    floors.lower(14)  # committed late
    floors.taken([15, 16], before)
    assert floors.ranges({})[0][0] == 14


def test_a_floor_stays_when_too_much_has_come(now: None) -> None:
    """A floor does not rise when more has come than is remembered, or something without a place."""
    from qs_storage.postgres.known import Floors

    for change in (lambda floors: [floors.lower(90) for _ in range(1000)], lambda floors: floors.forget()):
        floors = Floors()
        before = floors.changes
        change(floors)
        floors.looked(0)
        floors.taken([10], before)
        assert floors.ranges({})[0][0] == 0
