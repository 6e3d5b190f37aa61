"""A million cold messages: what they cost in memory, how long a stop and a start take with them, how fast they drain.

Cold: their payloads are not in the server's cache, but for those that were pushed last. They may be in the page cache
of the kernel.
"""

import time
from pathlib import Path
from statistics import median

from load import Client, document
from processes import Listening, queue_server
from store_figures import Figure
from store_load import LIST, SIZE, Drain, close, connect, cpu, fill, filled_server, new_queue, run_rounds

_MILLION = 1_000_000
_QUICK = 100_000
_ENTRY = 64
"""Bytes of memory that a message may take, beside the 300 MB that the server may."""
_REST = 300 << 20


def _messages(quick: bool) -> int:
    return _QUICK if quick else _MILLION


def starts(folder: Path, seconds: float, quick: bool) -> list[Figure]:
    """1,000,000 messages: resident memory, a clean stop, the start after it, the start after kill -9"""
    messages = _messages(quick)
    root = folder / "root"
    with queue_server(folder / "empty") as server:
        new_queue(server.address)
        empty = server.resident_bytes()
    with filled_server(root, messages) as server:
        full = server.resident_bytes()
        server.process.kill()
        server.process.wait()
    server, killed = _started(root)
    with server:
        fill(server.address, LIST)  # a server that has written nothing has nothing to do at its stop
        stopping = time.monotonic()
        server.process.terminate()
        server.process.wait()
        stop = time.monotonic() - stopping
    server, clean = _started(root)
    server.end()
    of = f"{messages:,} messages"
    memory = (full - empty) / messages
    return [
        Figure(f"resident memory with {of}", full / 2**20, (_ENTRY * messages + _REST) / 2**20, "at most", " MiB"),
        Figure("resident memory of a message, cache included", memory, unit=" B", of=f"empty: {empty / 2**20:.0f} MiB"),
        Figure("clean stop", stop, 2, "at most", " s", of),
        Figure("start after a clean stop, to the first answer", clean, 1.5, "at most", " s", of),
        Figure("start after kill -9, to the first answer", killed, 5, "at most", " s", of),
    ]


def _started(root: Path) -> tuple[Listening, float]:
    """A server on a root that is there already, and the seconds from its start to its first answer."""
    server = queue_server(root)
    with Client(server.address) as client:
        client.lines(document(b"list-queues"))
    return server, time.perf_counter() - server.started


def drain(folder: Path, seconds: float, quick: bool) -> list[Figure]:
    """1,000,000 messages in lists of 100 by 8 connections: cold ones / those that are in the cache"""
    messages = _messages(quick)
    cache = str(2 * messages * SIZE)
    with (
        filled_server(folder / "cold", messages) as cold,
        filled_server(folder / "hot", messages, "--cache", cache) as hot,
    ):
        rounds = 10
        share = messages // LIST // rounds
        sides = {"cold": cold, "hot": hot}
        taken: dict[str, list[float]] = {key: [] for key in sides}
        used = {key: cpu(server) for key, server in sides.items()}
        scripts = {key: Drain() for key in sides}
        connections = {key: connect(server.address, scripts[key], 8) for key, server in sides.items()}
        for number in range(rounds):
            for key in list(sides) if number % 2 else reversed(sides):
                before = scripts[key].taken
                elapsed = run_rounds(connections[key], share)
                taken[key].append((scripts[key].taken - before) / elapsed)
        spent = {key: (cpu(server) - used[key]) / scripts[key].taken * 1e6 for key, server in sides.items()}
        for made in connections.values():
            close(made)
    ratio = median(a / b for a, b in zip(taken["cold"], taken["hot"], strict=True))
    of = (
        f"{median(taken['cold']):,.0f}/s to {median(taken['hot']):,.0f}/s; CPU of the server: "
        f"{spent['cold']:.1f} us to {spent['hot']:.1f} us a message"
    )
    return [Figure(f"draining {messages:,} messages in lists of {LIST}: cold / hot", ratio, 0.7, of=of)]
