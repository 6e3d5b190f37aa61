"""docs/history.md is true and complete: its example is run, and it names all that a line can say."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from support.engines import ManualClock
from support.serving import PROJECT

from qs_server.history.history import open_history
from qs_server.main.options import HistoryOptions
from qs_storage.shared import Event

PAGE = PROJECT / "docs" / "history.md"
TEXT = PAGE.read_text(encoding="utf-8")


def rows(header: str) -> list[str]:
    """The first cells of the table that begins so, without their quotes."""
    table = TEXT.partition(f"| {header} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)


def test_the_example(run_console_blocks: Callable[..., int]) -> None:
    """The example prints what the page shows."""
    assert run_console_blocks(PAGE) > 3


def test_every_event() -> None:
    """The page has a row for each event, and no other."""
    assert sorted(rows("event")) == sorted(get_args(Event))


def test_every_member(tmp_path: Path, fenced_blocks: Callable[..., list[Any]]) -> None:
    """The page has a row for each member of a line, and a column of Spark's schema, in the line's order."""
    history = open_history(HistoryOptions(str(tmp_path)), str(tmp_path / "root"), ManualClock())
    history.note("pushed", "q", 1, 2, 3)
    history.close()
    [path] = tmp_path.iterdir()
    line = json.loads(path.read_text())
    assert rows("member") == list(line)
    [program] = fenced_blocks(TEXT, "python")
    schema = re.search(r'^schema = "(.*)"$', program.body, re.MULTILINE)
    assert schema is not None
    columns = dict(column.split() for column in schema[1].split(","))
    assert list(columns) == list(line)
    types = {int: {"BIGINT", "INT"}, str: {"STRING"}}
    assert all(columns[name] in types[type(value)] for name, value in line.items())


def test_defaults() -> None:
    """The page gives the defaults."""
    default = HistoryOptions("")
    assert f"| `--history-size BYTES` | {default.size} |" in TEXT
    assert f"| `--history-age SECONDS` | {default.age:g} |" in TEXT
