"""Cases that may surprise somebody who writes a consumer, decided as docs/protocol.md does, in queues of every
storage."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from support.clients.documents import (
    code,
    delete,
    delete_list,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    release,
    request,
    subscribe,
)
from support.servers.memory import Clock, Serving, clock_of, serving

STORAGES = ["journal", "files", "dirq-simple", "dirq"]


@pytest.fixture(params=STORAGES)
async def running(request: pytest.FixtureRequest, tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[Serving]:
    """A server with the queue `q` of one storage."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=()) as server:
        client = server.connect()
        assert code(await client.ask(new_queue("q", f'<options storage="{request.param}"/>'))) == 0
        await client.hang_up()
        yield server


def held(qid: str, mid: int, receives: int, op: str) -> str:
    """A request with the receipt of a message."""
    return request(op, f'<qid>{qid}</qid><mid receives="{receives}">{mid}</mid>')


def is_stale(line: str) -> bool:
    return code(line) == 409 and 'type="stale"' in line


async def test_the_connection_of_a_receiver_ends(running: Serving, autojump_clock: Clock) -> None:
    """Received messages stay hidden until their window ends, whatever becomes of the connection; messages delivered
    to a subscription are visible at once."""
    receiver, subscriber, other = (running.connect() for _ in range(3))
    received, delivered = mids(await other.ask(push_list("q", "received", "delivered")))
    assert mids(await receiver.ask(receive("q", visibility=60))) == [received]
    await subscriber.send(subscribe("q", visibility=60))
    assert mids((await subscriber.lines(2))[1]) == [delivered]
    await receiver.hang_up()
    await subscriber.hang_up()
    assert payloads(await other.ask(receive("q", max=2, wait=1, visibility=600))) == ["delivered"]
    assert mids(await other.ask(receive("q", wait=58))) == []
    assert payloads(await other.ask(receive("q", wait=2))) == ["received"]


async def test_deleting_what_somebody_else_holds(running: Serving, autojump_clock: Clock) -> None:
    """Without `receives` anybody who may read the queue deletes a message; with an old count nobody does. Its holder is
    told 404, and a subscription goes on with the next message."""
    holder, other = running.connect(), running.connect()
    first, second = mids(await other.ask(push_list("q", "1", "2")))
    await holder.send(subscribe("q", prefetch=1))
    assert mids((await holder.lines(2))[1]) == [first]
    assert is_stale(await other.ask(held("q", first, 0, "delete-message")))
    assert code(await other.ask(delete("q", first))) == 0
    assert mids(await holder.line()) == [second]
    for op in ("delete-message", "release-message", "extend-message"):
        assert code(await holder.ask(held("q", first, 1, op))) == 404
    assert code(await holder.ask(held("q", second, 1, "delete-message"))) == 0


async def test_deleting_twice(running: Serving, autojump_clock: Clock) -> None:
    """The second time, and in place of a message that never was, a single one is 404, with or without `receives`; a
    list leaves it out."""
    client = running.connect()
    [mid] = mids(await client.ask(push("q", "x")))
    assert mids(await client.ask(receive("q"))) == [mid]
    assert code(await client.ask(held("q", mid, 1, "delete-message"))) == 0
    for again in (held("q", mid, 1, "delete-message"), held("q", mid, 9, "delete-message"), delete("q", mid)):
        assert code(await client.ask(again)) == 404
    assert code(await client.ask(delete("q", 5))) == 404
    answer = await client.ask(delete_list("q", mid, 5))
    assert (code(answer), mids(answer)) == (0, [])


async def test_releasing_what_nobody_holds(running: Serving, autojump_clock: Clock) -> None:
    """409 `stale`, and the message is as it was: still the oldest, not delayed, not counted. A subscription that has
    been told so goes on."""
    subscriber, other = running.connect(), running.connect()
    first, second = mids(await other.ask(push_list("q", "1", "2")))
    for document in (release("q", first), release("q", first, delay=60), held("q", first, 0, "release-message")):
        assert is_stale(await other.ask(document))
    await subscriber.send(subscribe("q", prefetch=1, visibility=10))
    assert mids((await subscriber.lines(2))[1]) == [first]
    assert is_stale(await other.ask(release("q", second)))  # and not of the subscriber's room
    assert code(await other.ask(release("q", first))) == 0  # held: by whom does not matter without `receives`
    assert 'receives="2"' in await subscriber.line()
    await trio.sleep(10)
    again = await subscriber.line()
    assert (mids(again), 'receives="3"' in again) == ([first], True)
    assert is_stale(await subscriber.ask(held("q", first, 2, "release-message")))
    await subscriber.send(held("q", first, 3, "delete-message"))
    following, answer = sorted(await subscriber.lines(2), key=is_delivery, reverse=True)
    assert (mids(following), is_delivery(following), code(answer)) == ([second], True, 0)


async def test_releasing_what_is_delayed(running: Serving, autojump_clock: Clock) -> None:
    """Nobody holds it, so a receipt is 409; without `receives` its delay is changed."""
    client = running.connect()
    [mid] = mids(await client.ask(push("q", "x", delay=3600)))
    assert is_stale(await client.ask(held("q", mid, 0, "release-message")))
    assert code(await client.ask(release("q", mid, delay=60))) == 0
    assert mids(await client.ask(receive("q", wait=59))) == []
    assert code(await client.ask(release("q", mid))) == 0
    assert mids(await client.ask(receive("q"))) == [mid]
    await client.ask(held("q", mid, 1, "release-message").replace("<op>", '<op delay="60">'))
    assert is_stale(await client.ask(held("q", mid, 1, "release-message")))  # a second release undoes no delay
    assert mids(await client.ask(receive("q", wait=59))) == []
    assert mids(await client.ask(receive("q", wait=2))) == [mid]


async def test_a_key_after_a_purge(tmp_path: Path, autojump_clock: Clock) -> None:
    """A key outlives its message, whether that was deleted or purged: the push answers with the old id and stores
    nothing. A queue that is deleted takes its keys along."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=()) as server:
        client = server.connect()
        journal = new_queue("q", '<options storage="journal"/>')
        await client.ask(journal)
        [mid] = mids(await client.ask(push("q", "1", key="a")))
        assert "<count>1</count>" in await client.ask(request("purge-queue", "<qid>q</qid>"))
        assert mids(await client.ask(push("q", "2", key="a"))) == [mid]
        assert mids(await client.ask(request("list-messages", "<qid>q</qid>", state="all"))) == []
        await trio.sleep(301)
        [later] = mids(await client.ask(push("q", "3", key="a")))
        assert later != mid
        await client.ask(request("delete-queue", "<qid>q</qid>", force="yes"))
        await client.ask(journal)
        await client.ask(push("q", "4", key="a"))
        assert payloads(await client.ask(receive("q"))) == ["4"]
