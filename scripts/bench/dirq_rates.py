#!/usr/bin/env python3
"""Directory queues as a library, beside the package dirq: python scripts/bench/dirq_rates.py --help

Every figure is a ratio of two things measured in this very run, alternately, round by round; what is shown is the
median of the rounds' ratios. All files are in a temporary folder that is removed at the end.

On ext4, do not run it twice within some minutes: for up to five minutes the inode of a deleted file is not given to a
new one, and each creation has to pass over all of them. Or name a tmpfs with --dir; but there, syncing costs nothing.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bare_files import BareFiles
from machine import machine_line
from table import Row, print_table, ratio_row

from qs_server.storage.dirq import QueueSimple

SIZE = 1024
DEEP, SHALLOW = 100_000, 1_000
ONE_DIRECTORY = 1 << 40
"""A granularity with which all elements go to one intermediate directory: the worst case of a deep queue."""
PER_SECOND = 5_000
"""Of the names of elements that are there from the start."""
PAYLOAD = b"x" * SIZE
Rates = list[float]


def rate(count: int, action: Callable[[], object]) -> float:
    """How often a second it can be done, so many times."""
    started = time.perf_counter()
    for _ in range(count):
        action()
    return count / (time.perf_counter() - started)


def consume_rate(queue: Any, names: list[str]) -> float:
    """Elements a second: lock, get and remove."""
    started = time.perf_counter()
    for name in names:
        if not queue.lock(name) or queue.get(name) != PAYLOAD:
            raise RuntimeError(f"{name} is not as it was added")
        queue.remove(name)
    return len(names) / (time.perf_counter() - started)


def walk_rate(queue: Any, times: int) -> float:
    """Names a second, of so many walks through the queue."""
    started = time.perf_counter()
    walked = sum(1 for _ in range(times) for _ in queue)
    return walked / (time.perf_counter() - started)


def alternately(number: int, turns: list[Callable[[], None]]) -> None:
    """In this order, or the other way round."""
    for turn in turns if number % 2 else reversed(turns):
        turn()


def beside_the_original(folder: Path, rounds: int, count: int) -> list[Row]:
    """Both add and consume, without syncing, each round in new queues."""
    from dirq.QueueSimple import QueueSimple as Original  # type: ignore[import-untyped]  # noqa: PLC0415

    adds: tuple[Rates, Rates] = ([], [])
    consumes: tuple[Rates, Rates] = ([], [])

    def turn(queue: Any, which: int) -> None:
        adds[which].append(rate(count, lambda: queue.add(PAYLOAD)))
        consumes[which].append(consume_rate(queue, list(queue)))

    for number in range(rounds + 1):
        ours = QueueSimple(folder / f"ours-{number}", sync=False)
        theirs = Original(str(folder / f"theirs-{number}"))
        alternately(number, [lambda queue=ours: turn(queue, 0), lambda queue=theirs: turn(queue, 1)])  # type: ignore[misc]
    # The first round warms up.
    return [
        ratio_row("add, not synced / the package dirq", adds[0][1:], adds[1][1:], 1.0),
        ratio_row("lock, get and remove / the package dirq", consumes[0][1:], consumes[1][1:], 1.0),
    ]


def beside_a_bare_loop(folder: Path, rounds: int, count: int) -> list[Row]:
    """Synced additions, and a loop of create, write, fsync, rename, fsync of the directory."""
    ours: Rates = []
    bare: Rates = []
    queue = QueueSimple(folder / "synced")
    with BareFiles(folder / "bare", SIZE, sync=True) as files:
        for number in range(rounds + 1):
            alternately(
                number,
                [
                    lambda: ours.append(rate(count, lambda: queue.add(PAYLOAD))),
                    lambda: bare.append(rate(count, files.store)),
                ],
            )
    return [ratio_row("add, synced / create, fsync, rename, fsync", ours[1:], bare[1:], 0.8)]


def filled(path: Path, count: int) -> QueueSimple:
    """A queue that holds so many elements, added some minutes ago."""
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


def by_depth(folder: Path, rounds: int) -> list[Row]:
    """A queue of 100,000 elements against new ones of 1,000. Half as many are added and consumed in a round, and what
    is consumed was there before: to remove what the file system has not even written yet costs less."""
    each = SHALLOW // 2
    deep = filled(folder / "deep", DEEP)
    shallow = [filled(folder / f"shallow-{number}", SHALLOW) for number in range(rounds + 1)]
    os.sync()  # or the writing of all that is measured too
    found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}

    def turn(queue: QueueSimple) -> None:
        is_deep = queue is deep
        walks = walk_rate(queue, 1 if is_deep else DEEP // SHALLOW)
        names = list(itertools.islice(queue, each))
        adds = rate(each, lambda: queue.add(PAYLOAD))
        found[is_deep].append((adds, consume_rate(queue, names), walks))

    for number, queue in enumerate(shallow):
        alternately(number, [lambda: turn(deep), lambda queue=queue: turn(queue)])  # type: ignore[misc]
    return [
        ratio_row(
            f"{what}, {DEEP:,} elements / {SHALLOW:,}",
            [rates[at] for rates in found[True][1:]],
            [rates[at] for rates in found[False][1:]],
            0.9,
        )
        for at, what in enumerate(("add, not synced", "lock, get and remove", "iteration, an element"))
    ]


def judged(row: Row) -> Row:
    """With the word that says whether the target is reached."""
    reached = float(row.measured) >= float(row.target.removeprefix(">= "))
    return row._replace(figures=f"{'reached' if reached else 'NOT REACHED'}: {row.figures}")


def main() -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(description="Rates of qs_server.storage.dirq as ratios. Prints a table.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no deep queue: some seconds")
    parser.add_argument("--dir", type=Path, help="where the temporary folder is made (default: the system's)")
    arguments = parser.parse_args()
    rounds, count = (5, 500) if arguments.quick else (20, 2000)
    with tempfile.TemporaryDirectory(prefix="qs-dirq-", dir=arguments.dir) as made:
        folder = Path(made)
        print(machine_line(folder), flush=True)
        rows = beside_the_original(folder, rounds, count)
        rows += beside_a_bare_loop(folder, rounds, count // 10)
        if not arguments.quick:
            rows += by_depth(folder, rounds)
        print_table([judged(row) for row in rows])


if __name__ == "__main__":
    main()
