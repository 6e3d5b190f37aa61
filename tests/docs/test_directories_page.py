"""docs/directories.md is true and complete: its examples are run, and it names every flag, state and exit code."""

import re
from collections.abc import Callable

import pytest
from support.serving import PROJECT

from qs_server.main import qs_dir
from qs_storage.tools import elements
from qs_storage.tools.elements import LAYOUTS, STATES

PAGE = PROJECT / "docs" / "directories.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_examples(run_console_blocks: Callable[..., int]) -> None:
    """The examples print what the page shows."""
    assert run_console_blocks(PAGE) > 8


@pytest.mark.parametrize("command", ["pump", "sink", "ls", "purge"])
def test_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has a section for each command, and names every flag of it."""
    assert f"\n## {command}\n" in TEXT
    with pytest.raises(SystemExit):
        qs_dir.main([command, "--help"])
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out))
    assert len(flags) > 3
    assert [flag for flag in flags if not re.search(rf"`(qs-dir \w+ )?{flag}\b", TEXT)] == []


def test_every_state_and_layout() -> None:
    """The page explains each state as ls shows it, and each layout."""
    shown = [qs_dir.shown(state) for state in STATES]
    assert [word for word in (*shown, *LAYOUTS) if f"`{word}`" not in TEXT] == []


def test_defaults() -> None:
    """The page gives the defaults of purge."""
    [temp, lock] = [row for row in TEXT.splitlines() if re.match(r"\| `--max-(temp|lock) S`", row)]
    assert re.findall(r"default: (\d+)", temp) == [str(elements.MAX_TEMP_VSQS), str(elements.MAX_TEMP)]
    assert re.findall(r"default: (\d+)", lock) == [str(elements.MAX_LOCK)]
