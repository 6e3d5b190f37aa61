"""Every row of the protocol's table of operations that is implemented, and of its errors: documents in, lines out."""

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.documents import (
    NS,
    PING,
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
from support.memory_serving import EPOCH, Client, clock_of, serving

from qs_schemas import OPERATIONS
from qs_server.operations.table import HANDLERS
from qs_server.storage.disk import Disk

Clock = trio.testing.MockClock  # pytest-trio runs a test on the clock that the test itself asks for
SECOND = 1_000_000


class FillableDisk(Disk):
    """A disk that can be full."""

    full = False

    def write(self, fd: int, data: bytes) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))
        super().write(fd, data)


@pytest.fixture
def disk() -> FillableDisk:
    return FillableDisk()


@pytest.fixture
async def client(tmp_path: Path, autojump_clock: Clock, disk: FillableDisk) -> AsyncIterator[Client]:
    """A connection to a server with one queue, `q`, whose clock stands at EPOCH and moves when everybody waits."""
    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=disk) as running:
        yield running.connect()


def response(op: str, body: str, req: str = "") -> str:
    """An answer, exactly, but for its resp."""
    correlation = f' req="{req}"' if req else ""
    return f'<qs xmlns="{NS}" type="response"{correlation} resp="…"><op><{op}/></op>{body}</qs>\r\n'


def plain(line: str) -> str:
    """The line without what is different each time."""
    return re.sub(' resp="[0-9a-f]{64}"', ' resp="…"', line)


async def exactly(client: Client, document: str, op: str, body: str) -> None:
    assert plain(await client.ask(document)) == response(op, body)


# -- queues -----------------------------------------------------------------------------------------------------------


async def test_list_queues(client: Client, autojump_clock: Clock) -> None:
    """list-queues: every queue, sorted by name."""
    await client.ask(new_queue("b&amp;b"), new_queue("B"), new_queue("\N{LATIN SMALL LETTER E WITH ACUTE}"))
    names = ["B", "b&amp;b", "q", "\N{LATIN SMALL LETTER E WITH ACUTE}"]
    listed = "".join(f"<queue>{name}</queue>" for name in names)
    await exactly(client, request("list-queues"), "list-queues", f"<queues>{listed}</queues>")


async def test_list_queues_when_there_is_none(client: Client, autojump_clock: Clock) -> None:
    """list-queues without a queue: an empty list."""
    await client.ask(request("delete-queue", "<qid>q</qid>"))
    await exactly(client, request("list-queues"), "list-queues", "<queues></queues>")


async def test_new_queue(client: Client, autojump_clock: Clock) -> None:
    """new-queue: answers with the name; 409 `conflict`, in bucker's words, when it exists."""
    await exactly(client, new_queue("fresh"), "new-queue", "<qid>fresh</qid>")
    line = await client.ask(new_queue("fresh"))
    expected = '<error code="409" type="conflict">\'fresh\' is already an existing queue</error></qs>\r\n'
    assert line.endswith(f' xml:lang="en-US">{expected}')


async def test_options_that_are_there(client: Client, autojump_clock: Clock) -> None:
    """new-queue with visibility and capacity: the window that a receive gets, and how many messages fit."""
    await client.ask(new_queue("small", '<options storage="files" visibility="2.5" capacity="2"/>'))
    await client.ask(push("small", "1"), push("small", "2"))
    line = await client.ask(push("small", "3"))
    assert (code(line), "capacity" in text(line)) == (507, True)
    now = EPOCH + round(trio.current_time() * SECOND)
    assert f'visible-at="{now + 2_500_000}"' in await client.ask(receive("small"))


@pytest.mark.parametrize(
    "option", ['retention="60"', 'dead-letter="q" max-receives="3"', 'max-receives="3"', 'storage="punchcards"']
)
async def test_options_that_are_not(client: Client, autojump_clock: Clock, option: str) -> None:
    """new-queue with an option that cannot be honoured: 501 that names it, and nothing is created."""
    line = await client.ask(new_queue("fancy", f"<options {option}/>"))
    assert (code(line), 'type="not-implemented"' in line) == (501, True)
    assert option.partition("=")[0] in text(line)
    assert "fancy" not in await client.ask(request("list-queues"))


