"""Every engine, for the tests of what all of them do."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from support.servers.memory import Client, Clock, FillableDisk, clock_of, serving
from support.storage.calls import REOPENED
from support.storage.contract import guarded, memcached_bench, postgres_bench, sqs_bench
from support.storage.engines import ENGINES, EVERY_ENGINE, Bench
from support.storage.memcached import Memcached
from support.storage.sqs import SqsServer, give_credentials

from qs_storage.engine import Engine


@pytest.fixture(scope="session")
def memcached() -> Iterator[Memcached]:
    """One for all tests. Without a memcached on this machine they are skipped, and say so."""
    with Memcached() as server:
        yield server


@pytest.fixture
def sqs(sqs_server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> SqsServer:
    """The SQS endpoint, with what boto3 needs to use it."""
    give_credentials(monkeypatch)
    return sqs_server


KEEPING = [*ENGINES, "memcached", "sqs", "postgres"]


@contextlib.contextmanager
def _bench(request: pytest.FixtureRequest, root: Path) -> Iterator[Bench]:
    if request.param == "memcached":
        bench = memcached_bench(root, request.getfixturevalue("memcached"))
    elif request.param == "sqs":
        bench = sqs_bench(root, request.getfixturevalue("sqs"))
    elif request.param == "postgres":
        bench = postgres_bench(root, request.getfixturevalue("database"))
    else:
        bench = guarded(EVERY_ENGINE[request.param](root))
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture(params=[*KEEPING, "null"])
def any_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A bench for tests that hold also where nothing is kept."""
    with _bench(request, tmp_path) as bench:
        yield bench


@pytest.fixture(params=KEEPING)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A bench for tests of messages."""
    with _bench(request, tmp_path) as bench:
        yield bench


@pytest.fixture(params=["journal-always", "journal-none", "journal-compacting", "postgres"])
def claiming(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A bench for tests of claims and batches: an engine that has them, for itself alone."""
    with _bench(request, tmp_path) as bench:
        yield bench


@pytest.fixture(params=REOPENED)
def reopened(request: pytest.FixtureRequest) -> Callable[[Bench], Engine]:
    """A new engine over what the last one has left: at a stop, and at a crash."""
    return REOPENED[request.param]


@pytest.fixture
def disk() -> FillableDisk:
    return FillableDisk()


@pytest.fixture
async def client(tmp_path: Path, autojump_clock: Clock, disk: FillableDisk) -> AsyncIterator[Client]:
    """A connection to a server with one queue, `q`, whose clock stands at EPOCH and moves when everybody waits."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=disk) as running:
        yield running.connect()
