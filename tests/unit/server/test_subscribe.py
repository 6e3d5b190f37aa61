"""subscribe: which messages are delivered to which client, when, and how many at a time. Time is a parameter."""

import os
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import (
    PING,
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
    receives,
    release,
    req,
    request,
    subscribe,
    text,
)
from support.servers.memory import EPOCH, Client, Clock, Serving, clock_of, serving
from support.storage.engines import WithoutAttributes

from qs_storage.engine import Durability
from qs_storage.vsqs import Queue

SECOND = 1_000_000


async def subscriber(running: Serving, *qids: str, **attributes: str | int | float) -> Client:
    """A client whose subscription `s` has been answered."""
    client = running.connect()
    answer = await client.ask(subscribe(*(qids or ("q",)), **attributes))  # type: ignore[arg-type]
    assert "<op><subscribe/></op>" in answer, answer
    return client


async def delivered(client: Client, count: int) -> list[str]:
    """The payloads of so many deliveries."""
    lines = await client.lines(count)
    assert all(map(is_delivery, lines)), lines
    return [payload for line in lines for payload in payloads(line)]


async def in_flight(client: Client, qid: str = "q") -> int:
    return len(mids(await client.ask(request("list-messages", f"<qid>{qid}</qid>", state="in-flight"))))


# -- what comes, and from where ---------------------------------------------------------------------------------------


async def test_answer_comes_before_first_delivery(running: Serving, autojump_clock: Clock) -> None:
    """Messages in the queue come behind the answer to the subscribe, oldest first."""
    client = running.connect()
    await client.ask(push_list("q", "a", "b", "c"))
    await client.send(subscribe("q", req="mine"))
    answer, *deliveries = await client.lines(4)
    assert "<op><subscribe/></op><qid>q</qid>" in answer
    assert [payloads(line) for line in deliveries] == [["a"], ["b"], ["c"]]
    assert {req(line) for line in [answer, *deliveries]} == {"mine"}


async def test_push_is_delivered(running: Serving, autojump_clock: Clock) -> None:
    """Later pushes are delivered in order, without a request."""
    client, producer = await subscriber(running), running.connect()
    assert await client.nothing_yet()
    for number in range(5):
        await producer.ask(push("q", str(number)))
    await producer.ask(push_list("q", "5", "6"))
    assert await delivered(client, 7) == [str(number) for number in range(7)]


async def test_bytes_are_delivered_as_base64(running: Serving, autojump_clock: Clock) -> None:
    """A payload that XML cannot carry is delivered as base64."""
    client = await subscriber(running)
    await running.connect().ask(request("push-message", '<qid>q</qid><payload encoding="base64">AP8=</payload>'))
    assert '<payload encoding="base64">AP8=</payload>' in await client.line()


async def test_file_of_other_program_is_delivered(running: Serving, autojump_clock: Clock) -> None:
    """A file that another program renames into the directory is delivered, and so is what a vsqs queue publishes."""
    client = await subscriber(running)
    directory = running.root / "q"
    (directory / f"{EPOCH}.new").write_text("by hand")
    os.rename(directory / f"{EPOCH}.new", directory / str(EPOCH))
    assert await delivered(client, 1) == ["by hand"]
    with Queue(directory, sync=False) as queue:
        queue.publish(b"by vsqs")
    assert await delivered(client, 1) == ["by vsqs"]


async def test_delayed_push_is_delivered_in_time(running: Serving, autojump_clock: Clock) -> None:
    """A message pushed with a delay is delivered when the delay is over."""
    client, began = await subscriber(running), trio.current_time()
    await running.connect().ask(push("q", "later", delay=7))
    assert await delivered(client, 1) == ["later"]
    assert trio.current_time() - began == pytest.approx(7, abs=0.01)


