"""Subscribers of the real server process: over sockets, beside another process, and at its stop."""

import signal
import struct
import subprocess
import sys
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import pytest
from support.clients.documents import (
    code,
    delete,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    receives,
    request,
    subscribe,
)
from support.servers.processes import FAST, ServerProcess, Wire, serving

PUBLISH = """
import sys
from qs_storage.vsqs import Queue
with Queue(sys.argv[1], publish_only=True) as queue:
    for number in range(20):
        queue.publish(b"%d" % number)
"""


def test_what_another_process_publishes(shared_server: ServerProcess, producer: Wire, qid: str) -> None:
    """Messages that a process publishes with the library vsqs are delivered as they come, in order."""
    assert code(producer.ask(subscribe(qid))) == 0
    subprocess.run([sys.executable, "-c", PUBLISH, str(shared_server.root / qid)], check=True, timeout=60)
    assert [payloads(producer.line()) for _ in range(20)] == [[str(number)] for number in range(20)]


@pytest.mark.parametrize("rudely", [True, False])
def test_a_connection_that_is_lost(shared_server: ServerProcess, producer: Wire, qid: str, rudely: bool) -> None:
    """When a connection ends, with a FIN or a reset, its messages go to the other subscriber at once."""
    first = Wire(shared_server)
    assert code(first.ask(subscribe(qid))) == 0
    pushed = mids(producer.ask(push_list(qid, *["x" * 1000] * 50)))
    assert mids(first.line()) == pushed[:1]
    assert code(producer.ask(subscribe(qid))) == 0
    if rudely:
        first.socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    first.close()
    lines = [producer.line() for _ in pushed]
    assert [mids(line)[0] for line in lines] == pushed
    assert {receives(line) for line in lines} == {2}


def test_a_client_that_does_not_read(tmp_path: Path) -> None:
    """Beside a subscriber that does not read at all, another gets all the rest; when the first one reads, it gets what
    it was sent, whole and in order, and then more."""
    flags = (*FAST, "--max-outbox", "300000")
    serve = serving(tmp_path / "root", *flags)
    with serve as server, Wire(server) as slow, Wire(server) as quick, Wire(server) as wire:
        wire.ask(new_queue("q"))
        for client in (slow, quick):
            assert code(client.ask(subscribe("q", prefetch=100_000, visibility=1000))) == 0
        pushed = [mids(wire.ask(push("q", "x" * 100_000)))[0] for _ in range(300)]
        got: list[int] = []
        while mids(wire.ask(request("list-messages", "<qid>q</qid>", state="ready"))):
            quick.send(request("ping"))
            while is_delivery(line := quick.line()):
                got += mids(line)
        quick.send(request("ping"))
        while is_delivery(line := quick.line()):
            got += mids(line)
        assert got == sorted(got)
        rest = [mid for mid in pushed if mid not in set(got)]
        assert 3 <= len(rest) < 200  # what the kernel's buffers and the outbox hold
        assert [mids(slow.line())[0] for _ in rest] == rest
        wire.ask(push_list("q", "y", "y"))
        assert payloads(slow.line()) == ["y"]
        assert payloads(quick.line()) == ["y"]


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_a_graceful_stop_with_subscribers(tmp_path: Path, storage: str) -> None:
    """On SIGTERM a subscriber gets 503 and the end; unacknowledged messages are ready at the next start."""
    with serving(tmp_path / "root", "--storage", storage) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        a, b = mids(wire.ask(push_list("q", "a", "b")))
        wire.ask(subscribe("q"))
        assert [mids(wire.line()) for _ in range(2)] == [[a], [b]]
        wire.ask(delete("q", a))
        server.process.send_signal(signal.SIGTERM)
        assert code(wire.line()) == 503
        assert wire.line() == ""
        wire.close()
        assert server.wait() == 0
    with serving(tmp_path / "root") as server, Wire(server) as wire:
        line = wire.ask(receive("q", max=9))
        assert (mids(line), receives(line)) == ([b], 2)


def test_many_subscribers_share_a_queue(shared_server: ServerProcess, producer: Wire, qid: str) -> None:
    """Fifty connections on one queue: each message comes once, and nobody has more than one more than another."""
    clients = [Wire(shared_server) for _ in range(50)]
    for client in clients:
        assert code(client.ask(subscribe(qid))) == 0
    pushed = [mid for _ in range(10) for mid in mids(producer.ask(push_list(qid, *["x"] * 100)))]
    shares = []
    for client in clients:
        client.send(request("ping"))
        share = []
        while is_delivery(line := client.line()):
            share += mids(line)
        shares.append(share)
    for client in clients:
        client.close()
    assert sorted(mid for share in shares for mid in share) == pushed
    assert {len(share) for share in shares} == {20}