async def test_delete_queue(client: Client, autojump_clock: Clock) -> None:
    """delete-queue: 409 `not-empty` while there are messages, in flight too; 404 when there is no such queue."""
    await client.ask(push("q", "x"))
    for _ in range(2):
        line = await client.ask(request("delete-queue", "<qid>q</qid>"))
        assert (code(line), 'type="not-empty"' in line) == (409, True)
        await client.ask(receive("q"))
    await client.ask(request("purge-queue", "<qid>q</qid>"))
    await exactly(client, request("delete-queue", "<qid>q</qid>"), "delete-queue", "<qid>q</qid>")
    line = await client.ask(request("delete-queue", "<qid>q</qid>"))
    assert (code(line), text(line)) == (404, "there is no queue 'q'")


@pytest.mark.parametrize(("force", "expected"), [("yes", 0), ("no", 409), ("YES", 409), ("1", 409), ("", 409)])
async def test_force(client: Client, autojump_clock: Clock, force: str, expected: int) -> None:
    """delete-queue with force="yes", and only that, deletes what is not empty: anything else means no."""
    await client.ask(push("q", "x"))
    assert code(await client.ask(request("delete-queue", "<qid>q</qid>", force=force))) == expected
    assert ("<queue>q</queue>" in await client.ask(request("list-queues"))) is (expected != 0)


# -- pushing ----------------------------------------------------------------------------------------------------------


async def test_push_message(client: Client, autojump_clock: Clock) -> None:
    """push-message: the id, microseconds since the Epoch, each greater than the one before."""
    now = EPOCH + round(trio.current_time() * SECOND)
    await exactly(client, push("q", "a"), "push-message", f"<qid>q</qid><mid>{now}</mid>")
    await exactly(client, push("q", "b"), "push-message", f"<qid>q</qid><mid>{now + 1}</mid>")


async def test_push_message_list(client: Client, autojump_clock: Clock) -> None:
    """push-message, list form: the ids in order; the messages too, each with its own delay."""
    body = '<message><payload>1</payload></message><message delay="5"><payload>2</payload></message>'
    now = EPOCH + round(trio.current_time() * SECOND)
    await exactly(
        client, request("push-message", f"<qid>q</qid><messages>{body}</messages>"), "push-message",
        f"<qid>q</qid><messages><mid>{now}</mid><mid>{now + 1}</mid></messages>",
    )  # fmt: skip
    assert payloads(await client.ask(receive("q", max=5))) == ["1"]
    assert payloads(await client.ask(receive("q", max=5, wait=6))) == ["2"]


async def test_a_list_is_all_or_nothing(client: Client, autojump_clock: Clock) -> None:
    """push-message, list form, of which one does not fit: none of it is stored."""
    await client.ask(new_queue("small", '<options capacity="3"/>'), push("small", "0"))
    assert code(await client.ask(push_list("small", "1", "2", "3"))) == 507
    assert len(mids(await client.ask(push_list("small", "1", "2")))) == 2
    assert payloads(await client.ask(receive("small", max=9))) == ["0", "1", "2"]


@pytest.mark.parametrize("document", [
    push("q", "x", key="k"),
    request("push-message", '<qid>q</qid><messages><message key="k"><payload>x</payload></message></messages>'),
])  # fmt: skip
async def test_keys_are_not_there_yet(client: Client, autojump_clock: Clock, document: str) -> None:
    """push-message with a key: 501, and nothing is stored, rather than a promise that is not kept."""
    assert code(await client.ask(document)) == 501
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>"))) == []


@pytest.mark.parametrize(("sent", "answered"), [
    ("<payload>two &amp; &lt;three&gt;&#10;lines</payload>", "<payload>two &amp; &lt;three&gt;&#10;lines</payload>"),
    ("<payload><![CDATA[<a>&</a>]]></payload>", "<payload>&lt;a&gt;&amp;&lt;/a&gt;</payload>"),
    ("<payload/>", "<payload></payload>"),
    ("<payload>  kept  </payload>", "<payload>  kept  </payload>"),
    ('<payload encoding="base64">aGVsbG8=</payload>', "<payload>hello</payload>"),
    ('<payload encoding="base64">AP8=</payload>', '<payload encoding="base64">AP8=</payload>'),
    ('<payload><a xmlns="urn:a" b="c">d</a> e</payload>',
     '<payload>&lt;a xmlns="urn:a" b="c"&gt;d&lt;/a&gt; e</payload>'),
    ("<payload>\N{GRINNING FACE}</payload>", "<payload>\N{GRINNING FACE}</payload>"),
])  # fmt: skip
async def test_payloads(client: Client, autojump_clock: Clock, sent: str, answered: str) -> None:
    """Any text, inline XML as its text, base64 as its bytes; answered as base64 only when it is no text."""
    mid = mids(await client.ask(request("push-message", f"<qid>q</qid>{sent}")))[0]
    assert answered in await client.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes"))
    assert answered in await client.ask(receive("q"))


