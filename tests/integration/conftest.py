"""Fixtures of several files: a connection, a server for a whole file, a client of it, a queue as a library."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import Connect
from support.clients.documents import code, new_queue
from support.servers.processes import FAST, BusProcess, ServerProcess, Wire, bus_serving, serving
from support.servers.tls import tls_flags
from support.storage.engines import ManualClock

from qs_client import QueueClient
from qs_storage import vsqs


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A connection to the test's own server, on which there is a queue `q`."""
    with Wire(server) as wire:
        wire.ask(new_queue("q"))
        yield wire


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a file: each has its own queues."""
    with serving(tmp_path_factory.mktemp("shared") / "root", *FAST) as process:
        yield process


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a file, which speaks TLS with a certificate of the tests' CA."""
    with serving(tmp_path_factory.mktemp("tls") / "root", *FAST, *tls_flags()) as process:
        yield process


@pytest.fixture(scope="module")
def shared_bus(shared_server: ServerProcess) -> Iterator[BusProcess]:
    """One bus for all tests of a file: each has its own queues."""
    with bus_serving(shared_server) as process:
        yield process


@pytest.fixture
def connect(shared_bus: BusProcess) -> Iterator[Connect]:
    """Makes connections to the shared bus; each of the documents has been answered without an error."""
    made: list[Wire] = []

    def make(*documents: str) -> Wire:
        wire = Wire(shared_bus)
        made.append(wire)
        for document in documents:
            answer = wire.ask(document)
            assert code(answer) == 0, answer
        return wire

    yield make
    for wire in made:
        wire.close()


@pytest.fixture
def producer(shared_server: ServerProcess) -> Iterator[Wire]:
    """A connection to the shared server."""
    with Wire(shared_server) as wire:
        yield wire


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[QueueClient]:
    """A client of the shared server."""
    with QueueClient(shared_server.host, shared_server.port, timeout=20) as client:
        yield client


@pytest.fixture
def qid(client: QueueClient, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own, on the shared server."""
    name = re.sub(r"\W", "-", request.node.name)
    client.new_queue(name)
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory, not made yet, for a queue as a library."""
    return tmp_path / "q"


@pytest.fixture
def q(path: Path) -> Iterator[vsqs.Queue]:
    """A queue as a library, at `path`, whose clock stands still."""
    with vsqs.Queue(path, create=True, sync=False, clock=ManualClock()) as made:
        yield made