async def test_release_by_other_client_is_delivered(running: Serving, autojump_clock: Clock) -> None:
    """A message that another client received and releases is delivered, with its count; with a delay, after it."""
    other = running.connect()
    [mid] = mids(await other.ask(push("q", "x")))
    await other.ask(receive("q"))
    client, began = await subscriber(running), trio.current_time()
    assert await client.nothing_yet()
    await other.ask(release("q", mid))
    assert receives(await client.line()) == 2
    await other.ask(release("q", mid, delay=5))
    assert receives(await client.line()) == 3
    assert trio.current_time() - began == pytest.approx(5, abs=0.01)


async def test_release_by_subscriber_is_delivered_again(running: Serving, autojump_clock: Clock) -> None:
    """`release-message` gives a delivery back: with no other subscriber it comes again at once."""
    client = await subscriber(running, prefetch=1)
    [mid] = mids(await running.connect().ask(push("q", "x")))
    assert receives(await client.line()) == 1
    await client.send(release("q", mid))
    again, answer = sorted(await client.lines(2), key=is_delivery, reverse=True)
    assert (receives(again), "<release-message/>" in answer) == (2, True)


async def test_window_end_of_other_client_is_delivered(running: Serving, autojump_clock: Clock) -> None:
    """A message whose receiver did not delete it comes when its window ends."""
    other = running.connect()
    await other.ask(push("q", "x"), receive("q", visibility=12))
    client, began = await subscriber(running), trio.current_time()
    assert receives(await client.line()) == 2
    assert trio.current_time() - began == pytest.approx(12, abs=0.01)


async def test_subscribe_without_visibility_has_window_of_queue(running: Serving, autojump_clock: Clock) -> None:
    """A subscription that names no visibility gets the queue's own."""
    client = running.connect()
    await client.ask(new_queue("short", '<options visibility="3"/>'), push("short", "x"))
    now = EPOCH + round(trio.current_time() * SECOND)
    await client.ask(subscribe("short"))
    assert f'visible-at="{now + 3 * SECOND}"' in await client.line()


# -- windows that end -------------------------------------------------------------------------------------------------


async def test_window_end_of_delivery_is_delivered_again(running: Serving, autojump_clock: Clock) -> None:
    """A delivery whose window ends comes again, and counts once against the prefetch."""
    client, began = await subscriber(running, prefetch=1, visibility=10), trio.current_time()
    await running.connect().ask(push_list("q", "first", "second"))
    for count in (1, 2, 3):
        line = await client.line()
        assert (payloads(line), receives(line)) == (["first"], count)
        assert trio.current_time() - began == pytest.approx(10 * (count - 1), abs=0.01)
    await client.send(delete("q", mids(line)[0]))
    assert {code(line) or tuple(payloads(line)) for line in await client.lines(2)} == {(), ("second",)}


async def test_extend_keeps_delivery_and_prefetch(running: Serving, autojump_clock: Clock) -> None:
    """`extend-message` keeps a delivery, and its place in the prefetch, for longer."""
    client, began = await subscriber(running, prefetch=1, visibility=10), trio.current_time()
    await running.connect().ask(push("q", "x"))
    [mid] = mids(await client.line())
    await client.ask(request("extend-message", f"<qid>q</qid><mid>{mid}</mid>", visibility=25))
    assert receives(await client.line()) == 2
    assert trio.current_time() - began == pytest.approx(25, abs=0.01)


async def test_extend_to_earlier_end_gives_room(running: Serving, autojump_clock: Clock) -> None:
    """A window that is made to end earlier gives room earlier."""
    client, began = await subscriber(running, prefetch=1), trio.current_time()
    await running.connect().ask(push("q", "x"))
    [mid] = mids(await client.line())
    await client.ask(request("extend-message", f"<qid>q</qid><mid>{mid}</mid>", visibility=2))
    assert receives(await client.line()) == 2
    assert trio.current_time() - began == pytest.approx(2, abs=0.01)