# -- looking ----------------------------------------------------------------------------------------------------------


async def test_list_messages(client: Client, autojump_clock: Clock) -> None:
    """list-messages: by default what was never retrieved, oldest first; by state; a page at a time."""
    pushed = mids(await client.ask(push_list("q", *"abcd")))
    delayed = mids(await client.ask(push("q", "e", delay=9)))
    await client.ask(receive("q", max=2))
    await client.ask(request("release-message", f"<qid>q</qid><mid>{pushed[0]}</mid>"))
    a, b, c, d, e = [*pushed, *delayed]
    states = {"new": [c, d, e], "ready": [a, c, d], "in-flight": [b], "delayed": [e], "all": [a, b, c, d, e]}
    for state, expected in states.items():
        body = "<qid>q</qid><messages>" + "".join(f"<mid>{mid}</mid>" for mid in expected) + "</messages>"
        await exactly(client, request("list-messages", "<qid>q</qid>", state=state), "list-messages", body)
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>"))) == [c, d, e]
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", state="all", max=2))) == [a, b]
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", state="all", max=2, after=b))) == [c, d]
    body = "<qid>q</qid><messages></messages>"
    await exactly(client, request("list-messages", "<qid>q</qid>", after=e), "list-messages", body)


async def test_early_clients_get_m(client: Client, autojump_clock: Clock) -> None:
    """list-messages whose request carries an `m` element is answered with one, also when it is empty."""
    early = request("list-messages", "<qid>q</qid><m/>")
    await exactly(client, early, "list-messages", "<qid>q</qid><m></m>")
    mid = mids(await client.ask(push("q", "x")))[0]
    await exactly(client, early, "list-messages", f"<qid>q</qid><m><mid>{mid}</mid></m>")


async def test_a_list_has_a_thousand_ids(client: Client, autojump_clock: Clock) -> None:
    """list-messages gives at most 1000 ids, asked for more or not; `after` gets the rest."""
    pushed = mids(await client.ask(push_list("q", *["x"] * 1000))) + mids(await client.ask(push("q", "y")))
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>"))) == pushed[:1000]
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", max=5000))) == pushed[:1000]
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", after=pushed[999]))) == pushed[1000:]


async def test_get_message(client: Client, autojump_clock: Clock) -> None:
    """get-message: peeked, it changes nothing; not peeked, it is received, for 30 s unless asked otherwise; inside
    that window no payload."""
    mid = mids(await client.ask(push("q", "x")))[0]
    this = f"<qid>q</qid><mid>{mid}</mid>"
    now = EPOCH + round(trio.current_time() * SECOND)

    def answer(attributes: str, payload: str) -> str:
        return f"<qid>q</qid>{payload}<mid {attributes}>{mid}</mid>"

    peeked = answer(f'status="ready" receives="0" pushed-at="{mid}"', "<payload>x</payload>")
    for _ in range(2):
        await exactly(client, request("get-message", this, peek="yes"), "get-message", peeked)
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>"))) == [mid]
    lease = f'receives="1" pushed-at="{mid}" visible-at="{now + 30 * SECOND}"'
    got = answer(f'status="delivered" {lease}', "<payload>x</payload>")
    await exactly(client, request("get-message", this, peek="no"), "get-message", got)
    hidden = answer(f'status="in-flight" {lease}', "")
    await exactly(client, request("get-message", this), "get-message", hidden)
    await exactly(client, request("get-message", this, peek="yes"), "get-message", hidden)
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>"))) == []
    await trio.sleep(30.01)
    assert 'receives="2"' in await client.ask(request("get-message", this, visibility=0.5))
    await trio.sleep(0.51)
    assert 'status="ready" receives="2"' in await client.ask(request("get-message", this, peek="yes"))


