"""docs/clients.md says of every trouble what the clients raise, and its programs about dead letters run."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.client_scenarios import SCENARIOS
from support.serving import FAST, PROJECT, serving

PAGE = PROJECT / "docs" / "clients.md"


def test_the_table_of_trouble() -> None:
    """The page's table is the one that every client is tested against."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (?:`(\w+)`|nothing) \|$", page, re.MULTILINE)
    assert rows == [(each.what, each.raises.__name__ if each.raises else "") for each in SCENARIOS]


def test_the_programs_about_dead_letters(fenced_blocks: Callable[..., list[object]], tmp_path: Path) -> None:
    """The sync one and the async one print what happens to a message that fails."""
    section = PAGE.read_text(encoding="utf-8").partition("## Messages that fail")[2].partition("\n## ")[0]
    printed = []
    with serving(tmp_path / "root", *FAST) as server:
        for block in fenced_blocks(section, "python"):
            body = block.body.replace("9876", str(server.port))  # type: ignore[attr-defined]
            done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
            assert done.stderr == ""
            printed.append(re.sub(r"\d{16}", "ID", done.stdout))
    options = "QueueOptions(storage='journal', visibility=30.0, capacity=None, retention=None, dead_letter='failed'"
    assert printed[0].startswith(options)
    assert printed[0].splitlines()[1:] == ["orders ID 1 receives ID", "[ID]", "True 1 0 0 0"]
    assert printed[1] == "parcels 1 receives\n1\n1 True\n"
