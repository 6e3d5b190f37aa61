"""A load on a running server: the clients' processes are started, begin together, and are measured together with the
server.

Computes the figures of a cell of the table from the counts, and which side was the limit of the rate.
"""

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from compare_worker import Work
from machine import Disk, all_cpu_seconds, cpu_seconds, highest_bytes, tree
from peer import Peer, Running

Limit = Literal["server", "clients", "disk", "waiting"]
_FULL = 0.85
"""Share of a core, or of all cores, from which they count as used up."""
_BUSY = 0.6
"""Share of the time from which the disk counts as what others wait for."""

_WORKER = Path(__file__).with_name("compare_worker.py")
_CONNECT_WITHIN = 60
_SOON = 0.05
"""Seconds until the clients begin, in which all of them are told to."""
IMPORTS = {"greenstalk": ["greenstalk"], "redis-py": ["redis"], "nats-py": ["nats"], "pika": ["pika"]}
"""Modules that are imported once, before the clients' processes are forked, by the client's name."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the value that this share of the values does not exceed (nearest rank). Raises ValueError without
    values."""
    if not ordered:
        raise ValueError("no values")
    rank = max(1, -(-len(ordered) * round(share * 1000) // 1000))
    return ordered[min(rank, len(ordered)) - 1]


def limit(server: float | None, clients: float, disk: float, cores: int, single: bool) -> Limit:
    """Returns the side by which the rate is limited. single: whether the server's work is in one thread.

    server, clients: cores that each used on average, None without a server; disk: the share of time in which the disk
    was busy. A server of one thread that uses a whole core is the limit, however busy the clients are. If all cores are
    used up, the limit is the server or the clients: the one that used more cores. If some cores are free, a busy disk
    is the limit; with an idle disk the result is "waiting": only the time of round trips limits the rate, because there
    are too few clients.
    """
    used = server or 0.0
    if single and used >= _FULL:
        return "server"
    if used + clients >= _FULL * cores:
        return "clients" if clients >= used else "server"
    return "disk" if disk >= _BUSY else "waiting"


@dataclass(frozen=True)
class Figures:
    """The figures of a cell. rate: messages a second; p50, p99: seconds, of a call or a round.

    server, clients: CPU seconds per 10,000 messages; memory: bytes, the server's peak. For a library, which has no
    server, both of the server's figures are None.
    """

    rate: float
    p50: float
    p99: float
    server: float | None
    clients: float
    memory: int | None
    limit: Limit
    messages: int
    others: float = 0.0
    """Cores that other programs and the kernel used, which writes to the disk."""


def figures(
    messages: int,
    seconds: float,
    latencies: Sequence[float],
    server: float | None,
    clients: float,
    memory: int | None,
    disk: float,
    cores: int,
    single: bool,
) -> Figures:
    """Computes the figures from the counts of that many seconds. server, clients, disk: seconds. Raises RuntimeError if
    no message was counted."""
    if not messages:
        raise RuntimeError(f"nothing was done in {seconds:.1f} s")
    ordered = sorted(latencies)
    each = 10_000 / messages
    return Figures(
        messages / seconds,
        percentile(ordered, 0.5),
        percentile(ordered, 0.99),
        None if server is None else server * each,
        clients * each,
        memory,
        limit(None if server is None else server / seconds, clients / seconds, disk / seconds, cores, single),
        messages,
    )


class CellError(Exception):
    """A cell cannot be measured. The text says why."""


@dataclass(frozen=True)
class Span:
    """Seconds of a load: before counting begins; with counting; and how long an operation may take after these."""

    warm: float
    counted: float
    patience: float = 20.0


class Workers:
    """The clients of one load, connected. Use with `with`.

    Ensures:
    1. All clients are connected when the constructor returns, so that connecting is not measured.
    2. No question waits for ever: a client that hangs is an error of its cell, and the run goes on.
    3. The process and all that it has forked are ended, whatever happens: they are a session of their own.
    """

    def __init__(self, peer: Peer, target: dict[str, Any], work: Work) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        order = {"target": target, "work": asdict(work), "imports": IMPORTS.get(peer.client, [])}
        try:
            self._tell(order)
            self._ready()
        except BaseException:
            self.end()
            raise

    def _tell(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what went wrong is in its result
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()

    def _ready(self) -> None:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], _CONNECT_WITHIN)
        if not readable or self._process.stdout.readline() != b"ready\n":
            raise CellError("the clients did not connect")

    def begin(self, start: float, begin: float, until: float) -> None:
        """Starts all clients."""
        self._tell({"start": start, "begin": begin, "until": until})

    def result(self, within: float) -> tuple[int, float, Any, int]:
        """Returns messages, CPU seconds, latencies, and how many messages were pushed in all. Raises CellError if a
        client failed."""
        assert self._process.stdout is not None
        data = b""
        last = time.monotonic() + within
        descriptor = self._process.stdout.fileno()
        while True:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, last - time.monotonic()))
            if not readable:
                raise CellError(f"an operation took longer than {within:.0f} s")
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                break
            data += piece
        if not data:
            self._errors.seek(0)
            raise CellError(
                f"the clients ended without a report: {self._errors.read()[-500:].decode(errors='replace')}"
            )
        kind, value = pickle.loads(data)
        if kind == "failed":
            raise CellError(str(value))
        found: tuple[int, float, Any, int] = value
        return found

    def end(self) -> None:
        """Ends the process and its forks: all are in a session of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def measured(peer: Peer, running: Running, work: Work, span: Span, disk: Disk) -> tuple[Figures, int]:
    """Makes one load. Returns its figures, and how many messages were pushed in all. Raises CellError if it failed."""
    with Workers(peer, running.target, work) as workers:
        processes = tree(running.pid) if running.pid else []
        start = time.monotonic() + _SOON
        begin, until = start + span.warm, start + span.warm + span.counted
        workers.begin(start, begin, until)
        _sleep_until(begin)
        before = (cpu_seconds(processes), disk.busy_seconds(), time.monotonic(), all_cpu_seconds())
        _sleep_until(until)
        after = (cpu_seconds(processes), disk.busy_seconds(), time.monotonic(), all_cpu_seconds())
        messages, clients, latencies, pushed = workers.result(span.patience)
        memory = highest_bytes(processes) if processes else None
    if not messages:
        raise CellError(f"nothing was done in {span.counted:.1f} s")
    scale = span.counted / (after[2] - before[2])  # the two looks are never exactly as far apart as the counts
    used = (after[0] - before[0]) * scale if processes else None
    busy = min((after[1] - before[1]) * scale, span.counted)
    cores = len(os.sched_getaffinity(0))
    found = figures(messages, span.counted, latencies, used, clients, memory, busy, cores, peer.single)
    others = max(0.0, ((after[3] - before[3]) * scale - (used or 0.0) - clients) / span.counted)
    return replace(found, others=others), pushed


def filled(peer: Peer, running: Running, messages: int, size: int, seconds: float) -> int:
    """Pushes that many messages, in batches if the client has them, from a few clients. Returns how many were pushed in
    that time."""
    raw = peer.raw or peer.fills_raw
    clients = 2 if peer.threads else 4
    batch = min(500, -(-messages // clients)) if peer.batches or raw else 1
    work = Work("fill", size, batch, clients, peer.threads, raw, messages)
    with Workers(peer, running.target, work) as workers:
        start = time.monotonic() + _SOON
        workers.begin(start, start, start + seconds)
        return workers.result(seconds + 30)[3]


def _sleep_until(clock: float) -> None:
    time.sleep(max(0.0, clock - time.monotonic()))
