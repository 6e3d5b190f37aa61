"""Tests the page of a report in a browser: nothing of it is cut, on a wide screen and on a phone. It is built from
figures, without Spark."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from support.servers.web import Chromium, chromium

from qs_pipeline.report import plots, series
from qs_pipeline.report.contents import Results, listed
from qs_pipeline.report.page import Page, Picture, Section, render

pytestmark = pytest.mark.slow  # some 5 s: a browser starts

BEGIN = datetime(2025, 11, 21, tzinfo=UTC)
MANY = 1_234_567_890
"""More messages than any queue of ten years, so that every number is as wide as it gets."""
LONG = "a-queue-with-quite-a-long-name-as-they-are-in-the-wild." * 3

CUT = """
const sideways = (element) => element.scrollWidth > element.clientWidth;
const right = document.documentElement.clientWidth;
const beyond = (element) => element.checkVisibility() && element.getBoundingClientRect().right > right + 1;
return [...document.querySelectorAll(".wide, figure")].filter(sideways).map((each) => each.innerText)
  .concat([...document.querySelectorAll("td, th, p, dd, img, label")].filter(beyond).map((each) => each.outerHTML));
"""
"""The tables and plots that have to be moved sideways to be seen whole, and what is beyond the right edge."""


class Figures:
    """Stands in for the tables of Spark: two messages in each list."""

    conditions = None

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        row = {
            "queue": "orders", "mid": 1_760_000_000_000_000, "receives": 1000, "expired": 999, "released": 999,
            "size": 123_456, "pushed": BEGIN, "last_received": BEGIN, "state": "handed out", "waited": 1.23e6,
            "begin": BEGIN, "end": BEGIN, "ended_by": "nothing",
        }  # fmt: skip
        yield from (row, row | {"queue": LONG})


def queue_row(queue: str) -> dict[str, Any]:
    counts = (
        "pushed", "received", "redelivered", "deleted", "expired", "released", "depth", "dead", "redriven", "retired",
        "waiting_count", "handling_count",
    )  # fmt: skip
    times = {f"{kind}_{rank}": 754.0 for kind in ("waiting", "handling") for rank in ("p50", "p95", "p99", "max")}
    return {"queue": queue, **dict.fromkeys(counts, MANY), **times}


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A window with a report that has every table and a plot."""
    folder = tmp_path_factory.mktemp("report")
    bins = series.Bins(series.micros(BEGIN), 3600 * series.SECOND, 6)
    plot = plots.depth(folder / "depth.png", bins, [("orders", [3.0] * 6)], plots.Colours()).read_bytes()
    sections = [
        Section("Depth", "Messages.", Picture(plot, "Plot")),
        *listed(cast(Results, Figures()), [queue_row(name) for name in ("orders", "mail", LONG)]),
    ]
    (folder / "index.html").write_text(render(Page("Queues", "What happened", [], sections)), encoding="utf-8")
    with chromium(f"file://{folder}") as browser:
        yield browser


@pytest.mark.parametrize("width", [1700, 1200, 1100, 768, 390, 320])
def test_nothing_is_cut(window: Chromium, width: int) -> None:
    """Every table and plot is whole: as a table on a wide screen, as blocks of names and values on a narrow one."""
    window.resize(width, 900)
    window.open("/index.html")
    assert len(window.all(".wide")) == 5
    assert window.run(CUT) == []
    assert window.one("thead").is_displayed() == (width >= 1200)
    heads = window.run("return getComputedStyle(document.querySelector('td:nth-child(2)'), '::before').content")
    assert heads == ("none" if width >= 1200 else '"message"')
    window.run("document.querySelector('.wide').style.width = '10px'")
    assert window.run(CUT) != []  # it would be noticed


def test_enlarging_a_plot(window: Chromium) -> None:
    """On a phone a plot is as wide as the screen; its check box makes it three times as wide, to be moved sideways. A
    wide screen has no need of that."""
    window.resize(390, 900)
    window.open("/index.html")
    plot, box = window.one("figure img"), window.one("figure label")
    assert plot.size["width"] <= 390
    assert box.size["height"] >= 44  # for a finger
    box.click()
    window.until(lambda: plot.size["width"] > 1000)
    assert int(str(window.run("return document.documentElement.scrollWidth"))) <= 390
    box.click()
    window.until(lambda: plot.size["width"] <= 390)
    window.resize(1200, 900)
    assert not box.is_displayed()
