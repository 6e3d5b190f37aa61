"""A subscription ends by unsubscribe, with its connection, its queues or the server. Nothing is lost by it."""

from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import (
    PING,
    code,
    delete,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    receives,
    release,
    req,
    request,
    subscribe,
    text,
    unsubscribe,
)
from support.servers.memory import Client, Clock, Serving, clock_of, serving

from qs_storage.engine import Durability


async def subscriber(running: Serving, *qids: str, **attributes: str | int | float) -> Client:
    """A client whose subscription `s` has been answered."""
    client = running.connect()
    answer = await client.ask(subscribe(*(qids or ("q",)), **attributes))  # type: ignore[arg-type]
    assert "<op><subscribe/></op>" in answer, answer
    return client


def force(qid: str) -> str:
    return request("delete-queue", f"<qid>{qid}</qid>", force="yes")


# -- unsubscribe ------------------------------------------------------------------------------------------------------


async def test_unsubscribe_answer_is_followed_by_no_delivery(running: Serving, autojump_clock: Clock) -> None:
    """The answer to unsubscribe is the last of it; what was delivered stays with the client and can be acknowledged or
    given back."""
    client, producer = await subscriber(running, prefetch=2), running.connect()
    a, b, c = mids(await producer.ask(push_list("q", *"abc")))
    assert [mids(line) for line in await client.lines(2)] == [[a], [b]]
    assert '<op subscription="s"><unsubscribe/></op>' in await client.ask(unsubscribe(req="u"))
    assert code(await client.ask(delete("q", a))) == 0
    assert payloads(await client.ask(request("get-message", f"<qid>q</qid><mid>{b}</mid>"))) == ["b"]
    assert await client.nothing_yet()
    assert code(await client.ask(release("q", b))) == 0
    assert [payloads(await producer.ask(receive("q"))) for _ in range(2)] == [["b"], ["c"]]
    assert c > b


async def test_unsubscribe_behind_subscribe_leaves_nothing(running: Serving, autojump_clock: Clock) -> None:
    """Sent together, the two leave nothing: both are answered and nothing is delivered."""
    client = running.connect()
    await running.connect().ask(push("q", "x"))
    await client.send(subscribe("q"), unsubscribe())
    assert ["subscribe/>" in line for line in await client.lines(2)] == [True, True]
    assert await client.nothing_yet()
    await client.send(subscribe("q"))
    assert [is_delivery(line) for line in await client.lines(2)] == [False, True]


async def test_unsubscribe_of_unknown_subscription_is_404(running: Serving, autojump_clock: Clock) -> None:
    """An unknown subscription is 404, and so is one that has ended, or that is another connection's."""
    client, other = await subscriber(running), running.connect()
    for asking, subscription in ((client, "t"), (other, "s")):
        line = await asking.ask(unsubscribe(subscription))
        assert (code(line), f"'{subscription}'" in text(line)) == (404, True)
    await client.ask(unsubscribe())
    assert code(await client.ask(unsubscribe())) == 404


async def test_unsubscribe_frees_req_after_last_message(running: Serving, autojump_clock: Clock) -> None:
    """While the client holds messages of a subscription that it has ended, its req is taken; then it is free."""
    client, producer = await subscriber(running), running.connect()
    [mid] = mids(await producer.ask(push("q", "x")))
    await client.line()
    await client.ask(unsubscribe())
    assert code(await client.ask(subscribe("other"))) == 400
    await client.ask(delete("q", mid))
    assert code(await client.ask(subscribe("other"))) == 0
    await producer.ask(push("other", "y"))
    assert payloads(await client.line()) == ["y"]


