"""Directory queues as a library, beside the package dirq, and beside a bare loop."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bare_disk import BareFiles
from measuring import Figure, Run, ratio

from qs_storage.dirq import QueueSimple

SIZE = 1024
DEEP, SHALLOW = 100_000, 1_000
ONE_DIRECTORY = 1 << 40
"""A granularity with which all elements go to one intermediate directory: the worst case of a deep queue."""
PER_SECOND = 5_000
"""Elements for each second in the names of elements that are there from the start."""
PAYLOAD = b"x" * SIZE
PARTS = 10
"""Parts of a round."""
Part = Callable[[int], float]
"""Does the part of that number, and returns its seconds."""


def add(queue: Any, count: int) -> float:
    """Adds that many elements. Returns the seconds."""
    started = time.perf_counter()
    for _ in range(count):
        queue.add(PAYLOAD)
    return time.perf_counter() - started


def consume(queue: Any, names: list[str]) -> float:
    """Locks, gets and removes the elements. Returns the seconds."""
    started = time.perf_counter()
    for name in names:
        if not queue.lock(name) or queue.get(name) != PAYLOAD:
            raise RuntimeError(f"{name} is not as it was added")
        queue.remove(name)
    return time.perf_counter() - started


def walk(queue: Any, times: int) -> float:
    """Walks through the queue `times` times. Returns the seconds."""
    started = time.perf_counter()
    for _ in range(times):
        for _ in queue:
            pass
    return time.perf_counter() - started


def rates(count: int, over: Part, under: Part) -> tuple[float, float]:
    """Returns the rates of both sides, a second. The sides take turns in parts, so that other load hits both. count:
    what all parts do together."""
    seconds = [0.0, 0.0]
    for number in range(PARTS):
        for which in (0, 1) if number % 2 else (1, 0):
            seconds[which] += (over, under)[which](number)
    return count / seconds[0], count / seconds[1]


def figure(name: str, found: list[tuple[float, float]], target: float) -> Figure:
    """Returns the ratio of the rounds except the first, which warms up."""
    return ratio(name, [over for over, _ in found[1:]], [under for _, under in found[1:]], target)


def parts_of(names: list[str]) -> list[list[str]]:
    return [names[number::PARTS] for number in range(PARTS)]


def beside_the_original(folder: Path, rounds: int, count: int) -> list[Figure]:
    """Adds and consumes with both libraries, without syncing, each round in new queues."""
    from dirq.QueueSimple import QueueSimple as Original  # type: ignore[import-untyped]  # noqa: PLC0415

    adds, consumes = [], []
    part = count // PARTS
    for number in range(rounds + 1):
        ours: Any = QueueSimple(folder / f"ours-{number}", sync=False)
        theirs: Any = Original(str(folder / f"theirs-{number}"))
        adds.append(rates(count, lambda _, q=ours: add(q, part), lambda _, q=theirs: add(q, part)))  # type: ignore[misc]
        consumes.append(both_consume(ours, list(ours), theirs, list(theirs)))
    return [
        figure("add, not synced / the package dirq", adds, 1.0),
        figure("lock, get and remove / the package dirq", consumes, 1.0),
    ]


def both_consume(over: Any, names: list[str], under: Any, others: list[str]) -> tuple[float, float]:
    """Returns the rates at which two queues are emptied of as many elements."""
    ours, theirs = parts_of(names), parts_of(others)
    return rates(len(names), lambda at: consume(over, ours[at]), lambda at: consume(under, theirs[at]))


def beside_a_bare_loop(folder: Path, rounds: int, count: int) -> list[Figure]:
    """Compares synced additions with a loop of create, write, fsync, rename, fsync of the directory."""
    queue = QueueSimple(folder / "synced")
    part = count // PARTS

    def store(_: int) -> float:
        started = time.perf_counter()
        for _ in range(part):
            files.store()
        return time.perf_counter() - started

    with BareFiles(folder / "bare", SIZE, sync=True) as files:
        found = [rates(count, lambda _: add(queue, part), store) for _ in range(rounds + 1)]
    return [figure("add, synced / create, fsync, rename, fsync", found, 0.8)]


def filled(path: Path, count: int) -> QueueSimple:
    """Returns a queue with that many elements, added some minutes ago."""
    queue = QueueSimple(path, granularity=ONE_DIRECTORY, sync=False)
    directory = path / f"{0:08x}"
    directory.mkdir()
    begin = int(time.time()) - 600
    for number in range(count):
        seconds, part = divmod(number, PER_SECOND)
        name = f"{begin + seconds:08x}{part * (1_000_000 // PER_SECOND):05x}0"
        fd = os.open(directory / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        os.write(fd, PAYLOAD)
        os.close(fd)
    return queue


def by_depth(folder: Path, rounds: int) -> list[Figure]:
    """Compares a queue of 100,000 elements with new ones of 1,000. Half as many are added and consumed in a round. The
    consumed elements were there before the round: removing files that the file system has not written yet would cost
    less."""
    each = SHALLOW // 2
    deep = filled(folder / "deep", DEEP)
    shallow = [filled(folder / f"shallow-{number}", SHALLOW) for number in range(rounds + 1)]
    os.sync()  # or the writing of all that is measured too
    adds, consumes, walks = [], [], []
    for queue in shallow:
        walks.append((DEEP / walk(deep, 1), DEEP / walk(queue, DEEP // SHALLOW)))
        names = [list(itertools.islice(one, each)) for one in (deep, queue)]
        adds.append(rates(each, lambda _: add(deep, each // PARTS), lambda _, q=queue: add(q, each // PARTS)))  # type: ignore[misc]
        consumes.append(both_consume(deep, names[0], queue, names[1]))
    what = f"{DEEP:,} elements / {SHALLOW:,}"
    return [
        figure(f"add, not synced, {what}", adds, 0.9),
        figure(f"lock, get and remove, {what}", consumes, 0.9),
        figure(f"iteration, an element, {what}", walks, 0.9),
    ]


def dirq(run: Run) -> list[Figure]:
    """Compares adding, and lock, get and remove, with the package dirq; synced additions with a bare loop; depths."""
    rounds, count = (5, 500) if run.quick else (12, 2000)
    figures = beside_the_original(run.folder, rounds, count)
    figures += beside_a_bare_loop(run.folder, rounds, count // 10)
    return figures if run.quick else [*figures, *by_depth(run.folder, rounds)]
