"""Every row of the protocol's table of operations that is implemented, and of its errors: documents in, lines out."""

import re

import pytest
import trio
import trio.testing
from support.clients.documents import (
    NS,
    PING,
    code,
    delete,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    request,
    text,
)
from support.servers.memory import EPOCH, Client, Clock, exactly, plain, response

SECOND = 1_000_000


async def test_list_queues(client: Client, autojump_clock: Clock) -> None:
    """`list-queues` answers with every queue, sorted by name."""
    await client.ask(new_queue("b&amp;b"), new_queue("B"), new_queue("\N{LATIN SMALL LETTER E WITH ACUTE}"))
    names = ["B", "b&amp;b", "q", "\N{LATIN SMALL LETTER E WITH ACUTE}"]
    listed = "".join(f"<queue>{name}</queue>" for name in names)
    await exactly(client, request("list-queues"), "list-queues", f"<queues>{listed}</queues>")


async def test_list_queues_when_there_is_none(client: Client, autojump_clock: Clock) -> None:
    """`list-queues` answers with an empty list when there is no queue."""
    await client.ask(request("delete-queue", "<qid>q</qid>"))
    await exactly(client, request("list-queues"), "list-queues", "<queues></queues>")


async def test_new_queue(client: Client, autojump_clock: Clock) -> None:
    """`new-queue` answers with the name; 409 `conflict`, in bucker's words, when the queue exists."""
    await exactly(client, new_queue("fresh"), "new-queue", "<qid>fresh</qid>")
    line = await client.ask(new_queue("fresh"))
    expected = '<error code="409" type="conflict">\'fresh\' is already an existing queue</error></qs>\r\n'
    assert line.endswith(f' xml:lang="en-US">{expected}')


async def test_options_that_are_there(client: Client, autojump_clock: Clock) -> None:
    """`new-queue` with visibility and capacity sets the window of a receive, and how many messages fit."""
    await client.ask(new_queue("small", '<options storage="files" visibility="2.5" capacity="2"/>'))
    await client.ask(push("small", "1"), push("small", "2"))
    line = await client.ask(push("small", "3"))
    assert (code(line), "capacity" in text(line)) == (507, True)
    now = EPOCH + round(trio.current_time() * SECOND)
    assert f'visible-at="{now + 2_500_000}"' in await client.ask(receive("small"))


@pytest.mark.parametrize(
    "option",
    ['retention="60" storage="null"', 'dead-letter="q" max-receives="3" storage="dirq"', 'storage="punchcards"'],
)
async def test_options_that_are_not(client: Client, autojump_clock: Clock, option: str) -> None:
    """`new-queue` with an option that the storage lacks is answered with 501, which names the option, and creates
    nothing."""
    line = await client.ask(new_queue("fancy", f"<options {option}/>"))
    assert (code(line), 'type="not-implemented"' in line) == (501, True)
    assert option.partition("=")[0] in text(line)
    assert "fancy" not in await client.ask(request("list-queues"))


async def test_delete_queue_refuses_queue_with_messages(client: Client, autojump_clock: Clock) -> None:
    """`delete-queue` is answered with 409 `not-empty` while there are messages, in flight too; with 404 for a missing
    queue."""
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
    """`delete-queue` deletes a queue with messages only with force="yes": any other value means no."""
    await client.ask(push("q", "x"))
    assert code(await client.ask(request("delete-queue", "<qid>q</qid>", force=force))) == expected
    assert ("<queue>q</queue>" in await client.ask(request("list-queues"))) is (expected != 0)


async def test_push_message(client: Client, autojump_clock: Clock) -> None:
    """`push-message` answers with the id, microseconds since the Epoch, each greater than the one before."""
    now = EPOCH + round(trio.current_time() * SECOND)
    await exactly(client, push("q", "a"), "push-message", f"<qid>q</qid><mid>{now}</mid>")
    await exactly(client, push("q", "b"), "push-message", f"<qid>q</qid><mid>{now + 1}</mid>")


async def test_push_message_list(client: Client, autojump_clock: Clock) -> None:
    """`push-message` with a list answers with the ids in order, and stores each message with its own delay."""
    body = '<message><payload>1</payload></message><message delay="5"><payload>2</payload></message>'
    now = EPOCH + round(trio.current_time() * SECOND)
    await exactly(
        client, request("push-message", f"<qid>q</qid><messages>{body}</messages>"), "push-message",
        f"<qid>q</qid><messages><mid>{now}</mid><mid>{now + 1}</mid></messages>",
    )  # fmt: skip
    assert payloads(await client.ask(receive("q", max=5))) == ["1"]
    assert payloads(await client.ask(receive("q", max=5, wait=6))) == ["2"]


