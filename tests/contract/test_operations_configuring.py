"""Options of a queue that is in use: set-queue, get-queue, pause-queue, resume-queue."""

from pathlib import Path

import pytest
import trio
from support.clients.documents import code, mids, new_queue, push, receive, request, subscribe, text
from support.servers.memory import Client, Clock, clock_of, serving

QUEUE = "<qid>q</qid>"


def set_queue(**options: str | int) -> str:
    written = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in options.items())
    return request("set-queue", f"{QUEUE}<options{written}/>")


async def test_a_queue_that_may_exist(client: Client, autojump_clock: Clock) -> None:
    """With exist-ok, `new-queue` makes a queue, or finds that it has the options that are named; otherwise it is a
    conflict that names each option that differs. Nothing changes."""

    async def made(options: str = "", exist_ok: str = "yes") -> str:
        body = f"<qid>again</qid>{options}"
        return await client.ask(request("new-queue", body, exist_ok=exist_ok))

    given = '<options capacity="5" visibility="0.5" dead-letter="failed" max-receives="3"/>'
    assert code(await made(given)) == 0
    shown = await client.ask(request("get-queue", "<qid>again</qid>"))
    for same in ("", given, "<options/>", '<options visibility="0.5000004"/>', '<options storage="files"/>'):
        assert code(await made(same)) == 0, same
    assert code(await made(exist_ok="no")) == 409
    other = '<options capacity="6" visibility="0.5" retention="9" dead-letter="lost" max-receives="3"/>'
    answer = await made(other)
    assert code(answer) == 409
    assert text(answer) == (
        "'again' is already an existing queue with other options: its capacity is 5, not 6, its retention is none, "
        "not 9, its dead-letter is 'failed', not 'lost'"
    )
    assert "its storage is 'files', not 'journal'" in text(await made('<options storage="journal"/>'))
    assert code(await made('<options dead-letter="failed"/>')) == 400  # as without
    after = await client.ask(request("get-queue", "<qid>again</qid>"))
    assert after.partition("<op>")[2] == shown.partition("<op>")[2]


async def test_set_queue_changes_named_options(client: Client, autojump_clock: Clock) -> None:
    """`set-queue` changes the named options at once, keeps the others, and removes those with an empty value."""
    assert code(await client.ask(set_queue(capacity=1, visibility=5))) == 0
    shown = await client.ask(request("get-queue", QUEUE))
    assert ('capacity="1"' in shown, 'visibility="5"' in shown) == (True, True), shown
    assert [code(await client.ask(push("q", each))) for each in "ab"] == [0, 507]
    assert code(await client.ask(set_queue(capacity=""))) == 0
    assert code(await client.ask(push("q", "b"))) == 0
    shown = await client.ask(request("get-queue", QUEUE))
    assert ("capacity" not in shown, 'visibility="5"' in shown) == (True, True), shown
    assert len(mids(await client.ask(receive("q", max=9)))) == 2
    await trio.sleep(6)  # of the mock clock
    assert len(mids(await client.ask(receive("q", max=9)))) == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"storage": "files"}, 400), ({"retention": 0}, 400), ({"dead_letter": "q", "max_receives": 3}, 409),
     ({"capacity": 0}, 400), ({"visibility": "x"}, 400)],
)  # fmt: skip
async def test_set_queue_refuses_options(
    client: Client, autojump_clock: Clock, options: dict[str, str | int], expected: int
) -> None:
    """Options that make no sense or cannot be changed are refused, and the old ones stay."""
    before = await client.ask(request("get-queue", QUEUE))
    assert code(await client.ask(set_queue(**options))) == expected
    assert (await client.ask(request("get-queue", QUEUE))).partition("<op>")[2] == before.partition("<op>")[2]


@pytest.mark.parametrize("op", ["set-queue", "get-queue", "pause-queue", "resume-queue"])
async def test_configuring_missing_queue_is_404(client: Client, autojump_clock: Clock, op: str) -> None:
    """Each operation on a queue's options answers 404 where there is none, with its name."""
    answer = await client.ask(request(op, "<qid>absent</qid>" + ("<options/>" if op == "set-queue" else "")))
    assert (code(answer), text(answer)) == (404, "there is no queue 'absent'")


async def test_a_paused_queue_gives_nothing_out(client: Client, autojump_clock: Clock) -> None:
    """A paused queue takes pushes; receives find it empty; peeks, lists and deletions work; other queues go on."""
    [first] = mids(await client.ask(push("q", "first")))
    for _ in range(2):
        assert code(await client.ask(request("pause-queue", QUEUE))) == 0
    [second] = mids(await client.ask(push("q", "second")))
    assert mids(await client.ask(receive("q"))) == []
    await client.ask(new_queue("other"))
    await client.ask(push("other", "x"))
    assert "<payload>x</payload>" in await client.ask(receive("q", "other", max=5))
    named = f"{QUEUE}<mid>{first}</mid>"
    taken = await client.ask(request("get-message", named))
    assert ('status="ready"' in taken, "payload" in taken) == (True, False), taken
    assert "<payload>first</payload>" in await client.ask(request("get-message", named, peek="yes"))
    assert mids(await client.ask(request("list-messages", QUEUE))) == [first, second]
    assert 'paused="yes"' in await client.ask(request("queue-stats", QUEUE))
    assert code(await client.ask(request("delete-message", named))) == 0
    for _ in range(2):
        assert code(await client.ask(request("resume-queue", QUEUE))) == 0
    assert mids(await client.ask(receive("q"))) == [second]


async def test_who_waits_for_a_paused_queue(tmp_path: Path, autojump_clock: Clock) -> None:
    """A receive and a subscription that wait get what there is as soon as it is resumed, and nothing before."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        operator, waiting, subscriber = (running.connect() for _ in range(3))
        await operator.ask(request("pause-queue", QUEUE))
        await waiting.send(receive("q", wait=30))
        await subscriber.ask(subscribe("q", prefetch=1))
        await operator.ask(push("q", "1"))
        await operator.ask(push("q", "2"))
        assert mids(await operator.ask(receive("q"))) == []
        await operator.ask(request("resume-queue", QUEUE))
        found = await waiting.line() + await subscriber.line()
        assert ("<payload>1</payload>" in found, "<payload>2</payload>" in found) == (True, True)
