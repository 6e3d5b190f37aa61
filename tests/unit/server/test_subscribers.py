"""Several subscribers of one queue: their round-robin order, slow ones, and waiting receives beside them."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import (
    PING,
    delete,
    is_delivery,
    mids,
    payloads,
    push,
    push_list,
    receive,
    receives,
    request,
    subscribe,
    unsubscribe,
)
from support.servers.memory import Client, Clock, Serving, clock_of, serving

from qs_server.broker.subscriber import Leases, Subscriber, Subscription
from qs_server.main.options import ServerLimits
from qs_storage.disk import Disk


async def subscriber(running: Serving, *, lockstep: bool = False, **attributes: str | int | float) -> Client:
    """A client whose subscription `s` to `q` has been answered."""
    client = running.connect(lockstep=lockstep)
    answer = await client.ask(subscribe("q", **attributes))  # type: ignore[arg-type]
    assert "<op><subscribe/></op>" in answer, answer
    return client


async def took(client: Client) -> list[str]:
    """The payloads that have come, once nobody has anything left to do."""
    found: list[str] = []
    while not await client.nothing_yet():
        found += payloads(await client.line())
    return found


async def in_flight(client: Client) -> int:
    return len(mids(await client.ask(request("list-messages", "<qid>q</qid>", state="in-flight"))))


# -- round-robin order ------------------------------------------------------------------------------------------------


async def test_dispatch_serves_other_queue_before_end_of_long_one(running: Serving, autojump_clock: Clock) -> None:
    """A subscriber to another queue is served before a long queue has been handed out to its end."""
    control = running.connect()
    for qid in ("a", "b", "c"):
        await control.ask(request("new-queue", f"<qid>{qid}</qid>"))
        await control.ask(push_list(qid, *["x"] * 900))
    busy = running.connect()
    await busy.ask(subscribe("a", prefetch=1000))
    others = [running.connect(), running.connect()]
    for other, qid in zip(others, ("b", "c"), strict=True):
        await other.ask(subscribe(qid, prefetch=1))
    assert [await took(other) for other in others] == [["x"], ["x"]]
    assert len(await took(busy)) == 900


@pytest.mark.parametrize("count", [2, 3])
async def test_dispatch_is_round_robin(running: Serving, autojump_clock: Clock, count: int) -> None:
    """Messages of a list and single ones go to all subscribers in round-robin order: none has more than one more than
    another."""
    clients = [await subscriber(running) for _ in range(count)]
    producer = running.connect()
    await producer.ask(push_list("q", *map(str, range(30))))
    for number in range(30, 60):
        await producer.ask(push("q", str(number)))
    shares = [await took(client) for client in clients]
    assert sorted(payload for share in shares for payload in share) == sorted(map(str, range(60)))
    assert [len(share) for share in shares] == [60 // count] * count
    assert all(share == sorted(share, key=int) for share in shares)


async def test_dispatch_passes_over_full_subscriber(running: Serving, autojump_clock: Clock) -> None:
    """A subscriber with as many as its prefetch allows gets no more, the others all there is; with room again, its
    share."""
    small, large = await subscriber(running, prefetch=2), await subscriber(running)
    producer = running.connect()
    pushed = mids(await producer.ask(push_list("q", *["x"] * 20)))
    assert (len(await took(small)), len(await took(large))) == (2, 18)
    await producer.ask(*(delete("q", mid) for mid in pushed))
    await producer.ask(push_list("q", *["y"] * 4))
    assert (len(await took(small)), len(await took(large))) == (2, 2)


async def test_dispatch_after_unsubscribe_shares_among_others(running: Serving, autojump_clock: Clock) -> None:
    """When one of three ends its subscription, the two others share what comes."""
    clients = [await subscriber(running) for _ in range(3)]
    await clients[1].ask(unsubscribe())
    await running.connect().ask(push_list("q", *["x"] * 10))
    assert [len(await took(client)) for client in clients] == [5, 0, 5]


async def test_dispatch_of_long_queue_runs_in_slices(running: Serving, autojump_clock: Clock) -> None:
    """A queue that takes several batches is delivered whole, while others are answered."""
    producer, client = running.connect(), running.connect()
    await producer.ask(push_list("q", *map(str, range(1000))))
    await client.ask(subscribe("q", prefetch=1000))
    assert "<ping/>" in await producer.ask(PING)
    assert [payloads(await client.line())[0] for _ in range(1000)] == list(map(str, range(1000)))


# -- who does not read ------------------------------------------------------------------------------------------------


@pytest.fixture
async def small(tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[Serving]:
    """A server that keeps no more than 10,000 bytes for who does not read."""
    limits = ServerLimits(outbox=10_000)
    async with serving(tmp_path / "root", clock_of(autojump_clock), limits=limits) as running:
        yield running


@pytest.mark.parametrize(("size", "least", "most"), [(3000, 3, 4), (0, 20, 26), (30_000, 1, 1)])
async def test_slow_reader_is_bounded_by_outbox(
    small: Serving, autojump_clock: Clock, size: int, least: int, most: int
) -> None:
    """One that does not read holds what fits the outbox, in bytes of documents, and one message at least; reading, it
    gets the rest, in order."""
    slow, producer = await subscriber(small, lockstep=True, visibility=10**6), small.connect()
    pushed = [mids(await producer.ask(push("q", "x" * size)))[0] for _ in range(60)]
    await trio.testing.wait_all_tasks_blocked()
    assert least <= await in_flight(producer) <= most
    assert [mids(line)[0] for line in await slow.lines(60)] == pushed


async def test_slow_reader_is_bounded_by_prefetch(running: Serving, autojump_clock: Clock) -> None:
    """One that does not read holds no more than its prefetch, however much fits."""
    slow, producer = await subscriber(running, lockstep=True, prefetch=3), running.connect()
    await producer.ask(push_list("q", *["x"] * 60))
    await trio.testing.wait_all_tasks_blocked()
    assert await in_flight(producer) == 3
    await slow.lines(3)


async def test_slow_reader_slows_nobody(small: Serving, autojump_clock: Clock) -> None:
    """Beside one that does not read, another gets all the rest as it comes; once that one reads, it gets its share."""
    slow = await subscriber(small, lockstep=True, visibility=10**6)
    quick, producer = await subscriber(small, prefetch=10**6, visibility=10**6), small.connect()
    for _ in range(100):
        await producer.ask(push("q", "x" * 1000))
    held = 100 - len(await took(quick))
    assert 2 <= held <= 8
    assert [len(payloads(line)) for line in await slow.lines(held)] == [1] * held
    await producer.ask(push_list("q", *["y"] * 4))
    assert await took(quick) == ["y", "y"]
    assert [payloads(line) for line in await slow.lines(2)] == [["y"], ["y"]]


async def test_slow_reader_gets_answers_in_order(small: Serving, autojump_clock: Clock) -> None:
    """An answer stands behind the deliveries that were there before it, and those behind it come after it."""
    slow, producer = await subscriber(small, lockstep=True, visibility=10**6), small.connect()
    for _ in range(20):
        await producer.ask(push("q", "x" * 2000))
    await slow.send(PING)
    lines = await slow.lines(21)
    at = [is_delivery(line) for line in lines].index(False)
    assert 4 <= at <= 6
    assert all(is_delivery(line) for line in lines[at + 1 :])


# -- with receives that wait ------------------------------------------------------------------------------------------


async def test_dispatch_comes_before_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """A receive that waits gets what no subscriber has room for, and nothing before."""
    waiting = running.connect()
    await waiting.send(receive("q", wait=3600, max=10))
    assert await waiting.nothing_yet()
    client, producer = await subscriber(running, prefetch=2), running.connect()
    for payload in "ab":
        await producer.ask(push("q", payload))
    assert await waiting.nothing_yet()
    assert await took(client) == ["a", "b"]
    await producer.ask(push("q", "c"))
    assert payloads(await waiting.line()) == ["c"]


async def test_list_push_fills_subscriber_then_waiting_receives(running: Serving, autojump_clock: Clock) -> None:
    """The subscriber gets the part of a list for which it has room, waiting receives the rest, and nothing stays
    behind."""
    waiting = [running.connect() for _ in range(2)]
    for each in waiting:
        await each.send(receive("q", wait=3600))
        assert await each.nothing_yet()
    client = await subscriber(running, prefetch=2)
    await running.connect().ask(push_list("q", *"abcde"))
    assert await took(client) == ["a", "b"]
    assert sorted([payloads(await each.line())[0] for each in waiting]) == ["c", "d"]
    assert payloads(await waiting[0].ask(receive("q"))) == ["e"]


async def test_drop_wakes_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """When the only subscriber ends its connection, what it held wakes a receive that waits."""
    client, waiting = await subscriber(running), running.connect()
    await waiting.send(receive("q", wait=3600))
    assert await waiting.nothing_yet()
    await running.connect().ask(push("q", "x"))
    assert await took(client) == ["x"]
    assert await waiting.nothing_yet()
    await client.hang_up()
    line = await waiting.line()
    assert (payloads(line), receives(line)) == (["x"], 2)


# -- a disk that fails ------------------------------------------------------------------------------------------------


class Unreadable(Disk):
    """Fails to rename messages of queue `q` while it is broken."""

    broken = False
    tries = 0

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        if self.broken and os.path.basename(os.path.dirname(new)) == "q" and "." in os.path.basename(new):
            self.tries += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), old)
        os.rename(old, new)


async def test_dispatch_tries_failing_queue_each_second(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that cannot be received from is tried again once a second; other queues are served, and in the end
    everything comes."""
    disk = Unreadable()
    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=disk, queues=("q", "other")) as running:
        client, producer = running.connect(), running.connect()
        await client.ask(subscribe("q", "other"))
        disk.broken = True
        await producer.ask(push("q", "x"))
        await trio.sleep(9.5)
        assert 9 <= disk.tries <= 11
        assert "Input/output error" in caplog.text
        await producer.ask(push("other", "y"))
        assert payloads(await client.line()) == ["y"]
        disk.broken = False
        assert payloads(await client.line()) == ["x"]


