"""scripts/man: the man pages are made from the help, and a formatter takes them without a warning."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.serving import PROJECT

COMMANDS = ("qs", "qs-dir", "qs-pipeline", "queue-bus.py", "queue-journal.py", "queue-server.py", "queue-web.py")


@pytest.fixture(scope="module", name="pages")
def _pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with all pages. Takes about 3 s."""
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([PROJECT / "scripts" / "man", folder], check=True, capture_output=True, timeout=100)
    return folder


def test_every_command_has_a_page(pages: Path) -> None:
    """Each page has its name, what it is for, and the sections of its flags."""
    assert sorted(path.stem for path in pages.iterdir()) == sorted(COMMANDS)
    for command in COMMANDS:
        text = (pages / f"{command}.1").read_text()
        assert text.startswith(f'.TH {command.upper().replace("-", chr(92) + "-")} "1"')
        for part in (".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", "print\\-completion"):
            assert part in text, (command, part)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_formatter_takes_it(command: str, pages: Path) -> None:
    """man shows it, or mandoc or groff where there is no man, and none of them warns."""
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
