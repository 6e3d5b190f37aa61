"""`queue-stats` says how many clients want the messages of a queue: subscriptions, and receives that wait."""

import re
from pathlib import Path

from support.clients.documents import delete, mids, push, receive, request, subscribe, unsubscribe
from support.servers.memory import Client, Clock, Serving

from qs_server.broker.subscriber import Subscriber, Subscription
from qs_server.broker.subscriptions import Subscriptions
from qs_storage.directories import FilesEngine
from qs_storage.engine import Durability, wall_clock


async def consumers(client: Client) -> dict[str, tuple[int, int]]:
    """The subscribers and waiting receives of each queue that has any."""
    line = await client.ask(request("queue-stats"))
    found = re.findall(r'subscribers="(\d+)" waiting="(\d+)">(\w+)<', line)
    assert len(found) == 2, line
    return {qid: (int(some), int(others)) for some, others, qid in found if (some, others) != ("0", "0")}


async def test_queue_stats_counts_subscriptions(running: Serving, autojump_clock: Clock) -> None:
    """A subscription counts from its answer to its end, for each of its queues; several of one client count each."""
    one, two, other = (running.connect() for _ in range(3))
    assert await consumers(other) == {}
    await one.ask(subscribe("q", "other", req="both"))
    assert await consumers(other) == {"q": (1, 0), "other": (1, 0)}
    await one.ask(subscribe("q", req="one"))
    await two.ask(subscribe("q"))
    assert await consumers(other) == {"q": (3, 0), "other": (1, 0)}
    assert await consumers(one) == {"q": (3, 0), "other": (1, 0)}
    await one.ask(unsubscribe("both"))
    assert await consumers(other) == {"q": (2, 0)}
    await two.hang_up()
    assert await other.nothing_yet()
    assert await consumers(other) == {"q": (1, 0)}


def test_queue_stats_leaves_out_ended_connection(tmp_path: Path) -> None:
    """A client that has gone does not count, though what it held has not been given back yet."""
    subscriptions = Subscriptions(FilesEngine(str(tmp_path), clock=wall_clock, durability=Durability.NONE), wall_clock)
    subscriber = Subscriber(1000, lambda: None)
    subscriptions.open(Subscription(subscriber, "s", {"q"}, 1, None))
    subscriptions.start(subscriber)
    assert subscriptions.count("q") == 1
    subscriptions.drop(subscriber)
    assert (subscriptions.count("q"), subscriptions.leaving) == (0, True)


async def test_queue_stats_counts_waiting_receives(running: Serving, autojump_clock: Clock) -> None:
    """A receive counts while it waits, for each of its queues: not before, and not once it is answered."""
    one, two, other = (running.connect() for _ in range(3))
    await one.send(receive("q", "other", wait=100))
    await two.send(receive("q", wait=1000))
    assert await one.nothing_yet()
    assert await consumers(other) == {"q": (0, 2), "other": (0, 1)}
    [mid] = mids(await other.ask(push("q", "x")))
    assert mids(await one.line()) == [mid]
    assert await consumers(other) == {"q": (0, 1)}
    await two.hang_up()
    assert await other.nothing_yet()
    assert await consumers(other) == {}
    await other.ask(delete("q", mid))
    await one.send(receive("q", wait=10))
    assert mids(await one.line()) == []  # the mock clock jumps to the end of the wait
    assert await consumers(other) == {}
