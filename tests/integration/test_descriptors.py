"""A limit of open files that is lower than --max-connections: who gets the descriptors, and what is logged."""

import contextlib
import re
import resource
import shlex
import subprocess
from pathlib import Path
from typing import BinaryIO

import pytest
from support.clients.access import Caller, principal, write_access
from support.clients.documents import PING, code, mids, new_queue, push, subscribe
from support.servers.processes import BUS_COMMAND as BUS
from support.servers.processes import COMMAND as SERVER
from support.servers.processes import FAST, Listening, ServerProcess, Wire
from support.servers.web import visitor, web_serving

PAYLOAD = "x" * 1_000_000


class Limited(Listening):
    """A command that begins with a limit of open files, so it is not forked. most: as `ulimit -n` takes it."""

    name = "command"

    def __init__(self, most: str, command: list[str], log: Path) -> None:
        self._command = ["sh", "-c", f'ulimit {most}; exec {shlex.join(command)} "$@"', "sh"]
        super().__init__(Path(command[0]), (), 0, log)

    def _launch(self, flags: list[str], log: BinaryIO) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*self._command, *flags], stdout=subprocess.PIPE, stderr=log)


def logged_connections(process: Listening) -> int:
    """The number of connections that the log says there may be."""
    found = re.findall(r"limit of open files is \d+: at most (\d+) connections at once, not 10000", process.log())
    assert len(found) == 1, process.log()
    return int(found[0])


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_strangers_take_no_descriptor_of_the_server(tmp_path: Path, closed: bool) -> None:
    """More sockets than there are descriptors leave the server those that it needs: the pushes of a client that was
    there before need new segments, and are stored. With an access file, a new client with a token gets in."""
    flags = ["--access", str(write_access(tmp_path / "access.toml", [principal("ops", admin=True)]))] if closed else []
    token = "ops-token" if closed else None
    command = [*SERVER, "--root", str(tmp_path / "root"), *FAST, "--document-time", "600", "--linger", "60", *flags]
    server = Limited("-n 224", command, tmp_path / "log")
    most = logged_connections(server)
    assert 50 < most < 224 - 128
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(Caller(server, token))
        assert code(old.ask(new_queue("q"))) == 0
        held = [stack.enter_context(server.connect()) for _ in range(300)]
        for _ in range(80):  # 80 MB: several segments
            assert len(mids(old.ask(push("q", PAYLOAD)))) == 1
        with Caller(server, token) as new:
            assert code(new.ask(PING)) == (0 if closed else 429)
        assert len(held) == 300
    assert server.stop() == 0
    lines = [line for line in server.log().splitlines() if "connections are taken" not in line]
    assert len(lines) == 1, lines


def test_the_bus_keeps_its_descriptors(shared_server: ServerProcess, tmp_path: Path) -> None:
    """More sockets than the bus has descriptors leave it those that it needs for the queue server: a subscriber that
    was there before gets messages of a queue that appears now."""
    command = [*BUS, "--server", f"{shared_server.host}:{shared_server.port}"]
    bus = Limited("-n 128", command, tmp_path / "log")
    assert 20 < logged_connections(bus) <= 64
    with Wire(bus) as old, Wire(shared_server) as producer, contextlib.ExitStack() as stack:
        assert code(old.ask(PING)) == 0
        for _ in range(200):
            stack.enter_context(bus.connect())
        producer.ask(new_queue("held"))
        assert code(old.ask(subscribe("held"))) == 0
        sent = mids(producer.ask(push("held", "x")))
        assert mids(old.line()) == sent
    assert bus.stop() == 0
    assert "Traceback" not in bus.log()


def test_a_limit_that_falls_while_it_runs(tmp_path: Path) -> None:
    """When accept(2) finds no descriptor, that is one line of the log, without a traceback; those who are connected go
    on, and those who wait get in once there is a descriptor."""
    server = ServerProcess(tmp_path / "root", *FAST)
    with Wire(server) as old, contextlib.ExitStack() as stack:
        assert code(old.ask(new_queue("q"))) == 0
        assert code(old.ask(push("q", "x"))) == 0
        limit = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (10, limit[1]))
        waiting = [stack.enter_context(Wire(server)) for _ in range(5)]
        server.until_logged("no client can connect: Too many open files")
        for _ in range(5):
            assert code(old.ask(push("q", "x"))) == 0
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limit)
        assert [code(wire.ask(PING)) for wire in waiting] == [0] * 5
    assert server.stop() == 0
    lines = [line for line in server.log().splitlines() if "no client can connect" in line]
    assert len(lines) == 1  # the upkeep of the journal may find no descriptor either, and says so
    assert "Traceback" not in server.log()


def test_the_page_without_descriptors(shared_server: ServerProcess, tmp_path: Path) -> None:
    """When the page finds no descriptor for a browser, that is one line of the log, without a traceback, and the
    browser is served once there is one."""
    with web_serving(tmp_path, shared_server) as web, visitor(web) as browser, contextlib.ExitStack() as stack:
        assert browser.get("/livez").status_code == 200
        limit = resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE, (10, limit[1]))
        for _ in range(3):
            stack.enter_context(web.connect())
        web.until_logged("no browser can connect: Too many open files")
        resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE, limit)
        with visitor(web) as other:
            assert other.get("/livez").status_code == 200
        assert web.log().count("\n") == 1, web.log()


@pytest.mark.parametrize("command", [SERVER, BUS], ids=["server", "bus"])
def test_far_too_low_a_limit(command: list[str], tmp_path: Path) -> None:
    """With so few descriptors that next to nobody could connect, the start is refused, in a line that says what is
    needed."""
    script = f"ulimit -n 70; exec {shlex.join(command)} --port 0"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert re.search(r"the limit of open files is 70, and \d+ are needed at least: raise it", done.stderr)
    assert done.stderr.count("\n") == 1


def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    """A soft limit that is too low is raised as far as the hard one allows, before anybody has fewer places."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("the hard limit of this machine is below 4096")
    flags = [*SERVER, "--root", str(tmp_path / "root"), *FAST, "--max-connections", "1000"]
    server = Limited("-S -n 200", flags, tmp_path / "log")
    assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0] == 1000 + 256 + 256 + 1536
    assert server.stop() == 0
    assert server.log() == ""
