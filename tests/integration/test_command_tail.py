"""`qs tail` against scripted buses: what it prints, when it acknowledges, and what it does when there is no bus."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from support.clients.scripted_server import (
    GIVE_UP,
    SOON,
    Conversation,
    ScriptedServer,
    Seen,
    accept,
    delivered,
    delivering,
    scripted,
)

from qs_client import DeleteMessage, Error, Message, Subscribe, bus_session, command, command_verbs

Run = Callable[..., tuple[int, str, str]]
SCRIPT = """
import signal, sys
from qs_client.command import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.fixture
def qs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs qs in this process, with no queue server to talk to: its exit code, stdout and stderr."""
    monkeypatch.setenv("QS_SERVER", "not: an address")

    def run(*argv: str) -> tuple[int, str, str]:
        code = command.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def process(server: ScriptedServer, *argv: str, **options: object) -> "subprocess.Popen[bytes]":
    """Starts qs as a process of its own, with the bus in its environment."""
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", SCRIPT, *argv],
        env={**os.environ, "QS_BUS": f"{server.host}:{server.port}"},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def at(server: ScriptedServer) -> str:
    return f"--bus={server.host}:{server.port}"


def noted(seen: Seen, count: int) -> list[Message]:
    return [seen.get(timeout=GIVE_UP) for _ in range(count)]


def deleted(messages: list[Message]) -> list[int | None]:
    return [message.mid for message in messages if isinstance(message, DeleteMessage)]


def test_so_many(qs: Run) -> None:
    """With --max it ends after so many, all of them acknowledged, and takes no more; it needs no queue server."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, 2, 3, 4, seen=seen)) as server:
        assert qs("tail", "q", "r", at(server), "--max", "3", "--name", "audit") == (0, "1\n2\n3\n", "")
    subscribe, *rest = noted(seen, 4)
    assert isinstance(subscribe, Subscribe)
    assert (subscribe.queues, subscribe.ack, subscribe.name) == (["q", "r"], "client", "audit")
    assert deleted(rest) == [1, 2, 3]
    assert seen.empty()


def test_conditions_and_patterns(qs: Run) -> None:
    """--where says which messages are wanted, and --match that the queues are patterns."""
    seen: Seen = queue.SimpleQueue()
    with scripted(delivering(1, seen=seen)) as server:
        words = ["tail", "--match", "orders-*", at(server), "-n1", "--where", "/order/total > 100"]
        assert qs(*words) == (0, "1\n", "")
    [subscribe] = noted(seen, 1)
    assert isinstance(subscribe, Subscribe)
    assert (subscribe.queues, subscribe.match, subscribe.where) == (["orders-*"], "pattern", "/order/total > 100")


def test_a_condition_that_the_bus_refuses(qs: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The error of the bus about a condition is one line, with the position; an empty condition is wrong usage."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(400, "bad-request", "where: a number is missing at character 9"))
        conversation.wait_for_close()

    with scripted(script) as server:
        code, out, err = qs("tail", "q", at(server), "--where", "/order >")
    assert (code, out, err) == (1, "", "qs: 400 bad-request: where: a number is missing at character 9\n")
    with pytest.raises(SystemExit, match="2"):
        qs("tail", "q", "--where", "")
    assert "argument --where: it is a condition of 1 to 1024 characters, not of 0" in capsys.readouterr().err


def test_headings_and_json(qs: Run) -> None:
    """-v puts a heading before each message; --json gives a record of each."""
    with scripted(delivering(7)) as server:
        assert qs("tail", "q", "-n1", "-v", at(server)) == (0, "==> q 7 (receives 1) <==\n7\n", "")
    with scripted(delivering(7)) as server:
        code, out, _ = qs("--json", "tail", "q", "-n1", at(server))
    record = json.loads(out)
    assert (code, record["qid"], record["mid"], record["payload"]) == (0, "q", 7, "7")


def test_each_as_it_comes() -> None:
    """A message is printed when it comes, and acknowledged once it is; Ctrl-C ends it with 130."""
    seen: Seen = queue.SimpleQueue()
    go_on: queue.SimpleQueue[None] = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        subscribe = accept(conversation)
        for mid in (1, 2):
            go_on.get(timeout=GIVE_UP)
            conversation.write(delivered(subscribe, mid, b"\xff%d" % mid))
            request = conversation.read()
            assert request is not None
            conversation.answer(request)
            seen.put(request)
        conversation.wait_for_close()

    with scripted(script) as server, process(server, "tail", "q") as child:
        assert child.stdout is not None
        for mid in (1, 2):
            go_on.put(None)
            assert child.stdout.readline() == b"\xff%d\n" % mid
            assert deleted(noted(seen, 1)) == [mid]
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=GIVE_UP)
        assert (child.returncode, out, err) == (130, b"", b"")