async def test_window_end_gives_room_for_other_queues(running: Serving, autojump_clock: Clock) -> None:
    """When a message whose window ended goes to another subscriber, the former one has room for messages of another
    queue."""
    holder = await subscriber(running, "q", "other", prefetch=1, visibility=10)
    producer = running.connect()
    await producer.ask(push("q", "x"))
    assert await delivered(holder, 1) == ["x"]
    first, second = [await subscriber(running, prefetch=1, visibility=60) for _ in range(2)]
    await producer.ask(push("other", "y"), push("q", "z"))  # z passes over the holder, so the second is next
    assert await delivered(first, 1) == ["z"]
    assert await holder.nothing_yet()
    assert await delivered(second, 1) == ["x"]
    assert await delivered(holder, 1) == ["y"]


async def test_delete_by_other_program_gives_room_at_window_end(running: Serving, autojump_clock: Clock) -> None:
    """A delivery that a foreign process removes counts no longer than its window, and not after the subscriber's own
    delete of it."""
    client, producer = await subscriber(running, prefetch=1, visibility=10), running.connect()

    async def vanish(payload: str) -> int:
        await producer.ask(push("q", payload))
        line = await client.line()
        assert payloads(line) == [payload]
        for path in (running.root / "q").glob(f"{mids(line)[0]}*"):
            path.unlink()
        return mids(line)[0]

    began = trio.current_time()
    await vanish("a")
    await producer.ask(push("q", "b"))
    line = await client.line()
    assert payloads(line) == ["b"]
    assert trio.current_time() - began == pytest.approx(10, abs=0.01)
    await client.ask(delete("q", mids(line)[0]))
    mid = await vanish("c")
    await producer.ask(push("q", "d"))
    await client.send(delete("q", mid))
    lines = await client.lines(2)
    assert {code(line) for line in lines} == {0, 404}
    assert trio.current_time() - began == pytest.approx(10, abs=0.01)


# -- prefetch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 3, 10])
async def test_prefetch_is_never_exceeded(running: Serving, autojump_clock: Clock, pieces: int) -> None:
    """At most prefetch messages are unacknowledged; each acknowledgement, alone or in a list, brings as many more."""
    client, producer = await subscriber(running, prefetch=10), running.connect()
    await producer.ask(push_list("q", *map(str, range(100))))
    held: list[int] = []
    seen: list[str] = []
    while len(seen) < 100:
        while len(held) < min(10, 100 - len(seen) + len(held)):
            line = await client.line()
            if is_delivery(line):
                held += mids(line)
                seen += payloads(line)
        assert await in_flight(producer) <= 10
        acked, held = held[:pieces], held[pieces:]
        await client.send(delete_list("q", *acked) if pieces > 1 else delete("q", acked[0]))
    assert seen == list(map(str, range(100)))


async def test_prefetch_is_100_by_default(running: Serving, autojump_clock: Clock) -> None:
    """A subscription that does not say has a prefetch of 100."""
    client, producer = await subscriber(running), running.connect()
    await producer.ask(push_list("q", *["x"] * 150))
    await delivered(client, 100)
    assert await client.nothing_yet()
    assert await in_flight(producer) == 100


async def test_delete_from_other_connection_gives_room(running: Serving, autojump_clock: Clock) -> None:
    """A delete or release of a delivery on another connection makes room; with a wrong receives it does not."""
    client, other = await subscriber(running, prefetch=2), running.connect()
    a, b = mids(await other.ask(push_list("q", "a", "b")))
    await other.ask(push_list("q", "c", "d", "e"))
    assert await delivered(client, 2) == ["a", "b"]
    stale = request("delete-message", f'<qid>q</qid><mid receives="7">{a}</mid>')
    assert code(await other.ask(stale)) == 409
    assert await client.nothing_yet()
    await other.ask(request("delete-message", f'<qid>q</qid><mid receives="1">{a}</mid>'))
    assert await delivered(client, 1) == ["c"]
    await other.ask(release("q", b, delay=60))
    assert await delivered(client, 1) == ["d"]


