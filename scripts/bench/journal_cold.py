"""A million cold messages: their memory, a stop and a start with them, how fast they drain, and what upkeep costs.

Cold: their payloads are not in the server's cache, except those that were pushed last. They may be in the page cache of
the kernel. Where upkeep is measured, the load pushes to and drains another queue than the one of the cold messages.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from journal_load import LIST, SIZE, Drain, PushAndDrain, close, connect, fill, filled_server, new_queue, run_rounds
from load import Client, document
from measuring import Figure, Run, ratio
from processes import Process, queue_server

from qs_storage.journal.log.records import record_size

_MILLION = 1_000_000
_QUICK = 100_000
_ENTRY = 64
"""Bytes of memory that a message may take, beside the 300 MB of the server itself."""
_REST = 300 << 20

COLD = "cold"
_STEP = 100
"""Rounds between two looks at the segments."""

_TIMES = 6
"""Bytes that are pushed during the measurement, for each byte of cold messages."""

_LIMITS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 50)
"""Milliseconds, the bounds of the histogram."""


def _messages(quick: bool) -> int:
    return _QUICK if quick else _MILLION


def restarts(run: Run) -> list[Figure]:
    """Measures with 1,000,000 messages: resident memory, a clean stop, the start after it, the start after kill -9."""
    messages = _messages(run.quick)
    root = run.folder / "root"
    with queue_server(run.folder / "empty") as server:
        new_queue(server.address)
        empty = server.resident_bytes()
    with filled_server(root, messages) as server:
        full = server.resident_bytes()
        server.process.kill()  # nothing is written at the end: the next start has more of the log to read
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


def _started(root: Path) -> tuple[Process, float]:
    """Starts a server on an existing root. Returns the server, and the seconds from its start to its first answer."""
    server = queue_server(root)
    with Client(server.address) as client:
        client.lines(document(b"list-queues"))
    return server, time.perf_counter() - server.started


def drain(run: Run) -> list[Figure]:
    """Compares draining 1,000,000 cold messages, in lists of 100 by 8 connections, with those that are in the cache."""
    messages = _messages(run.quick)
    cache = str(2 * messages * SIZE)
    with (
        filled_server(run.folder / "cold", messages) as cold,
        filled_server(run.folder / "hot", messages, "--cache", cache) as hot,
    ):
        rounds = 10
        share = messages // LIST // rounds
        sides = {"cold": cold, "hot": hot}
        taken: dict[str, list[float]] = {key: [] for key in sides}
        used = {key: server.processor_seconds() for key, server in sides.items()}
        scripts = {key: Drain() for key in sides}
        connections = {key: connect(server.address, scripts[key], 8) for key, server in sides.items()}
        for number in range(rounds):
            for key in list(sides) if number % 2 else reversed(sides):
                before = scripts[key].taken
                elapsed = run_rounds(connections[key], share)
                taken[key].append((scripts[key].taken - before) / elapsed)
        spent = {
            key: (server.processor_seconds() - used[key]) / scripts[key].taken * 1e6 for key, server in sides.items()
        }
        for made in connections.values():
            close(made)
    figure = ratio(f"draining {messages:,} messages in lists of {LIST}: cold / hot", taken["cold"], taken["hot"], 0.7)
    used_each = f"CPU of the server: {spent['cold']:.1f} us to {spent['hot']:.1f} us a message"
    return [replace(figure, of=f"{figure.of}; {used_each}")]


def _server(root: Path, cold: int) -> Process:
    """Starts a server with that many messages in a queue that no client uses, and an empty queue beside it."""
    server = queue_server(root)
    try:
        new_queue(server.address, COLD)
        fill(server.address, cold, COLD)
        new_queue(server.address)
    except BaseException:
        server.end()
        raise
    return server


class _Log:
    """The segments of a server's log, as the file system shows them."""

    def __init__(self, root: Path, server: Process) -> None:
        self._folder = root / ".journal"
        self._io = Path(f"/proc/{server.process.pid}/io")

    def written(self) -> int:
        """Returns the bytes that the server has written to the disk since its start."""
        lines = dict(line.split(": ") for line in self._io.read_text().splitlines())
        return int(lines["write_bytes"])

    def size(self) -> int:
        """Returns the bytes of disk that the log's files take: segments, the spare one, the checkpoint."""
        total = 0
        for path in self._folder.iterdir():
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue  # it was removed meanwhile
        return total


