"""Options of order and pace as clients see them: what may not be handed out now makes receives and subscriptions wait,
and wakes them when it may. Time is a parameter."""

import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from support.clients.documents import (
    code,
    delete,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push_list,
    receive,
    release,
    request,
    subscribe,
    text,
)
from support.servers.memory import Client, Clock, Serving, clock_of, serving

from qs_server.broker.subscriber import Subscriber
from qs_server.broker.subscriptions import SLICE, Subscriptions


@pytest.fixture
async def running(tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=()) as running:
        yield running


@pytest.fixture
async def client(running: Serving) -> Client:
    return running.connect()


async def make(client: Client, qid: str, options: str) -> None:
    assert code(await client.ask(new_queue(qid, f"<options storage='journal' {options}/>"))) == 0


def set_queue(qid: str, options: str) -> str:
    return request("set-queue", f"<qid>{qid}</qid><options {options}/>")


async def options_of(client: Client, qid: str) -> dict[str, str]:
    return dict(re.findall(r' ([a-z-]+)="([^"]*)"', await client.ask(request("get-queue", f"<qid>{qid}</qid>"))))


async def stats(client: Client, qid: str) -> dict[str, str]:
    return dict(re.findall(r' ([a-z-]+)="([^"]*)"', await client.ask(request("queue-stats", f"<qid>{qid}</qid>"))))


def numbered(count: int, attributes: str = "") -> str:
    return "".join(f"<message {attributes}><payload>{number}</payload></message>" for number in range(count))


def push_numbered(qid: str, count: int, attributes: str = "") -> str:
    return request("push-message", f"<qid>{qid}</qid><messages>{numbered(count, attributes)}</messages>")


# -- the options


async def test_options(client: Client, autojump_clock: Clock) -> None:
    """`new-queue` and `set-queue` take them, an empty value removes one, and `get-queue` shows those that are set."""
    await make(client, "q", 'group-in-flight="3" fair="yes" max-in-flight="20" rate="0.5"')
    shown = {"group-in-flight": "3", "fair": "yes", "max-in-flight": "20", "rate": "0.5"}
    assert shown.items() <= (await options_of(client, "q")).items()
    assert code(await client.ask(set_queue("q", 'rate="100" max-in-flight="" fair="no"'))) == 0
    left = await options_of(client, "q")
    assert (left["group-in-flight"], left["rate"]) == ("3", "100")
    assert not {"max-in-flight", "fair"} & left.keys()
    assert code(await client.ask(set_queue("q", 'group-in-flight="" rate="" fair=""'))) == 0
    assert not {"group-in-flight", "rate", "fair"} & (await options_of(client, "q")).keys()


async def test_options_of_a_queue_that_is_there(client: Client, autojump_clock: Clock) -> None:
    """`exist-ok` compares them, and 1 for `group-in-flight` and no for `fair` are what a queue has that names none."""

    async def again(options: str) -> str:
        body = f"<qid>q</qid><options {options}/>"
        return await client.ask(request("new-queue", body, exist_ok="yes"))

    await make(client, "q", 'max-in-flight="20"')
    assert code(await again('max-in-flight="20" group-in-flight="1" fair="no"')) == 0
    refused = await again('max-in-flight="20" fair="yes" rate="2" group-in-flight="2"')
    assert code(refused) == 409
    for said in ("its fair is none, not yes", "its rate is none, not 2", "its group-in-flight is none, not 2"):
        assert said in text(refused)


# -- max-in-flight


