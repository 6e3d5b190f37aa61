"""Waiting for messages in memcached."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.storage.engines import LOTS
from support.storage.memcached import LONG, MakeEngine, Memcached, engine_on, needs_memcached, push_numbers

from qs_storage.engine import SECOND, NoSuchQueueError, Options, Receipt
from qs_storage.remote.memcached import MemcachedEngine

pytestmark = needs_memcached


def waiting(engine: MemcachedEngine, wait: float = LONG, stop: threading.Event | None = None) -> "Waiter":
    return Waiter(engine, wait, stop or threading.Event())


class Waiter:
    """A thread inside receive, from the moment on at which it has found nothing."""

    def __init__(self, engine: MemcachedEngine, wait: float, stop: threading.Event) -> None:
        looked = threading.Event()
        original = engine._receive_visible

        def receive(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            looked.set()
            return result

        engine._receive_visible = receive  # type: ignore[method-assign]
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(engine.receive, ["q"], 1, None, LOTS, wait=wait, stop=stop)
        assert looked.wait(LONG)

    def result(self) -> list[int]:
        with self._pool:
            return [message.mid for message in self._future.result(LONG)]


def test_wait_for_push_here(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push of this process wakes a waiting receive, without a look at memcached in between."""
    monkeypatch.setattr("qs_storage.remote.memcached.POLL_INTERVAL", 1000)
    engine = make()
    waiter = waiting(engine)
    mids = push_numbers(engine, 1)
    assert waiter.result() == mids


def test_wait_for_release_here(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release wakes a waiting receive too."""
    monkeypatch.setattr("qs_storage.remote.memcached.POLL_INTERVAL", 1000)
    engine = make()
    [mid] = push_numbers(engine, 1)
    engine.receive(["q"], 1, 1000 * SECOND, LOTS)
    waiter = waiting(engine)
    engine.queue("q").release(Receipt(mid, 1), 0)
    assert waiter.result() == [mid]


def test_wait_for_another_server(make: MakeEngine) -> None:
    """A push of another server is noticed."""
    a, b = make(), make()
    waiter = waiting(a)
    mids = push_numbers(b, 1)
    assert waiter.result() == mids


def test_wait_for_expiry(memcached: Memcached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a window wakes a waiting receive at that time."""
    monkeypatch.setattr("qs_storage.remote.memcached.POLL_INTERVAL", 1000)
    engine = engine_on(memcached, root=tmp_path, clock=lambda: time.time_ns() // 1000)
    engine.create("q", Options())
    mids = push_numbers(engine, 1)
    engine.receive(["q"], 1, SECOND // 5, LOTS)
    assert waiting(engine).result() == mids
    engine.close()


def test_wait_ends(make: MakeEngine) -> None:
    """Without a message the wait ends after its time, or soon after a stop."""
    engine = make()
    assert waiting(engine, wait=0.05).result() == []
    assert engine.receive(["q"], 1, None, LOTS) == []
    stop = threading.Event()
    waiter = waiting(engine, stop=stop)
    start = time.monotonic()
    stop.set()
    assert waiter.result() == []
    assert time.monotonic() - start < 5


def test_wait_for_removed_queue(make: MakeEngine) -> None:
    """A receive that waits for a removed queue fails."""
    engine = make()
    waiter = waiting(engine)
    engine.remove("q", force=True)
    with pytest.raises(NoSuchQueueError):
        waiter.result()


def test_many_wait_one_looks(make: MakeEngine, calls: Counter[str]) -> None:
    """Many that wait for a queue make not more calls than one."""
    engine = make()
    before = calls["gets_many"]
    stop = threading.Event()
    with ThreadPoolExecutor(20) as pool:
        for _ in range(20):
            pool.submit(engine.receive, ["q"], 1, None, LOTS, wait=1.2, stop=stop)
    assert calls["gets_many"] - before <= 2 * 20 + 2 * 4  # each looks once, then somebody each half second
