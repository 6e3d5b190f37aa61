"""Reasons, rejected messages and back-off as clients see them: requests, answers, deliveries and statistics."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from support.clients.documents import code, is_delivery, mids, new_queue, push, receive, request, subscribe, text
from support.servers.memory import Client, Clock, Serving, clock_of, serving

from qs_schemas.limits import REASON

STORAGES = ["journal", "files"]
"""The storages that keep reasons and reject messages. They have a back-off too."""
WITHOUT = ["dirq-simple", "dirq"]


@pytest.fixture(params=STORAGES)
async def running(request: pytest.FixtureRequest, tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[Serving]:
    """A server with a queue `jobs` and one for its dead letters, and a queue `slow` with a back-off."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as made:
        letters = f"<options storage='{request.param}' dead-letter='failed' max-receives='9'/>"
        backoff = f"<options storage='{request.param}' backoff='10' backoff-max='15'/>"
        made_of = await made.connect().ask(new_queue("jobs", letters), new_queue("slow", backoff))
        assert code(made_of) == 0
        yield made


def settle(op: str, qid: str, mid: int, reason: str | None = None, **attributes: str | int) -> str:
    """A release or a reject."""
    said = "" if reason is None else f"<reason>{reason}</reason>"
    return request(op, f"<qid>{qid}</qid><mid>{mid}</mid>{said}", **attributes)


def peek(qid: str, mid: int) -> str:
    return request("get-message", f"<qid>{qid}</qid><mid>{mid}</mid>", peek="yes")


async def stats(client: Client, qid: str) -> dict[str, str]:
    return dict(re.findall(r' ([a-z-]+)="([^"]*)"', await client.ask(request("queue-stats", f"<qid>{qid}</qid>"))))


async def test_a_reason_is_shown(running: Serving, autojump_clock: Clock) -> None:
    """In answers to peeks and receives, single and in lists, and in deliveries."""
    client = running.connect()
    [mid] = mids(await client.ask(push("jobs", "x")))
    assert "reason" not in await client.ask(receive("jobs"))
    said = "no room &amp; no &lt;time&gt;"
    answer = await client.ask(settle("release-message", "jobs", mid, said))
    assert (code(answer), mids(answer)) == (0, [mid])
    assert f"<reason>{said}</reason>" in await client.ask(peek("jobs", mid))
    listed = request("get-message", f"<qid>jobs</qid><messages><mid>{mid}</mid></messages>", peek="yes")
    for asked in (listed, receive("jobs")):
        assert f' reason="{said}"' in await client.ask(asked)
    await client.ask(settle("release-message", "jobs", mid, ""))  # an empty one is none
    subscriber = running.connect()
    await subscriber.ask(subscribe("jobs"))
    line = await subscriber.line()
    assert (is_delivery(line), f"<reason>{said}</reason>" in line) == (True, True)


async def test_reject(running: Serving, autojump_clock: Clock) -> None:
    """A rejected message is a dead letter that says why; statistics and figures count it."""
    client = running.connect()
    [mid] = mids(await client.ask(push("jobs", "x")))
    await client.ask(receive("jobs"))
    answer = await client.ask(settle("reject-message", "jobs", mid, "never"))
    assert (code(answer), mids(answer)) == (0, [mid])
    letter = await client.ask(receive("failed"))
    for said in ('reason="never"', 'dead-reason="rejected"', 'dead-from="jobs"', f'dead-mid="{mid}"'):
        assert said in letter
    assert ((await stats(client, "jobs"))["dead"], code(await client.ask(peek("jobs", mid)))) == ("1", 404)
    figures = await client.ask(request("server-stats"))
    for reason, count in (("receives", 0), ("rejected", 1)):
        assert re.search(rf'<figure name="messages_dead_lettered_total" reason="{reason}">{count}<', figures), figures
    assert "messages_rejected_total" not in figures


async def test_a_rejection_ends_a_lease(running: Serving, autojump_clock: Clock) -> None:
    """A subscriber that rejects what it holds is sent the next message."""
    client, subscriber = running.connect(), running.connect()
    first, second = [mids(await client.ask(push("jobs", each)))[0] for each in "ab"]
    await subscriber.ask(subscribe("jobs", prefetch=1))
    assert mids(await subscriber.line()) == [first]
    await subscriber.send(settle("reject-message", "jobs", first))
    lines = await subscriber.lines(2)  # the answer, and the delivery
    assert sorted((is_delivery(line), mids(line)) for line in lines) == [(False, [first]), (True, [second])]


