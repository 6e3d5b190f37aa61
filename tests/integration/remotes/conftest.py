"""Fixtures for tests of a queue server whose queues other servers keep, memcached and SQS."""

import re
from collections.abc import Iterator

import pytest
from support.servers.processes import ServerProcess, Wire
from support.servers.remote import STORAGES, Elsewhere, elsewhere_serving
from support.storage.sqs import SqsServer


@pytest.fixture(scope="module")
def elsewhere(sqs_server: SqsServer) -> Iterator[Elsewhere]:
    """The other servers, for all tests of a file."""
    with elsewhere_serving(sqs_server) as elsewhere:
        yield elsewhere


@pytest.fixture(scope="module")
def remote_server(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One queue server for all tests of a file: each has its own queues."""
    with elsewhere.serving(tmp_path_factory.mktemp("remotes") / "root") as server:
        yield server


@pytest.fixture
def wire(remote_server: ServerProcess) -> Iterator[Wire]:
    """Connects a client."""
    with Wire(remote_server) as wire:
        yield wire


@pytest.fixture
def other(remote_server: ServerProcess) -> Iterator[Wire]:
    """Connects another client."""
    with Wire(remote_server) as wire:
        yield wire


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> str:
    """Each storage that another server keeps."""
    return str(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for queues of the test's own."""
    return re.sub(r"\W", "-", request.node.name)[-60:]
