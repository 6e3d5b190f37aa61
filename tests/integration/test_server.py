"""The real server process over real sockets: what it does, and what no client can take from another."""

import contextlib
import os
import re
import resource
import select
import socket
from pathlib import Path

import pytest
from support.documents import (
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
)
from support.serving import FAST, ServerProcess, Wire, serving
from support.wakeups import settled


def test_every_operation_once(wire: Wire) -> None:
    """Each operation does what it is for, over a socket, one after the other."""
    assert "<queue>q</queue>" in wire.ask(request("list-queues"))
    first = mids(wire.ask(push("q", "one")))[0]
    second, third = mids(wire.ask(push_list("q", "two", "three")))
    assert mids(wire.ask(request("list-messages", "<qid>q</qid>"))) == [first, second, third]
    got = wire.ask(request("get-message", f"<qid>q</qid><mid>{first}</mid>"))
    assert (payloads(got), 'status="delivered"' in got) == (["one"], True)
    assert mids(wire.ask(receive("q", max=10))) == [second, third]
    assert "visible-at=" in wire.ask(request("extend-message", f"<qid>q</qid><mid>{second}</mid>", visibility=60))
    assert code(wire.ask(request("release-message", f"<qid>q</qid><mid>{second}</mid>"))) == 0
    stats = wire.ask(request("queue-stats", "<qid>q</qid>"))
    assert all(part in stats for part in ('new="0"', 'ready="1"', 'in-flight="2"', 'bytes="11"', 'pushed="3"'))
    assert mids(wire.ask(delete("q", first))) == [first]
    assert "<count>2</count>" in wire.ask(request("purge-queue", "<qid>q</qid>"))
    assert "<ping/>" in wire.ask(PING)
    assert code(wire.ask(request("delete-queue", "<qid>q</qid>"))) == 0
    assert "<queues></queues>" in wire.ask(request("list-queues"))


def test_odd_names(wire: Wire, server: ServerProcess) -> None:
    """A name with a slash, dots, a percent sign, a space or an emoji is a name like any other: one directory, not
    nested, of which the root keeps the encoded form."""
    names = ["a/b", "..", ".", ".hidden", "../../escape", "100%", "with space", "\N{GRINNING FACE}", "x" * 200]
    for name in names:
        assert code(wire.ask(new_queue(name))) == 0, name
        assert code(wire.ask(push(name, name))) == 0
        assert payloads(wire.ask(receive(name))) == [name]
    listed = wire.ask(request("list-queues"))
    assert re.findall("<queue>(.*?)</queue>", listed) == sorted([*names, "q"])
    directories = [name for name in os.listdir(server.root) if name != ".journal"]
    assert len(directories) == len(names) + 1
    assert not [name for name in directories if re.fullmatch(r"[A-Za-z0-9_\-.%]+", name) is None or name[0] == "."]
    assert not list(server.root.parent.glob("*escape*"))


def test_too_many_clients(tmp_path: Path) -> None:
    """--max-connections: one more is told 429, whether it has sent something or not; the others are served."""
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
    """How often its threads have gone to sleep so far."""
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