@pytest.mark.parametrize("op", ["release-message", "reject-message"])
async def test_reasons_that_are_too_long(running: Serving, autojump_clock: Clock, op: str) -> None:
    """More than 1 KiB of UTF-8 is 400, which says how long it was; nothing changes."""
    client = running.connect()
    [mid] = mids(await client.ask(push("jobs", "x")))
    await client.ask(receive("jobs"))
    answer = await client.ask(settle(op, "jobs", mid, "é" * (REASON // 2) + "!"))
    assert (code(answer), f"{REASON + 1} bytes" in text(answer), str(REASON) in text(answer)) == (400, True, True)
    assert 'status="in-flight"' in await client.ask(peek("jobs", mid))
    assert code(await client.ask(settle(op, "jobs", mid, "é" * (REASON // 2)))) == 0


async def test_refused_rejections(running: Serving, autojump_clock: Clock) -> None:
    """No dead-letter queue is 409 conflict, another's message 409 stale, none 404; nothing changes."""
    client = running.connect()
    [mid], [other] = [mids(await client.ask(push(qid, "x"))) for qid in ("slow", "jobs")]
    answer = await client.ask(settle("reject-message", "slow", mid))
    assert (code(answer), 'type="conflict"' in answer, "no dead-letter queue" in text(answer)) == (409, True, True)
    stale = request("reject-message", f"<qid>jobs</qid><mid receives='1'>{other}</mid>")
    answer = await client.ask(stale)
    assert (code(answer), 'type="stale"' in answer) == (409, True)
    assert code(await client.ask(settle("reject-message", "jobs", other + 1))) == 404
    assert mids(await client.ask(receive("jobs", "slow", max=9))) == sorted([mid, other])


@pytest.mark.parametrize("storage", WITHOUT)
async def test_storages_without(client: Client, autojump_clock: Clock, storage: str) -> None:
    """Reasons and rejects are 501, with the names of the storages that can; nothing changes."""
    await client.ask(new_queue("other", f"<options storage='{storage}'/>"))
    [mid] = mids(await client.ask(push("other", "x")))
    await client.ask(receive("other"))
    for asked in (settle("release-message", "other", mid, "why"), settle("reject-message", "other", mid)):
        answer = await client.ask(asked)
        assert (code(answer), "'journal'" in text(answer)) == (501, True), answer
    assert 'status="in-flight"' in await client.ask(peek("other", mid))


async def test_a_storage_without_back_off(client: Client, autojump_clock: Clock) -> None:
    """501, with the names of the storages that can; nothing changes."""
    await client.ask(new_queue("other", "<options storage='null'/>"))
    for asked in (
        new_queue("more", "<options storage='null' backoff='1'/>"),
        request("set-queue", "<qid>other</qid><options backoff='1'/>"),
    ):
        answer = await client.ask(asked)
        assert (code(answer), "'journal'" in text(answer)) == (501, True), answer
    assert "more" not in await client.ask(request("list-queues"))
    assert "backoff" not in await client.ask(request("get-queue", "<qid>other</qid>"))


async def test_back_off(running: Serving, autojump_clock: Clock) -> None:
    """A release without a delay answers with the time; a subscriber is sent the message then, and its going counts as
    in vain too."""
    client, subscriber = running.connect(), running.connect()
    [mid] = mids(await client.ask(push("slow", "x")))
    await client.ask(receive("slow"))
    began = trio.current_time()
    answer = await client.ask(settle("release-message", "slow", mid, "not now"))
    assert 'visible-at="' in answer
    assert (await stats(client, "slow"))["delayed"] == "1"
    await subscriber.ask(subscribe("slow"))
    line = await subscriber.line()
    assert (mids(line), 'receives="2"' in line) == ([mid], True)
    assert 9 <= trio.current_time() - began <= 11.1
    began = trio.current_time()
    await subscriber.hang_up()
    assert mids(await client.ask(receive("slow", wait=60))) == [mid]
    assert 13.5 <= trio.current_time() - began <= 16.6
    answer = await client.ask(settle("release-message", "slow", mid, delay=0))
    assert "visible-at" not in answer


async def test_reason_options_are_shown_and_checked(running: Serving, autojump_clock: Clock) -> None:
    """`get-queue` shows them, set-queue changes and removes them, and what makes no sense is 400 and changes
    nothing."""
    client = running.connect()
    shown = await client.ask(request("get-queue", "<qid>slow</qid>"))
    assert ' backoff="10" backoff-max="15"' in shown
    for wrong, word in (
        ("backoff='0'", "backoff"), ("backoff='20'", "longer"), ("backoff-max='5'", "longer"), ("backoff=''", "needs"),
        ("backoff-max='' backoff='3601'", "3600 seconds"),
    ):  # fmt: skip
        answer = await client.ask(request("set-queue", f"<qid>slow</qid><options {wrong}/>"))
        assert (code(answer), word in text(answer)) == (400, True), answer
    assert ' backoff="10" backoff-max="15"' in await client.ask(request("get-queue", "<qid>slow</qid>"))
    assert code(await client.ask(request("set-queue", "<qid>slow</qid><options backoff='2.5' backoff-max=''/>"))) == 0
    shown = await client.ask(request("get-queue", "<qid>slow</qid>"))
    assert (' backoff="2.5"' in shown, "backoff-max" in shown) == (True, False)
    assert code(await client.ask(request("set-queue", "<qid>slow</qid><options backoff=''/>"))) == 0
    assert "backoff" not in await client.ask(request("get-queue", "<qid>slow</qid>"))
    assert code(await client.ask(new_queue("wrong", "<options backoff-max='5'/>"))) == 400