async def test_a_list_is_all_or_nothing(client: Client, autojump_clock: Clock) -> None:
    """`push-message` with a list stores no message if one of them does not fit."""
    await client.ask(new_queue("small", '<options capacity="3"/>'), push("small", "0"))
    assert code(await client.ask(push_list("small", "1", "2", "3"))) == 507
    assert len(mids(await client.ask(push_list("small", "1", "2")))) == 2
    assert payloads(await client.ask(receive("small", max=9))) == ["0", "1", "2"]


@pytest.mark.parametrize("document", [
    push("q", "x", key="k"),
    request("push-message", '<qid>q</qid><messages><message key="k"><payload>x</payload></message></messages>'),
])  # fmt: skip
async def test_keys_are_not_there_yet(client: Client, autojump_clock: Clock, document: str) -> None:
    """`push-message` with a key is answered with 501 by a storage without keys, and stores nothing."""
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
    """Any text, inline XML as its text, base64 as its bytes; answered as base64 only when it is not text."""
    mid = mids(await client.ask(request("push-message", f"<qid>q</qid>{sent}")))[0]
    assert answered in await client.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes"))
    assert answered in await client.ask(receive("q"))


async def test_list_messages(client: Client, autojump_clock: Clock) -> None:
    """`list-messages` lists new messages by default, oldest first; or those in a state; a page at a time."""
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
    """`list-messages` whose request carries an `m` element is answered with one, also when it is empty."""
    early = request("list-messages", "<qid>q</qid><m/>")
    await exactly(client, early, "list-messages", "<qid>q</qid><m></m>")
    mid = mids(await client.ask(push("q", "x")))[0]
    await exactly(client, early, "list-messages", f"<qid>q</qid><m><mid>{mid}</mid></m>")


async def test_a_list_has_a_thousand_ids(client: Client, autojump_clock: Clock) -> None:
    """`list-messages` gives at most 1000 ids, asked for more or not; `after` gets the rest."""
    pushed = mids(await client.ask(push_list("q", *["x"] * 1000))) + mids(await client.ask(push("q", "y")))
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>"))) == pushed[:1000]
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", max=5000))) == pushed[:1000]
    assert mids(await client.ask(request("list-messages", "<qid>q</qid>", after=pushed[999]))) == pushed[1000:]


