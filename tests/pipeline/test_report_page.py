"""Tests what a report shows, without Spark: series, plots, texts, the page, and how it takes its place."""

import math
import re
import warnings
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from qs_pipeline.errors import PipelineError, UsageError
from qs_pipeline.report import plots, series
from qs_pipeline.report.folder import building, check_target
from qs_pipeline.report.page import Number, Page, Picture, Section, Table, render
from qs_pipeline.report.series import SECOND, Bins, bins_between
from qs_pipeline.report.text import duration, moment, number, printable, share, short, size

BEGIN = datetime(2025, 11, 21, tzinfo=UTC)
START = series.micros(BEGIN)
HOSTILE = ["<b>$x$</b>", "_hidden", "a\nb", "名前", "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe", "%s{}", "$", "x" * 200]


def test_bins_between_covers_times() -> None:
    """The narrowest that are few enough, at multiples of their width; and beyond what is foreseen, still few enough."""
    assert bins_between(START + 1, START + 1, 500) == Bins(START, SECOND, 1)
    assert bins_between(START, START + 499 * SECOND, 500) == Bins(START, SECOND, 500)
    assert bins_between(START, START + 500 * SECOND, 500).width == 5 * SECOND
    assert bins_between(0, 400 * 365 * 86_400 * SECOND, 500).count <= 500
    bins = bins_between(START + 7 * SECOND, START + 3000 * SECOND, 500)
    assert bins.index(BEGIN + timedelta(seconds=17)) == 1
    assert bins.times()[1] - bins.times()[0] == bins.times(1)[0] - bins.times()[0] == timedelta(seconds=10)


def rows(*cells: tuple[str, int, float]) -> list[dict[str, Any]]:
    """Returns a row of figures for each queue, second and number."""
    return [
        {"queue": queue, "time": BEGIN + timedelta(seconds=at), "depth": value, "p50": value or None}
        for queue, at, value in cells
    ]


def test_leading_puts_greatest_first() -> None:
    """The greatest first, names in order where they are equal, none without any; the others are one layer."""
    found = rows(("a", 0, 1), ("b", 1, 5), ("c", 1, 2), ("d", 2, 2), ("e", 2, 0), ("a", 2, 1))
    names = series.leading(found, 3, lambda row: row["depth"])
    assert names == ["b", "a", "c"]
    assert series.leading(found, 9, lambda row: row["depth"]) == ["b", "a", "c", "d"]
    assert series.peaks(found, 2) == ["b", "c"]
    bins = Bins(START, SECOND, 3)
    assert series.stacked(found, bins, names, "depth", "time") == [
        ("b", [0, 5, 0]), ("a", [1, 0, 1]), ("c", [0, 2, 0]), (None, [0, 0, 2]),
    ]  # fmt: skip
    assert series.totals(found, bins, ["depth"], "time") == {"depth": [1, 7, 3]}
    lines = series.lines(found, bins, ["a"], ["p50"], "time")
    assert lines["a"]["p50"][::2] == [1, 1]
    assert math.isnan(lines["a"]["p50"][1])


def test_levels_last_until_next_row() -> None:
    """A depth lasts until the next is known: from the start, over bins without a row, to the end."""
    found = rows(("a", 0, 4), ("a", 1, 5), ("a", 4, 0), ("b", 0, 0), ("b", 3, 2))
    assert series.levels(found, Bins(START, SECOND, 5), ["a"]) == [("a", [5, 5, 5, 0, 0]), (None, [0, 0, 2, 2, 2])]
    late = rows(("a", 0, 4), ("a", 3, 1))
    assert series.levels(late, Bins(START, SECOND, 4), ["a"]) == [("a", [4, 4, 1, 1])]


def test_texts_of_numbers_and_durations() -> None:
    """Two or three digits, with the unit that a person would take."""
    shown = [duration(seconds) for seconds in (0, 2e-6, 0.0123, 0.9999, 1.5, 59, 60, 5400, 86_400, 10 * 86_400)]
    assert shown == ["0 µs", "2 µs", "12 ms", "1 s", "1.5 s", "59 s", "1 min", "1.5 h", "1 d", "10 d"]
    assert duration(None) == share(1, 0) == moment(None) == "-"
    assert [size(value) for value in (0, 999, 1000, 123_456, 10**15)] == ["0 B", "999 B", "1.0 kB", "123 kB", "1000 TB"]
    assert (number(12345.4), moment(BEGIN)) == ("12,345", "2025-11-21 00:00:00")
    assert [share(part, 1000) for part in (1, 33, 333, 1000, 2000)] == ["0.1 %", "3.3 %", "33 %", "100 %", "200 %"]


