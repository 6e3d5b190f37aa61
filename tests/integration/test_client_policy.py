"""Options, dead letters and pauses through both clients and `qs`, against a server that answers what a test says."""

import json
import queue

import pytest
from support.clients.every_client import both, run
from support.clients.scripted_server import GIVE_UP, answering, client_of, scripted

from qs_client import (
    AsyncQueueClient,
    Delivery,
    Error,
    Figure,
    GetQueue,
    Message,
    NewQueue,
    PauseQueue,
    QueueInfo,
    QueueOptions,
    QueueStats,
    ReceiveMessage,
    RedriveMessages,
    ReleaseMessage,
    ResumeQueue,
    ServerStats,
    SetQueue,
    command,
)

LETTER = Delivery(
    9, b"x", "failed", 1, dead_from="q", dead_mid=5, dead_receives=3, dead_at=7, dead_reason="receives"
)  # fmt: skip
OPTIONS = QueueOptions("files", 30, retention=60, dead_letter="failed", max_receives=3)
ANSWERS: tuple[Message, ...] = (
    SetQueue("q"), GetQueue("q", OPTIONS), PauseQueue("q"), ResumeQueue("q"), RedriveMessages("failed", [11], count=1),
    ReceiveMessage(messages=[LETTER]), ReleaseMessage("failed", 9),
)  # fmt: skip
ASKED = [
    SetQueue("q", QueueOptions(retention=60, removed=frozenset({"capacity"}))), GetQueue("q"), PauseQueue("q"),
    ResumeQueue("q"), RedriveMessages("failed", queues=["q"], max=10), ReceiveMessage("failed", max=1, wait=0),
    ReleaseMessage("failed", 9, 1, uncounted=True),
]  # fmt: skip


def taken(seen: "queue.SimpleQueue[Message]", count: int) -> list[Message]:
    """The requests that the server was sent, without the ids that pair them with answers."""
    found = [seen.get(timeout=GIVE_UP) for _ in range(count)]
    for message in found:
        message.req = None
    return found


def test_client_sends_policy_requests() -> None:
    """Each method sends its request, and a dead letter knows where it comes from."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with scripted(answering(*ANSWERS, seen=seen)) as server, client_of(server) as client:
        client.set_queue("q", retention=60, capacity=None)
        assert client.queue_options("q") == OPTIONS
        client.pause("q")
        client.resume("q")
        assert client.redrive("failed", to="q", max=10) == [11]
        [letter] = client.receive("failed")
        assert letter == LETTER
        client.release(letter, count=False)
    assert taken(seen, len(ASKED)) == ASKED


@both
def test_async_client_sends_policy_requests(backend: str) -> None:
    """Each method of the async client sends its request, and a dead letter knows where it comes from."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()

    async def main() -> None:
        client = AsyncQueueClient(server.host, server.port, timeout=GIVE_UP)
        await client.set_queue("q", retention=60, capacity=None)
        assert await client.queue_options("q") == OPTIONS
        await client.pause("q")
        await client.resume("q")
        assert await client.redrive("failed", to="q", max=10) == [11]
        [letter] = await client.receive("failed")
        assert letter == LETTER
        await client.release(letter, count=False)
        await client.disconnect()

    with scripted(answering(*ANSWERS, seen=seen)) as server:
        run(backend, main)
    assert taken(seen, len(ASKED)) == ASKED


