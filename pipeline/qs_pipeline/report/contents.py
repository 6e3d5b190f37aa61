"""The contents of a report: which plots and tables it shows, in which order, with which explanations."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from . import plots, series
from .conditions import Conditions
from .folder import Row, rows
from .page import Number, Page, Picture, Section, Table, render
from .series import Bins
from .text import duration, moment, number, share, size

_SHOWN = 8
"""Queues that a plot shows separately."""
_LISTED = 50
"""Rows of the table of queues."""
_FILES = (
    ("per_hour.csv", "per queue and hour: counts, depth, waiting and handling times"),
    ("queues.csv", "the same per queue, over the whole history"),
    ("depth.csv", "messages in each queue over time"),
    ("top_received.csv", "the messages received most often"),
    ("waited_longest.csv", "the messages that waited longest"),
    ("plots", "the plots"),
    ("report.json", "the extent of this report"),
)
_OF_CONDITIONS = ("conditions.csv", "what the conditions of the bus let through and kept back")


@dataclass(frozen=True, slots=True)
class Results:
    """The results of Spark. tables: their paths, by name; drawn: the table of figures for the plots, in bins of
    `plot_bins`; torn_files: names of files, and how many lines of each are not events; conditions: the answer of the
    bus, None if it was not asked."""

    source: str
    events: int
    unreadable: int
    torn_files: Sequence[tuple[str, int]]
    files: int
    begin: datetime
    end: datetime
    tables: dict[str, Path]
    drawn: Path
    plot_bins: Bins
    depth_bins: Bins
    conditions: Conditions | None = None

    def rows(self, name: str) -> Iterator[Row]:
        return rows(self.tables[name])

    def queues(self) -> int:
        return sum(1 for _ in rows(self.tables["queues"], ["queue"]))


def write_page(results: Results, work: Path) -> None:
    """Writes plots/*.png and index.html into the folder."""
    (work / "plots").mkdir()
    pictures = _draw(results, work / "plots")
    page = _page(results, pictures)
    (work / "index.html").write_text(render(page), encoding="utf-8", errors="replace")
    if results.drawn not in results.tables.values():  # a table that was made for the plots alone
        shutil.rmtree(results.drawn)


def _draw(results: Results, folder: Path) -> dict[str, Picture]:
    """Draws all plots for which there is data, and returns the plots by name."""
    colours = plots.Colours()  # of all plots: a queue keeps its colour
    bins, time = results.plot_bins, "hour"
    busiest = series.leading(results.rows("queues"), _SHOWN, lambda row: row["pushed"] + row["received"])
    plot_paths = {}

    def drawn(columns: Sequence[str]) -> Iterator[Row]:
        return rows(results.drawn, ["queue", time, *columns])

    def flow(name: str, kinds: Sequence[str], names: Sequence[str], column: str, title: str) -> Path:
        totals = series.totals(drawn(kinds), bins, kinds, time)
        stack = series.stacked(drawn([column]), bins, names, column, time)
        return plots.flow(folder / f"{name}.png", bins, totals, stack, colours, by_queue=title)

    events = ("pushed", "received", "deleted")
    plot_paths["throughput"] = flow("throughput", events, busiest, "received", "Received, by queue")
    deepest = series.peaks(results.rows("depth"), _SHOWN)
    if deepest:
        stack = series.levels(results.rows("depth"), results.depth_bins, deepest)
        plot_paths["depth"] = plots.depth(folder / "depth.png", results.depth_bins, stack, colours)
    for kind in ("waiting", "handling"):
        measured = {row["queue"] for row in results.rows("queues") if row[f"{kind}_count"]}
        names = [name for name in busiest if name in measured]
        if names:
            columns = [f"{kind}_{rank}" for rank in ("p50", "p95", "p99", "max")]
            lines = series.lines(drawn(columns), bins, names, columns, time)
            plot_paths[kind] = plots.times(folder / f"{kind}.png", bins, lines, kind)
    failing = series.leading(results.rows("queues"), _SHOWN, lambda row: row["redelivered"])
    if failing or any(row["expired"] or row["released"] for row in results.rows("queues")):
        kinds = ("redelivered", "expired", "released")
        title = "Received again, by queue"
        plot_paths["redeliveries"] = flow("redeliveries", kinds, failing, "redelivered", title)
    return {name: Picture(path.read_bytes(), f"Plot: {name} over time") for name, path in plot_paths.items()}


def _page(results: Results, pictures: dict[str, Picture]) -> Page:
    queues = list(results.rows("queues"))
    span = (results.end - results.begin).total_seconds()
    return Page(
        title="Queues: what happened",
        subtitle=f"{moment(results.begin)} to {moment(results.end)} UTC ({duration(span)}); "
        f"{number(results.events)} events of {_count(len(queues), 'queue')}, "
        f"from {_count(results.files, 'file')} in {results.source}",
        numbers=_numbers(queues),
        sections=[*_pictured(results, pictures, len(queues)), *listed(results, queues)],
        warnings=_warnings(results),
        files=_FILES if results.conditions is None else (*_FILES[:-2], _OF_CONDITIONS, *_FILES[-2:]),
    )


def _count(count: int, one: str) -> str:
    return f"{number(count)} {one if count == 1 else f'{one}s'}"


def _warnings(results: Results) -> list[str]:
    if not results.unreadable:
        return []
    where = ", ".join(f"{name} ({number(count)})" for name, count in results.torn_files)
    verb = "is no event" if results.unreadable == 1 else "are no events"
    return [f"{_count(results.unreadable, 'line')} of the history {verb}, and left out. Most of them are in: {where}"]


def _numbers(queues: Sequence[Row]) -> list[Number]:
    def total(column: str) -> int:
        return sum(row[column] for row in queues)

    deepest = max(queues, key=lambda row: row["depth"])
    headlines = [
        Number("Pushed", number(total("pushed")), size(total("pushed_bytes"))),
        Number("Received", number(total("received")), f"{share(total('redelivered'), total('received'))} of it again"),
        Number("Deleted", number(total("deleted"))),
        Number("In the queues at the end", number(total("depth")), _most(deepest, number(deepest["depth"]))),
    ]
    for kind, name in (("waiting", "Longest wait for a receive"), ("handling", "Longest handling")):
        measured = [row for row in queues if row[f"{kind}_max"] is not None]
        if measured:
            longest = max(measured, key=lambda row: row[f"{kind}_max"])
            headlines.append(Number(name, duration(longest[f"{kind}_max"]), longest["queue"]))
    slow = [row for row in queues if row["waiting_p95"] is not None]
    if slow:
        slowest = max(slow, key=lambda row: row["waiting_p95"])
        headlines.append(Number("Slowest queue: p95 of waiting", duration(slowest["waiting_p95"]), slowest["queue"]))
    expired = max(queues, key=lambda row: row["expired"])
    headlines.append(Number("Windows expired", number(total("expired")), _most(expired, number(expired["expired"]))))
    for kind, name in (("dead", "Dead letters"), ("retired", "Retired")):
        if total(kind):
            most = max(queues, key=lambda row: row[kind])
            headlines.append(Number(name, number(total(kind)), _most(most, number(most[kind]))))
    return headlines


def _most(row: Row, value: str) -> str:
    return f"most in {row['queue']}: {value}" if value != "0" else ""


def _pictured(results: Results, pictures: dict[str, Picture], count: int) -> list[Section]:
    apart = f" The {_SHOWN} busiest queues are shown separately." if count > _SHOWN else ""
    step = duration(results.plot_bins.width / series.SECOND)
    return [
        Section(
            "Throughput",
            f"Messages pushed, received and deleted.{apart}",
            pictures.get("throughput"),
        ),
        Section(
            "Depth",
            "Messages in the queues, including those in flight or delayed. A queue that grows has too few consumers.",
            pictures.get("depth"),
            empty="The queues were empty at all times shown.",
        ),
        Section(
            "Waiting time",
            "From the push, or from when a message became visible again, to the receive; by the time of the receive, "
            f"in steps of {step}. It includes delays.{apart}",
            pictures.get("waiting"),
            empty="For no received message is it known when it began to wait.",
        ),
        Section(
            "Handling time",
            f"From the receive to the deletion, by the time of the deletion, in steps of {step}.{apart}",
            pictures.get("handling"),
            empty="For no deleted message is it known when it was received.",
        ),
        Section(
            "Redeliveries",
            "Messages received again, and why: expired windows (a consumer died, or took longer than its window), and "
            "releases.",
            pictures.get("redeliveries"),
            empty="No message was received more than once, and none was released or expired.",
        ),
    ]


def listed(results: Results, queues: Sequence[Row]) -> list[Section]:
    """Returns the tables of the page. Each has at most nine columns, because more do not fit the width of the page."""
    received = [
        [row["queue"], str(row["mid"]), number(row["receives"]), number(row["expired"]), number(row["released"]),
         _size(row["size"]), moment(row["pushed"], "before"), moment(row["last_received"]), row["state"]]
        for row in results.rows("top_received")
    ]  # fmt: skip
    waited = [
        [row["queue"], str(row["mid"]), duration(row["waited"]), moment(row["begin"]), moment(row["end"]),
         "still waiting" if row["ended_by"] == "nothing" else row["ended_by"], _size(row["size"])]
        for row in results.rows("waited_longest")
    ]  # fmt: skip
    more = f" The {_LISTED} with most receives; queues.csv has all." if len(queues) > _LISTED else ""
    timed = [row for row in queues[:_LISTED] if row["waiting_count"] or row["handling_count"]]
    return [
        Section(
            "Received most often",
            "Messages that are delivered again and again: often no consumer can handle them. Times are UTC.",
            table=_table_of(
                ("queue", "message", "receives", "expired", "released", "size", "pushed", "last received",
                 "at the end"),
                received, {0, 8},
            ),
            empty="No message was received more than once.",
        ),
        Section(
            "Waited longest",
            "The longest waits, including messages that were never received. Times are UTC.",
            table=_table_of(("queue", "message", "waited", "from", "until", "then", "size"), waited, {0, 5}),
            empty="For no message is it known when its wait began.",
        ),
        Section(
            "Dead letters",
            "The queues that dead letters come from, those from which they were moved back, and those whose messages "
            "grew too old.",
            table=_left_table(queues),
            empty="No message was moved to a dead-letter queue or back, and none was removed because of its age.",
        ),
        Section("Queues", f"Over the whole history.{more}", table=_queue_table(queues[:_LISTED])),
        Section(
            "Times of the queues",
            f"How long messages waited for a receive, and were handled, over the whole history.{more}",
            table=_times_table(timed),
            empty="Of no message is it known when it was pushed or received.",
        ),
        *conditions_of(results.conditions),
    ]  # fmt: skip


def conditions_of(conditions: Conditions | None) -> list[Section]:
    """Returns the section about the conditions of the bus, none if it was not asked."""
    if conditions is None:
        return []
    listed = sorted(conditions.rows, key=lambda row: -row["let_through"] - row["kept_back"])[:_LISTED]
    cells = [
        [
            row["queue"],
            row["condition"],
            number(row["let_through"]),
            number(row["kept_back"]),
            share(row["let_through"], row["let_through"] + row["kept_back"]),
        ]
        for row in listed
    ]
    more = f" The {_LISTED} that saw most messages; conditions.csv has all." if len(conditions.rows) > _LISTED else ""
    return [
        Section(
            "Conditions of the bus",
            f"Deliveries that the conditions of subscriptions let through and kept back. The bus at {conditions.bus} "
            f"has counted {number(conditions.let_through)} and {number(conditions.kept_back)} since its start, "
            f"{moment(conditions.since)} UTC: not only in the time of the history. The table has the conditions that "
            f"somebody has now.{more}",
            table=_table_of(("queue", "condition", "let through", "kept back", "let through, of all"), cells, {0, 1}),
            empty="No subscription has a condition now.",
        )
    ]


def _table_of(columns: Sequence[str], cells: Sequence[Sequence[str]], text: set[int]) -> Table | None:
    return Table(columns, cells, frozenset(text)) if cells else None


def _left_table(queues: Sequence[Row]) -> Table | None:
    """Returns a table of the queues whose messages left in other ways than by a deletion, those with most dead letters
    first."""
    left = [row for row in queues if row["dead"] or row["redriven"] or row["retired"]]
    left.sort(key=lambda row: (-row["dead"], -row["redriven"], -row["retired"], row["queue"]))
    cells = [
        [
            row["queue"],
            number(row["dead"]),
            share(row["dead"], row["received"]),
            *(number(row[name]) for name in ("redriven", "retired", "depth")),
        ]
        for row in left[:_LISTED]
    ]
    return _table_of(("queue", "dead letters", "of its receives", "redriven", "retired", "left"), cells, {0})


def _queue_table(queues: Sequence[Row]) -> Table:
    cells = [
        [
            row["queue"],
            number(row["pushed"]),
            number(row["received"]),
            share(row["redelivered"], row["received"]),
            *(number(row[name]) for name in ("deleted", "expired", "released", "depth")),
        ]
        for row in queues
    ]
    return Table(("queue", "pushed", "received", "again", "deleted", "expired", "released", "left"), cells)


def _times_table(queues: Sequence[Row]) -> Table | None:
    ranks = [f"{kind} {rank}" for kind in ("waiting", "handling") for rank in ("p50", "p95", "p99", "max")]
    cells = [[row["queue"], *(duration(row[rank.replace(" ", "_")]) for rank in ranks)] for row in queues]
    return _table_of(("queue", *ranks), cells, {0})


def _size(value: Any) -> str:
    return "-" if value is None else size(value)
