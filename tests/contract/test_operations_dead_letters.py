"""Dead letters as clients see them: options, attributes of what was moved, subscribers, redrive-messages."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.documents import code, mids, new_queue, payloads, push, receive, release, request, subscribe, text
from support.servers.memory import Client, Clock, Serving, clock_of, serving


@pytest.fixture(params=["journal", "files"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def running(tmp_path: Path, autojump_clock: Clock, storage: str) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as made:
        policy = f"<options storage='{storage}' dead-letter='dead' max-receives='1'/>"
        assert code(await made.connect().ask(new_queue("jobs", policy))) == 0
        yield made


def in_storage(storage: str) -> str:
    return f"<options storage='{storage}'/>"


def attributes(line: str) -> dict[str, str]:
    return dict(re.findall(r' ((?:dead-\w+|pushed-at|receives))="([^"]*)"', line))


async def list_all(client: Client, qid: str) -> list[int]:
    return mids(await client.ask(request("list-messages", f"<qid>{qid}</qid>", state="all")))


async def test_from_failure_to_redrive(running: Serving, autojump_clock: Clock, storage: str) -> None:
    """A message that fails is moved with its history, is shown with it everywhere, and comes back as a new one."""
    client = running.connect()
    [mid] = mids(await client.ask(push("jobs", "poison")))
    assert mids(await client.ask(receive("jobs"))) == [mid]
    assert code(await client.ask(release("jobs", mid))) == 0
    [dead] = await list_all(client, "dead")
    named = f"<qid>dead</qid><mid>{dead}</mid>"
    looked = await client.ask(request("get-message", named, peek="yes"))
    was = attributes(looked)
    assert {**was, "dead-at": ""} == {
        "receives": "0", "pushed-at": str(mid), "dead-from": "jobs", "dead-mid": str(mid), "dead-receives": "1",
        "dead-at": "", "dead-reason": "receives",
    }  # fmt: skip
    assert mid <= int(was["dead-at"]) <= dead
    assert attributes(await client.ask(receive("dead", visibility=0))) == {**was, "receives": "1"}
    if storage == "journal":
        claimed = "<qid>dead</qid><consumer>c</consumer>"
        await client.ask(request("claim-messages", claimed, seq=1))
        assert attributes(await client.ask(request("get-claim", claimed, seq=1))) == {**was, "receives": "2"}
        await client.ask(request("release-claim", claimed, seq=1))
    stats = [await client.ask(request("queue-stats", f"<qid>{qid}</qid>")) for qid in ("jobs", "dead")]
    assert [re.findall(r' (?:dead|new|ready)="\d+"', line) for line in stats] == [
        [' new="0"', ' ready="0"', ' dead="1"'], [' new="0"', ' ready="1"', ' dead="0"'],
    ]  # fmt: skip
    answer = await client.ask(request("redrive-messages", "<qid>dead</qid>"))
    [again] = mids(answer)
    assert ("<count>1</count>" in answer, await list_all(client, "jobs"), await list_all(client, "dead")) == (
        True, [again], [],
    )  # fmt: skip
    assert attributes(await client.ask(receive("jobs"))) == {"receives": "1", "pushed-at": str(again)}


async def test_what_redrive_refuses(running: Serving, autojump_clock: Clock, storage: str) -> None:
    """A destination that is gone, two of them, a queue without dead letters of the storage; nothing is moved."""
    client = running.connect()
    await client.ask(push("jobs", "x"))
    [mid] = mids(await client.ask(receive("jobs")))
    await client.ask(release("jobs", mid))
    before = await list_all(client, "dead")
    await client.ask(request("delete-queue", "<qid>jobs</qid>"))
    await client.ask(new_queue("elements", in_storage("dirq")))
    for body, expected in (
        ("<qid>dead</qid>", 404),
        ("<qid>dead</qid><queues><queue>absent</queue></queues>", 404),
        ("<qid>absent</qid>", 404),
        ("<qid>dead</qid><queues><queue>elements</queue></queues>", 501),
        ("<qid>elements</qid>", 501),
        ("<qid>dead</qid><queues><queue>q</queue><queue>r</queue></queues>", 400),
    ):
        assert code(await client.ask(request("redrive-messages", body))) == expected, body
    assert (await list_all(client, "dead"), len(before)) == (before, 1)
    await client.ask(new_queue("other", in_storage(storage)))
    line = await client.ask(request("redrive-messages", "<qid>dead</qid><queues><queue>other</queue></queues>"))
    assert await list_all(client, "other") == mids(line)


async def test_subscriber_lets_message_die(running: Serving, autojump_clock: Clock, storage: str) -> None:
    """A message that a subscriber does not handle in time goes to the dead-letter queue, and to its subscriber. A
    receive that is taken back does not count."""
    client, worker, watcher = (running.connect() for _ in range(3))
    await client.ask(new_queue("dead", in_storage(storage)))
    await watcher.ask(subscribe("dead"))
    await worker.ask(subscribe("jobs", visibility=3))
    [mid] = mids(await client.ask(push("jobs", "x")))
    assert mids(await worker.line()) == [mid]
    assert code(await client.ask(request("release-message", f"<qid>jobs</qid><mid>{mid}</mid>", count="no"))) == 0
    delivery = await worker.line()
    assert (mids(delivery), attributes(delivery)["receives"]) == ([mid], "1")
    found = await watcher.line()  # the mock clock jumps to the end of the window
    assert (payloads(found), attributes(found)["dead-mid"]) == (["x"], str(mid))
    [second] = mids(await client.ask(push("jobs", "y")))
    assert mids(await worker.line()) == [second]
    await worker.hang_up()
    found = await watcher.line()
    assert (payloads(found), attributes(found)["dead-mid"]) == (["y"], str(second))


async def test_who_waits_for_dead_letters(running: Serving, autojump_clock: Clock, storage: str) -> None:
    """A receive that waits is answered when one comes."""
    client, waiting = running.connect(), running.connect()
    await client.ask(new_queue("dead", in_storage(storage)))
    await waiting.send(receive("dead", wait=60))
    await client.ask(push("jobs", "x"), receive("jobs", visibility=5))
    assert payloads(await waiting.line()) == ["x"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [("dead-letter='d'", 400), ("max-receives='3'", 400), ("storage='{}' dead-letter='new' max-receives='1'", 409),
     ("storage='{}' dead-letter='elements' max-receives='1'", 501),
     ("storage='dirq' dead-letter='d' max-receives='1'", 501),
     ("storage='{}' dead-letter='d' max-receives='1001'", 400),
     ("storage='{}' dead-letter='d' max-receives='0'", 400),
     (f"storage='{{}}' dead-letter='{'x' * 199}/' max-receives='1'", 0)],
)  # fmt: skip
async def test_dead_letter_options_are_checked(
    running: Serving, autojump_clock: Clock, storage: str, options: str, expected: int
) -> None:
    """One without the other, a cycle, another storage, too many; and a name that is just possible."""
    client = running.connect()
    await client.ask(new_queue("elements", in_storage("dirq")))
    assert code(await client.ask(new_queue("new", f"<options {options.format(storage)}/>"))) == expected
    assert (">new<" in await client.ask(request("list-queues"))) == (expected == 0)


async def test_set_queue_changes_dead_letter_options(running: Serving, autojump_clock: Clock, storage: str) -> None:
    """The options are shown, changed and removed; a cycle over two queues is refused."""
    client = running.connect()
    shown = await client.ask(request("get-queue", "<qid>jobs</qid>"))
    assert 'dead-letter="dead" max-receives="1"' in shown
    await client.ask(new_queue("dead", in_storage(storage)))
    cycle = request("set-queue", "<qid>dead</qid><options dead-letter='jobs' max-receives='1'/>")
    assert (code(await client.ask(cycle)), "cycle" in text(await client.ask(cycle))) == (409, True)
    alone = request("set-queue", "<qid>jobs</qid><options dead-letter=''/>")
    assert code(await client.ask(alone)) == 400
    both = request("set-queue", "<qid>jobs</qid><options dead-letter='' max-receives=''/>")
    assert code(await client.ask(both)) == 0
    assert "dead-letter" not in await client.ask(request("get-queue", "<qid>jobs</qid>"))
    assert code(await client.ask(cycle)) == 0
