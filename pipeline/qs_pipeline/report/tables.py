"""The tables of a report, from the rows of `lifecycles`: figures by queue and time, depths, and conspicuous messages.

Reads the rows of a queue after each other, and writes a table while the next rows are read: memory grows with the bins
of one queue and with the durations that are kept of it, and with the number of queues. Times are microseconds during
the computation; tables have timestamps, and durations in seconds.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .durations import Durations
from .folder import Row, TableWriter, rows, write_csv
from .history import ENDS, EVENTS, WAITING
from .lifecycles import COUNTED
from .series import HOUR, Bins, depth_bins, plot_bins

Array = Any  # numpy's own types say more than is of use here

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TIMES = ("waiting", "handling")
COUNTS = ("pushed", "received", "redelivered", "released", "expired", "extended", *ENDS)
"""Columns of whole numbers: how often each event happened."""
_FOUND = COUNTED.index("found")
_PUSHED = COUNTED.index("pushed")
_ENDS = [COUNTED.index(name) for name in ENDS]
_WITHOUT_DURATIONS = ("kind", "queue", "at", "numbers")
_FEW = 256
"""Rows in memory if they may have durations: 32 KiB each."""
_TORN = 3
"""Files that the page names, at most."""

_WHEN = pa.timestamp("us", tz="UTC")
_COUNTERS = [(name, pa.int64()) for name in (*COUNTS, "pushed_bytes")]
_FIGURES = [("depth", pa.int64())]
for _kind in TIMES:
    _FIGURES.append((f"{_kind}_count", pa.int64()))
    _FIGURES += [(f"{_kind}_{_rank}", pa.float64()) for _rank in (*PERCENTILES, "max")]
SCHEMAS = {
    "per_hour": pa.schema([("queue", pa.string()), ("hour", _WHEN), *_COUNTERS, *_FIGURES]),
    "queues": pa.schema(
        [("queue", pa.string()), ("first", _WHEN), ("last", _WHEN), *_COUNTERS, ("at_start", pa.int64()), *_FIGURES]
    ),
    "depth": pa.schema([("queue", pa.string()), ("time", _WHEN), ("depth", pa.int64())]),
    "top_received": pa.schema(
        [
            ("queue", pa.string()),
            ("mid", pa.int64()),
            ("receives", pa.int32()),
            ("released", pa.int64()),
            ("expired", pa.int64()),
            ("size", pa.int64()),
            ("pushed", _WHEN),
            ("first_received", _WHEN),
            ("last_received", _WHEN),
            ("state", pa.string()),
        ]
    ),
    "waited_longest": pa.schema(
        [
            ("queue", pa.string()),
            ("mid", pa.int64()),
            ("waited", pa.float64()),
            ("size", pa.int64()),
            ("begin", _WHEN),
            ("end", _WHEN),
            ("ended_by", pa.string()),
        ]
    ),
}


class Extent(NamedTuple):
    """What the history has. events, unreadable: lines that are events, and that are not; begin, end: the first and the
    last time, 0 without events; torn_files: the files with the most lines that are not events, and how many, three at
    most."""

    events: int
    unreadable: int
    begin: int
    end: int
    torn_files: Sequence[tuple[str, int]]


def extent(partials: Path) -> Extent:
    """Returns what the history has. partials: the saved rows of `lifecycles`, sorted by queue."""
    found = list(_of_kind(partials, "extent"))
    times = [row["numbers"] for row in found if row["numbers"][0]]
    torn = [
        (name, sum(row["numbers"][0] for row in group))
        for name, group in groupby(_of_kind(partials, "torn"), lambda row: str(row["queue"]))
    ]
    return Extent(
        sum(row["numbers"][0] for row in found),
        sum(row["numbers"][1] for row in found),
        min((begin for _, _, begin, _ in times), default=0),
        max((end for *_, end in times), default=0),
        heapq.nsmallest(_TORN, torn, key=lambda one: (-one[1], one[0])),
    )


def _of_kind(partials: Path, kind: str) -> Iterator[Row]:
    return rows(partials, _WITHOUT_DURATIONS, kinds=[kind])


@dataclass(frozen=True, slots=True)
class Tables:
    """The saved tables. paths: by name; drawn: the table of figures for the plots, in bins of `plot_bins`."""

    paths: dict[str, Path]
    drawn: Path
    plot_bins: Bins
    depth_bins: Bins


def write_tables(partials: Path, work: Path, found: Extent, top: int) -> Tables:
    """Writes all tables of a report to the folder, as Parquet and as CSV. partials: the saved rows of `lifecycles`,
    sorted by queue; top: messages of each list."""
    drawn_in, depths_in = plot_bins(found.begin, found.end), depth_bins(found.begin, found.end)
    queues: list[Row] = []
    paths = {name: work / f"{name}.parquet" for name in SCHEMAS}
    drawn = paths["per_hour"]  # a plot of days shows hours, and those are computed already
    if drawn_in.width != HOUR:
        drawn = work / ".drawn.parquet"
    with (
        TableWriter(paths["per_hour"], SCHEMAS["per_hour"]) as hours,
        TableWriter(paths["depth"], SCHEMAS["depth"]) as depths,
        TableWriter(drawn, SCHEMAS["per_hour"], wanted=drawn_in.width != HOUR) as more,
    ):
        for name, group in groupby(
            rows(partials, kinds=["counts", *TIMES], at_once=_FEW), lambda row: str(row["queue"])
        ):
            queue = _Queue(name, group)
            hours.write(queue.figures(HOUR))
            more.write(queue.figures(drawn_in.width) if drawn_in.width != HOUR else ())
            depths.write(queue.depths(depths_in))
            queues.append(queue.total())
    queues.sort(key=lambda row: (-row["received"], -row["pushed"], row["queue"]))
    for name, table in {
        "queues": queues,
        "top_received": _top_received(partials, top),
        "waited_longest": _waited_longest(partials, top, found.end),
    }.items():
        with TableWriter(paths[name], SCHEMAS[name]) as writer:
            writer.write(table)
    for path in paths.values():
        write_csv(path)
    return Tables(paths, drawn, drawn_in, depths_in)


class _Queue:
    """The figures of one queue, from its rows."""

    def __init__(self, name: str, group: Iterable[Row]) -> None:
        self._name = name
        self._times: dict[str, list[tuple[int, int, int, Array]]] = {kind: [] for kind in TIMES}
        begins, numbers = [], []
        for row in group:
            if row["kind"] == "counts":
                begins.append(row["at"])
                numbers.append(row["numbers"])
            else:
                count, most = row["numbers"]
                values = np.frombuffer(row["durations"], np.int64)
                self._times[row["kind"]].append((row["at"], count, most, values))
        order = np.argsort(begins, kind="stable")
        self._begins = np.array(begins, np.int64)[order]
        self._first, self._last, self._counted = np.split(np.array(numbers, np.int64)[order], [1, 2], axis=1)
        self._at_start = int(self._counted[:, _FOUND].sum())
        for found in self._times.values():
            found.sort(key=lambda one: one[0])

    def _by_bin(self, start: int, width: int) -> tuple[Array, Array]:
        """Returns the numbers of bins in which something happened, and what is counted in each."""
        at = (self._begins - start) // width
        places = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
        return at[places], np.add.reduceat(self._counted, places, axis=0)

    def _depth(self, counted: Array) -> Array:
        """Returns the depth at the end of each bin. A message whose first event is not its push was in the queue before
        the history began."""
        return self._at_start + np.cumsum(counted[:, _PUSHED] - counted[:, _ENDS].sum(axis=1))

    def figures(self, width: int) -> Iterator[Row]:
        """Yields a row for each span of `width` microseconds with events: the counts, `depth` at its end, and the
        times that ended in it. In order."""
        at, counted = self._by_bin(0, width)
        times = {
            kind: {number: list(group) for number, group in groupby(found, lambda one: one[0] // width)}
            for kind, found in self._times.items()
        }
        for number, numbers, depth in zip(at.tolist(), counted.tolist(), self._depth(counted).tolist(), strict=True):
            row = {"queue": self._name, "hour": number * width, **_counts(numbers), "depth": depth}
            for kind in TIMES:
                row |= _durations(kind, times[kind].get(number, ()))
            yield row

    def total(self) -> Row:
        """Returns the row of the whole history."""
        numbers = self._counted.sum(axis=0).tolist()
        row = {
            "queue": self._name,
            "first": int(self._first.min()),
            "last": int(self._last.max()),
            **_counts(numbers),
            "at_start": self._at_start,
            "depth": int(self._depth(self._counted)[-1]),
        }
        for kind in TIMES:
            row |= _durations(kind, self._times[kind])
        return row

    def depths(self, bins: Bins) -> Iterator[Row]:
        """Yields a row for each bin with events: `depth` at its end; and first the depth at the start. Only bins with
        events have a row: a depth lasts until the next one, and a quiet queue costs nothing."""
        at, counted = self._by_bin(bins.start, bins.width)
        yield {"queue": self._name, "time": bins.start, "depth": self._at_start}
        for number, depth in zip(at.tolist(), self._depth(counted).tolist(), strict=True):
            yield {"queue": self._name, "time": bins.start + (number + 1) * bins.width, "depth": depth}


def _counts(numbers: Sequence[int]) -> Row:
    counted = dict(zip(COUNTED, numbers, strict=True))
    return {name: counted[name] for name in (*COUNTS, "pushed_bytes")}


def _durations(kind: str, found: Iterable[tuple[int, int, int, Array]]) -> Row:
    """Returns the columns of a duration: number of values, percentiles and maximum, in seconds; None without values."""
    durations = Durations()
    for _, count, most, values in found:
        durations.add(count, most, values)
    ranks = dict(zip(PERCENTILES, durations.percentiles(PERCENTILES.values()), strict=True))
    columns = {f"{kind}_{rank}": _seconds(value) for rank, value in (*ranks.items(), ("max", durations.most))}
    return {f"{kind}_count": durations.count, **columns}


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1e6


def _top_received(partials: Path, top: int) -> list[Row]:
    """Returns the `top` messages that were received most often, more than once. `state`: at the end of the history."""
    names = ("receives", "released", "expired", "size", "pushed", "first_received", "last_received", "state")
    found = (
        {"queue": row["queue"], "mid": row["at"], **dict(zip(names, row["numbers"], strict=True))}
        for row in _of_kind(partials, "received")
    )
    chosen = heapq.nsmallest(top, found, key=lambda row: (-row["receives"], row["queue"], row["mid"]))
    return [{**row, "state": _state(EVENTS[row["state"]])} for row in chosen]


def _state(last: str) -> str:
    if last in ENDS:
        return last
    return "waiting" if last in WAITING else "handed out"


def _waited_longest(partials: Path, top: int, end: int) -> list[Row]:
    """Returns the `top` messages with the longest waits, each with its longest. `ended_by`: received, deleted, dead,
    redriven, retired, or `nothing` for messages that still waited at the end of the history (`end`, microseconds)."""
    # A message may have ended a wait, and wait again: it is there at most twice.
    found = heapq.nsmallest(2 * top, _waits(partials, end), key=lambda row: (-row["waited"], row["queue"], row["mid"]))
    longest: dict[tuple[str, int], Row] = {}
    for row in found:
        longest.setdefault((row["queue"], row["mid"]), row)
    return [{**row, "waited": _seconds(row["waited"])} for row in list(longest.values())[:top]]


def _waits(partials: Path, end: int) -> Iterator[Row]:
    for row in rows(partials, _WITHOUT_DURATIONS, kinds=["waited", "waits"]):
        if row["kind"] == "waited":
            wait, begin, size, event = row["numbers"]
            ended_by = EVENTS[event]
        else:
            begin, size = row["numbers"]
            wait, ended_by = end - begin, "nothing"
        yield {
            "queue": row["queue"], "mid": row["at"], "waited": wait, "size": size, "begin": begin,
            "end": begin + wait, "ended_by": ended_by,
        }  # fmt: skip