def test_tail_acknowledges_nothing_without_reader() -> None:
    """When the reader of stdout has gone, the message is not acknowledged, and all is quiet."""
    seen: Seen = queue.SimpleQueue()
    read, write = os.pipe()
    os.close(read)
    with scripted(delivering(1, seen=seen)) as server, process(server, "tail", "q", stdout=write) as child:
        os.close(write)
        assert child.stderr is not None
        assert child.stderr.read() == b""
        assert child.wait(GIVE_UP) == 141
    assert deleted(noted(seen, seen.qsize())) == []


def test_no_bus(qs: Run) -> None:
    """Without a bus at the start, it says how to have one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        code, out, err = qs("tail", "q", f"--bus=127.0.0.1:{port}")
    assert (code, out) == (1, "")
    assert err.startswith(f"qs: no bus at 127.0.0.1:{port} (Connection refused)")
    assert "./scripts/run" in err
    assert "queue-bus.py" in err
    assert err.count("\n") == 1


def test_tail_of_unknown_queue(qs: Run) -> None:
    """A queue that the bus does not know is an error with the hint how to make one."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(404, "not-found", "no queue 'q'"))
        conversation.wait_for_close()

    with scripted(script) as server:
        code, out, err = qs("tail", "q", at(server))
    assert (code, out, err) == (1, "", "qs: 404 not-found: no queue 'q' (to create a queue: qs new q)\n")


def test_names_with_commas(qs: Run) -> None:
    """A name with a comma that the bus does not know gets the hint that several queues are several arguments."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(404, "not-found", "no queue 'a,b'"))
        conversation.wait_for_close()

    with scripted(script) as server:
        code, out, err = qs("tail", "a,b", "c", at(server))
    hint = "(several queues are separate arguments: qs tail a b c)"
    assert (code, out, err) == (1, "", f"qs: 404 not-found: no queue 'a,b' {hint}\n")


def test_a_queue_server(qs: Run) -> None:
    """A queue server refuses ack, and `qs tail` ends with its error."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(501, "not-implemented", "ack: this is no bus"))
        conversation.wait_for_close()

    with scripted(script) as server:
        assert qs("tail", "q", at(server)) == (1, "", "qs: 501 not-implemented: ack: this is no bus\n")
        assert server.connections == 1


def test_a_bus_that_waits_for_its_server(qs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says once that a subscription is late, and waits; with --timeout only for so long."""
    told = threading.Event()

    def script(conversation: Conversation) -> None:
        subscribe = conversation.read()
        assert told.wait(GIVE_UP)
        conversation.answer(subscribe)
        conversation.write(delivered(subscribe, 1))
        conversation.wait_for_close()

    def complain(text: str) -> None:
        command_tail_complain(text)
        told.set()

    command_tail_complain = command_verbs.complain
    monkeypatch.setattr(command_verbs, "complain", complain)
    monkeypatch.setattr(bus_session, "LATE", SOON)
    with scripted(script) as server:
        code, out, err = qs("tail", "q", "-n1", at(server))
    waiting = f"qs: waiting: the bus at 127.0.0.1:{server.port} has not taken the subscription yet; is its queue server"
    assert (code, out, err) == (0, "1\n", f"{waiting} running?\n")
    with scripted(lambda conversation: conversation.wait_for_close()) as server:
        code, out, err = qs("tail", "q", at(server), "--timeout", str(2 * SOON))
    assert (code, out, err.count("\n")) == (1, "", 2)
    assert f"qs: the bus at 127.0.0.1:{server.port} did not take the subscription within {2 * SOON} s" in err


def test_tail_tells_of_outage(qs: Run) -> None:
    """A later outage is a line on stderr, and its end another; messages go on."""
    with scripted(delivering(1, then=lambda conversation: None), delivering(2)) as server:
        code, out, err = qs("tail", "q", "-n2", at(server))
    assert (code, out) == (0, "1\n2\n")
    gone, back = err.splitlines()
    assert gone.startswith(f"qs: the bus at 127.0.0.1:{server.port} ")
    assert back == f"qs: the bus at 127.0.0.1:{server.port} is there again"
