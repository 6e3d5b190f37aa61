"""Measures the upkeep of the store over messages that nobody takes: bytes written and kept, and who waits for it.

The queue that is pushed to and drained is another one than that of the cold messages.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from load import Client
from processes import Listening, queue_server
from store_figures import Figure
from store_load import LIST, SIZE, PushAndDrain, close, connect, fill, new_queue, run_rounds

from qs_storage.journal.log.records import record_size

COLD = "cold"
_STEP = 100
"""Rounds between two looks at the segments."""
_TIMES = 6
"""Bytes that are pushed while it is measured, for each byte of cold messages."""
_LIMITS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 50)
"""Milliseconds, of the histogram."""


def _server(root: Path, cold: int) -> Listening:
    """A server with that many messages in a queue that nobody touches, and an empty queue beside it."""
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

    def __init__(self, root: Path, server: Listening) -> None:
        self._folder = root / ".journal"
        self._io = Path(f"/proc/{server.process.pid}/io")

    def written(self) -> int:
        """Bytes that the server has had written to the disk since it started."""
        lines = dict(line.split(": ") for line in self._io.read_text().splitlines())
        return int(lines["write_bytes"])

    def size(self) -> int:
        """Bytes of disk that its files take: segments, the spare one, the checkpoint."""
        total = 0
        for path in self._folder.iterdir():
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue  # it was removed meanwhile
        return total


def amplification(folder: Path, seconds: float, quick: bool) -> list[Figure]:
    """bytes written / bytes pushed, and disk / live bytes, while lists are pushed and drained over cold messages"""
    cold = 100_000 if quick else 1_000_000
    live = cold * record_size(SIZE)
    with _server(folder / "root", cold) as server:
        log = _Log(folder / "root", server)
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


def latency(folder: Path, seconds: float, quick: bool) -> list[Figure]:
    """how long requests take beside compaction and checkpoints, against a server that has nothing to compact"""
    cold = 100_000 if quick else 300_000
    rounds, each = (2, 2.0) if quick else (20, 5.0)
    found: dict[str, list[float]] = {"beside": [], "without": []}
    with _server(folder / "beside", cold) as beside, _server(folder / "without", LIST) as without:
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


def _requests(server: Listening, seconds: float) -> list[float]:
    """Seconds that each request takes of a connection that pushes, receives and deletes lists."""
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
    """Returns a table: how many requests took up to so many milliseconds, beside upkeep and without."""
    lines = [f"{'up to':>10} {'beside':>10} {'without':>10}"]
    lowest = 0.0
    for limit in (*_LIMITS, float("inf")):
        counts = [sum(lowest < one * 1000 <= limit for one in ordered) for ordered in (beside, without)]
        lines.append(f"{limit:>7g} ms {counts[0]:>10,} {counts[1]:>10,}")
        lowest = limit
    return "\n".join(lines)


def longest_of(ordered: list[float], share: float) -> float:
    """Returns the value that such a share of the values does not exceed. ordered: increasing."""
    return ordered[max(int(len(ordered) * share + 0.999999) - 1, 0)]
