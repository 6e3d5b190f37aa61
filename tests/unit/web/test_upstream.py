"""Tests what a scrape gets: figures that are as new as it is, also from a queue server that is slow."""

import threading
from typing import Any

import pytest
import trio
import trio.testing

from qs_client import QueueInfo
from qs_client.security import PLAIN
from qs_web.history import History
from qs_web.upstream import Upstream


class _Slow:
    """A client whose answers come when they are let go. Each has one queue, named by its number."""

    def __init__(self) -> None:
        self.asked = 0
        self.let_go = threading.Semaphore(0)

    def stats(self) -> list[QueueInfo]:
        self.asked += 1
        name = str(self.asked)
        assert self.let_go.acquire(timeout=20)
        return [QueueInfo(name)]


def test_fresh_stats_of_a_slow_server_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures from before are not given out as new ones: neither those that are kept, nor those of a question that
    was asked before."""

    async def scrape() -> None:
        upstream: Any = Upstream(("127.0.0.1", 1), None, PLAIN, lambda: 0.0, History())
        slow = _Slow()
        monkeypatch.setattr(upstream, "_reader", slow)
        slow.let_go.release()
        assert [queue.qid for queue in await upstream.fresh_stats()] == ["1"]
        found: list[str] = []

        async def ask() -> None:
            found.extend(queue.qid for queue in await upstream.fresh_stats())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while slow.asked < 2:
                await trio.sleep(0)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            slow.let_go.release(2)
        assert sorted(found) == ["2", "3"]

    trio.run(scrape)