async def test_get_message_that_is_delayed(client: Client, autojump_clock: Clock) -> None:
    """get-message of what is delayed: its status, when it becomes visible, no payload."""
    mid = mids(await client.ask(push("q", "x", delay=5)))[0]
    line = await client.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>"))
    assert f'<mid status="delayed" receives="0" pushed-at="{mid}" visible-at="{mid + 5 * SECOND}">' in line
    assert payloads(line) == []


async def test_white_space_around_names_and_ids(client: Client, autojump_clock: Clock) -> None:
    """White space around a qid and a mid is no part of it; in the middle of a name it is."""
    await exactly(client, new_queue("\r\n\t my queue \n"), "new-queue", "<qid>my queue</qid>")
    mid = mids(await client.ask(push(" my queue", "x")))[0]
    line = await client.ask(request("get-message", f"<qid>my queue\n</qid><mid>\n {mid}\t</mid>", peek="yes"))
    assert payloads(line) == ["x"]
    assert f"<qid>my queue</qid><mid>{mid}</mid>" in await client.ask(delete(" my queue ", f" {mid} "))


# -- receiving and ending it ------------------------------------------------------------------------------------------


async def test_receive_message(client: Client, autojump_clock: Clock) -> None:
    """receive-message: the oldest first, one unless asked for more, each with its queue, id and lease."""
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
    """receive-message over several queues: ordered by id over all of them."""
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
    """delete-message: answers with the id, in whatever state the message is; 404 when there is none."""
    ready, flying, delayed = [
        *mids(await client.ask(push_list("q", "a", "b"))), *mids(await client.ask(push("q", "c", delay=9)))
    ]  # fmt: skip
    await client.ask(receive("q"))
    for mid in (ready, flying, delayed):
        await exactly(client, delete("q", mid), "delete-message", f"<qid>q</qid><mid>{mid}</mid>")
        line = await client.ask(delete("q", mid))
        assert (code(line), text(line)) == (404, f"queue 'q' holds no message {mid}")


async def test_delete_message_with_receives(client: Client, autojump_clock: Clock) -> None:
    """delete-message with mid/@receives: 409 `stale` once it has been received again, and then nothing is deleted."""
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
    """delete-message, list form: those that were deleted; what is gone, stale or named twice is passed over."""
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
    """release-message: visible again now, or after a delay, when the answer says until when."""
    mid = mids(await client.ask(push("q", "x")))[0]
    this = f"<qid>q</qid><mid>{mid}</mid>"
    await client.ask(receive("q"))
    await exactly(client, request("release-message", this), "release-message", this)
    await exactly(client, request("release-message", this), "release-message", this)  # it is visible already
    assert mids(await client.ask(receive("q"))) == [mid]
    until = EPOCH + round(trio.current_time() * SECOND) + 4_500_000
    await exactly(
        client, request("release-message", this, delay=4.5), "release-message",
        f'<qid>q</qid><mid visible-at="{until}">{mid}</mid>',
    )  # fmt: skip
    assert mids(await client.ask(receive("q"))) == []
    assert 'receives="3"' in await client.ask(receive("q", wait=5))


async def test_extend_message(client: Client, autojump_clock: Clock) -> None:
    """extend-message: the window ends so long from now, the queue's own unless asked; 409 when it is not in flight."""
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


# -- copying ----------------------------------------------------------------------------------------------------------


