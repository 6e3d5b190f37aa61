"""Clients see the attributes of messages and the options of order and pace, as the queue's storage has them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.documents import code, copy, mids, new_queue, payloads, push, receive, request, text
from support.servers.memory import Client, Clock, clock_of, serving

HEADERS = '<headers><header name="a">1 &lt; 2</header><header name="traceparent">00-x</header></headers>'
"""In the order of their names: dirq has no other."""
STORAGES = ("files", "dirq", "dirq-simple")


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(tmp_path: Path, autojump_clock: Clock, storage: str) -> AsyncIterator[Client]:
    """A connection to a server of the journal with two queues, `q` and `r`, of another storage."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=()) as running:
        client = running.connect()
        for qid in ("q", "r"):
            assert code(await client.ask(new_queue(qid, f"<options storage='{storage}'/>"))) == 0
        yield client


def headed(payload: str, headers: str = HEADERS) -> str:
    return request("push-message", f"<qid>q</qid>{headers}<payload>{payload}</payload>")


async def test_headers(client: Client, storage: str) -> None:
    """Headers come with a receive, a peek and a copy; or the push is refused, with the storages that keep headers."""
    answer = await client.ask(headed("x"))
    if storage == "dirq-simple":
        said = "the storage 'dirq-simple' keeps no headers: 'headers' is for queues of the storages 'journal', "
        assert (code(answer), text(answer)) == (501, said + "'postgres', 'files', 'dirq', 'memcached' and 'sqs'")
        return
    [mid] = mids(answer)
    assert code(await client.ask(copy("q", mid, "r"))) == 0
    assert HEADERS in await client.ask(request("get-message", f"<qid>r</qid><mid>{mid}</mid>", peek="yes"))
    line = await client.ask(receive("q"))
    assert HEADERS in line
    assert payloads(line) == ["x"]


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"priority": 1}, "has no priorities: 'priority'"),
        ({"expires": 5}, "does not let messages expire: 'expires'"),
        ({"group": "g"}, "has no groups: 'group'"),
        ({"key": "k", "unique": "yes"}, "keeps no keys for as long as a message waits: 'unique'"),
    ],
    ids=["priority", "expires", "group", "unique"],
)
async def test_an_attribute_is_refused(
    client: Client, storage: str, attributes: dict[str, str | int], said: str
) -> None:
    """A push with an attribute that the storage cannot keep is refused, alone and in a list, and nothing is stored."""
    named = " ".join(f"{name}='{value}'" for name, value in attributes.items())
    entries = f"<message><payload>x</payload></message><message {named}><payload>y</payload></message>"
    for asked in (push("q", "x", **attributes), request("push-message", f"<qid>q</qid><messages>{entries}</messages>")):
        answer = await client.ask(asked)
        assert (code(answer), f"the storage '{storage}' {said} is for queues of the storage" in text(answer)) == (
            501,
            True,
        )
    assert payloads(await client.ask(receive("q"))) == []


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("group-in-flight='2'", "has no groups: 'group-in-flight'"),
        ("fair='yes'", "has no groups: 'fair'"),
        ("max-in-flight='2'", "has no bound of messages in flight: 'max-in-flight'"),
        ("rate='0.5'", "has no rate: 'rate'"),
    ],
)
async def test_an_option_is_refused(client: Client, storage: str, option: str, said: str) -> None:
    """An option that the storage cannot obey is refused when a queue is made and when it is changed, and changes
    nothing."""
    change = request("set-queue", f"<qid>q</qid><options {option}/>")
    for asked in (new_queue("new", f"<options storage='{storage}' {option}/>"), change):
        answer = await client.ask(asked)
        assert (code(answer), text(answer)) == (
            501,
            f"the storage '{storage}' {said} is for queues of the storages 'journal' and 'postgres'",
        )
    assert "<queue>new</queue>" not in await client.ask(request("list-queues"))
    shown = await client.ask(request("get-queue", "<qid>q</qid>"))
    assert not re.search("group-in-flight|fair|max-in-flight|rate", shown)


async def test_a_copy_from_the_journal(client: Client, storage: str) -> None:
    """A message of the journal takes its headers to a queue of files, and what files have no place for stays behind."""
    if storage != "files":
        pytest.skip("the ids of dirq are others")
    await client.ask(new_queue("logged", "<options storage='journal'/>"))
    asked = f"<qid>logged</qid>{HEADERS}<payload>x</payload>"
    [mid] = mids(await client.ask(request("push-message", asked, priority=5, group="g", expires=50)))
    assert code(await client.ask(copy("logged", mid, "q"))) == 0
    line = await client.ask(receive("q"))
    assert HEADERS in line
    assert not re.search("priority|group|expires", line)
