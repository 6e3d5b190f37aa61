"""A server without sockets, for the tests of the server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.servers.memory import Clock, Serving, clock_of, serving


@pytest.fixture
async def running(tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[Serving]:
    """A running server, with the queues `q` and `other`; time jumps to the next event."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=("q", "other")) as running:
        yield running
