"""Fixtures that any test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import ServerProcess, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A real queue server on a free port of loopback, with an empty root, durability `none` for speed."""
    with serving(tmp_path / "root", "--durability", "none") as process:
        yield process


@pytest.fixture
def small_first_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the first segment of a journal small: a test that starts many journals is quicker."""
    monkeypatch.setattr("qs_server.storage.journal.supply.FIRST_SEGMENT", 1 << 16)
