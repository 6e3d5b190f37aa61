"""`scripts/man`, as the build of a wheel does: the pages are made from the help with nothing installed, and a formatter
takes them without a warning."""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.servers.processes import PROJECT

from qs_client.command_arguments import make_parser

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
COMMANDS = sorted(PYPROJECT["project"]["scripts"])


@pytest.fixture(scope="module", name="pages")
def _pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with all pages. Takes about 1 s."""
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([PROJECT / "scripts" / "man", folder], check=True, capture_output=True, timeout=100)
    return folder


def test_every_command_has_a_page(pages: Path) -> None:
    """Each page has its name, what it is for, and the sections of its flags."""
    assert sorted(path.stem for path in pages.iterdir()) == COMMANDS
    for command in COMMANDS:
        text = (pages / f"{command}.1").read_text()
        assert text.startswith(f'.TH {command.upper().replace("-", chr(92) + "-")} "1"')
        for part in (".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", "print\\-completion"):
            assert part in text, (command, part)


def test_a_page_is_complete(pages: Path) -> None:
    """The page of `qs` has every flag of every command of it, with its help, and the flags that all share once."""
    text = (pages / "qs.1").read_text().replace("\\-", "-")
    parser = make_parser()
    [commands] = [each.choices for each in parser._actions if isinstance(each.choices, dict)]
    for name, command in commands.items():
        for action in command._actions:
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
                assert all(f"\\fB{flag}\\fR" in text for flag in action.option_strings), (name, action)
                assert "%" in (action.help or "") or (action.help or "") in text, (name, action)
    assert text.count("\\fB--token-file\\fR") == 1


def test_nothing_is_installed(tmp_path: Path) -> None:
    """In a new checkout it writes to the directory that is named, and nothing else; without one it says so."""
    for each in ("scripts", "packaging", *PYPROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]):
        shutil.copytree(PROJECT / each, tmp_path / each, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    before = {*tmp_path.rglob("*")}

    def man(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "scripts" / "man", *words], cwd=tmp_path, env={**os.environ, "PYTHON": sys.executable},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    done = man()
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no .venv: name a directory" in done.stderr
    done = man("pages")
    assert (done.returncode, done.stderr) == (0, "")
    pages = {tmp_path / "pages", *(tmp_path / "pages" / f"{command}.1" for command in COMMANDS)}
    assert {*tmp_path.rglob("*")} - before == pages


@pytest.mark.parametrize("command", COMMANDS)
def test_a_formatter_takes_it(command: str, pages: Path) -> None:
    """`man` shows it, or mandoc or groff where there is no man, and none of them warns."""
    path = str(pages / f"{command}.1")
    formatters = {
        "man": ["man", "--warnings", "-E", "UTF-8", "-l", path],
        "mandoc": ["mandoc", "-T", "utf8", "-W", "error", path],
        "groff": ["groff", "-man", "-T", "utf8", "-ww", path],
    }
    found = next((name for name in formatters if shutil.which(name)), None)
    if found is None:
        pytest.skip("NOT TESTED: there is neither man nor mandoc nor groff")
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"}
    done = subprocess.run(formatters[found], capture_output=True, text=True, check=True, env=environment, timeout=60)
    assert done.stderr == ""
    assert "--print-completion SHELL" in done.stdout
