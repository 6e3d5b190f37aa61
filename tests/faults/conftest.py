"""Fixtures for tests of power losses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.power_loss_check import fast_directory
from support.power_loss_engines import small_journal


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where that has extended attributes."""
    with fast_directory(tmp_path) as made:
        yield made


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes segments of the journal small, so that a run has many of them."""
    small_journal(monkeypatch)