async def test_max_in_flight(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """At most so many messages are out at a time, whoever has them; the end of one wakes who waits."""
    await make(client, "q", 'max-in-flight="2"')
    await client.ask(push_numbered("q", 5))
    first, second = mids(await client.ask(receive("q", max=10)))
    assert mids(await client.ask(receive("q", max=10))) == []
    assert ((await stats(client, "q"))["limited"], (await stats(client, "q"))["ready"]) == ("max-in-flight", "3")
    waiting = [running.connect() for _ in range(3)]
    for consumer in waiting:
        await consumer.send(receive("q", wait=1000, visibility=2000))
        assert await consumer.nothing_yet()
    await client.ask(delete("q", first))
    assert payloads(await waiting[0].line()) == ["2"]
    assert await waiting[1].nothing_yet()
    await client.ask(release("q", second))
    assert payloads(await waiting[1].line()) == ["1"]  # the one that was given back: it is older
    assert await waiting[2].nothing_yet()
    await client.ask(set_queue("q", "max-in-flight=''"))
    assert payloads(await waiting[2].line()) == ["3"]
    assert "limited" not in await stats(client, "q")


async def test_max_in_flight_of_subscriptions(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """Two subscriptions have no more than that together, however much they prefetch."""
    await make(client, "q", 'max-in-flight="3"')
    one, other = running.connect(), running.connect()
    await one.ask(subscribe("q"))
    await other.ask(subscribe("q"))
    await client.ask(push_numbered("q", 5))
    held = [await one.line(), await other.line(), await one.line()]
    assert [payloads(line) for line in held] == [["0"], ["1"], ["2"]]
    assert await one.nothing_yet()
    assert await other.nothing_yet()
    await other.send(delete("q", *mids(held[1])))
    assert not is_delivery(await other.line())
    assert payloads(await other.line()) == ["3"]
    await one.hang_up()  # gives back two
    assert [payloads(line) for line in await other.lines(2)] == [["0"], ["2"]]
    assert await other.nothing_yet()


async def test_a_batch_delivers_a_slice(client: Client, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages with a priority a subscription may have: requests do not wait for all of them."""
    delivered: list[int] = []
    deliver = Subscriptions.take_mail

    def noting(self: Subscriptions) -> set[Subscriber]:
        found = deliver(self)
        delivered.append(sum(len(each.mail) for each in found))
        return found

    monkeypatch.setattr(Subscriptions, "take_mail", noting)
    await make(client, "q", "")
    await client.ask(push_numbered("q", 1000, "priority='5'"))
    await client.ask(subscribe("q", prefetch=1000))
    assert len(await client.lines(1000)) == 1000
    assert (max(delivered), sum(delivered)) == (SLICE, 1000)


async def test_a_window_that_ends_wakes(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """The end of a window of a limited queue wakes who waits, at that time."""
    await make(client, "q", 'max-in-flight="1"')
    await client.ask(push_numbered("q", 2))
    began = trio.current_time()
    await client.ask(receive("q", visibility=7))
    assert payloads(await client.ask(receive("q", wait=1000))) == ["0"]
    assert trio.current_time() - began == pytest.approx(7, abs=0.01)


# -- rate


async def test_rate(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """After idleness one second's worth is handed out at once; a second later receives that wait get messages evenly
    spread, so that no second has more than the rate says."""
    await make(client, "q", 'rate="4"')
    await client.ask(push_numbered("q", 20))
    times = []
    began = trio.current_time()
    for _ in range(12):
        [_] = mids(await client.ask(receive("q", wait=100)))
        times.append(trio.current_time() - began)
    assert times[:4] == pytest.approx([0, 0, 0, 0], abs=0.01)
    assert times[4:] == pytest.approx([1 + 0.25 * number for number in range(8)], abs=0.01)
    assert payloads(await client.ask(receive("q", max=10))) == []
    assert (await stats(client, "q"))["limited"] == "rate"
    await trio.sleep(3600)
    assert len(payloads(await client.ask(receive("q", max=100)))) == 4


@pytest.mark.parametrize("attributes", ["", "priority='3'", "group='{}'"])
async def test_rate_with_many_who_wait(
    running: Serving, client: Client, autojump_clock: Clock, attributes: str
) -> None:
    """Each is woken when the rate lets a message out, also those for whom there was none when the messages came."""
    await make(client, "q", 'rate="1"')
    times = []

    async def wait() -> None:
        [_] = mids(await running.connect().ask(receive("q", wait=20)))
        times.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(wait)
        await trio.sleep(1)
        began = trio.current_time()
        messages = "".join(numbered(1, attributes.format(number)) for number in range(4))
        await client.ask(request("push-message", f"<qid>q</qid><messages>{messages}</messages>"))
    assert times == pytest.approx([0, 1, 2, 3], abs=0.01)


async def test_rate_of_a_subscription(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """A subscription gets messages at the rate, without asking."""
    await make(client, "q", 'rate="0.5"')
    await client.ask(push_numbered("q", 5))
    subscriber = running.connect()
    await subscriber.ask(subscribe("q"))
    times = []
    for _ in range(5):
        assert is_delivery(await subscriber.line())
        times.append(trio.current_time())
    assert [after - before for before, after in itertools.pairwise(times)] == pytest.approx([2] * 4, abs=0.05)


async def test_who_waits_for_a_limit_costs_nothing(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """Receives and subscriptions that wait for a limit do not ask again and again: few batches run meanwhile."""
    await make(client, "full", 'max-in-flight="1"')
    await make(client, "slow", 'rate="0.01"')
    for qid in ("full", "slow"):
        await client.ask(push_numbered(qid, 3))
        await client.ask(receive(qid, visibility=5000))
        for _ in range(2):
            await running.connect().send(receive(qid, wait=4000))
        await running.connect().ask(subscribe(qid, visibility=5000))
    committer = running.server._committer
    before = committer.served
    await trio.sleep(90)
    assert committer.served - before <= 2
    await trio.sleep(1910)  # the rate has let two more out
    assert committer.served - before <= 10
    assert (await stats(client, "slow"))["ready"] == "0"


async def test_a_rate_that_changes_wakes(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """A receive that waits for a rate is answered at once when the rate is lifted."""
    await make(client, "q", 'rate="0.001"')
    await client.ask(push_numbered("q", 2), receive("q"))
    waiting = running.connect()
    await waiting.send(receive("q", wait=100))
    assert await waiting.nothing_yet()
    began = trio.current_time()
    await client.ask(set_queue("q", 'rate=""'))
    assert payloads(await waiting.line()) == ["1"]
    assert trio.current_time() == began


# -- groups


async def test_group_in_flight(client: Client, autojump_clock: Clock) -> None:
    """At most so many of a group are out; another group, and messages without one, are not kept back by it."""
    await make(client, "q", 'group-in-flight="2"')
    await client.ask(push_numbered("q", 4, 'group="a"'), push_numbered("q", 1, 'group="b"'), push_list("q", "free"))
    held = await client.ask(receive("q", max=10))
    assert payloads(held) == ["0", "1", "0", "free"]
    assert (await stats(client, "q"))["limited"] == "group-in-flight"
    await client.ask(delete("q", mids(held)[0]))
    assert payloads(await client.ask(receive("q", max=10))) == ["2"]


async def test_fair(client: Client, autojump_clock: Clock) -> None:
    """Groups are served in turn, also one that comes behind a thousand messages of another."""
    await make(client, "q", 'fair="yes" group-in-flight="1000"')
    await client.ask(push_numbered("q", 1000, 'group="a"'), push_numbered("q", 2, 'group="b"'))
    assert payloads(await client.ask(receive("q", max=6))) == ["0", "0", "1", "1", "2", "3"]


async def test_paused_is_not_limited(client: Client, autojump_clock: Clock) -> None:
    """A queue that is paused says so, and not that it is limited while it lets nothing out anyway."""
    await make(client, "q", 'max-in-flight="1"')
    await client.ask(push_numbered("q", 2), request("pause-queue", "<qid>q</qid>"))
    shown = await stats(client, "q")
    assert (shown["paused"], "limited" in shown) == ("yes", False)
