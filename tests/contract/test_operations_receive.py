"""Operations that hand messages out and settle them: documents in, lines out."""

import re
from pathlib import Path

import trio
import trio.testing
from support.clients.documents import (
    NS,
    code,
    copy,
    delete,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    receives,
    request,
    subscribe,
    text,
    unsubscribe,
)
from support.servers.memory import EPOCH, Client, Clock, exactly, plain, response

SECOND = 1_000_000


async def test_receive_message(client: Client, autojump_clock: Clock) -> None:
    """`receive-message` takes the oldest messages first, one without max, each with its queue, id and lease."""
    first, second, third = mids(await client.ask(push_list("q", *"abc")))
    now = EPOCH + round(trio.current_time() * SECOND)

    def entry(mid: int, payload: str, visible_at: int) -> str:
        attributes = f'qid="q" mid="{mid}" receives="1" pushed-at="{mid}" visible-at="{visible_at}"'
        return f"<message {attributes}><payload>{payload}</payload></message>"

    body = f"<messages>{entry(first, 'a', now + 30 * SECOND)}</messages>"
    await exactly(client, receive("q"), "receive-message", body)
    body = f"<messages>{entry(second, 'b', now + 2 * SECOND)}{entry(third, 'c', now + 2 * SECOND)}</messages>"
    await exactly(client, receive("q", max=5, visibility=2), "receive-message", body)
    await exactly(client, receive("q", wait=1), "receive-message", "<messages></messages>")


async def test_receive_message_of_several_queues(client: Client, autojump_clock: Clock) -> None:
    """`receive-message` over several queues orders the messages by id over all of them."""
    await client.ask(new_queue("other"))
    await client.ask(push("q", "1"))
    await trio.sleep(1)
    await client.ask(push("other", "2"))
    await trio.sleep(1)
    await client.ask(push("q", "3"))
    line = await client.ask(receive("other", "q", max=5))
    assert payloads(line) == ["1", "2", "3"]
    assert re.findall(r'<message qid="(\w+)"', line) == ["q", "other", "q"]


async def test_delete_message(client: Client, autojump_clock: Clock) -> None:
    """`delete-message` deletes a message in any state and answers with the id; 404 for a missing one."""
    ready, flying, delayed = [
        *mids(await client.ask(push_list("q", "a", "b"))), *mids(await client.ask(push("q", "c", delay=9)))
    ]  # fmt: skip
    await client.ask(receive("q"))
    for mid in (ready, flying, delayed):
        await exactly(client, delete("q", mid), "delete-message", f"<qid>q</qid><mid>{mid}</mid>")
        line = await client.ask(delete("q", mid))
        assert (code(line), text(line)) == (404, f"queue 'q' holds no message {mid}")


async def test_delete_message_with_receives(client: Client, autojump_clock: Clock) -> None:
    """`delete-message` with mid/@receives is answered with 409 `stale` once the message has been received again, and
    deletes nothing."""
    mid = mids(await client.ask(push("q", "x")))[0]
    await client.ask(receive("q", visibility=1))
    await trio.sleep(1.1)
    await client.ask(receive("q"))
    for op in ("delete-message", "release-message", "extend-message"):
        line = await client.ask(request(op, f'<qid>q</qid><mid receives="1">{mid}</mid>'))
        assert (op, code(line), 'type="stale"' in line) == (op, 409, True)
    body = f"<qid>q</qid><mid>{mid}</mid>"
    held = request("delete-message", f'<qid>q</qid><mid receives="2">{mid}</mid>')
    await exactly(client, held, "delete-message", body)


async def test_delete_message_list(client: Client, autojump_clock: Clock) -> None:
    """`delete-message` with a list answers with the deleted ids, and skips ids that are missing, stale or named
    twice."""
    a, b, c = mids(await client.ask(push_list("q", *"abc")))
    await client.ask(receive("q", max=3))
    ids = f'<mid>{a}</mid><mid>1</mid><mid receives="7">{b}</mid><mid receives="1">{c}</mid><mid>{a}</mid>'
    body = f"<qid>q</qid><messages><mid>{a}</mid><mid>{c}</mid></messages>"
    listed = request("delete-message", f"<qid>q</qid><messages>{ids}</messages>")
    await exactly(client, listed, "delete-message", body)
    await exactly(
        client, request("delete-message", "<qid>q</qid><messages><mid>1</mid></messages>"), "delete-message",
        "<qid>q</qid><messages></messages>",
    )  # fmt: skip
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", state="all"))) == [b]


async def test_release_message(client: Client, autojump_clock: Clock) -> None:
    """`release-message` makes a message visible now, or after a delay, whose end it answers; 409 `stale` for a message
    that is not in flight."""
    mid = mids(await client.ask(push("q", "x")))[0]
    this = f"<qid>q</qid><mid>{mid}</mid>"
    await client.ask(receive("q"))
    await exactly(client, request("release-message", this), "release-message", this)
    line = await client.ask(request("release-message", this))
    assert (code(line), 'type="stale"' in line) == (409, True)
    assert text(line) == f"message {mid} of queue 'q' is not in flight: nobody holds it"
    assert mids(await client.ask(receive("q"))) == [mid]
    until = EPOCH + round(trio.current_time() * SECOND) + 4_500_000
    await exactly(
        client, request("release-message", this, delay=4.5), "release-message",
        f'<qid>q</qid><mid visible-at="{until}">{mid}</mid>',
    )  # fmt: skip
    assert mids(await client.ask(receive("q"))) == []
    assert 'receives="3"' in await client.ask(receive("q", wait=5))


