"""Fixtures for tests of queues of files: disks with and without extended attributes, and servers that share a root."""

from collections.abc import Iterator

import pytest
from support.storage.engines import FaultyDisk, FileServers


@pytest.fixture(params=[True, False], ids=["attributes", "sidecars"])
def disk(request: pytest.FixtureRequest) -> FaultyDisk:
    """Makes a disk that can fail."""
    return FaultyDisk(attributes=request.param)


@pytest.fixture
def servers() -> Iterator[FileServers]:
    """Kills all of them at the end."""
    servers = FileServers()
    yield servers
    servers.kill()
