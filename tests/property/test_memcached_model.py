"""The memcached engine of two servers that share a queue, against a model in memory. Pages are tiny, so that there are
many of them."""

import shutil
import tempfile
import uuid
from typing import ClassVar, cast

import pytest
from hypothesis.stateful import rule
from support.examples import run_machine
from support.storage.contract import RemoteAsEngine
from support.storage.memcached import Memcached, needs_memcached
from support.storage.model import EngineMachine

from qs_storage.engine import Effects, Engine, Options
from qs_storage.remote.memcached import MemcachedEngine

pytestmark = needs_memcached


class TellingEngine(RemoteAsEngine):
    """Knows the next expiry, as the model asks for it."""

    def effects(self) -> Effects:
        return Effects({}, {}, self._next_expiry(), None)

    def _next_expiry(self) -> int | None:
        now = self.remote._clock()
        times = [
            entry.visible_at
            for page in self.queue("q").pages.scan(-1)
            for entry in page.entries
            if entry.visible_at > now
        ]
        return min(times, default=None)


class MemcachedMachine(EngineMachine):
    """Each step is made by one of two servers."""

    memcached: ClassVar[Memcached]

    def __init__(self) -> None:
        self.namespace = uuid.uuid4().hex
        super().__init__()
        self.other_root = tempfile.mkdtemp(prefix="qs-model-")
        self.other = self.open_in(self.other_root)
        self.other.create("q", Options(visibility=10))

    def open(self) -> Engine:
        return self.open_in(self.root)

    def open_in(self, root: str) -> Engine:
        remote = MemcachedEngine(root, clock=self.clock, servers=[self.memcached.address], namespace=self.namespace)
        return cast(Engine, TellingEngine(remote))

    def teardown(self) -> None:
        self.other.close()
        shutil.rmtree(self.other_root)
        super().teardown()

    @rule()
    def other_server(self) -> None:
        """Sends the next requests to the other server."""
        self.engine, self.other = self.other, self.engine
        self.root, self.other_root = self.other_root, self.root


@pytest.mark.slow
def test_memcached_engine_is_as_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any sequence of operations of two servers, and of reopenings, leaves the queue as the model has it. Some
    10 s: each step is compared with all that the queue holds."""
    monkeypatch.setattr("qs_storage.remote.memcached_queue.PAGE", 3)
    monkeypatch.setattr("qs_storage.remote.memcached_pages._SCAN", 2)
    with Memcached() as memcached:
        MemcachedMachine.memcached = memcached
        run_machine(MemcachedMachine, 25)
