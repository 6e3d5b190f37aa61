"""Headers, priority, expiry, unique keys and groups as clients see them: requests, answers, deliveries, statistics."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from support.clients.documents import (
    code,
    copy,
    delete,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    receive,
    release,
    request,
    subscribe,
    text,
)
from support.servers.memory import EPOCH, Client, Clock, Serving, clock_of, serving

from qs_schemas import Limits

SECOND = 1_000_000
HEADERS = '<headers><header name="traceparent">00-a&#10;b</header><header name="Content-Type">a/b</header></headers>'
ALL = 'priority="7" group="g&amp;h"'
KEEPS_ALL = "<options storage='journal' dead-letter='failed' max-receives='2'/>"


@pytest.fixture
async def running(tmp_path: Path, autojump_clock: Clock) -> AsyncIterator[Serving]:
    """A server with the queues `q` and `r` of the storage `journal`."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=()) as running:
        made = new_queue("q", KEEPS_ALL), new_queue("r", "<options storage='journal'/>")
        assert code(await running.connect().ask(*made)) == 0
        yield running


@pytest.fixture
async def client(running: Serving) -> Client:
    return running.connect()


def with_headers(qid: str, payload: str, headers: str = HEADERS, **attributes: str | int | float) -> str:
    return request("push-message", f"<qid>{qid}</qid>{headers}<payload>{payload}</payload>", **attributes)


def entry(payload: str, attributes: str = "", headers: str = "") -> str:
    return f"<message {attributes}><payload>{payload}</payload>{headers}</message>"


def with_entries(qid: str, *entries: str, **attributes: str | int | float) -> str:
    return request("push-message", f"<qid>{qid}</qid><messages>{''.join(entries)}</messages>", **attributes)


def peek(qid: str, mid: int) -> str:
    return request("get-message", f"<qid>{qid}</qid><mid>{mid}</mid>", peek="yes")


def peek_list(qid: str, *mids: int) -> str:
    named = "".join(f"<mid>{mid}</mid>" for mid in mids)
    return request("get-message", f"<qid>{qid}</qid><messages>{named}</messages>", peek="yes")


async def stats(client: Client, qid: str) -> dict[str, str]:
    return dict(re.findall(r' ([a-z-]+)="([^"]*)"', await client.ask(request("queue-stats", f"<qid>{qid}</qid>"))))


def of_message(line: str) -> dict[str, str]:
    """The attributes of the message in an answer."""
    found = re.search(r"<(?:message|mid) ([^>]*)>", line)
    return dict(re.findall(r'([a-z-]+)="([^"]*)"', found[1])) if found else {}


PUSHES = {
    "single": with_headers("q", "x", priority=7, group="g&amp;h", expires=50),
    "list": with_entries("q", entry("x", ALL + ' expires="50"', HEADERS)),
}


@pytest.mark.parametrize("pushed", PUSHES.values(), ids=PUSHES)
async def test_what_is_pushed_is_handed_out(client: Client, pushed: str, autojump_clock: Clock) -> None:
    """Headers, priority, group and the time of expiry come with peeks and receives, in both forms."""
    now = EPOCH + round(trio.current_time() * SECOND)
    [mid] = mids(await client.ask(pushed))
    shown = {"priority": "7", "group": "g&amp;h", "expires-at": str(now + 50 * SECOND)}
    asked = [
        peek("q", mid),
        peek_list("q", mid),
        receive("q"),
        peek_list("q", mid),
        release("q", mid, count="no"),
        request("get-message", f"<qid>q</qid><mid>{mid}</mid>"),
    ]
    for document in asked:
        answer = await client.ask(document)
        if "release-message" in document:
            continue
        assert f"{HEADERS}<payload>x</payload>" in answer
        assert shown.items() <= of_message(answer).items()
    in_flight = await client.ask(peek("q", mid))
    assert ("<payload>" in in_flight, "<headers>" in in_flight) == (False, False)
    assert shown.items() <= of_message(in_flight).items()


async def test_what_is_pushed_is_delivered(client: Client, autojump_clock: Clock) -> None:
    """A delivery of a subscription has the headers and attributes too."""
    await client.ask(subscribe("q"))
    await client.send(with_headers("q", "x", priority=7, group="g&amp;h"))
    answers = await client.lines(2)
    [delivery] = [line for line in answers if is_delivery(line)]
    assert f"{HEADERS}<payload>x</payload>" in delivery
    assert {"priority": "7", "group": "g&amp;h"}.items() <= of_message(delivery).items()
    assert "expires-at" not in delivery


async def test_messages_without_attributes(client: Client, autojump_clock: Clock) -> None:
    """A message that was pushed without anything, or with priority 0, is answered as ever."""
    for pushed in (push("q", "x"), push("q", "x", priority=0), with_headers("q", "x", "<headers/>")):
        [mid] = mids(await client.ask(pushed))
        for document in (peek("q", mid), peek_list("q", mid), receive("q")):
            answer = await client.ask(document)
            assert not re.search("headers|priority|group|expires", answer)


