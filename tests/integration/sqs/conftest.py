"""An SQS endpoint, which is moto's server here, and an engine over it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.storage.sqs import FaultySqs, LateClock, SqsServer, give_credentials, sqs_engine

from qs_storage.engine import Options
from qs_storage.remote.sqs import SqsEngine


@pytest.fixture
def server(sqs_server: SqsServer) -> SqsServer:
    """Runs the endpoint."""
    return sqs_server


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch)


@pytest.fixture
def proxy(server: SqsServer) -> Iterator[FaultySqs]:
    """A proxy before the endpoint that records the calls."""
    proxy = FaultySqs(server)
    yield proxy
    proxy.close()


@pytest.fixture
def clock() -> LateClock:
    return LateClock()


@pytest.fixture
def engine(tmp_path: Path, proxy: FaultySqs, clock: LateClock) -> Iterator[SqsEngine]:
    """An engine with a queue `q`."""
    engine = sqs_engine(tmp_path, proxy.url, clock=clock)
    engine.create("q", Options())
    yield engine
    engine.close()


@pytest.fixture
def other(server: SqsServer) -> Any:
    """Another program that uses SQS."""
    return boto3.session.Session().client("sqs", region_name="us-east-1", endpoint_url=server.url)
