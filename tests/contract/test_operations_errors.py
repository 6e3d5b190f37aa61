"""Every error of the protocol's table, and requests that contradict themselves: documents in, lines out."""

import pytest
from support.clients.documents import code, delete, mids, new_queue, payloads, push, push_list, receive, request, text
from support.servers.memory import Client, Clock, FillableDisk


async def test_uncounted_release_is_501_where_unsupported(client: Client, autojump_clock: Clock) -> None:
    """`release-message` with count="no" is answered with 501 by a storage without that, and the message stays in
    flight."""
    await client.ask(request("new-queue", '<qid>elements</qid><options storage="dirq-simple"/>'))
    await client.ask(push("elements", "x"))
    [mid] = mids(await client.ask(receive("elements")))
    assert code(await client.ask(request("release-message", f"<qid>elements</qid><mid>{mid}</mid>", count="no"))) == 501
    assert mids(await client.ask(receive("elements"))) == []


NAMED = (
    "delete-queue", "list-messages", "push-message", "get-message", "receive-message", "delete-message",
    "release-message", "extend-message", "purge-queue", "queue-stats", "copy-message", "subscribe",
)  # fmt: skip


@pytest.mark.parametrize("op", NAMED)
async def test_missing_queue_is_404_that_names_it(client: Client, autojump_clock: Clock, op: str) -> None:
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