async def test_second_subscribe_changes_prefetch(running: Serving, autojump_clock: Clock) -> None:
    """With the req of an open subscription, prefetch and visibility are changed; deliveries are not begun twice."""
    client, producer = await subscriber(running, prefetch=1), running.connect()
    await producer.ask(push_list("q", *"abcde"))
    [first] = mids(await client.line())
    await client.send(subscribe("q", prefetch=3, visibility=1000))
    lines = await client.lines(3)
    assert sorted(is_delivery(line) for line in lines) == [False, True, True]
    assert await client.nothing_yet()
    await client.ask(subscribe("q", prefetch=1))
    for mid in (first, next(mids(line)[0] for line in lines if is_delivery(line))):
        await client.ask(delete("q", mid))
        assert await client.nothing_yet()  # one is left, and that is as many as it wants now
    assert await in_flight(producer) == 1


async def test_subscription_to_several_queues(running: Serving, autojump_clock: Clock) -> None:
    """One subscription to several queues: each delivery says its queue, the prefetch is that of all together."""
    client, producer = await subscriber(running, "q", "other", prefetch=3), running.connect()
    await producer.ask(push("q", "1"), push("other", "2"), push("q", "3"), push("other", "4"))
    lines = await client.lines(3)
    assert {(payloads(line)[0], "<qid>q</qid>" in line) for line in lines} < {
        ("1", True), ("2", False), ("3", True), ("4", False)
    }  # fmt: skip
    assert await client.nothing_yet()
    qid = "q" if "<qid>q</qid>" in lines[0] else "other"
    await client.send(delete(qid, mids(lines[0])[0]))
    assert sorted(is_delivery(line) for line in await client.lines(2)) == [False, True]


async def test_several_subscriptions_of_one_connection(running: Serving, autojump_clock: Clock) -> None:
    """Each subscription has its own req and prefetch; on the same queue they get messages in round-robin order."""
    client, producer = running.connect(), running.connect()
    await client.ask(subscribe("q", req="a", prefetch=2), subscribe("other", req="b", prefetch=1))
    await producer.ask(push("other", "x"), push("q", "1"), push("q", "2"), push("q", "3"), push("other", "y"))
    lines = await client.lines(3)
    assert sorted((req(line), *payloads(line)) for line in lines) == [("a", "1"), ("a", "2"), ("b", "x")]
    assert await client.nothing_yet()
    await client.send(subscribe("q", req="c"))
    lines = await client.lines(2)
    assert [req(line) for line in lines] == ["c", "c"]
    assert payloads(lines[1]) == ["3"]


# -- get-message of what is held --------------------------------------------------------------------------------------


@pytest.mark.parametrize("peek", ["yes", "no"])
async def test_get_of_own_delivery_changes_nothing(running: Serving, autojump_clock: Clock, peek: str) -> None:
    """`get-message` of what is in flight to the asking connection gives its payload, and changes nothing."""
    client, other = await subscriber(running), running.connect()
    [mid] = mids(await other.ask(push("q", "x")))
    delivery = await client.line()
    get = request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek=peek)
    own, others = await client.ask(get), await other.ask(get)
    assert own.partition("<op>")[2] == delivery.partition("<op>")[2]
    assert ('status="in-flight"' in others, payloads(others)) == (True, [])


