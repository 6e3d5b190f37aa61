"""The real server process over real sockets: what it does, and what no client can take from another."""

import contextlib
import os
import re
import resource
import select
import socket
from pathlib import Path

import pytest
from support.clients.documents import PING, code, mids, new_queue, push, receive, request
from support.servers.processes import FAST, ServerProcess, Wire, serving, settled


def test_one_client_too_many_gets_429(tmp_path: Path) -> None:
    """--max-connections: one client too many gets 429, whether it has sent something or not; the others are served."""
    two_at_most = (*FAST, "--max-connections", "2")
    with serving(tmp_path / "root", *two_at_most) as server, Wire(server) as one, Wire(server) as two:
        assert "<ping/>" in one.ask(PING)
        assert "<ping/>" in two.ask(PING)
        for sent in ("", PING, push("q", "x" * 1_000_000)):
            with Wire(server) as three:
                three.send(sent)
                assert code(three.line()) == 429
                assert three.line() == ""
        assert "<ping/>" in one.ask(PING)


def test_a_client_that_does_not_read_harms_nobody(tmp_path: Path) -> None:
    """One that asks for far more than it reads is not read from, and others are served meanwhile."""
    with serving(tmp_path / "root", *FAST, "--grace", "0.2") as server, Wire(server) as wire, Wire(server) as slow:
        wire.ask(new_queue("q"))
        mid = mids(wire.ask(push("q", "x" * 1_000_000)))[0]
        slow.socket.setblocking(False)
        peek = request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes").encode()
        with pytest.raises(BlockingIOError):  # its requests are not taken for ever
            slow.socket.sendall(peek * 200_000)
        assert "<ping/>" in wire.ask(PING)
        memory = int(re.findall(r"VmRSS:\s+(\d+)", status(server))[0])
        assert memory < 200_000  # KiB


def status(server: ServerProcess) -> str:
    return Path(f"/proc/{server.process.pid}/status").read_text()


def test_an_idle_server_sleeps(tmp_path: Path) -> None:
    """With 20 clients connected, three of them waiting, and a message in flight, it does not wake up by itself.

    That something does not happen shows only over a span of time. The test waits for the 20 connections, on which
    nothing may come in that span. The server has gone to sleep when it begins. It may wake a last time, each of its
    threads may end, and what wakes up more often than every 0.6 s is found.
    """
    with (
        serving(tmp_path / "root", "--durability", "always") as server,
        contextlib.ExitStack() as opened,
    ):
        wires = [opened.enter_context(Wire(server)) for _ in range(20)]
        wires[0].ask(new_queue("q"), push("q", "x"), receive("q", visibility=600))
        for wire in wires[:3]:
            wire.send(receive("q", wait=600))
        for wire in wires[3:]:
            assert "<ping/>" in wire.ask(PING)
        settled(server.process.pid)  # what was received is written down soon after
        before = switches(server)
        assert select.select([wire.socket for wire in wires], [], [], 3)[0] == []
        assert switches(server) - before <= 4


def switches(server: ServerProcess) -> int:
    """Returns how often its threads have gone to sleep so far."""
    tasks = Path(f"/proc/{server.process.pid}/task")
    found = (
        re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M) for task in tasks.iterdir()
    )
    return sum(int(match[1]) for match in found if match)


def test_no_descriptor_is_lost(server: ServerProcess, wire: Wire) -> None:
    """Connections that are refused, reset and ended in all ways leave no descriptor open: a server that may have 40
    more than it has serves 100 of each way, one after the other, and then one more."""
    used = max(int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")) + 1
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 40, used + 40))
    for number in range(800):
        with Wire(server) as other:
            other.send((PING, "<broken", push("q", "x")[:30], "")[number % 4])
            if number // 4 % 2:
                other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
        assert "<ping/>" in wire.ask(PING)  # it has come round since
    with Wire(server) as last:
        assert "<ping/>" in last.ask(PING)
