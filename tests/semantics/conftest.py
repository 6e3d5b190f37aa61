"""A real server with the storage `journal`, and one with `postgres`, for all tests of semantics, and queues of each
test's own on it."""

import contextlib
import itertools
from collections.abc import Iterator

import pytest
from support.servers.processes import FAST, ServerProcess, serving

from qs_client import QueueClient

_numbers = itertools.count()


@pytest.fixture(scope="session", params=["journal", "postgres"])
def server_of_all(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a process: each has its own queues."""
    with contextlib.ExitStack() as stack:
        flags: tuple[str, ...] = FAST
        if request.param == "postgres":
            database = stack.enter_context(request.getfixturevalue("postgres").database())
            flags = "--postgres", database.dsn
        root = tmp_path_factory.mktemp("semantics") / "root"
        yield stack.enter_context(serving(root, "--storage", request.param, *flags))


@pytest.fixture
def client(server_of_all: ServerProcess) -> Iterator[QueueClient]:
    """A client of the shared server."""
    with QueueClient(server_of_all.host, server_of_all.port, timeout=20) as client:
        yield client


@pytest.fixture
def other(server_of_all: ServerProcess) -> Iterator[QueueClient]:
    """A second client of the shared server."""
    with QueueClient(server_of_all.host, server_of_all.port, timeout=20) as client:
        yield client


@pytest.fixture
def q(client: QueueClient, request: pytest.FixtureRequest) -> str:
    """The name of a queue of the test's own."""
    name = f"{request.function.__name__}-{next(_numbers)}"
    client.new_queue(name)
    return name


@pytest.fixture
def dead(client: QueueClient, q: str) -> str:
    """The name of the dead-letter queue of `q`."""
    name = f"{q}-dead"
    client.new_queue(name)
    client.set_queue(q, dead_letter=name, max_receives=1000)
    return name
