"""Retention as clients see it: options, what receives, subscribers and statistics show, and when the timer wakes."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from support.clients.documents import code, mids, new_queue, push, receive, release, request, subscribe
from support.servers.memory import Client, Clock, Serving, clock_of, serving

QUEUE = "<qid>jobs</qid>"


@pytest.fixture
async def running(tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as made:
        assert code(await made.connect().ask(new_queue("jobs", "<options storage='journal' retention='60'/>"))) == 0
        yield made


async def stats(client: Client) -> dict[str, str]:
    return dict(re.findall(r' ([a-z-]+)="([^"]*)"', await client.ask(request("queue-stats", QUEUE))))


def retention(value: str) -> str:
    return request("set-queue", f"{QUEUE}<options retention='{value}'/>")


async def test_by_the_timer(running: Serving, autojump_clock: Clock) -> None:
    """Old messages go though nobody asks for anything: at their time, visible or delayed; one in flight stays."""
    client = running.connect()
    [taken] = mids(await client.ask(push("jobs", "taken")))
    await client.ask(receive("jobs", visibility=100), push("jobs", "x"), push("jobs", "y", delay=500))
    await trio.sleep(59)
    assert [(await stats(client))[name] for name in ("ready", "delayed", "in-flight")] == ["1", "1", "1"]
    await trio.sleep(1.1)
    found = await stats(client)
    assert [found[name] for name in ("ready", "delayed", "in-flight", "retired")] == ["0", "0", "1", "2"]
    assert mids(await client.ask(request("list-messages", QUEUE, state="all"))) == [taken]
    await trio.sleep(40)
    found = await stats(client)
    assert [found[name] for name in ("in-flight", "ready", "retired", "bytes", "expired")] == ["0", "0", "3", "0", "1"]


async def test_retention_option_is_shown_and_removed(running: Serving, autojump_clock: Clock) -> None:
    """`get-queue` shows the option as it was given; an empty value removes it; a change applies to what is there."""
    client = running.connect()
    assert ' retention="60"' in await client.ask(request("get-queue", QUEUE))
    assert code(await client.ask(retention(""))) == 0
    assert "retention" not in await client.ask(request("get-queue", QUEUE))
    await client.ask(push("jobs", "x"))
    await trio.sleep(100)
    assert (await stats(client))["ready"] == "1"
    for wrong in ("0", "-1", "x"):
        assert code(await client.ask(retention(wrong))) == 400
    assert code(await client.ask(request("pause-queue", QUEUE), retention("99.5"))) == 0
    await trio.sleep(0.1)
    found = await stats(client)
    assert [found[name] for name in ("ready", "retired", "paused")] == ["0", "1", "yes"]
    assert ' retention="99.5"' in await client.ask(request("get-queue", QUEUE))


@pytest.mark.parametrize("storage", ["files", "dirq", "null"])
async def test_other_storages(running: Serving, autojump_clock: Clock, storage: str) -> None:
    """501 if a storage cannot, and nothing has changed."""
    client = running.connect()
    options = f"<options storage='{storage}' retention='60'/>"
    line = await client.ask(new_queue("other", options))
    if code(line) == 0:
        pytest.skip(f"{storage} removes old messages")
    assert (code(line), "'retention'" in line) == (501, True)
    await client.ask(new_queue("other", f"<options storage='{storage}'/>"))
    line = await client.ask(request("set-queue", "<qid>other</qid><options retention='60'/>"))
    assert (code(line), "retention" in await client.ask(request("get-queue", "<qid>other</qid>"))) == (501, False)


async def test_subscriber_keeps_message_too_old(running: Serving, autojump_clock: Clock) -> None:
    """A subscriber keeps what it holds, however old; messages that it releases or leaves behind are removed. It is
    never sent a message that is too old."""
    client, subscriber = running.connect(), running.connect()
    await subscriber.ask(subscribe("jobs", prefetch=2, visibility=1000))
    sent = [mids(await client.ask(push("jobs", text)))[0] for text in ("1", "2", "3")]
    assert [mids(await subscriber.line()) for _ in range(2)] == [[sent[0]], [sent[1]]]
    await trio.sleep(70)
    assert [(await stats(client))[name] for name in ("in-flight", "ready", "retired")] == ["2", "0", "1"]
    [young] = mids(await client.ask(push("jobs", "young")))
    await subscriber.send(release("jobs", sent[0]))
    assert sorted(mids(await subscriber.line() + await subscriber.line())) == [sent[0], young]
    await subscriber.stream.aclose()
    await trio.sleep(1)
    found = await stats(client)
    assert [found[name] for name in ("in-flight", "ready", "retired")] == ["0", "1", "3"]
    assert mids(await client.ask(receive("jobs", max=9))) == [young]


async def test_who_waits(running: Serving, autojump_clock: Clock) -> None:
    """A receive that waits gets no message that is removed when its window ends, and its wait goes on."""
    client, waiting = running.connect(), running.connect()
    await client.ask(push("jobs", "x"), receive("jobs", visibility=80))
    await waiting.send(receive("jobs", wait=100))
    await trio.sleep(90)
    [mid] = mids(await client.ask(push("jobs", "y")))
    assert mids(await waiting.line()) == [mid]