async def test_dead_letters_and_copies_keep_headers(client: Client, autojump_clock: Clock) -> None:
    """A dead letter, a redriven one and a copy have the headers, the priority and the group, and do not expire."""
    [mid] = mids(await client.ask(with_headers("q", "x", priority=7, group="g", expires=1000, key="k", unique="yes")))
    await client.ask(copy("q", mid, "r"))
    for _ in range(2):
        await client.ask(receive("q"), release("q", mid))
    letter = await client.ask(receive("failed"))
    assert of_message(letter)["dead-from"] == "q"
    await client.ask(release("failed", mids(letter)[0]))
    await client.ask(request("redrive-messages", "<qid>failed</qid>"))
    for answer in (letter, await client.ask(receive("q")), await client.ask(receive("r"))):
        assert f"{HEADERS}<payload>x</payload>" in answer
        assert {"priority": "7", "group": "g"}.items() <= of_message(answer).items()
    assert "expires-at" not in letter


async def test_claims_and_staged_messages(client: Client, autojump_clock: Clock) -> None:
    """A staged message may have all but a delay and a key; a claim brings what its messages have."""
    staged = f"<qid>q</qid><producer>p</producer><messages>{entry('x', ALL, HEADERS)}{entry('y')}</messages>"
    assert code(await client.ask(request("stage-messages", staged, batch=1, part=0, attempt=0))) == 0
    parts = "<qid>q</qid><producer>p</producer><parts><part number='0' attempt='0'/></parts>"
    assert code(await client.ask(request("publish-staged", parts, batch=1))) == 0
    consumer = "<qid>q</qid><consumer>c</consumer>"
    assert code(await client.ask(request("claim-messages", consumer, seq=1))) == 0
    claimed = await client.ask(request("get-claim", consumer, seq=1))
    assert payloads(claimed) == ["x", "y"]
    assert f"{HEADERS}<payload>x</payload>" in claimed
    assert {"priority": "7", "group": "g&amp;h"}.items() <= of_message(claimed).items()
    for attribute in ('delay="1"', 'key="k"', 'unique="yes"'):
        body = f"<qid>q</qid><producer>p</producer><messages>{entry('x', attribute)}</messages>"
        refused = await client.ask(request("stage-messages", body, batch=2, part=0, attempt=0))
        assert (code(refused), "staged message" in text(refused)) == (400, True)


REFUSED = [
    (push("q", "x", unique="yes"), "unique='yes' needs a 'key'"),
    (with_entries("q", entry("y"), entry("x", 'unique="yes"')), "unique='yes' needs a 'key'"),
    *(
        (with_entries("q", entry("x"), **{name: value}), f"a list has a '{name}' for each 'message', and none on 'op'")
        for name, value in (("key", "k"), ("unique", "yes"), ("priority", 0), ("expires", 1), ("group", "g"))
    ),
    (
        request("push-message", f"<qid>q</qid>{HEADERS}<messages>{entry('x')}</messages>"),
        "a list has 'headers' inside of each 'message', and none beside 'messages'",
    ),
    (with_headers("q", "x", "<headers><header name='qs-a'/></headers>"), "those that begin with 'qs-'"),
    (with_entries("q", entry("x", "", "<headers><header name='qs-a'/></headers>")), "those that begin with 'qs-'"),
    (push("q", "x", priority=10), "from 0 to 9"),
    (push("q", "x", expires=0), "more than 0"),
]


@pytest.mark.parametrize(("document", "says"), REFUSED, ids=[says for _, says in REFUSED])
async def test_what_is_refused(client: Client, document: str, says: str, autojump_clock: Clock) -> None:
    """A push that is not allowed is 400 and says why, and nothing is stored."""
    answer = await client.ask(document)
    assert (code(answer), says in text(answer)) == (400, True), answer
    assert (await stats(client, "q"))["pushed"] == "0"


async def test_priorities(client: Client, autojump_clock: Clock) -> None:
    """A message of a higher priority is handed out first, within one priority the oldest; over several queues too,
    unless the order is the given one."""
    for qid, payload, priority in (("q", "a", 0), ("q", "b", 3), ("r", "c", 9), ("q", "d", 3), ("r", "e", 0)):
        await client.ask(push(qid, payload, priority=priority))
        await trio.sleep(1)

    async def taken(**attributes: str) -> list[str]:
        line = await client.ask(receive("q", "r", max=10, **attributes))
        for qid, mid in re.findall(r'<message qid="(\w+)" mid="(\d+)"', line):
            await client.ask(release(qid, mid, count="no"))
        return payloads(line)

    assert await taken() == ["c", "b", "d", "a", "e"]
    assert await taken(order="oldest") == ["c", "b", "d", "a", "e"]
    assert await taken(order="given") == ["b", "d", "a", "c", "e"]
    assert payloads(await client.ask(receive("r", "q", order="given"))) == ["c"]


