"""docs/clients.md says of every trouble what the clients raise."""

import re

from support.client_scenarios import SCENARIOS
from support.serving import PROJECT


def test_the_table_of_trouble() -> None:
    """The page's table is the one that every client is tested against."""
    page = (PROJECT / "docs" / "clients.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (?:`(\w+)`|nothing) \|$", page, re.MULTILINE)
    assert rows == [(each.what, each.raises.__name__ if each.raises else "") for each in SCENARIOS]
