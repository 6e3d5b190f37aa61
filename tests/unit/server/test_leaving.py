"""The messages of an ended connection are given back in slices, and all of them, whatever happens meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import (
    PING,
    code,
    delete,
    mids,
    payloads,
    push_list,
    receive,
    receives,
    request,
    subscribe,
)
from support.servers.memory import Client, Clock, Serving, clock_of, serving, source
from support.storage.engines import ManualClock, arrived

from qs_server.broker.committer import Committer
from qs_server.broker.jobs import Job, Waiters
from qs_server.broker.subscriber import Leases, Subscriber, Subscription
from qs_server.broker.subscriptions import Subscriptions
from qs_storage.directories import FilesEngine
from qs_storage.engine import SECOND, Draft, Durability, Effects, NoRoomError, Options, Receipt, State

HELD = 350
WINDOW = 1000 * SECOND


class Bench:
    """Subscriptions to queue `q`, without a server; the first one holds so many messages."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.root = str(root)
        self.storage = FilesEngine(self.root, clock=self.clock, durability=Durability.NONE)
        self.storage.create("q", Options())
        self.mids = self.storage.queue("q").push([Draft(b"x")] * HELD)
        self.subscriptions = Subscriptions(source(self.storage), self.clock)
        self.first = self.subscribe(HELD)
        self.dispatch()
        assert len(self.first.mail) == HELD

    def subscribe(self, prefetch: int) -> Subscriber:
        subscriber = Subscriber(1 << 30, lambda: None)
        self.subscriptions.open(Subscription(subscriber, "s", {"q"}, prefetch, WINDOW))
        self.subscriptions.start(subscriber)
        return subscriber

    def dispatch(self) -> None:
        self.subscriptions.dispatch(arrived(self.storage))
        while self.subscriptions.unfinished and not self.subscriptions.leaving:
            self.subscriptions.dispatch(())

    def ready(self) -> list[int]:
        return self.storage.queue("q").list_mids(State.READY, 1000, -1)

    def finish(self) -> None:
        while self.subscriptions.leaving:
            self.subscriptions.give_back()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.storage.close()


def test_give_back_releases_a_slice_oldest_first(bench: Bench) -> None:
    """Each call gives back a hundred, oldest first, until nothing is left; the end itself gives back none."""
    bench.subscriptions.drop(bench.first)
    seen = []
    while bench.subscriptions.leaving:
        seen.append(bench.ready())
        bench.subscriptions.give_back()
    assert seen == [bench.mids[:count] for count in (0, 100, 200, 300)]
    assert bench.ready() == bench.mids
    assert (bench.subscriptions.unfinished, bench.subscriptions.active) == (False, False)
    assert bench.subscriptions.next_due() is None


async def test_give_back_tries_message_that_lacks_room_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that cannot be given back for lack of room is tried again at the beginning of the next batch; if it
    lacks room there too, it stays hidden, and the others are given back."""
    release = FilesEngine.queue(bench.storage, "q").release
    lacking = {bench.mids[50]: 1, bench.mids[60]: 2}

    def little_room(receipt: Receipt, delay: int | None) -> int | None:
        if lacking.get(receipt.mid):
            lacking[receipt.mid] -= 1
            raise NoRoomError(1 << 20)
        return release(receipt, delay)

    monkeypatch.setattr(bench.storage.queue("q"), "release", little_room)
    committer = Committer(bench.storage, Durability.NONE, Waiters(), bench.subscriptions)
    bench.subscriptions.drop(bench.first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.serve)
        await committer.give_back()
        nursery.cancel_scope.cancel()
    assert not bench.subscriptions.leaving
    assert bench.ready() == [mid for mid in bench.mids if mid != bench.mids[60]]
    assert caplog.text.count("stays hidden until its window ends") == 1


def test_give_back_ends_slice_with_its_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release may take long, as a message that goes to a dead-letter queue of files has to be synced: a slice of 20
    ms begins no other after that."""
    queue = bench.storage.queue("q")
    release = queue.release

    def release_slowly(receipt: Receipt, delay: int) -> int | None:
        bench.clock.now += SECOND // 125
        return release(receipt, delay)

    monkeypatch.setattr(queue, "release", release_slowly)
    bench.subscriptions.drop(bench.first)
    seen = []
    for _ in range(3):
        bench.subscriptions.give_back()
        seen.append(len(bench.ready()))
    assert seen == [3, 6, 9]


