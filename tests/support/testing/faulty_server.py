"""A real server with faults in its process."""

import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from qs_testing.inside import Orders, Setup

from qs_client import QueueClient
from support.servers.processes import Listening

_numbers = itertools.count()


class FaultyServer(Listening):
    """A server with faults, for orders by name."""

    name = "server"
    modules = ("qs_server.main.queue_server", "qs_server.main.server", "qs_testing.inside")

    def __init__(self, folder: Path, *flags: str) -> None:
        self.root = folder / "root"
        (folder / "keep").mkdir()
        self.setup = Setup(f"qs-{os.getpid()}-{next(_numbers)}", str(folder / "keep"), [str(self.root)])
        self.orders = Orders(self.setup.control)
        self.own = ("--root", str(self.root), *flags)
        script = folder / "script.py"
        script.write_text("import sys\nfrom qs_testing.inside import main\nsys.exit(main(sys.argv[1:]))\n")
        super().__init__(script, (), 0, folder / "log")

    def start(self) -> None:
        self._flags = replace(self.setup, standing=self.orders.standing).arguments(*self.own)
        super().start()

    def restart(self) -> None:
        self.kill()
        self.start()

    def lose_power(self) -> None:
        self.orders.send("power_loss")
        assert self.wait() == -signal.SIGKILL
        self.start()

    def client(self, timeout: float = 20) -> QueueClient:
        return QueueClient(self.host, self.port, timeout=timeout)

    def payloads(self) -> list[bytes]:
        with self.client() as client:
            mids = list(client.list_messages("q", state="all"))
            return [message.payload for message in client.peek_many("q", mids)]


def running(folder: Path, *flags: str) -> Iterator[FaultyServer]:
    server = FaultyServer(folder, *flags)
    try:
        yield server
    finally:
        server.kill()
    assert "Traceback" not in server.log()
