"""The cells of the table of `compare`: their plan, and how they are measured, peer by peer.

The plan is a star: from a base point one thing at a time varies, for two kinds of work. Each cell has a server and a
folder of its own. The depths alone share one: a queue that gets deeper and deeper.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from compare_load import CellError, Figures, Span, filled, measured
from compare_worker import Work
from machine import Disk
from peer import Peer, Running

WORKS = {"push": "push only", "cycle": "push + receive + delete"}
ROWS = ("base", "clients", "batch", "size", "depth")

_SIZE = 1024
_TELLING = 50_000
"""Messages from which the time of a filling predicts the time of a longer one. The time of fewer is mostly that of a
start."""

Cell = dict[str, Any]
"""A cell. peer: the peer's key; point; figures, or None and a note that says why there are none."""


@dataclass(frozen=True)
class Point:
    """A point of the plan. row: the thing that varies; clients; batch: messages at once; size: bytes; depth: messages
    in the queue at the beginning."""

    work: str
    row: str = "base"
    clients: int = 32
    batch: int = 1
    size: int = 1024
    depth: int = 0

    @property
    def name(self) -> str:
        """Returns what differs from the base point, for the head of the table."""
        return {
            "base": "base",
            "clients": f"{self.clients} client{'s'[: self.clients > 1]}",
            "batch": f"batches of {self.batch}",
            "size": f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB",
            "depth": f"{self.depth:,} deep",
        }[self.row]


@dataclass(frozen=True)
class Plan:
    """The plan of a run, full or quick. span: a cell's; fill: seconds that filling a queue may take; rounds, round: the
    ratios'; depth: the depth of the ratio of depths, 0 to leave this ratio out; most, ratios: seconds of all cells, and
    of all ratios."""

    span: Span
    fill: float
    rounds: int
    round: Span
    depth: int
    most: float
    ratios: float


FULL = Plan(Span(0.3, 1.4), 60, 3, Span(0.25, 1.0), 1_000_000, 24 * 60, 8 * 60)
QUICK = Plan(Span(0.2, 0.5), 10, 1, Span(0.15, 0.4), 0, 55, 120)


def points(quick: bool) -> Iterator[Point]:
    """Returns the points of a peer in the order in which they are measured. quick: base points only."""
    for work in WORKS:
        base = Point(work)
        yield base
        if quick:
            continue
        for clients in (1, 8, 128):
            yield replace(base, row="clients", clients=clients)
        yield replace(base, row="batch", batch=100)
        for size in (100, 65536):
            yield replace(base, row="size", size=size)
    if not quick:
        for depth in (1000, 100_000, 1_000_000):
            for work in ("cycle", "push"):  # the push makes it deeper
                yield Point(work, "depth", depth=depth)


def in_table() -> list[Point]:
    """Returns the points of one kind of work in the order of the table's columns, for the full run."""
    return [point for point in points(False) if point.work == "push"]


def unable(peer: Peer, point: Point) -> str:
    """Returns the reason why this peer has no such cell, "" if it has one."""
    if point.batch > 1 and not peer.batches:
        return "its client has no batches"
    if point.batch > 1 and peer.raw and point.work == "cycle":
        return "raw sockets: only pushes are batched"
    if point.row in ("size", "depth") and not peer.deep:
        return "not measured: see the peer's other rows"
    return ""


class DeepQueue:
    """A queue that is filled further for each depth. folder: is made here; kept: the server, where one serves all
    cells; seconds: that a filling may take.

    The messages of one depth are kept for the next. A peer that fills apart has a server of its own for filling, which
    need not sync, and is started again afterwards.
    """

    def __init__(self, peer: Peer, folder: Path, kept: Running | None, seconds: float) -> None:
        folder.mkdir()
        self._peer = peer
        self._folder = folder
        self._seconds = seconds
        self._stack = contextlib.ExitStack()
        self._running = kept
        self._there = 0
        self._why = ""
        self._each = 0.0

    def filled_to(self, depth: int) -> Running:
        """Returns the server, with that many messages at least. Raises CellError if filling takes too long, or if an
        earlier filling has failed."""
        missing = max(0, depth - self._there)
        if not self._why and self._each * missing > 1.5 * self._seconds:
            self._why = f"filling it takes longer than {self._seconds:.0f} s"
        if self._why:
            raise CellError(self._why)
        if not missing and self._running is not None:
            return self._running
        try:
            return self._fill(missing)
        except (CellError, OSError, RuntimeError) as error:
            self._why = str(error)
            raise

    def pushed(self, messages: int) -> None:
        """Notes that a load has made the queue deeper."""
        self._there += messages

    def _fill(self, missing: int) -> Running:
        began = time.monotonic()
        if self._peer.fills_apart:
            self._stack.close()  # of the depth before
            with self._peer.started(self._folder, filling=True) as filling:
                self._push(filling, missing)
            self._running = self._stack.enter_context(self._peer.started(self._folder))
        else:
            if self._running is None:
                self._running = self._stack.enter_context(self._peer.started(self._folder))
            self._push(self._running, missing)
        if missing >= _TELLING:
            self._each = (time.monotonic() - began) / missing
        return self._running

    def _push(self, running: Running, missing: int) -> None:
        pushed = filled(self._peer, running, missing, _SIZE, self._seconds)
        self._there += pushed
        if pushed < 0.98 * missing:
            raise CellError(f"only {pushed:,} of {missing:,} messages in {self._seconds:.0f} s")

    def close(self) -> None:
        """Ends the server, unless it serves other cells too."""
        self._stack.close()