async def test_get_message(client: Client, autojump_clock: Clock) -> None:
    """`get-message`: peeked, it changes nothing; not peeked, it is received, for 30 s unless asked otherwise; inside
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
    """`get-message` of what is delayed: its status, when it becomes visible, no payload."""
    mid = mids(await client.ask(push("q", "x", delay=5)))[0]
    line = await client.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>"))
    assert f'<mid status="delayed" receives="0" pushed-at="{mid}" visible-at="{mid + 5 * SECOND}">' in line
    assert payloads(line) == []


async def test_list_form_of_get_message(client: Client, autojump_clock: Clock) -> None:
    """`get-message` with a list peeks: it answers with payloads whatever the status, in the given order, without
    missing messages."""
    ready, held, later = mids(await client.ask(push_list("q", "a", "b", "c")))
    await client.ask(
        delete("q", ready), push("q", "d", delay=5), request("get-message", f"<qid>q</qid><mid>{held}</mid>")
    )
    [delayed] = mids(await client.ask(request("list-messages", "<qid>q</qid>", state="delayed")))
    asked = "".join(f"<mid>{mid}</mid>" for mid in (delayed, later, ready, held))
    line = await client.ask(request("get-message", f"<qid>q</qid><messages>{asked}</messages>", peek="yes"))
    assert re.findall(r'mid="(\d+)" status="([a-z-]+)" receives="(\d)"', line) == [
        (str(delayed), "delayed", "0"), (str(later), "ready", "0"), (str(held), "in-flight", "1"),
    ]  # fmt: skip
    assert (payloads(line), "more=" in line) == (["d", "c", "b"], False)
    assert 'receives="0"' in await client.ask(request("get-message", f"<qid>q</qid><mid>{later}</mid>", peek="yes"))


async def test_list_form_of_get_message_that_is_too_long(client: Client, autojump_clock: Clock) -> None:
    """Messages that do not fit in a document are left out, and `more` says so; the first message comes in any case."""
    payload = "x" * 3_000_000
    pushed = [mids(await client.ask(push("q", payload)))[0] for _ in range(3)]
    asked = "".join(f"<mid>{mid}</mid>" for mid in pushed)
    line = await client.ask(request("get-message", f"<qid>q</qid><messages>{asked}</messages>", peek="yes"))
    assert (len(payloads(line)), '<op more="yes">' in line) == (2, True)


@pytest.mark.parametrize(
    ("wrong", "word"), [({}, "peek"), ({"peek": "no"}, "peek"), ({"peek": "yes", "both": "<mid>1</mid>"}, "both")]
)
async def test_list_form_of_get_message_refused(
    client: Client, autojump_clock: Clock, wrong: dict[str, str], word: str
) -> None:
    """A list that is not peeked at, or beside a single id, is 400."""
    named = "<qid>q</qid><messages><mid>1</mid></messages>" + wrong.pop("both", "")
    line = await client.ask(request("get-message", named, **wrong))
    assert (code(line), word in text(line)) == (400, True)


async def test_white_space_around_names_and_ids(client: Client, autojump_clock: Clock) -> None:
    """White space around a qid and a mid is not part of it; in the middle of a name it is."""
    await exactly(client, new_queue("\r\n\t my queue \n"), "new-queue", "<qid>my queue</qid>")
    mid = mids(await client.ask(push(" my queue", "x")))[0]
    line = await client.ask(request("get-message", f"<qid>my queue\n</qid><mid>\n {mid}\t</mid>", peek="yes"))
    assert payloads(line) == ["x"]
    assert f"<qid>my queue</qid><mid>{mid}</mid>" in await client.ask(delete(" my queue ", f" {mid} "))


async def test_purge_queue(client: Client, autojump_clock: Clock) -> None:
    """`purge-queue` answers with the number of removed messages, including those in flight and delayed."""
    await client.ask(push_list("q", *"abc"), receive("q"), push("q", "d", delay=9))
    await exactly(client, request("purge-queue", "<qid>q</qid>"), "purge-queue", "<qid>q</qid><count>4</count>")
    await exactly(client, request("purge-queue", "<qid>q</qid>"), "purge-queue", "<qid>q</qid><count>0</count>")


async def test_queue_stats(client: Client, autojump_clock: Clock) -> None:
    """`queue-stats` answers with the figures of one queue, or of all, sorted."""
    await client.ask(new_queue("a"))
    first = mids(await client.ask(push_list("q", "1", "22", "333")))[0]
    await client.ask(push("q", "4444", delay=60), receive("q", max=2, visibility=1))
    await trio.sleep(1.5)
    await client.ask(receive("q"), delete("q", first))
    figures = (
        'new="2" ready="2" in-flight="0" delayed="1" bytes="9" oldest="1.499999" '
        'pushed="4" delivered="3" expired="2" deleted="1" storage="files" dead="0" retired="0" paused="no" '
        'subscribers="0" waiting="0"'
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
    assert [plain(line) for line in lines] == [response("ping", "").replace("<op>", '<op name="qs-server">')] * 4
    assert len({re.findall(' resp="([0-9a-f]{64})"', line)[0] for line in lines}) == 4
    req = "a &amp; b &quot;&#10;" + "x" * 100
    assert plain(await client.ask(request("ping", req=req))) == response("ping", "", req).replace(
        "<op>", '<op name="qs-server">'
    )
    last = f'<qs xmlns="{NS}"><payload>x</payload><qid>q</qid><op><push-message/></op></qs>'
    assert len(mids(await client.ask(last))) == 1


async def test_delay_of_a_list(client: Client, autojump_clock: Clock) -> None:
    """The delay of a list-form push is that of every message that names none."""
    entries = '<message><payload>late</payload></message><message delay="0"><payload>now</payload></message>'
    await client.ask(request("push-message", f"<qid>q</qid><messages>{entries}</messages>", delay=60))
    assert payloads(await client.ask(receive("q", max=10, visibility=600))) == ["now"]
    assert payloads(await client.ask(receive("q", max=10, wait=100))) == ["late"]