async def test_extend_message(client: Client, autojump_clock: Clock) -> None:
    """`extend-message` ends the window that many seconds from now, without a time the queue's own; 409 for a message
    that is not in flight."""
    mid = mids(await client.ask(push("q", "x")))[0]
    this = f"<qid>q</qid><mid>{mid}</mid>"
    line = await client.ask(request("extend-message", this))
    assert (code(line), "not in flight" in text(line)) == (409, True)
    await client.ask(receive("q"))
    await trio.sleep(20)
    now = EPOCH + round(trio.current_time() * SECOND)
    for attributes, seconds in (({}, 30), ({"visibility": 2}, 2)):
        await exactly(
            client, request("extend-message", this, **attributes), "extend-message",
            f'<qid>q</qid><mid visible-at="{now + seconds * SECOND}">{mid}</mid>',
        )  # fmt: skip
    assert mids(await client.ask(receive("q"))) == []
    assert mids(await client.ask(receive("q", wait=2.1))) == [mid]


async def test_copy_message(client: Client, autojump_clock: Clock) -> None:
    """`copy-message` answers with the id. Afterwards each of the queues has the message once, however often it is
    copied."""
    await client.ask(new_queue("r"), new_queue("s"))
    [mid] = mids(await client.ask(push("q", "x")))
    for _ in range(2):
        await exactly(client, copy("q", mid, "r", "s"), "copy-message", f"<qid>q</qid><mid>{mid}</mid>")
    for qid in ("q", "r", "s"):
        line = await client.ask(receive(qid, max=5))
        assert (mids(line), payloads(line), receives(line)) == ([mid], ["x"], 1)
    line = await client.ask(copy("q", 12345, "r"))
    assert (code(line), text(line)) == (404, "queue 'q' holds no message 12345")


async def test_copy_message_list(client: Client, autojump_clock: Clock) -> None:
    """`copy-message` with a list copies the messages that exist, and wakes receives that wait for the target."""
    await client.ask(new_queue("r"))
    a, b = mids(await client.ask(push_list("q", "a", "b")))
    into = "<queues><queue>r</queue></queues>"
    listed = f"<qid>q</qid><messages><mid>{a}</mid><mid>1</mid><mid>{b}</mid></messages>{into}"
    body = f"<qid>q</qid><messages><mid>{a}</mid><mid>{b}</mid></messages>"
    await exactly(client, request("copy-message", listed), "copy-message", body)
    assert payloads(await client.ask(receive("r", max=5))) == ["a", "b"]
    gone = f"<qid>q</qid><messages><mid>1</mid></messages>{into}"
    await exactly(client, request("copy-message", gone), "copy-message", "<qid>q</qid><messages></messages>")


async def test_copy_message_into_what_cannot_take_it(client: Client, autojump_clock: Clock) -> None:
    """`copy-message`: 404 for a queue that is missing and 507 for one that is full; then nothing is copied. A list is
    copied up to where that happens."""
    await client.ask(new_queue("one", '<options capacity="1"/>'), new_queue("r"))
    a, b = mids(await client.ask(push_list("q", "a", "b")))
    line = await client.ask(copy("q", a, "r", "absent"))
    assert (code(line), text(line)) == (404, "there is no queue 'absent'")
    body = f"<qid>q</qid><messages><mid>{a}</mid><mid>{b}</mid></messages><queues><queue>one</queue></queues>"
    assert code(await client.ask(request("copy-message", body))) == 507
    assert payloads(await client.ask(request("get-message", f"<qid>one</qid><mid>{a}</mid>", peek="yes"))) == ["a"]
    assert code(await client.ask(copy("q", b, "r", "one"))) == 507
    assert payloads(await client.ask(receive("r"))) == []


async def test_copy_message_over_another(client: Client, tmp_path: Path, autojump_clock: Clock) -> None:
    """`copy-message` is answered with 409 `conflict` for a queue that holds another message of the id, and copies
    nothing."""
    await client.ask(new_queue("r"), new_queue("s"))
    [mid] = mids(await client.ask(push("q", "mine")))
    (tmp_path / "root" / "s" / str(mid)).write_text("other")
    line = await client.ask(copy("q", mid, "r", "s"))
    expected = f"queue 's' holds another message of the id {mid}"
    assert (code(line), 'type="conflict"' in line, text(line)) == (409, True, expected)
    assert payloads(await client.ask(receive("r", "s", max=5))) == ["other"]


async def test_subscribe(client: Client, autojump_clock: Clock) -> None:
    """subscribe: an answer that names the queues, then deliveries, with the subscribe's req and no resp."""
    [mid] = mids(await client.ask(push("q", "x")))
    until = EPOCH + round(trio.current_time() * SECOND) + 2_500_000
    await client.send(subscribe("q", req="7", prefetch=5, visibility=2.5))
    line = plain(await client.line())
    assert line.partition("><op")[0] == response("subscribe", "", "7").partition("><op")[0]
    assert line.endswith("<subscribe/></op><qid>q</qid></qs>\r\n")
    told = f'<mid status="delivered" receives="1" pushed-at="{mid}" visible-at="{until}">{mid}</mid>'
    body = f"<op><get-message/></op><qid>q</qid><payload>x</payload>{told}</qs>\r\n"
    assert await client.line() == f'<qs xmlns="{NS}" type="response" req="7">{body}'


async def test_unsubscribe(client: Client, autojump_clock: Clock) -> None:
    """unsubscribe: an answer, after which nothing is delivered; 404 when there is no such subscription."""
    await client.ask(subscribe("q", req="7"))
    line = await client.ask(unsubscribe("7"))
    assert (code(line), "<unsubscribe/>" in line) == (0, True)
    await client.ask(push("q", "x"))
    assert await client.nothing_yet()
    line = await client.ask(unsubscribe("7"))
    assert (code(line), 'type="not-found"' in line, "'7'" in text(line)) == (404, True, True)
