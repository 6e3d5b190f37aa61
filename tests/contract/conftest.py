"""Every engine, for the tests of what all of them do."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest
from support.claim_calls import REOPENED
from support.contract_bench import guarded, memcached_bench, needs, sqs_bench
from support.engines import ENGINES, EVERY_ENGINE, Bench
from support.memcached_serving import Memcached
from support.sqs_serving import CREDENTIALS, SqsServer, sqs_serving

from qs_server.storage.engine import Engine, Feature

_make_session = functools.cache(boto3.session.Session)  # making one takes 0.2 s


@pytest.fixture(scope="session")
def memcached() -> Iterator[Memcached]:
    """One for all tests. Without a memcached on this machine they are skipped, and say so."""
    with Memcached() as server:
        yield server


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[SqsServer]:
    """One for all tests: its start takes 2 s."""
    with sqs_serving() as server:
        yield server


@pytest.fixture
def sqs(sqs_server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> SqsServer:
    """The same, with what boto3 needs to use it."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr(boto3.session, "Session", _make_session)
    return sqs_server


@pytest.fixture(params=[*EVERY_ENGINE, "memcached", "sqs"])
def any_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """For what holds also where nothing is kept."""
    if request.param == "memcached":
        bench = memcached_bench(tmp_path, request.getfixturevalue("memcached"))
    elif request.param == "sqs":
        bench = sqs_bench(tmp_path, request.getfixturevalue("sqs"))
    else:
        bench = guarded(EVERY_ENGINE[request.param](tmp_path))
    yield bench
    bench.engine.close()


@pytest.fixture
def bench(any_bench: Bench) -> Bench:
    """For what is about messages."""
    needs(any_bench, Feature.KEEP)
    return any_bench


@pytest.fixture(params=["journal-always", "journal-none", "journal-compacting"])
def claiming(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """For what is about claims and batches: an engine that has them, and nobody else's."""
    bench = Bench(ENGINES[request.param](tmp_path))
    yield bench
    bench.engine.close()


@pytest.fixture(params=REOPENED)
def reopened(request: pytest.FixtureRequest) -> Callable[[Bench], Engine]:
    """A new engine over what the last one has left: at a stop, and at a crash."""
    return REOPENED[request.param]
