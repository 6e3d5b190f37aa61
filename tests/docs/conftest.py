"""Fixtures that run what the pages show."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.console import Block, Console, Step, blocks, matches, steps

_SLEEP = re.compile(r"sleep [0-9.]+")
_PATIENCE = 60
"""Seconds within which a command after a `sleep` has to print what the page shows."""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """A console in an empty folder."""
    folder = tmp_path / "console"
    folder.mkdir()
    opened = Console(folder)
    try:
        yield opened
    finally:
        opened.close()


def _run_patiently(console: Console, step: Step, patience: float) -> str:
    """Returns the output of the command. After a `sleep` on the page, nobody sleeps: the command is repeated until it
    prints what the page shows, or the seconds are over. So it must be one that only looks."""
    until = time.monotonic() + patience
    while True:
        printed = console.run(step)
        if matches(step.expected, printed) or time.monotonic() >= until:
            return printed


def _names(command: str, title: str) -> bool:
    """Tells whether a command needs a program: it names the file, or a function of the module."""
    return title in command or f" {title.removesuffix('.py')}:" in command


@pytest.fixture
def run_console_blocks(console: Console) -> Callable[..., int]:
    """Runs every console block of a page, in their order, and compares what each command prints; how many there were.
    Python blocks whose title is the name of a file are written to it before the first command that names it.

    port: of the server that the page means, where the page starts none; on: the console to run them in, None for a new
    one. `sleep`: see `_run_patiently`."""
    usual = console

    def run(page: Path, port: int | None = None, on: Console | None = None) -> int:
        console = on or usual
        if port is not None:
            console.point_to(port)
        text = page.read_text(encoding="utf-8")
        found = [step for block in blocks(text, "console") for step in steps(block)]
        programs = [block for block in blocks(text, "python") if block.title]
        patience = 0.0
        for step in found:
            if _SLEEP.fullmatch(step.command):
                patience = _PATIENCE
                continue
            for program in [each for each in programs if _names(step.command, each.title)]:
                console.write(program)
                programs.remove(program)
            printed = _run_patiently(console, step, patience)
            patience = 0.0
            assert matches(step.expected, printed), (
                f"{page.name} line {step.line}: $ {step.command}\n"
                f"the page shows:\n{step.expected}\nit printed:\n{printed}"
            )
        console.compare_tails()
        return len(found)

    return run


@pytest.fixture
def fenced_blocks() -> Callable[[str, str], list[Block]]:
    """The function `blocks`."""
    return blocks