async def test_dispatch_logs_exception_and_goes_on(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception while messages are handed out is in the log, and the server goes on."""

    class Buggy(Disk):
        def rename(self, old: str, new: str) -> None:  # type: ignore[override]
            if os.path.basename(new).partition(".")[0].isdigit() and "." in new and not caplog.records:
                raise ZeroDivisionError("a bug")
            os.rename(old, new)

    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=Buggy()) as running:
        client, producer = await subscriber(running), running.connect()
        await producer.ask(push("q", "x"))
        assert payloads(await client.line()) == ["x"]
        assert "ZeroDivisionError: a bug" in caplog.text


# -- leases -----------------------------------------------------------------------------------------------------------


def test_leases_forget_moved_and_ended_windows() -> None:
    """Windows that are moved again and again, or end early, leave nothing behind."""
    leases, subscriber = Leases(), Subscriber(1, lambda: None)
    subscription = Subscription(subscriber, None, {"q"}, 1, None)
    for number in range(1000):
        leases.begin(("q", number), subscription, 1, 100 + number)
        if number != 7:
            leases.end(("q", number))
    for end in range(2000, 3000):
        leases.move(("q", 7), end)
    assert len(leases._ends) < 200
    assert (leases.next_end(), leases.due(2998), leases.due(2999)) == (2999, None, ("q", 7))
    assert leases.end(("q", 7)) is subscription
    assert (subscription.receives, leases.next_end(), leases.due(10**6)) == ({}, None, None)


def test_has_read_or_is_blocked_notices_room() -> None:
    """A subscriber that was left out for its outbox asks again when half of that is read, once."""
    subscriber = Subscriber(100, lambda: None)
    subscriber.assigned = 130
    assert subscriber.is_blocked()
    assert not subscriber.has_read(70)
    assert subscriber.has_read(20)
    assert not subscriber.has_read(40)
    assert not subscriber.is_blocked()
