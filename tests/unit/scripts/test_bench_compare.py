"""The pure parts of scripts/bench/compare.py: percentiles, what was the limit, figures, the star, the page."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.serving import PROJECT

_BENCH = str(PROJECT / "scripts" / "bench")


@pytest.fixture(name="bench")
def _bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Imports the modules of the bench as scripts find each other, and forgets them afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(_BENCH)
    import compare_docs
    import compare_figures
    import compare_plan
    import compare_ratios
    import compare_table
    import peer

    yield SimpleNamespace(
        docs=compare_docs,
        figures=compare_figures,
        plan=compare_plan,
        ratios=compare_ratios,
        table=compare_table,
        peer=peer,
    )
    for name in set(sys.modules) - before:
        if str(Path(getattr(sys.modules[name], "__file__", None) or "/").parent) == _BENCH:
            del sys.modules[name]


def test_percentile(bench: SimpleNamespace) -> None:
    """The smallest value that the share does not exceed, of any number of values."""
    values = [float(number) for number in range(1, 101)]
    assert bench.figures.percentile(values, 0.5) == 50
    assert bench.figures.percentile(values, 0.99) == 99
    assert bench.figures.percentile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        bench.figures.percentile([], 0.5)


@pytest.mark.parametrize(
    ("server", "clients", "disk", "single", "expected"),
    [
        (0.95, 1.0, 0.0, True, "server"),  # its only thread has a core
        (0.95, 1.0, 0.0, False, "clients"),  # it could use another
        (1.3, 0.6, 0.9, False, "server"),
        (0.5, 0.5, 0.9, True, "disk"),
        (0.1, 0.1, 0.1, True, "waiting"),
        (None, 1.9, 0.0, True, "clients"),
    ],
)
def test_limit(
    bench: SimpleNamespace, server: float | None, clients: float, disk: float, single: bool, expected: str
) -> None:
    """The side that is used up, of two cores."""
    assert bench.figures.limit(server, clients, disk, 2, single) == expected


def test_figures(bench: SimpleNamespace) -> None:
    """Rates are per second, CPU is per 10,000 messages; a library has no server."""
    found = bench.figures.figures(20_000, 2.0, [0.003, 0.001, 0.002], 1.0, 3.0, 5, 0.0, 2, single=True)
    assert (found.rate, found.p50, found.p99, found.server, found.clients) == (10_000, 0.002, 0.003, 0.5, 1.5)
    assert bench.figures.figures(1, 1.0, [0.1], None, 0.1, None, 0.0, 2, single=True).server is None
    with pytest.raises(RuntimeError, match="nothing was done"):
        bench.figures.figures(0, 1.0, [], None, 0.0, None, 0.0, 2, single=True)


def test_the_star(bench: SimpleNamespace) -> None:
    """Each point differs from the base in one thing, both kinds of work have the same, and quick has the bases."""
    base = bench.plan.Point("push")
    planned = list(bench.plan.points(quick=False))
    for point in planned:
        varied = [name for name in ("clients", "batch", "size", "depth") if getattr(point, name) != getattr(base, name)]
        assert varied == ([] if point.row == "base" else [point.row])
    by_work = [{point.name for point in planned if point.work == work} for work in bench.plan.WORKS]
    assert by_work[0] == by_work[1]
    assert len(by_work[0]) == 10
    assert {point.row for point in bench.plan.points(quick=True)} == {"base"}


def test_tables_and_page(bench: SimpleNamespace) -> None:
    """A figure stands in its column, what has none is a dash with its reason, and only the marked part is replaced."""
    point = {"work": "push", "row": "base", "clients": 32, "batch": 1, "size": 1024, "depth": 0}
    figures = {
        "rate": 1234.5,
        "p50": 0.001,
        "p99": 0.2,
        "server": None,
        "clients": 0.5,
        "memory": None,
        "limit": "disk",
    }
    peer = {"durability": "always", "survives": "all", "client": "c", "raw": False, "versions": ["x 1"]}
    results = {
        "date": "today", "machine": "here", "notes": [], "missing": {}, "ratios": [],
        "peers": [{"key": "a", "name": "A", **peer}, {"key": "b", "name": "B", **peer}],
        "cells": [
            {"peer": "a", "point": point, "figures": figures, "note": ""},
            {"peer": "b", "point": point, "figures": None, "note": "it broke"},
        ],
    }  # fmt: skip
    assert bench.table.rate_table(results, "push")[-2:] == ["| A | 1,234 |", "| B | - |"]
    assert "| A | 1,234 | 1.00 ms | 200 ms | - | 0.50 | - | disk |" in bench.table.whole(results)
    assert bench.table.dashes(results) == ["- B: it broke (push, base)"]
    part = bench.docs.generated(results, ["push-cpu.png"])
    page = bench.docs.replaced(f"before {bench.docs.BEGIN} old {bench.docs.END} after", part)
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert "(performance/push-cpu.png)" in page
    assert " old " not in page
    with pytest.raises(ValueError, match="marks"):
        bench.docs.replaced("a page without", part)


def test_batches_are_a_ratio(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line about lists of 100 has a ratio to the journal alone where the others have one, and the rates at its end.
    Its target is a quarter, or as much as 50,000 messages a second are."""

    class Journal(contextlib.nullcontext):  # type: ignore[type-arg]
        def __init__(self, *_: object) -> None:
            super().__init__(self)

        def rate(self, _: float) -> float:
            return 100_000.0

    found: list[Any] = []
    ratios = bench.ratios.Ratios({"qs": None}, {}, tmp_path, bench.plan.QUICK, found)
    monkeypatch.setattr(bench.ratios, "BareJournal", Journal)
    monkeypatch.setattr(ratios, "_started", lambda *_: {"qs": None})
    monkeypatch.setattr(ratios, "_side", lambda *_: lambda: 30_000.0)
    ratios._batches()
    name = "durable push, lists of 100, 8 Python clients: qs / the journal alone"
    assert [ratio.line() for ratio in found] == [f"| {name} | 0.30 | >= 0.5 | **no** | 30,000/s to 100,000/s |"]


def test_the_short_table(bench: SimpleNamespace) -> None:
    """The short table has only peers whose answers survive a power loss, driven by their client."""
    point = {"work": "cycle", "row": "base", "clients": 32, "batch": 1, "size": 1024, "depth": 0}
    results = {
        "peers": [
            {"key": "a", "name": "A", "durability": "always", "raw": False},
            {"key": "b", "name": "B", "durability": "always", "raw": True},
            {"key": "c", "name": "C", "durability": "none", "raw": False},
        ],
        "cells": [
            {"peer": key, "point": point, "figures": {"rate": 1234.5, "memory": 5e6}, "note": ""} for key in "abc"
        ],
    }
    assert bench.table.short_table(results)[2:] == ["| A | - | - | 1,234 | - | 5 MB |"]


def test_the_page_in_short() -> None:
    """The short table of docs/performance.md has the figures of its long ones."""
    page = (PROJECT / "docs" / "performance.md").read_text(encoding="utf-8")
    short, long = (part.partition("<!-- to here -->")[0] for part in page.split("compare.py --docs")[-2:])
    rows = [row.split("|")[1:-1] for row in short.splitlines() if row.startswith("| ") and "messages/s" not in row]
    assert len(rows) == 6
    for name, *cells in rows:
        of_peer = "|".join(row for row in long.splitlines() if row.startswith(f"|{name}|"))
        assert [cell for cell in cells if f"|{cell}|" not in of_peer] == []
