"""How long a server with a deep queue takes until it serves, and what a message costs it in memory."""

import os
import time
from pathlib import Path
from statistics import median

from deep import DEEP, make_queue
from load import Client, document, mid_in
from processes import queue_server
from table import Row

_SIZE = 100
_RECEIVE = document(b"receive-message", b"<qid>deep</qid>")


def measure(folder: Path, quick: bool) -> list[Row]:
    """ready with 200,000 messages against a scan of their directory; resident memory a message"""
    rounds = 2 if quick else 5
    root = folder / "root"
    directory = make_queue(root, "deep", DEEP, _SIZE)
    empty = folder / "empty"
    empty.mkdir()
    os.sync()
    listening: list[float] = []
    received: list[float] = []
    allowed: list[float] = []
    memory: list[float] = []
    for _ in range(rounds):
        scan = _scan(directory)
        allowed.append(2 * scan + 1)
        with queue_server(root, "--durability", "none") as server:
            listening.append(server.ready_after)
            with Client(server.address) as client:
                mid_in(client.lines(_RECEIVE))
                received.append(time.perf_counter() - server.started)
                full = server.resident_bytes()
        with queue_server(empty, "--durability", "none") as server, Client(server.address) as client:
            client.lines(document(b"list-queues"))
            memory.append((full - server.resident_bytes()) / DEEP)
    name = f"after a start with {DEEP:,} messages"
    return [
        _allowed_row(f"2 scans of the directory + 1 s / 'listening on' {name}", allowed, listening),
        _allowed_row(f"2 scans of the directory + 1 s / first receive {name}", allowed, received),
        Row("resident memory of a message", f"{median(memory):.0f} bytes", "<= 150"),
    ]


def _allowed_row(name: str, allowed: list[float], taken: list[float]) -> Row:
    ratio = median(a / t for a, t in zip(allowed, taken, strict=True))
    return Row(name, f"{ratio:.2f}", ">= 1", f"{median(allowed):.2f} s to {median(taken):.2f} s")


def _scan(directory: Path) -> float:
    """Seconds that it takes to read the names of a directory."""
    started = time.perf_counter()
    with os.scandir(directory) as entries:
        count = sum(1 for _ in entries)
    elapsed = time.perf_counter() - started
    if count < DEEP:
        raise RuntimeError(f"{directory} has {count} entries")
    return elapsed
