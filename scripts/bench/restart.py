"""How long a server with a deep queue takes until it serves, and what a message costs it in memory."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from deep import DEEP, make_queue
from load import Client, document, mid_in
from processes import queue_server
from table import Row

_SIZE = 100
_MILLION = 1_000_000
_RECEIVE = document(b"receive-message", b"<qid>deep</qid>")


def measure(folder: Path, quick: bool) -> list[Row]:
    """ready with 200,000 messages against a scan of their directory; resident memory a message"""
    found = _starts(folder, DEEP, 2 if quick else 5)
    name = f"after a start with {DEEP:,} messages"
    allowed = [2 * scan + 1 for scan in found.scans]
    return [
        _allowed_row(f"2 scans of the directory + 1 s / 'listening on' {name}", allowed, found.listening),
        _allowed_row(f"2 scans of the directory + 1 s / first receive {name}", allowed, found.received),
        Row("resident memory of a message", f"{median(found.memory):.0f} bytes", "<= 150"),
    ]


def measure_million(folder: Path, quick: bool) -> list[Row]:
    """the same with 1,000,000 messages, as they are at rest: some two minutes"""
    found = _starts(folder, _MILLION, 1 if quick else 3)
    allowed = [3 * scan for scan in found.scans]
    return [
        _allowed_row("3 scans of the directory / 'listening on' with 1,000,000 messages", allowed, found.listening),
        _allowed_row("3 scans of the directory / first receive of 1,000,000 messages", allowed, found.received),
        Row("resident memory of one of 1,000,000 messages", f"{median(found.memory):.0f} bytes", "<= 100"),
    ]


@dataclass
class _Starts:
    """Of each round: seconds of a scan, to `listening on` and to the first answer; bytes of memory a message."""

    scans: list[float] = field(default_factory=list)
    listening: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def _starts(folder: Path, deep: int, rounds: int) -> _Starts:
    root = folder / "root"
    directory = make_queue(root, "deep", deep, _SIZE)
    empty = folder / "empty"
    empty.mkdir()
    os.sync()
    found = _Starts()
    for _ in range(rounds):
        found.scans.append(_scan(directory, deep))
        with queue_server(root, "--durability", "none") as server:
            found.listening.append(server.ready_after)
            with Client(server.address) as client:
                mid_in(client.lines(_RECEIVE))
                found.received.append(time.perf_counter() - server.started)
                full = server.resident_bytes()
        with queue_server(empty, "--durability", "none") as server, Client(server.address) as client:
            client.lines(document(b"list-queues"))
            found.memory.append((full - server.resident_bytes()) / deep)
    return found


def _allowed_row(name: str, allowed: list[float], taken: list[float]) -> Row:
    ratio = median(a / t for a, t in zip(allowed, taken, strict=True))
    return Row(name, f"{ratio:.2f}", ">= 1", f"{median(allowed):.2f} s to {median(taken):.2f} s")


def _scan(directory: Path, deep: int) -> float:
    """Seconds that it takes to read the names of a directory."""
    started = time.perf_counter()
    with os.scandir(directory) as entries:
        count = sum(1 for _ in entries)
    elapsed = time.perf_counter() - started
    if count < deep:
        raise RuntimeError(f"{directory} has {count} entries")
    return elapsed
