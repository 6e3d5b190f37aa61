"""Measures the memory of a waiting subscriber of the bus, beside a bare trio handler that waits in `receive_some`.

Both processes are new in each round, and have some connections already when the first figure is taken, so that only
what every further connection needs is measured. Each subscriber has been answered, and each bare connection has its
task, before the second figure is taken.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from load import Client, document
from open_files import room_for
from processes import Listening, bare_fanout, queue_bus, queue_server
from table import Row

_CONNECTIONS = 5000
_BEFORE = 100
_TARGET = 2


def measure(folder: Path, quick: bool) -> list[Row]:
    """resident memory of an idle subscriber of the bus against a connection of a bare trio server, 5,000 of each"""
    rounds = 1 if quick else 3
    many = room_for(_CONNECTIONS + 2 * _BEFORE) - 2 * _BEFORE
    ours: list[float] = []
    bare: list[float] = []
    with queue_server(folder / "root") as server:
        with Client(server.address) as client:
            client.lines(document(b"new-queue", b"<qid>q</qid>"))
        for _ in range(rounds):
            with queue_bus(folder, server.address, "q") as bus:
                ours.append(_bytes_each(bus, many, _subscribe, lambda connections: None))
            with bare_fanout(folder) as loop, Client(loop.address) as control:
                settle = partial(_wait_for_tasks, control)
                bare.append(_bytes_each(loop, many, lambda client: None, settle))
    ratio = median(a / b for a, b in zip(ours, bare, strict=True))
    return [
        Row(
            f"resident memory of an idle subscriber, {many:,} of them / of a bare trio connection",
            f"{ratio:.2f}",
            f"<= {_TARGET}",
            f"{median(ours):,.0f} bytes to {median(bare):,.0f} bytes",
        )
    ]


def _subscribe(client: Client) -> None:
    client.lines(document(b"subscribe", b"<qid>q</qid>"))


def _wait_for_tasks(control: Client, connections: int) -> None:
    """Waits, without sending, until the bus has so many connections."""
    control.lines(b"stream 0 %d 0\n" % connections)


def _bytes_each(
    process: Listening, many: int, greet: Callable[[Client], object], settle: Callable[[int], object]
) -> float:
    """Returns by how much the process has grown for each of that many connections."""
    with ExitStack() as stack:

        def connect(count: int) -> None:
            for _ in range(count):
                greet(stack.enter_context(Client(process.address)))

        connect(_BEFORE)
        settle(_BEFORE)
        before = process.resident_bytes()
        connect(many)
        settle(_BEFORE + many)
        return (process.resident_bytes() - before) / many