class Fault(Job):
    """Work that breaks the batch it is in, before anything else of the batch is done."""

    def advance(self, pushing: bool | None) -> None:
        raise RuntimeError("a fault")


async def test_give_back_goes_on_after_failed_batch(bench: Bench) -> None:
    """A slice whose batch fails before it is done is done in another batch."""
    committer = Committer(bench.storage, Durability.NONE, Waiters(), bench.subscriptions)

    def drop() -> None:
        bench.subscriptions.drop(bench.first)
        committer.enqueue(Fault())  # stands before the first slice in the next batch

    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.serve)
        await committer.run(Job(drop))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert bench.ready() == bench.mids


def test_give_back_leaves_settled_messages_alone(bench: Bench) -> None:
    """A message not given back yet can be deleted, and its window can end; then it is left alone, also if another
    client holds it."""
    bench.subscriptions.drop(bench.first)
    bench.subscriptions.give_back()
    bench.storage.queue("q").delete(Receipt(bench.mids[200]))
    bench.subscriptions.settled("q", bench.mids[200])
    bench.clock.now += WINDOW
    second = bench.subscribe(HELD)
    bench.subscriptions.dispatch(("q",))
    bench.finish()
    bench.dispatch()
    held = {message.mid for message in second.mail}  # type: ignore[attr-defined]
    assert held == {*bench.mids} - {bench.mids[200]}
    assert len(second.mail) == HELD - 1
    assert bench.storage.queue("q").stats().in_flight == HELD - 1
    bench.subscriptions.drop(second)
    bench.finish()
    assert (len(bench.ready()), bench.subscriptions.next_due()) == (HELD - 1, None)


def test_drop_sends_nothing_to_closed_connection(bench: Bench) -> None:
    """A client that has gone is sent neither new messages, nor those given back, nor its queue's end."""
    bench.first.mail.clear()
    bench.subscriptions.drop(bench.first)
    bench.storage.queue("q").push([Draft(b"new")])
    bench.storage.effects()
    bench.dispatch()
    bench.subscriptions.give_back()
    bench.dispatch()
    bench.storage.remove("q", force=True)
    bench.subscriptions.gone("q")
    bench.finish()
    assert (bench.first.mail, bench.subscriptions.take_mail()) == ([], set())
    assert (bench.subscriptions.unfinished, bench.subscriptions.next_due()) == (False, None)


def test_close_before_give_back_leaves_message_until_window_ends(bench: Bench) -> None:
    """A message not given back when the engine is closed is ready when its window ends."""
    bench.subscriptions.drop(bench.first)
    bench.subscriptions.give_back()
    bench.storage.close()
    bench.storage = FilesEngine(bench.root, clock=bench.clock, durability=Durability.NONE)
    bench.clock.now += WINDOW
    bench.storage.expire(len(bench.mids))
    assert bench.ready() == bench.mids


def test_leases_end_all_of_queue_or_up_to_id() -> None:
    """All leases of a queue end, or those up to an id; those of other queues stay, and each former holder is named
    once."""
    leases = Leases()
    one, two = (Subscription(Subscriber(1, lambda: None), None, {"q", "r"}, 1, None) for _ in range(2))
    for mid in range(1000):
        leases.begin(("q", mid), one, 1, 100 + mid)
    leases.begin(("r", 5), two, 1, 5000)
    assert leases.end_all("q", 899) == {one}
    assert (len(one.receives), leases.next_end()) == (100, 1000)
    assert leases.end_all("q") == {one}
    assert leases.end_all("q") == set()
    assert (one.receives, two.receives, leases.next_end()) == ({}, {("r", 5): 1}, 5000)
    assert len(leases._ends) == 1


# -- in a server ------------------------------------------------------------------------------------------------------


async def holder(running: Serving, count: int) -> tuple[Client, list[int]]:
    """A client that holds so many messages of `q`, and their ids."""
    client = running.connect()
    pushed = mids(await client.ask(push_list("q", *map(str, range(count)))))
    await client.ask(subscribe("q", prefetch=count))
    assert [mids(line)[0] for line in await client.lines(count)] == pushed
    return client, pushed


