"""docs/monitoring.md is true: its commands print what it shows, and its tables are those of the code."""

import re
from collections.abc import Callable

from support.prometheus import ALERTS
from support.serving import PROJECT

from qs_web.metrics import BUS, FIGURES, QUEUES, TOTALS

PAGE = PROJECT / "docs" / "monitoring.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_commands(run_console_blocks: Callable[..., int]) -> None:
    """The commands print what the page shows."""
    assert run_console_blocks(PAGE) > 8


def test_every_metric() -> None:
    """Each metric stands there with the text that Prometheus shows."""
    rows = dict(re.findall(r"^\| `(qs_\w+)` \| (.+) \|$", TEXT, re.MULTILINE))
    expected = {
        f"qs_{prefix}{name}": text.rstrip(".").lower()
        for prefix, texts in (("", {**TOTALS, **FIGURES, **QUEUES}), ("bus_", BUS))
        for name, text in texts.items()
    }
    assert {name: text.lower() for name, text in rows.items()} == expected


def test_every_alert() -> None:
    """Each alert stands there, in the order of the file."""
    assert re.findall(r"^\| `(Qs\w+)` \|", TEXT, re.MULTILINE) == re.findall(r"- alert: (\w+)", ALERTS.read_text())