async def test_a_waiting_receive_in_the_given_order(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """A receive that waits looks at its queues in the order in which it has named them."""
    consumer = running.connect()
    await consumer.send(receive("r", "q", order="given", wait=100))
    assert await consumer.nothing_yet()
    await client.send(push("q", "a", priority=9) + push("r", "b"))  # one batch
    assert payloads(await consumer.line()) == ["b"]


async def test_expiry(client: Client, autojump_clock: Clock) -> None:
    """A message whose time is over is not handed out any more: it is retired, and one in flight when its window
    ends."""
    [first, second] = mids(await client.ask(with_entries("q", entry("x", 'expires="10"'), entry("y", 'expires="10"'))))
    assert payloads(await client.ask(receive("q", visibility=30))) == ["x"]
    await trio.sleep(9)
    assert of_message(await client.ask(peek("q", second)))["status"] == "ready"
    await trio.sleep(1.5)
    assert payloads(await client.ask(receive("q"))) == []
    assert code(await client.ask(peek("q", second))) == 404
    assert code(await client.ask(peek("q", first))) == 0  # its consumer still may finish
    assert (await stats(client, "q"))["retired"] == "1"
    await trio.sleep(20)
    assert code(await client.ask(peek("q", first))) == 404
    assert (await stats(client, "q"))["retired"] == "2"


async def test_unique(client: Client, autojump_clock: Clock) -> None:
    """With `unique`, a key counts for as long as the first one's message is in the queue, and no longer."""
    pushed = push("q", "x", key="k", unique="yes")
    [mid] = mids(await client.ask(pushed))
    await trio.sleep(1000)  # longer than any other key counts
    assert mids(await client.ask(pushed)) == [mid]
    await client.ask(receive("q"))
    assert mids(await client.ask(with_entries("q", entry("x", 'key="k" unique="yes"')))) == [mid]
    await client.ask(delete("q", mid))
    [other] = mids(await client.ask(pushed))
    assert other != mid
    assert (await stats(client, "q"))["pushed"] == "2"


async def test_a_group_is_in_order(running: Serving, client: Client, autojump_clock: Clock) -> None:
    """While one message of a group is out, no other one is handed out: a receive waits for its end, and so does a
    subscription."""
    waiting, subscriber = running.connect(), running.connect()
    first, second, third = mids(
        await client.ask(with_entries("q", *(entry(payload, 'group="g"') for payload in "abc")))
    )
    assert payloads(await client.ask(receive("q", max=10))) == ["a"]
    assert payloads(await client.ask(receive("q", max=10))) == []
    assert (await stats(client, "q"))["limited"] == "group-in-flight"
    await waiting.send(receive("q", max=10, wait=100))
    assert await waiting.nothing_yet()
    await client.ask(delete("q", first))
    assert mids(await waiting.line()) == [second]
    await subscriber.ask(subscribe("q"))
    assert await subscriber.nothing_yet()
    await client.ask(release("q", second))
    assert mids(await subscriber.line()) == [second]
    assert await subscriber.nothing_yet()
    await subscriber.send(delete("q", second))
    assert [is_delivery(line) for line in await subscriber.lines(2)] == [False, True]
    await subscriber.ask(delete("q", third))
    assert "limited" not in await stats(client, "q")


async def test_answers_with_large_headers(tmp_path: Path, autojump_clock: Clock) -> None:
    """An answer's bound counts the headers: a receive and a list of peeks have fewer messages, a part of a claim
    that has too many is refused."""
    wire = Limits(document=20_000)
    large = f'<headers><header name="a">{"x" * 6000}</header></headers>'
    async with serving(tmp_path / "root", clock_of(autojump_clock), queues=(), wire=wire) as running:
        client = running.connect()
        await client.ask(new_queue("q", "<options storage='journal'/>"))
        pushed = [mids(await client.ask(with_headers("q", "x", large)))[0] for _ in range(5)]
        peeked = await client.ask(peek_list("q", *pushed))
        assert (len(payloads(peeked)), 'more="yes"' in peeked) == (3, True)
        received = await client.ask(receive("q", max=10))
        assert len(payloads(received)) == 3
        for mid in mids(received):
            await client.ask(release("q", mid))
        consumer = "<qid>q</qid><consumer>c</consumer>"
        assert code(await client.ask(request("claim-messages", consumer, seq=1))) == 0
        refused = await client.ask(request("get-claim", consumer, seq=1))
        assert (code(refused), "ask for more 'parts'" in text(refused)) == (400, True)
        assert len(payloads(await client.ask(request("get-claim", consumer, seq=1, part=0, parts=2)))) in (2, 3)