async def test_unsubscribe_leaves_messages_until_window_ends(running: Serving, autojump_clock: Clock) -> None:
    """Unacknowledged deliveries from before the unsubscribe are visible again at the end of their window, or of the
    connection."""
    client, other = await subscriber(running, visibility=10), running.connect()
    await other.ask(push("q", "x"))
    await client.line()
    await client.ask(unsubscribe())
    began = trio.current_time()
    line = await other.ask(receive("q", wait=60))
    assert (receives(line), round(trio.current_time() - began, 1)) == (2, 10)
    await other.ask(release("q", mids(line)[0]), subscribe("q"))
    await other.line()
    await client.send(subscribe("q", req="t"), unsubscribe("t"))
    await client.lines(2)
    await other.hang_up()
    third = await running.connect().ask(receive("q", wait=5))
    assert receives(third) == 4


# -- the connection ends ----------------------------------------------------------------------------------------------


async def test_end_of_connection_gives_messages_to_next_subscriber(running: Serving, autojump_clock: Clock) -> None:
    """Unacknowledged messages of an ended connection go to another subscriber at once, with a higher count; deleted
    ones do not."""
    client, producer = await subscriber(running), running.connect()
    a, b, c = mids(await producer.ask(push_list("q", *"abc")))
    await client.lines(3)
    await client.ask(delete("q", b))
    other = await subscriber(running)
    assert await other.nothing_yet()
    began = trio.current_time()
    await client.hang_up()
    lines = await other.lines(2)
    assert [(mids(line), receives(line)) for line in lines] == [([a], 2), ([c], 2)]
    assert trio.current_time() == began


async def test_half_closed_connection_ends_subscriptions(running: Serving, autojump_clock: Clock) -> None:
    """A client that ends its half of the stream is answered, its subscriptions end, and what it held is visible."""
    client, producer = await subscriber(running), running.connect()
    await producer.ask(push("q", "x"))
    await client.line()
    await client.send(request("ping", req="last"))
    await client.stream.send_eof()
    assert [req(line) for line in await client.rest()] == ["last"]
    assert receives(await producer.ask(receive("q"))) == 2


async def test_refused_connection_gives_messages_back(running: Serving, autojump_clock: Clock) -> None:
    """A subscriber that sends bytes that are no XML gets an error and the end; its messages are visible again."""
    client, producer = await subscriber(running), running.connect()
    await producer.ask(push("q", "x"))
    await client.line()
    await client.send("what?")
    assert [code(line) for line in await client.rest()] == [400]
    assert receives(await producer.ask(receive("q", wait=5))) == 2


async def test_end_of_connection_leaves_messages_of_others(running: Serving, autojump_clock: Clock) -> None:
    """When a connection ends, messages whose window was over, and that somebody else has received since, stay
    theirs."""
    client, other = await subscriber(running, visibility=5, prefetch=1), running.connect()
    [mid] = mids(await other.ask(push("q", "x")))
    await client.line()
    await client.ask(unsubscribe())
    assert mids(await other.ask(receive("q", wait=10, visibility=1000))) == [mid]
    await client.hang_up()
    await trio.testing.wait_all_tasks_blocked()
    assert 'status="in-flight"' in await other.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>"))


async def test_end_of_connection_gives_back_unread_messages(running: Serving, autojump_clock: Clock) -> None:
    """Messages on their way to a client that ends without reading are visible again too."""
    client, producer = running.connect(lockstep=True), running.connect()
    await client.ask(subscribe("q"))
    pushed = mids(await producer.ask(push_list("q", *["x" * 1000] * 50)))
    await trio.testing.wait_all_tasks_blocked()
    await client.hang_up()
    await trio.testing.wait_all_tasks_blocked()
    line = await producer.ask(receive("q", max=100))
    assert (mids(line), receives(line)) == (pushed, 2)


# -- the queue goes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [True, False])
async def test_subscription_to_deleted_queue_ends(running: Serving, autojump_clock: Clock, full: bool) -> None:
    """A subscription to nothing but a queue that is deleted ends with 404 under its req, also with no room left; its
    req is free again."""
    client, other = await subscriber(running, prefetch=1 if full else 9), running.connect()
    await other.ask(push("q", "x"))
    await client.line()
    assert code(await other.ask(force("q"))) == 0
    line = await client.line()
    assert (code(line), req(line), "'q'" in text(line)) == (404, "s", True)
    assert code(await client.ask(unsubscribe())) == 404
    await other.ask(new_queue("q"), push("q", "y"))
    assert await client.nothing_yet()
    await client.ask(subscribe("q", prefetch=1))
    assert payloads(await client.line()) == ["y"]


