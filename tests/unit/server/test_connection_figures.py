"""The figures of each connection, where there are very many."""

from pathlib import Path

import trio.testing
from support.clients.documents import request
from support.servers.memory import Clock, clock_of, serving


async def test_figures_of_connections_are_bounded_to_thousand(tmp_path: Path, autojump_clock: Clock) -> None:
    """Two figures of each of the 1,000 oldest connections; `connections` counts all."""
    asks = request("server-stats", connections="yes")
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        asker = running.connect()
        few = await asker.ask(asks)
        for _ in range(1001):
            running.connect()
        await trio.testing.wait_all_tasks_blocked()
        many = await asker.ask(asks)
    assert (few.count("connection_start_time_seconds"), few.count("connection_subscriptions")) == (1, 1)
    assert (many.count("connection_start_time_seconds"), many.count("connection_subscriptions")) == (1000, 1000)
    assert '<figure name="connections">1002<' in many
