"""The cells of the table, peer by peer: a server and a folder for each, but for the depths, which share one."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from compare_depths import DeepQueue
from compare_figures import Figures
from compare_load import CellError, measured
from compare_plan import Plan, Point, unable
from compare_system import Disk
from compare_worker import Work
from peer import Peer, Running

Cell = dict[str, Any]
"""peer: its key; point; figures, or None and a note that says why there are none."""


@dataclass
class Progress:
    """Prints what runs, and how long still, on stderr. total: cells; most: seconds."""

    total: int
    most: float
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        """Tells whether the time is up."""
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
        """Syncs the disk, so that one cell's bytes are not written while another is measured."""
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
    """Returns the cells of these rows; all, when no row is named."""
    return [point for point in points if not rows or point.row in rows]