# id: arguments of qs, answers of the server, the requests, the exit code, what it prints
COMMANDS: dict[str, tuple[list[str], list[Message], list[Message], int, str]] = {
    "new": (
        ["new", "q", "--storage", "files", "--dead-letter", "failed", "--max-receives", "3", "--retention", "60"],
        [NewQueue("q")],
        [NewQueue("q", QueueOptions("files", retention=60, dead_letter="failed", max_receives=3))], 0, "",
    ),
    "set": (
        ["set", "q", "--visibility", "5", "--remove", "dead-letter", "--remove", "max-receives"], [SetQueue("q")],
        [SetQueue("q", QueueOptions(visibility=5, removed=frozenset({"dead_letter", "max_receives"})))], 0, "",
    ),
    "options": (
        ["options", "q"], [GetQueue("q", OPTIONS)], [GetQueue("q")], 0,
        "storage files\nvisibility 30\nretention 60\ndead-letter failed\nmax-receives 3\n",
    ),
    "no options": (["options", "q"], [GetQueue("q", QueueOptions())], [GetQueue("q")], 0, ""),
    "pause": (["pause", "q", "r"], [PauseQueue(), PauseQueue()], [PauseQueue("q"), PauseQueue("r")], 0, ""),
    "resume": (["resume", "q"], [ResumeQueue()], [ResumeQueue("q")], 0, ""),
    "redrive of ids": (
        ["redrive", "failed", "5", "6", "--to", "q"], [RedriveMessages("failed", [7, 8], count=2)],
        [RedriveMessages("failed", [5, 6], ["q"])], 0, "2\n",
    ),
    "redrive of all": (
        ["redrive", "failed"],
        [
            QueueStats(queues=[QueueInfo("failed", ready=1200, in_flight=1)]),
            RedriveMessages("failed", [1] * 1000, count=1000), RedriveMessages("failed", [2] * 100, count=100),
            RedriveMessages("failed", [3] * 101, count=101),
        ],
        [QueueStats("failed"), *(RedriveMessages("failed", max=most) for most in (1000, 201, 101))], 0, "1201\n",
    ),
    "redrive of some": (
        ["redrive", "failed", "--max", "1"],
        [QueueStats(queues=[QueueInfo("failed", ready=2)]), RedriveMessages("failed", [7], count=1)],
        [QueueStats("failed"), RedriveMessages("failed", max=1)], 0, "1\n",
    ),
    "redrive of none": (
        ["redrive", "failed"], [QueueStats(queues=[QueueInfo("failed", ready=0)])], [QueueStats("failed")], 3, "0\n",
    ),
    "redrive while others redrive": (
        ["redrive", "failed"],
        [QueueStats(queues=[QueueInfo("failed", ready=2)]), RedriveMessages("failed", count=0)],
        [QueueStats("failed"), RedriveMessages("failed", max=2)], 3, "0\n",
    ),
    "release": (
        ["release", "q", "5", "--no-count"], [ReleaseMessage("q", 5)], [ReleaseMessage("q", 5, uncounted=True)], 0, "",
    ),
    "figures": (
        ["figures", "requests*", "connections"],
        [
            ServerStats([
                Figure("connections", 3), Figure("requests_total", 7, {"operation": "ping", "code": "200"}),
                Figure("open_files", 9),
            ]),
        ],
        [ServerStats()], 0, 'connections 3\nrequests_total{operation="ping",code="200"} 7\n',
    ),
    "figures of connections": (
        ["figures", "--connections", "connection_*"],
        [
            ServerStats([
                Figure("connections", 1),
                Figure("connection_subscriptions", 2, {"peer": "127.0.0.1:4", "principal": "ops"}),
            ]),
        ],
        [ServerStats(connections=True)], 0,
        'connection_subscriptions{peer="127.0.0.1:4",principal="ops"} 2\n',
    ),
    "ls": (
        ["ls", "-l"],
        [QueueStats(queues=[QueueInfo("q", 1, 1, 0, 0, dead=4, paused=True, subscribers=5)])], [QueueStats()], 0,
        ("QUEUE  NEW  READY  IN-FLIGHT  DELAYED  DEAD  SUBSCRIBERS  WAITING  PAUSED\n"
         "q        1      1          0        0     4            5        -     yes\n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "answers", "requests", "code", "shown"), COMMANDS.values(), ids=COMMANDS)
def test_commands(
    argv: list[str],
    answers: list[Message],
    requests: list[Message],
    code: int,
    shown: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command of qs sends these requests and prints that."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with scripted(answering(*answers, seen=seen)) as server:
        assert command.main([*argv, "-s", f"{server.host}:{server.port}"]) == code
    assert taken(seen, len(requests)) == requests
    assert capsys.readouterr().out == shown


def test_records(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the options and the new ids are fields."""
    answers = [GetQueue("q", OPTIONS), RedriveMessages("failed", [7], count=1)]
    with scripted(*[answering(answer) for answer in answers]) as server:
        at = ("--json", "-s", f"{server.host}:{server.port}")
        assert command.main(["options", "q", *at]) == 0
        assert command.main(["redrive", "failed", "5", *at]) == 0
    options, moved = map(json.loads, capsys.readouterr().out.splitlines())
    assert options == {
        "qid": "q", "storage": "files", "visibility": 30, "retention": 60, "dead_letter": "failed", "max_receives": 3,
    }  # fmt: skip
    assert moved == {"qid": "failed", "count": 1, "mids": [7]}


def test_a_server_that_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the server is one line and exit code 1."""
    with scripted(answering(Error(501, "not-implemented", "no pause here"))) as server:
        assert command.main(["pause", "q", "-s", f"{server.host}:{server.port}"]) == 1
    assert capsys.readouterr().err == "qs: 501 not-implemented: no pause here\n"
