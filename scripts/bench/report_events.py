"""A made-up day of a queue server, in the format of its history (docs/history.md), quickly."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy

Array = Any  # numpy's own types say more than is of use here

START = 1_763_683_200_000_000
"""2025-11-21 00:00 UTC, in microseconds: the time of the first push."""
DAY = 86_400_000_000
QUEUES = [f"{kind}-{number}" for kind in ("orders", "mails", "images", "invoices") for number in range(1, 6)]
EVENTS = ("pushed", "received", "extended", "released", "expired", "deleted")
CYCLES = 4
"""The most often that a message is received."""
EVENTS_OF_A_MESSAGE = 3.2
"""Events of a message, slightly below the average: the events beyond the wanted number are cut off."""
LINES = (480_000, 180_000, 45_000)
"""Lines of a file, in turn: full files of some 64 MiB, and some that were finished by their age."""
_COPY = """
copy (
    select time, [{events}][event + 1] as event, [{queues}][queue + 1] as queue, mid, size, receives,
        '127.0.0.1:' || 40000 + mid % 97 as peer
    from part
) to '{path}' (format json)
"""


def write_history(folder: Path, events: int, seed: int = 1) -> int:
    """Writes files with that many events, in the order of their times, to an empty folder. Returns the bytes
    written."""
    columns = _events(events, numpy.random.default_rng(seed))
    names = {"events": _listed(EVENTS), "queues": _listed(QUEUES)}
    begin = written = 0
    with duckdb.connect() as database:  # writes JSON with all processors
        for number, lines in enumerate(itertools.cycle(LINES)):
            if begin >= events:
                return written
            path = folder / f"history-{number:08d}.jsonl"
            database.register("part", {name: column[begin : begin + lines] for name, column in columns.items()})
            database.execute(_COPY.format(path=path, **names))
            written += path.stat().st_size
            begin += lines
    raise AssertionError("the cycle has no end")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _events(count: int, random: Array) -> dict[str, Array]:
    """Returns that many events in the order of their times, column by column; the events and the queues by their
    numbers."""
    messages = int(count / EVENTS_OF_A_MESSAGE) + 100
    pushed = START + numpy.sort((random.beta(2, 2, messages) * DAY).astype(numpy.int64))
    pushed = numpy.maximum.accumulate(pushed - numpy.arange(messages)) + numpy.arange(messages)  # no id twice
    queue = numpy.minimum(random.zipf(1.4, messages) - 1, len(QUEUES) - 1)
    size = random.integers(20, 20_000, messages)
    alive: Array = numpy.arange(messages)
    now: Array = pushed
    found: list[tuple[Array, int, Array, int]] = [(pushed, 0, alive, 0)]
    for cycle in range(1, CYCLES + 1):
        now = now + _lognormal(random, 2_000_000 * (1 + queue[alive] % 5), 1.5, len(alive))
        found.append((now, 1, alive, cycle))
        extends = random.random(len(alive)) < 0.05
        found.append((now[extends] + 100_000, 2, alive[extends], cycle))
        now = now + 200_000 + _lognormal(random, 500_000, 1.0, len(alive))
        fails = random.random(len(alive)) < 0.08
        expires = random.random(len(alive)) < 0.5
        for kind, chosen in ((3, fails & expires), (4, fails & ~expires), (5, ~fails)):
            found.append((now[chosen], kind, alive[chosen], cycle))
        alive, now = alive[fails], now[fails]
    times = numpy.concatenate([part[0] for part in found])
    order = numpy.argsort(times, kind="stable")[:count]
    if len(order) < count:
        raise ValueError(f"only {len(order)} events came out, not {count}")
    which = numpy.concatenate([part[2] for part in found])[order]
    events = numpy.concatenate([numpy.full(len(part[0]), part[1]) for part in found])[order]
    receives = numpy.concatenate([numpy.full(len(part[0]), part[3]) for part in found])[order]
    return {
        "time": times[order],
        "event": events,
        "queue": queue[which],
        "mid": pushed[which],
        "size": size[which],
        "receives": receives,
    }


def _lognormal(random: Array, median: Any, sigma: float, count: int) -> Array:
    """Returns random durations in microseconds, with that median."""
    return (median * random.lognormal(0, sigma, count)).astype(numpy.int64)
