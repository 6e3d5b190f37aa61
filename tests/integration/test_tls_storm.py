"""Two thousand handshakes that never end, beside clients that work."""

import contextlib
import itertools
import os
import resource
import selectors
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pytest
from support.clients.documents import PING, code, new_queue, push
from support.servers.processes import FAST, ServerProcess, serving
from support.servers.tls import TlsWire, half_handshake, tls_flags

HALF = 2000
CLIENTS = 100
REQUESTS = 5_000
ROUNDS = 3
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def processor_time(server: ServerProcess) -> float:
    """Seconds that the server has worked: its user and system time. Other processes of the machine do not change it."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def work(server: ServerProcess, wires: Sequence[TlsWire]) -> float:
    """Seconds that the server works for so many requests, each client having one on its way all the time."""
    before = processor_time(server)
    left = itertools.count(REQUESTS - 1, -1)
    request = push("q", "x" * 100)
    with selectors.DefaultSelector() as selector:
        for wire in wires:
            selector.register(wire.socket, selectors.EVENT_READ, wire)
            wire.send(request)
        under_way = len(wires)
        while under_way:
            for key, _ in selector.select(20):
                assert code(key.data.line()) == 0
                if next(left) >= under_way:
                    key.data.send(request)
                else:
                    under_way -= 1
    return processor_time(server) - before


@pytest.fixture
def many_files() -> Iterator[None]:
    """Lets this process have enough files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, HALF + CLIENTS + 200)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"NOT TESTED: this process may have only {hard} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow  # some 10 s each
@pytest.mark.parametrize("most", ["256", "3000"])
def test_half_handshakes_while_clients_work(tmp_path: Path, many_files: None, most: str) -> None:
    """Clients that are connected go on, whether the server keeps all of them or closes the oldest; and new clients get
    in. What it costs them is measured by scripts/bench/run.py --only hostile: here they only must not starve."""
    flags = (*FAST, *tls_flags(), "--max-handshakes", most, "--document-time", "600")
    with serving(tmp_path / "root", *flags) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(TlsWire(server)) for _ in range(CLIENTS)]
        wires[0].ask(new_queue("q"))
        work(server, wires)
        ratios = []
        for _ in range(ROUNDS):
            alone = work(server, wires)
            with contextlib.ExitStack() as halves:
                for _ in range(HALF):
                    halves.enter_context(half_handshake(server))
                with TlsWire(server) as new:  # is accepted after them
                    assert code(new.ask(PING)) == 0
                beside = work(server, wires)
                with TlsWire(server) as new:
                    assert code(new.ask(PING)) == 0
            ratios.append(alone / beside)
        assert median(ratios) >= 0.3, ratios
