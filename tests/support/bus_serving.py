"""A real bus process for tests, beside a real queue server: known to be ready, ended by its own id."""

import contextlib
import itertools
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.forked import forking
from support.serving import PROJECT, Address, Listening, ServerProcess

SCRIPT = PROJECT / "scripts" / "queue-bus.py"
COMMAND = [sys.executable, str(SCRIPT)]
_numbers = itertools.count(1)


def lasting_port() -> int:
    """A free port for what is killed and started again. Not one that the system gives to connections: such a port may
    be taken meanwhile, even by the very client that tries to reach it."""
    with contextlib.suppress(OSError, ValueError):
        least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for _ in range(100):
            port = random.randrange(10_000, least)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port
    return 0


class BusProcess(Listening):
    """`queue-bus.py` as a process.

    server: what it is a client of, which need not run; log: a file, if the server has no root for it to stand beside.
    """

    name = "bus"
    modules = ("qs_bus.command", "qs_bus.bus")

    def __init__(self, server: Address, *flags: str, port: int = 0, log: Path | None = None) -> None:
        if log is None:
            assert isinstance(server, ServerProcess)
            log = server.root.parent / f"{server.root.name}-bus-{next(_numbers)}.log"
        super().__init__(SCRIPT, ("--server", f"{server.host}:{server.port}", *flags), port, log)


def run_bus(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `queue-bus.py` with flags with which it ends by itself. variables: as for `run_server`."""
    return forking(*BusProcess.modules).run(SCRIPT, *flags, **variables)


@contextlib.contextmanager
def bus_serving(server: Address, *flags: str, port: int = 0, log: Path | None = None) -> Iterator[BusProcess]:
    """A bus process for the length of a with block. Its log must hold no traceback at the end."""
    bus = BusProcess(server, *flags, port=port, log=log)
    try:
        yield bus
    finally:
        bus.stop()
    assert "Traceback" not in bus.log(), bus.log()