def amplification(run: Run) -> list[Figure]:
    """Measures bytes written / pushed, and disk / live bytes, while lists are pushed and drained over cold messages."""
    cold = 100_000 if run.quick else 1_000_000
    live = cold * record_size(SIZE)
    with _server(run.folder / "root", cold) as server:
        log = _Log(run.folder / "root", server)
        script = PushAndDrain()
        connections = connect(server.address, script, 4)
        while script.taken * SIZE < 2 * live:  # only brings the log to its size
            run_rounds(connections, _STEP)
        before, taken, most = log.written(), script.taken, 0
        while (script.taken - taken) * SIZE < _TIMES * live:
            run_rounds(connections, _STEP)
            most = max(most, log.size())
        pushed = (script.taken - taken) * SIZE
        written = log.written() - before
        close(connections)
    name = f"over {cold:,} cold messages, {_TIMES} times their bytes"
    of = f"{written / 2**20:,.0f} MiB (write_bytes of the process) to {pushed / 2**20:,.0f} MiB"
    kept = f"{most / 2**20:,.0f} MiB at most to {live / 2**20:,.0f} MiB of records"
    return [
        Figure(f"{name}: bytes written / bytes pushed", written / pushed, 2.2, "at most", of=of),
        Figure(f"{name}: disk / live bytes", most / live, 2.2, "at most", of=kept),
    ]


def upkeep_latency(run: Run) -> list[Figure]:
    """Compares how long requests take beside compaction and checkpoints with a server that has nothing to compact."""
    cold = 100_000 if run.quick else 300_000
    rounds, each = (2, 2.0) if run.quick else (20, 5.0)
    found: dict[str, list[float]] = {"beside": [], "without": []}
    with _server(run.folder / "beside", cold) as beside, _server(run.folder / "without", LIST) as without:
        for number in range(rounds):
            sides = [("beside", beside), ("without", without)]
            for key, server in sides if number % 2 else reversed(sides):
                found[key] += _requests(server, each)
    with_upkeep, bare = sorted(found["beside"]), sorted(found["without"])
    figures = []
    for shown, share in (("half", 0.5), ("99 %", 0.99), ("99.9 %", 0.999), ("all", 1.0)):
        longer = (longest_of(with_upkeep, share) - longest_of(bare, share)) * 1000
        of = f"{longest_of(with_upkeep, share) * 1000:.2f} ms to {longest_of(bare, share) * 1000:.2f} ms"
        name = f"{shown} of requests beside compaction and checkpoints: longer than without by"
        figures.append(Figure(name, longer, 5 if share > 0.99 else None, "at most", " ms", of))
    print(_histogram(with_upkeep, bare))
    return figures


def _requests(server: Process, seconds: float) -> list[float]:
    """Returns the seconds of each request of a connection that pushes, receives and deletes lists."""
    script = PushAndDrain()
    took: list[float] = []
    with Client(server.address) as client:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            requests = script.round()
            exchange = next(requests, None)
            while exchange is not None:
                sent = time.perf_counter()
                answer = client.lines(*exchange)
                took.append(time.perf_counter() - sent)
                try:
                    exchange = requests.send(answer)
                except StopIteration:
                    exchange = None
    return took


def _histogram(beside: Sequence[float], without: Sequence[float]) -> str:
    """Returns a table: how many requests took up to that many milliseconds, beside upkeep and without."""
    lines = [f"{'up to':>10} {'beside':>10} {'without':>10}"]
    lowest = 0.0
    for limit in (*_LIMITS, float("inf")):
        counts = [sum(lowest < one * 1000 <= limit for one in ordered) for ordered in (beside, without)]
        lines.append(f"{limit:>7g} ms {counts[0]:>10,} {counts[1]:>10,}")
        lowest = limit
    return "\n".join(lines)


def longest_of(ordered: list[float], share: float) -> float:
    """Returns the value that this share of the values does not exceed. ordered: increasing values."""
    return ordered[max(int(len(ordered) * share + 0.999999) - 1, 0)]
