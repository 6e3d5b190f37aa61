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