def test_short_makes_one_visible_line() -> None:
    """One short line that is visible, whatever a queue is called."""
    shown = [short(name) for name in (*HOSTILE, " ", "\x00\ud800")]
    assert all(len(name) <= 29 and "\n" not in name and name.strip() for name in shown)
    assert short("_hidden") == " _hidden"
    assert short("begin-" + "x" * 50 + "-end").startswith("begin-xxx")
    assert short("begin-" + "x" * 50 + "-end").endswith("xxx-end")
    assert printable("a\x00\ud800é") == "a\ufffd\ufffdé"


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n") and path.stat().st_size > 5000


def test_plots_of_unusual_data(tmp_path: Path) -> None:
    """Any names, a single bin, times of 0 and gaps can be drawn; matplotlib says nothing of it, and keeps nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, six = (Bins(START, 3600 * SECOND, count) for count in (1, 6))
        stack: series.Stack = [*((name, [3.0]) for name in HOSTILE), (None, [1.0])]
        together = {"pushed": [3.0], "deleted": [0.0]}
        assert is_png(plots.flow(tmp_path / "1.png", one, together, stack, plots.Colours(), by_queue="By queue"))
        six_times: series.Stack = [(name, layer * 6) for name, layer in stack]
        assert is_png(plots.depth(tmp_path / "2.png", six, six_times, plots.Colours()))
        for bins, values in ((one, [math.nan]), (six, [math.nan, 0.0, 3.0, 1e6, 1e-6, math.nan])):
            lines = {name: {f"waiting_{rank}": values for rank in ("p50", "p95", "p99", "max")} for name in HOSTILE[:3]}
            assert is_png(plots.times(tmp_path / "3.png", bins, lines, "waiting"))


def test_colours_stay_with_queues() -> None:
    """A queue keeps its colour, and neighbours differ."""
    colours = plots.Colours()
    given = [colours.of(name) for name in HOSTILE]
    assert given == [colours.of(name) for name in HOSTILE]
    assert len({*given, colours.of(None)}) == len(HOSTILE) + 1


class Reader(HTMLParser):
    """Parses a page: its elements, their attributes, and the texts of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: dict[str, set[str]] = {}
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def hostile_page(text: str) -> str:
    return render(
        Page(
            title=text,
            subtitle=text,
            numbers=[Number(text, text, text)],
            sections=[
                Section(text, text, Picture(b"png", text)),
                Section(text, text, table=Table([text], [[text]])),
                Section(text, text, empty=text),
            ],
            warnings=[text],
            files=[("a.csv", text)],
        )
    )


def test_render_escapes_all_text() -> None:
    """Whatever a text is, the page has the same elements, each closed, and loads nothing from elsewhere."""
    plain_page = Reader(hostile_page("x"))
    for text in ("</style><script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "&lt;b&gt;", *HOSTILE):
        page = Reader(hostile_page(text))
        assert page.tags == plain_page.tags
        assert not page.open
        assert page.attributes.keys() == plain_page.attributes.keys()
        assert sum(printable(text) in shown for shown in page.texts) == 17
    assert {"script", "link", "iframe", "object"}.isdisjoint(plain_page.tags)
    assert plain_page.attributes["src"] == {"data:image/png;base64,cG5n"}
    assert plain_page.attributes["href"] == {"a.csv"}
    assert not re.search(r"https?:|url\(|@import", hostile_page("x"))
    assert "prefers-color-scheme: dark" in hostile_page("x")


def test_building_replaces_whole_report(tmp_path: Path) -> None:
    """Whole, or not at all: what fails on the way leaves an earlier one as it was, and nothing beside it."""
    place = tmp_path / "above" / "report"
    for content in ("one", "two"):
        assert check_target(str(place)) == place
        with building(place) as work:
            assert work.parent == place.parent
            (work / "report.json").write_text('{"kind": "qs-pipeline report"}')
            (work / content).touch()
        assert sorted(path.name for path in place.iterdir()) == sorted([content, "report.json"])
    with pytest.raises(ZeroDivisionError), building(place) as work:
        (work / "three").write_text(str(1 / 0))
    with pytest.raises(PipelineError, match=r"cannot be written to .*report: No space left"), building(place):
        raise OSError(28, "No space left on device")
    assert (place / "two").exists()
    assert [path.name for path in place.parent.iterdir()] == ["report"]


@pytest.mark.parametrize("mark", ["", "[1]", '{"kind": "other"}'])
def test_check_target_refuses_other_directories(tmp_path: Path, mark: str) -> None:
    """A directory that is not a report of ours, even if it has a file of that name. A symlink means where it leads."""
    (tmp_path / "report.json").write_text(mark)
    with pytest.raises(UsageError, match="is neither empty nor an earlier report"):
        check_target(str(tmp_path))
    link = tmp_path / "link"
    link.symlink_to("elsewhere")
    assert check_target(str(link)) == tmp_path / "elsewhere"