@dataclass
class Progress:
    """Prints the present cell and the remaining time on stderr. total: cells; most: seconds."""

    total: int
    most: float
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        """Tells whether the run's time is used up."""
        return time.monotonic() - self.started > self.most

    def say(self, what: str) -> None:
        passed = time.monotonic() - self.started
        left = passed / self.done * (self.total - self.done) if self.done else self.most
        left = max(0.0, min(self.most - passed, left))
        head = f"[{self.done}/{self.total}, {_minutes(passed)}, at most {_minutes(left)} left]"
        print(f"{head} {what}", file=sys.stderr, flush=True)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@dataclass
class Bench:
    """The settings of a run, and its results: each measurement adds to cells."""

    folder: Path
    plan: Plan
    progress: Progress
    cells: list[Cell]

    def __post_init__(self) -> None:
        self._disk = Disk.of(self.folder)

    def measure(self, peer: Peer, points: Sequence[Point]) -> None:
        """Measures all cells of a peer."""
        own = self.folder / peer.key
        own.mkdir()
        shallow = [point for point in points if not point.depth]
        deep = [point for point in points if point.depth]
        with contextlib.ExitStack() as stack:
            kept = None
            if peer.keeps and not self.progress.over():
                (own / "kept").mkdir()
                self.progress.say(f"{peer.name}: starting")
                kept = stack.enter_context(peer.started(own / "kept"))
            for number, point in enumerate(shallow):
                self._cell(peer, point, partial(self._shallow, peer, point, own / str(number), kept))
            if deep:
                self._depths(peer, deep, own / "deep", kept)

    def _cell(self, peer: Peer, point: Point, measure: Callable[[], Figures]) -> None:
        note = unable(peer, point) or ("no time was left" if self.progress.over() else "")
        found = None
        if not note:
            try:
                found = measure()
            except (CellError, OSError, RuntimeError) as error:
                note = str(error).strip().replace("\n", " ")[:200] or type(error).__name__
        self.cells.append({"peer": peer.key, "point": asdict(point), "figures": found and asdict(found), "note": note})
        self.progress.done += 1
        shown = f"{found.rate:,.0f}/s, limit: {found.limit}" if found else f"- ({note})"
        self.progress.say(f"{peer.name}; {point.work}, {point.name}: {shown}")

    def _shallow(self, peer: Peer, point: Point, folder: Path, kept: Running | None) -> Figures:
        if kept is not None:
            try:
                return self._measured(peer, kept, point)[0]
            finally:
                kept.drop()
        folder.mkdir()
        try:
            with peer.started(folder) as running:
                return self._measured(peer, running, point)[0]
        finally:
            self._tidy(peer, folder)

    def _measured(self, peer: Peer, running: Running, point: Point) -> tuple[Figures, int]:
        work = Work(point.work, point.size, point.batch, point.clients, peer.threads, peer.raw)
        return measured(peer, running, work, self.plan.span, self._disk)

    def _tidy(self, peer: Peer, folder: Path) -> None:
        """Syncs the disk, so that the bytes of one cell are not written while another is measured."""
        if not peer.many_files:
            shutil.rmtree(folder, ignore_errors=True)
        os.sync()

    def _depths(self, peer: Peer, points: Sequence[Point], folder: Path, kept: Running | None) -> None:
        queue = DeepQueue(peer, folder, kept, self.plan.fill)
        try:
            for point in points:
                self._cell(peer, point, partial(self._deep, peer, point, queue))
        finally:
            queue.close()
            if kept is not None:
                kept.drop()
            self._tidy(peer, folder)

    def _deep(self, peer: Peer, point: Point, queue: DeepQueue) -> Figures:
        if point.work == "cycle":
            self.progress.say(f"{peer.name}: filling to {point.depth:,}")
        running = queue.filled_to(point.depth)
        found, pushed = self._measured(peer, running, point)
        queue.pushed(pushed if point.work == "push" else 0)
        return found


def chosen(points: Iterable[Point], rows: Sequence[str]) -> list[Point]:
    """Returns the cells of these rows, without named rows all cells."""
    return [point for point in points if not rows or point.row in rows]