async def test_get_of_former_delivery_has_no_payload(running: Serving, autojump_clock: Clock) -> None:
    """A delivery that another program has taken is in that one's window: get-message answers without payload."""
    client, other = await subscriber(running, prefetch=1), running.connect()
    [mid] = mids(await other.ask(push("q", "x")))
    await client.line()
    [path] = (running.root / "q").glob(f"{mid}.*")
    path.rename(path.with_name(f"{mid}.{EPOCH + 10**10}"))
    os.setxattr(path.with_name(f"{mid}.{EPOCH + 10**10}"), "user.qs.receives", b"5")
    line = await client.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>"))
    assert ('status="in-flight"' in line, receives(line), payloads(line)) == (True, 5, [])
    (running.root / "q" / f"{mid}.{EPOCH + 10**10}").unlink()
    assert code(await client.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>"))) == 404


# -- refusals ---------------------------------------------------------------------------------------------------------


async def test_subscribe_with_bad_arguments_is_refused(running: Serving, autojump_clock: Clock) -> None:
    """A queue that is missing is 404, a name or ack 501, `qid` with `queues` 400, other queues under a req that is open
    400, a window of nothing 400; and nothing is delivered for any of them."""
    client = await subscriber(running, prefetch=1, req="open")
    both = "<qid>other</qid><queues><queue>other</queue></queues>"
    for document, expected in (
        (subscribe("absent"), 404),
        (subscribe("other", "absent"), 404),
        (subscribe("other", name="worker"), 501),
        (subscribe("other", ack="client"), 501),
        (subscribe("other", ack="client", name="worker"), 501),
        (request("subscribe", both, req="s"), 400),
        (subscribe("other", req="open"), 400),
        (subscribe("q", "other", req="open"), 400),
        (subscribe("other", prefetch=0), 400),
        (subscribe("other", visibility="0.0"), 400),
        (request("subscribe", req="s"), 400),
    ):
        answer = await client.ask(document)
        assert code(answer) == expected, (document, answer)
    assert "absent" in text(await client.ask(subscribe("absent")))
    assert text(await client.ask(subscribe("other", ack="client"))).replace("&apos;", "'") == (
        "'ack' and 'name' belong on the bus: this is the queue server, where every message is to be acknowledged"
    )
    await running.connect().ask(push("other", "x"), push("q", "y"))
    assert [payloads(line) for line in await client.lines(1)] == [["y"]]
    assert await client.nothing_yet()


async def test_answers_between_deliveries_stay_in_order(running: Serving, autojump_clock: Clock) -> None:
    """Between deliveries, answers come in the order of their requests, each whole, with its own req."""
    client, producer = await subscriber(running, prefetch=1000), running.connect()
    for start in range(0, 200, 20):
        await client.send(*(request("ping", req=f"r{start + step}") for step in range(20)))
        await producer.ask(push_list("q", *(str(start + step) for step in range(20))))
    lines = await client.lines(400)
    assert [req(line) for line in lines if not is_delivery(line)] == [f"r{number}" for number in range(200)]
    assert [payloads(line)[0] for line in lines if is_delivery(line)] == [str(number) for number in range(200)]
    assert all(line.endswith("</qs>\r\n") for line in lines)


async def test_delivery_comes_while_request_waits(running: Serving, autojump_clock: Clock) -> None:
    """Deliveries come also while a request of the same connection waits."""
    client, producer = await subscriber(running), running.connect()
    await client.send(receive("other", wait=60, req="w"))
    await producer.ask(push("q", "x"))
    assert await delivered(client, 1) == ["x"]
    await producer.ask(push("other", "y"))
    assert req(await client.line()) == "w"


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.INTERVAL])
async def test_deliveries_with_commits_in_thread(tmp_path: Path, durability: Durability) -> None:
    """With the engine in the thread too, everything comes once, in order, and acknowledged messages are gone."""
    async with serving(tmp_path / "root", durability=durability) as running:
        client, producer = await subscriber(running, prefetch=7), running.connect()
        await producer.send(*(push("q", str(number)) for number in range(100)))
        seen: list[str] = []
        answers = 0
        while answers < 100:
            line = await client.line()
            if is_delivery(line):
                seen += payloads(line)
                await client.send(delete("q", mids(line)[0]))
            else:
                assert code(line) == 0
                answers += 1
        assert seen == list(map(str, range(100)))
        assert "<ping/>" in (await producer.lines(100) and await producer.ask(PING))
        assert mids(await producer.ask(request("list-messages", "<qid>q</qid>", state="all"))) == []
        for each in (client, producer):
            await each.hang_up()


async def test_deliveries_without_extended_attributes(tmp_path: Path, autojump_clock: Clock) -> None:
    """On a file system without them deliveries are the same; what a connection held is back when it ends."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=WithoutAttributes()) as running:
        client = await subscriber(running)
        await running.connect().ask(push("q", "x"))
        assert receives(await client.line()) == 1
        await client.hang_up()
        assert receives(await (await subscriber(running)).line()) == 2