async def test_give_back_serves_others_between_slices(
    running: Serving, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch gives back more than a hundred; all come to another subscriber in the end, in order."""
    client, pushed = await holder(running, 1000)
    other = running.connect()
    await other.ask(subscribe("q", prefetch=1000))
    queue, commit = running.storage.queue("q"), running.storage.commit
    release = queue.release
    batches = [0]

    def counted_release(receipt: Receipt, delay: int) -> int | None:
        batches[-1] += 1
        return release(receipt, delay)

    def counted_commit() -> Effects:
        batches.append(0)
        return commit()

    monkeypatch.setattr(queue, "release", counted_release)
    monkeypatch.setattr(running.storage, "commit", counted_commit)
    await client.hang_up()
    lines = await other.lines(1000)
    assert [(mids(line)[0], receives(line)) for line in lines] == [(mid, 2) for mid in pushed]
    assert (max(batches), sum(batches)) == (100, 1000)


async def test_delete_from_other_connection_before_give_back(running: Serving, autojump_clock: Clock) -> None:
    """Right behind the end of a connection, another one deletes what that held: it is gone, and the rest is ready."""
    client, pushed = await holder(running, 500)
    other = running.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.hang_up)
        nursery.start_soon(other.send, *(delete("q", mid) for mid in pushed[-50:]))
    assert [code(line) for line in await other.lines(50)] == [0] * 50
    await trio.testing.wait_all_tasks_blocked()
    assert mids(await other.ask(request("list-messages", "<qid>q</qid>", state="ready"))) == pushed[:-50]
    assert mids(await other.ask(request("list-messages", "<qid>q</qid>", state="in-flight"))) == []


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.ALWAYS])
async def test_stop_gives_everything_back(tmp_path: Path, durability: Durability) -> None:
    """A stop gives back what takes many slices before the engine is closed."""
    async with serving(tmp_path / "root", durability=durability) as running:
        client, pushed = await holder(running, 1000)
        engine, close = running.storage, running.storage.close
        found: list[tuple[int, int]] = []

        def look_and_close() -> None:
            stats = engine.queue("q").stats()
            found.append((stats.ready, stats.in_flight))
            close()

        engine.close = look_and_close  # type: ignore[method-assign]
        running.server.stop()
        assert [code(line) for line in await client.rest()] == [503]
        await client.hang_up()
    assert found == [(len(pushed), 0)]


async def test_purge_and_delete_queue_end_leases(tmp_path: Path, autojump_clock: Clock) -> None:
    """A purge and a delete end what subscribers hold, and make room for the next messages; the req of a subscription
    that ends so is free."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=("q", "r")) as running:
        client, _ = await holder(running, 600)
        other = running.connect()
        assert "<count>600</count>" in await other.ask(request("purge-queue", "<qid>q</qid>"))
        await other.ask(push_list("q", *["x"] * 600))
        assert [payloads(line) for line in await client.lines(600)] == [["x"]] * 600
        await other.ask(request("delete-queue", "<qid>q</qid>", force="yes"))
        assert code(await client.line()) == 404
        assert code(await client.ask(subscribe("r"))) == 0
        await other.ask(push_list("r", "y"))
        assert payloads(await client.line()) == ["y"]


# -- how many ---------------------------------------------------------------------------------------------------------


async def test_subscribe_beyond_thousand_is_refused(running: Serving, autojump_clock: Clock) -> None:
    """A connection may have 1000; one more is 400 that says what to do, and changes nothing: the others go on, one of
    them can be changed, and when one ends, there is room for another."""
    client = running.connect()
    for start in range(0, 1000, 100):
        answers = [subscribe("q", req=f"s{number}", prefetch=1) for number in range(start, start + 100)]
        assert code(await client.ask(*answers)) == 0
    refused = await client.ask(subscribe("q", req="more"))
    assert (code(refused), "1000 subscriptions" in refused, "'queues'" in refused) == (400, True, True)
    assert code(await client.ask(subscribe("q", req="s7", prefetch=2))) == 0
    assert code(await client.ask(request("unsubscribe", subscription="s8"))) == 0
    assert code(await client.ask(subscribe("q", req="more"))) == 0
    assert code(await client.ask(subscribe("q", req="yet more"))) == 400
    assert code(await running.connect().ask(subscribe("q"))) == 0
    assert "<ping/>" in await client.ask(PING)
    line = await running.connect().ask(receive("q"))
    assert mids(line) == []
