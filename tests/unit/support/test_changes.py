"""Tests how tests wait for what another process does."""

from pathlib import Path

import pytest

from qs_testing.programs import until


def test_a_change_between_a_look_and_the_wait(tmp_path: Path) -> None:
    """A change while the condition is evaluated is not missed."""
    looks: list[int] = []

    def condition() -> bool:
        looks.append(1)
        (tmp_path / "log").write_text("x")
        return len(looks) > 2

    until(condition, tmp_path)
    assert len(looks) == 3


def test_nothing_changes(tmp_path: Path) -> None:
    """If nothing changes, the wait ends after its time, and says so; the condition is not evaluated again meanwhile."""
    looks: list[int] = []
    with pytest.raises(AssertionError, match=r"within 0\.05 s"):
        until(lambda: looks.append(1), tmp_path, within=0.05)
    assert len(looks) <= 2
