"""The pure parts of scripts/bench: percentiles, what was the limit, figures, the star, the tables and the pages."""

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.servers.processes import PROJECT

_BENCH = str(PROJECT / "scripts" / "bench")


@pytest.fixture(name="bench")
def _bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Imports the modules of the bench as scripts find each other, and forgets them afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(_BENCH)
    import compare_cells
    import compare_load
    import compare_ratios
    import compare_tables
    import measuring

    yield SimpleNamespace(
        cells=compare_cells,
        load=compare_load,
        measuring=measuring,
        ratios=compare_ratios,
        tables=compare_tables,
    )
    for name in set(sys.modules) - before:
        if str(Path(getattr(sys.modules[name], "__file__", None) or "/").parent) == _BENCH:
            del sys.modules[name]


def test_percentile_of_any_number_of_values(bench: SimpleNamespace) -> None:
    """The smallest value that the share does not exceed, of any number of values."""
    values = [float(number) for number in range(1, 101)]
    assert bench.load.percentile(values, 0.5) == 50
    assert bench.load.percentile(values, 0.99) == 99
    assert bench.load.percentile([7.0], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        bench.load.percentile([], 0.5)


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
def test_limit_is_side_that_is_used_up(
    bench: SimpleNamespace, server: float | None, clients: float, disk: float, single: bool, expected: str
) -> None:
    """The side that is used up, of two cores."""
    assert bench.load.limit(server, clients, disk, 2, single) == expected


def test_figures_of_cell(bench: SimpleNamespace) -> None:
    """Rates are per second, CPU is per 10,000 messages; a library has no server."""
    found = bench.load.figures(20_000, 2.0, [0.003, 0.001, 0.002], 1.0, 3.0, 5, 0.0, 2, single=True)
    assert (found.rate, found.p50, found.p99, found.server, found.clients) == (10_000, 0.002, 0.003, 0.5, 1.5)
    assert bench.load.figures(1, 1.0, [0.1], None, 0.1, None, 0.0, 2, single=True).server is None
    with pytest.raises(RuntimeError, match="nothing was done"):
        bench.load.figures(0, 1.0, [], None, 0.0, None, 0.0, 2, single=True)


def test_points_form_star(bench: SimpleNamespace) -> None:
    """Each point differs from the base in one thing, both kinds of work have the same, and quick has the bases."""
    base = bench.cells.Point("push")
    planned = list(bench.cells.points(quick=False))
    for point in planned:
        varied = [name for name in ("clients", "batch", "size", "depth") if getattr(point, name) != getattr(base, name)]
        assert varied == ([] if point.row == "base" else [point.row])
    by_work = [{point.name for point in planned if point.work == work} for work in bench.cells.WORKS]
    assert by_work[0] == by_work[1]
    assert len(by_work[0]) == 10
    assert {point.row for point in bench.cells.points(quick=True)} == {"base"}


def test_tables_and_generated_part(bench: SimpleNamespace) -> None:
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
    assert bench.tables.rate_table(results, "push")[-2:] == ["| A | 1,234 |", "| B | - |"]
    assert "| A | 1,234 | 1.00 ms | 200 ms | - | 0.50 | - | disk |" in bench.tables.whole(results)
    assert bench.tables.dashes(results) == ["- B: it broke (push, base)"]
    part = bench.tables.generated(results, ["push-cpu.png"])
    page = bench.measuring.replaced(
        f"before {bench.tables.BEGIN} old {bench.measuring.END} after", bench.tables.BEGIN, part
    )
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert "(performance/push-cpu.png)" in page
    assert " old " not in page
    with pytest.raises(ValueError, match="marks"):
        bench.measuring.replaced("a page without", bench.tables.BEGIN, part)


def test_ratios_of_batches(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line about lists of 100 has a ratio to the journal alone where the others have one, and the rates at its end.
    Its target is a quarter, or as much as 50,000 messages a second are."""

    class Journal(contextlib.nullcontext):  # type: ignore[type-arg]
        def __init__(self, *_: object) -> None:
            super().__init__(self)

        def rate(self, _: float) -> float:
            return 100_000.0

    found: list[Any] = []
    ratios = bench.ratios.Ratios({"qs": None}, {}, tmp_path, bench.cells.QUICK, found)
    monkeypatch.setattr(bench.ratios, "BareJournal", Journal)
    monkeypatch.setattr(ratios, "_started", lambda *_: {"qs": None})
    monkeypatch.setattr(ratios, "_side", lambda *_: lambda: 30_000.0)
    ratios._batches()
    name = "durable push, lists of 100, 8 Python clients: qs / the journal alone"
    row = f"| {name} | 0.30 | at least 0.5 | **no** | 30,000/s to 100,000/s |"
    assert [bench.measuring.markdown_row(figure) for figure in found] == [row]


def test_short_table_has_durable_peers(bench: SimpleNamespace) -> None:
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
    assert bench.tables.short_table(results)[2:] == ["| A | - | - | 1,234 | - | 5 MB |"]


def test_rows_of_the_page_that_compares(bench: SimpleNamespace) -> None:
    """A rate stands in the column of its peer, one that was not measured stays, and so do all other lines."""
    point = {"work": "cycle", "row": "base", "clients": 32, "batch": 1, "size": 1024, "depth": 0}
    results = {"cells": [{"peer": "redis", "point": point, "figures": {"rate": 1234.5}}]}
    name = "durable push + receive + delete, the same"
    page = f"before\n| {name} | 1/s | 2/s | 3/s | 4/s | 5/s | not measured |\nafter\n"
    assert bench.tables.compared(page, results) == page.replace("3/s", "1,234/s")
    real = bench.tables.COMPARE_PAGE.read_text(encoding="utf-8")
    assert [row for row in bench.tables._COMPARED_ROWS if f"\n| {row} | " not in real] == []
    for row in bench.tables._COMPARED_ROWS:
        assert real.partition(f"| {row} |")[2].partition("\n")[0].count("|") == len(bench.tables._COMPARED) + 1


def test_short_table_has_figures_of_long_ones() -> None:
    """The short table of docs/performance.md has the figures of the long ones of docs/performance-method.md."""
    short, long = (
        (PROJECT / "docs" / name)
        .read_text(encoding="utf-8")
        .partition("--only compare --docs")[2]
        .partition("<!-- to")[0]
        for name in ("performance.md", "performance-method.md")
    )
    rows = [row.split("|")[1:-1] for row in short.splitlines() if row.startswith("| ") and "messages/s" not in row]
    assert len(rows) == 6
    for name, *cells in rows:
        of_peer = "|".join(row for row in long.splitlines() if row.startswith(f"|{name}|"))
        assert [cell for cell in cells if f"|{cell}|" not in of_peer] == []


@pytest.mark.parametrize(
    ("value", "bound", "met"),
    [(2.0, "at least", "yes"), (2.0, "more than", "no"), (2.1, "at most", "no"), (None, "at most", "")],
)
def test_cells_of_figure(bench: SimpleNamespace, value: float | None, bound: str, met: str) -> None:
    """A figure says whether it meets its target; without a value it says nothing."""
    shown = "-" if value is None else f"{value:.2f} s"
    figure = bench.measuring.Figure("a start", value, 2, bound, " s", "of this")
    assert figure.cells() == ("a start", shown, f"{bound} 2 s", met, "of this")


def test_written_rows_keep_what_was_not_measured(bench: SimpleNamespace, tmp_path: Path) -> None:
    """A figure replaces its own row in the page; the others, and all outside the marks, stay."""
    page = tmp_path / "page.md"
    rows = "| measured | figure | target | met | of what |\n|---|---:|---:|---|---|\n| a | 1 | | | |\n| b | 2 | | | |"
    page.write_text(f"before <!-- begin -->\n{rows}\n{bench.measuring.END} after")
    bench.measuring.write_rows(page, "<!-- begin -->", [bench.measuring.Figure("b", 3.0)], "today: here")
    text = page.read_text()
    assert "| a | 1 | | | |\n| b | 3.00 |  |  |  |" in text
    assert "Measured on today: here." in text
    assert text.startswith("before ")
    assert text.endswith(" after")


def test_measurements_exist(bench: SimpleNamespace) -> None:
    """Each measurement of the table of run.py is a function whose docstring says what it measures."""
    import run

    assert len(run.MEASUREMENTS) == sum(map(len, run.GROUPS.values()))
    for where in run.MEASUREMENTS.values():
        module, _, function = where.partition(":")
        tree = ast.parse((Path(_BENCH) / f"{module}.py").read_text(encoding="utf-8"))
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
        assert len(found) == 1, where
        assert ast.get_docstring(found[0]), where


def test_pages_have_the_marks_of_their_tables(bench: SimpleNamespace) -> None:
    """--docs finds each of its tables on its page, and what it writes there is measured."""
    import run

    for only, (page, names) in run.PAGES.items():
        text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
        assert f"scripts/bench/run.py --only {only} --docs: do not edit" in text
        assert bench.measuring.END in text.partition(f"--only {only} --docs")[2]
        assert set(names) <= set(run.MEASUREMENTS)


def test_in_turn_alternates_order(bench: SimpleNamespace) -> None:
    """Every other round goes backwards, and the values of the first one, which warms up, are left out."""
    said: list[str] = []

    def side(name: str) -> Any:
        def measure() -> float:
            said.append(name)
            return float(len(said))

        return measure

    values = bench.measuring.in_turn({name: side(name) for name in "ab"}, 2)
    assert "".join(said) == "baabba"
    assert values == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_pages_name_measurements_that_exist(bench: SimpleNamespace) -> None:
    """Each name after `--only` on a page, in this project's code and in its tests is a measurement or a group."""
    import run

    pages = [*(PROJECT / "docs").rglob("*.md"), PROJECT / "CONTRIBUTING.md", *(PROJECT / "server").rglob("*.py")]
    named = {name for page in pages for name in re.findall(r"--only ([a-z-]+)", page.read_text(encoding="utf-8"))}
    assert named - {*run.GROUPS, *run.MEASUREMENTS} == set()
    assert "compare" in named