async def test_subscription_goes_on_when_one_queue_is_deleted(running: Serving, autojump_clock: Clock) -> None:
    """A subscription goes on with the queues that are left, with the room that the other's messages took, and ends
    with the last."""
    client, other = await subscriber(running, "q", "other", prefetch=1), running.connect()
    await other.ask(push("q", "x"))
    await client.line()
    await other.ask(push("other", "y"))
    assert await client.nothing_yet()
    await other.ask(force("q"))
    assert payloads(await client.line()) == ["y"]
    assert await client.nothing_yet()
    await other.ask(force("other"))
    assert (code(line := await client.line()), req(line)) == (404, "s")


async def test_subscription_to_queue_made_again_ends(running: Serving, autojump_clock: Clock) -> None:
    """The subscription to a deleted queue ends, also when delete and new queue come in one piece."""
    client, other = await subscriber(running, prefetch=1), running.connect()
    await other.ask(push("q", "x"))
    await client.line()
    await other.ask(force("q"), new_queue("q"), push("q", "y"))
    assert code(await client.line()) == 404
    assert await client.nothing_yet()


async def test_subscription_to_queue_deleted_before_start_ends(running: Serving, autojump_clock: Clock) -> None:
    """Subscribed to and deleted in one piece: answer, answer, 404."""
    client = running.connect()
    await client.send(subscribe("q"), force("q"))
    assert [code(line) for line in await client.lines(3)] == [0, 0, 404]


async def test_subscription_to_removed_directory_ends(running: Serving, autojump_clock: Clock) -> None:
    """A queue whose directory another program moves away has been deleted."""
    client = await subscriber(running)
    (running.root / "q").rename(running.root.parent / "elsewhere")
    assert (code(line := await client.line()), req(line)) == (404, "s")


async def test_purge_of_deliveries_gives_room(running: Serving, autojump_clock: Clock) -> None:
    """`purge-queue` takes what was delivered too; the room that it took is there for what comes next."""
    client, other = await subscriber(running, prefetch=2), running.connect()
    await other.ask(push_list("q", *"abcdef"))
    await client.lines(2)
    assert "<count>6</count>" in await other.ask(request("purge-queue", "<qid>q</qid>"))
    await other.ask(push_list("q", *"xyz"))
    assert [payloads(line) for line in await client.lines(2)] == [["x"], ["y"]]
    assert await client.nothing_yet()


# -- the server stops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.ALWAYS])
async def test_stop_ends_subscription_with_503(tmp_path: Path, durability: Durability) -> None:
    """A subscriber gets 503 and the end; its messages are ready when the server runs again, with their counts."""
    async with serving(tmp_path / "root", durability=durability) as running:
        client, other = await subscriber(running), running.connect()
        await other.ask(push("q", "x"))
        assert is_delivery(await client.line())
        running.server.stop()
        assert [code(line) for line in await client.rest()] == [503]
        await client.hang_up()
        await other.hang_up()
    async with serving(tmp_path / "root", queues=()) as running:
        client = running.connect()
        assert "<ping/>" in await client.ask(PING)
        line = await client.ask(receive("q"))
        assert (payloads(line), receives(line)) == (["x"], 2)
        await client.hang_up()


async def test_stop_cuts_off_slow_reader_after_grace(tmp_path: Path, autojump_clock: Clock) -> None:
    """One that does not read is cut off when the grace is over, and what it held is visible again."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        client = running.connect(lockstep=True)
        await client.ask(subscribe("q"))
        await running.connect().ask(push_list("q", *["x" * 1000] * 20))
        await trio.testing.wait_all_tasks_blocked()
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=()) as running:
        line = await running.connect().ask(receive("q", max=50))
        assert (len(mids(line)), receives(line)) == (20, 2)