async def test_copy_message(client: Client, autojump_clock: Clock) -> None:
    """copy-message: the id; afterwards each of the queues has the message, once, however often it is copied."""
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
    """copy-message, list form: those that exist; a push of them wakes who waits there."""
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
    """copy-message: 404 for a queue that is missing and 507 for one that is full; then nothing is copied. A list is
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
    """copy-message: 409 `conflict` for a queue that holds another message of the id, which stays; nothing is copied."""
    await client.ask(new_queue("r"), new_queue("s"))
    [mid] = mids(await client.ask(push("q", "mine")))
    (tmp_path / "root" / "s" / str(mid)).write_text("other")
    line = await client.ask(copy("q", mid, "r", "s"))
    expected = f"queue 's' holds another message of the id {mid}"
    assert (code(line), 'type="conflict"' in line, text(line)) == (409, True, expected)
    assert payloads(await client.ask(receive("r", "s", max=5))) == ["other"]


# -- subscribing ------------------------------------------------------------------------------------------------------


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


# -- the rest ---------------------------------------------------------------------------------------------------------


async def test_purge_queue(client: Client, autojump_clock: Clock) -> None:
    """purge-queue: how many were removed, those in flight and delayed too."""
    await client.ask(push_list("q", *"abc"), receive("q"), push("q", "d", delay=9))
    await exactly(client, request("purge-queue", "<qid>q</qid>"), "purge-queue", "<qid>q</qid><count>4</count>")
    await exactly(client, request("purge-queue", "<qid>q</qid>"), "purge-queue", "<qid>q</qid><count>0</count>")


async def test_queue_stats(client: Client, autojump_clock: Clock) -> None:
    """queue-stats: the figures of one queue, or of all, sorted."""
    await client.ask(new_queue("a"))
    first = mids(await client.ask(push_list("q", "1", "22", "333")))[0]
    await client.ask(push("q", "4444", delay=60), receive("q", max=2, visibility=1))
    await trio.sleep(1.5)
    await client.ask(receive("q"), delete("q", first))
    figures = (
        'new="2" ready="2" in-flight="0" delayed="1" bytes="9" oldest="1.499999" '
        'pushed="4" delivered="3" expired="2" deleted="1" storage="files"'
    )
    body = f"<qid>q</qid><queues><queue {figures}>q</queue></queues>"
    await exactly(client, request("queue-stats", "<qid>q</qid>"), "queue-stats", body)
    everything = await client.ask(request("queue-stats"))
    assert re.findall(r"<queue [^>]*>(\w+)</queue>", everything) == ["a", "q"]
    empty = 'new="0" ready="0" in-flight="0" delayed="0" bytes="0" pushed="0" delivered="0"'
    assert f"<queue {empty}" in everything


async def test_ping_and_the_envelope(client: Client, autojump_clock: Clock) -> None:
    """ping: an answer. Any prefix, any order of children; req comes back; resp is 64 digits, always new."""
    lines = [
        await client.ask(document)
        for document in (
            PING,
            PING.replace("<qs ", '<qs type="request" '),
            f'<?xml version="1.0"?>\n<x:qs xmlns:x="{NS}" xmlns:o="urn:o" o:y="z"><x:op><x:ping/></x:op></x:qs>\r\n',
            f'\ufeff<qs xmlns="{NS}"><!-- hello --><op><ping/></op><o xmlns="urn:other"/></qs>',
        )
    ]
    assert [plain(line) for line in lines] == [response("ping", "")] * 4
    assert len({re.findall(' resp="([0-9a-f]{64})"', line)[0] for line in lines}) == 4
    req = "a &amp; b &quot;&#10;" + "x" * 100
    assert plain(await client.ask(request("ping", req=req))) == response("ping", "", req)
    last = f'<qs xmlns="{NS}"><payload>x</payload><qid>q</qid><op><push-message/></op></qs>'
    assert len(mids(await client.ask(last))) == 1


# -- errors -----------------------------------------------------------------------------------------------------------

BODIES = {
    "authenticate": "<token>t</token>",
    "claim-messages": "<qid>q</qid><consumer>c</consumer>",
    "get-claim": "<qid>q</qid><consumer>c</consumer>",
    "ack-claim": "<qid>q</qid><consumer>c</consumer>",
    "release-claim": "<qid>q</qid><consumer>c</consumer>",
    "stage-messages": "<qid>q</qid><producer>p</producer><messages><message><payload>x</payload></message></messages>",
    "publish-staged": "<qid>q</qid><producer>p</producer>",
}


@pytest.mark.parametrize("op", sorted(name for name, cls in OPERATIONS.items() if cls not in HANDLERS))
async def test_what_is_not_implemented(client: Client, autojump_clock: Clock, op: str) -> None:
    """An operation of the contract that this server does not have: 501 that names it; nothing changes."""
    attributes: dict[str, str | int] = {"seq": 1} if "claim" in op else {"batch": 1} if op == "publish-staged" else {}
    line = await client.ask(request(op, BODIES.get(op, ""), **attributes))
    assert (code(line), 'type="not-implemented"' in line, op in text(line)) == (501, True, True), line
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", state="all"))) == []


NAMED = (
    "delete-queue", "list-messages", "push-message", "get-message", "receive-message", "delete-message",
    "release-message", "extend-message", "purge-queue", "queue-stats", "copy-message", "subscribe",
)  # fmt: skip


@pytest.mark.parametrize("op", NAMED)
async def test_no_such_queue(client: Client, autojump_clock: Clock, op: str) -> None:
    """404 for a queue that does not exist says that it is the queue, and which."""
    body = "<payload>x</payload>" if op == "push-message" else ""
    if op in ("get-message", "delete-message", "release-message", "extend-message", "copy-message"):
        body = "<mid>1</mid>"
    if op == "copy-message":
        body += "<queues><queue>q</queue></queues>"
    line = await client.ask(request(op, f"<qid>absent</qid>{body}"))
    assert (code(line), 'type="not-found"' in line, text(line)) == (404, True, "there is no queue 'absent'")


@pytest.mark.parametrize("op", ["get-message", "delete-message", "release-message", "extend-message"])
async def test_no_such_message(client: Client, autojump_clock: Clock, op: str) -> None:
    """404 for a message that does not exist says that it is the message, and which, in which queue."""
    line = await client.ask(request(op, "<qid>q</qid><mid>12345</mid>"))
    assert (code(line), text(line)) == (404, "queue 'q' holds no message 12345")


@pytest.mark.parametrize(
    "op", ["new-queue", *(op for op in NAMED if op not in ("queue-stats", "receive-message", "subscribe"))]
)
async def test_what_a_request_must_carry(client: Client, autojump_clock: Clock, op: str) -> None:
    """400 for a request without what its operation needs says what that is."""
    line = await client.ask(request(op))
    assert (code(line), 'type="bad-request"' in line) == (400, True)
    assert f"{op} needs 'qid'" in text(line)


async def test_a_full_disk(client: Client, autojump_clock: Clock, disk: FillableDisk) -> None:
    """507 `full` when the disk is: the text says so; nothing was stored; what needs no room goes on."""
    mid = mids(await client.ask(push("q", "before")))[0]
    disk.full = True
    for document in (push("q", "x"), push_list("q", "x", "y"), new_queue("another")):
        line = await client.ask(document)
        assert (code(line), 'type="full"' in line, "disk" in text(line)) == (507, True, True)
    assert mids(await client.ask(receive("q"))) == [mid]
    assert code(await client.ask(delete("q", mid))) == 0
    assert "<queues><queue>q</queue></queues>" in await client.ask(request("list-queues"))
    disk.full = False
    assert code(await client.ask(push("q", "after"))) == 0


# -- requests that contradict themselves ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        request("push-message", "<qid>q</qid><payload>a</payload><messages><message><payload/></message></messages>"),
        request("delete-message", "<qid>q</qid><mid>1</mid><messages><mid>2</mid></messages>"),
        request("receive-message", "<qid>q</qid><queues><queue>q</queue></queues>"),
        request("subscribe", "<qid>q</qid><queues><queue>q</queue></queues>"),
        request(
            "copy-message",
            "<qid>q</qid><mid>1</mid><messages><mid>2</mid></messages><queues><queue>q</queue></queues>",
        ),
    ],
)
async def test_either_or(client: Client, autojump_clock: Clock, document: str) -> None:
    """A request in single and in list form at once is 400, says so, and changes nothing."""
    await client.ask(push("q", "kept"))
    answer = await client.ask(document)
    assert (code(answer), "either" in text(answer)) == (400, True)
    assert payloads(await client.ask(receive("q", max=10))) == ["kept"]


async def test_delay_of_a_list(client: Client, autojump_clock: Clock) -> None:
    """The delay of a list-form push is that of every message that names none."""
    entries = '<message><payload>late</payload></message><message delay="0"><payload>now</payload></message>'
    await client.ask(request("push-message", f"<qid>q</qid><messages>{entries}</messages>", delay=60))
    assert payloads(await client.ask(receive("q", max=10, visibility=600))) == ["now"]
    assert payloads(await client.ask(receive("q", max=10, wait=100))) == ["late"]
