"""Subscribers of a real server that die with a message in hand, and queues that are paused while they subscribe."""

import signal
import subprocess
import sys
from pathlib import Path

from support.clients.documents import PING, code, mids, new_queue, payloads, push, receive, request, subscribe
from support.servers.processes import FAST, ServerProcess, Wire, serving

LONG = 60
_DIES = """
import os, signal, sys
from qs_client import QueueClient
with QueueClient(sys.argv[1], int(sys.argv[2])) as client:
    for message in client.subscribe("jobs"):
        os.write(1, f"{message.receives} {message.text}\\n".encode())
        if message.text == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        client.delete(message)
"""


def work(server: ServerProcess) -> list[str]:
    """Returns what a worker handles until a message kills it."""
    command = [sys.executable, "-c", _DIES, server.host, str(server.port)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LONG, check=False)
    assert done.returncode == -signal.SIGKILL
    return done.stdout.splitlines()


def test_a_message_that_kills_its_subscribers(tmp_path: Path) -> None:
    """A message that kills its subscribers kills as many as its queue allows, and is then in the dead-letter queue;
    later messages are handled."""
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as wire:
        wire.ask(new_queue("dead"))
        wire.ask(new_queue("jobs", "<options dead-letter='dead' max-receives='3'/>"))
        [poison] = mids(wire.ask(push("jobs", "poison")))
        assert [work(server) for _ in range(3)] == [["1 poison"], ["2 poison"], ["3 poison"]]
        found = wire.ask(receive("dead", wait=LONG))
        assert payloads(found) == ["poison"]
        assert f'dead-from="jobs" dead-mid="{poison}" dead-receives="3"' in found
        assert 'dead="1"' in wire.ask(request("queue-stats", "<qid>jobs</qid>"))
        assert mids(wire.ask(request("list-messages", "<qid>jobs</qid>", state="all"))) == []
        wire.ask(push("jobs", "good"))
        wire.ask(push("jobs", "poison"))
        assert work(server)[-1] == "1 poison"


def paused(wire: Wire) -> tuple[bool, bool]:
    """Tells whether queue-stats says that the queue is paused, and that it has one subscriber."""
    line = wire.ask(request("queue-stats", "<qid>q</qid>"))
    return 'paused="yes"' in line, 'subscribers="1"' in line


def test_a_paused_queue_feeds_no_subscriber(tmp_path: Path) -> None:
    """A paused queue says so, takes pushes, and feeds subscribers again once it is resumed; also when the server was
    killed meanwhile, and what a subscriber held is ready again."""
    root = tmp_path / "root"
    server = ServerProcess(root, "--durability", "always")
    try:
        with Wire(server) as subscriber, Wire(server) as wire:
            wire.ask(new_queue("q"))
            subscriber.ask(subscribe("q"))
            [first] = mids(wire.ask(push("q", "first")))
            assert mids(subscriber.line()) == [first]
            assert code(wire.ask(request("pause-queue", "<qid>q</qid>"))) == 0
            assert paused(wire) == (True, True)
            [second] = mids(wire.ask(push("q", "second")))
            assert "<ping/>" in subscriber.ask(PING)  # and no delivery before it
            assert code(wire.ask(request("resume-queue", "<qid>q</qid>"))) == 0
            assert mids(subscriber.line()) == [second]
            assert paused(wire) == (False, True)
            assert code(wire.ask(request("pause-queue", "<qid>q</qid>"))) == 0
            server.kill()
    finally:
        server.kill()
    with serving(root, "--durability", "always") as again, Wire(again) as subscriber, Wire(again) as wire:
        subscriber.ask(subscribe("q"))
        assert paused(wire) == (True, True)
        [third] = mids(wire.ask(push("q", "third")))
        assert "<ping/>" in subscriber.ask(PING)
        assert code(wire.ask(request("resume-queue", "<qid>q</qid>"))) == 0
        assert [mids(subscriber.line())[0] for _ in range(3)] == [first, second, third]
