"""A memcached, and engines of several qs servers over it."""

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.storage.engines import ManualClock
from support.storage.memcached import MakeEngine, Memcached, engine_on

from qs_storage.engine import Options
from qs_storage.remote.memcached import MemcachedEngine
from qs_storage.remote.memcached_servers import MemcachedServer


@pytest.fixture(scope="module")
def memcached() -> Iterator[Memcached]:
    with Memcached() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(memcached: Memcached, tmp_path: Path, clock: ManualClock) -> Iterator[MakeEngine]:
    """Engines of several qs servers, which share queues: each has its own root."""
    engines: list[MemcachedEngine] = []
    namespace = uuid.uuid4().hex

    def make(*servers: Memcached, **options: Any) -> MemcachedEngine:
        root = tmp_path / str(len(engines))
        root.mkdir()
        engine = engine_on(*(servers or (memcached,)), root=root, clock=clock, namespace=namespace)
        engine.create("q", Options(**options))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls of memcached, by method."""
    counter: Counter[str] = Counter()
    original = MemcachedServer.call

    def call(self: MemcachedServer, method: str, *args: Any, **named: Any) -> Any:
        counter[method] += 1
        return original(self, method, *args, **named)

    monkeypatch.setattr(MemcachedServer, "call", call)
    return counter
