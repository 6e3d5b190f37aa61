"""docs/dead-letters.md is true: its commands and its program are run, and print what it shows."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.serving import FAST, PROJECT, serving

PAGE = PROJECT / "docs" / "dead-letters.md"


def test_the_commands(run_console_blocks: Callable[..., int]) -> None:
    """The commands show a message from its first failure to its success, messages that grow too old, and a pause."""
    assert run_console_blocks(PAGE) > 15


def test_the_program(fenced_blocks: Callable[..., list[object]], tmp_path: Path) -> None:
    """The program in Python prints what is shown below it."""
    page = PAGE.read_text(encoding="utf-8")
    [program], [printed] = (fenced_blocks(page, language) for language in ("python", "text"))
    with serving(tmp_path / "root", *FAST) as server:
        body = program.body.replace("9876", str(server.port))  # type: ignore[attr-defined]
        done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (printed.body, "")  # type: ignore[attr-defined]
