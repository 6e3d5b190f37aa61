"""docs/security.md: its example is run, its drop-in is one that systemd understands."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.serving import PROJECT

PAGE = PROJECT / "docs" / "security.md"
UNIT = PROJECT / "docs" / "operations.md"


def test_the_example(run_console_blocks: Callable[..., int]) -> None:
    """The CA, the certificates, the access file, the server, the bus and the clients do what the page shows."""
    assert run_console_blocks(PAGE) > 20


def test_five_commands(fenced_blocks: Callable[..., list[Any]]) -> None:
    """The first block makes the CA and the certificates, with as many commands of openssl as the page says."""
    first = fenced_blocks(PAGE.read_text(encoding="utf-8"), "console")[0]
    assert first.body.count("$ openssl ") == 5


@pytest.fixture
def unit(tmp_path: Path, fenced_blocks: Callable[..., list[Any]]) -> Path:
    """The unit of docs/operations.md with the drop-in of this page; programs are ones that exist here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed, so the drop-in of docs/security.md was not verified")
    unit = tmp_path / "qs.service"
    drop_in = tmp_path / "qs.service.d" / "security.conf"
    drop_in.parent.mkdir()
    for path, page in ((unit, UNIT), (drop_in, PAGE)):
        [block] = fenced_blocks(page.read_text(encoding="utf-8"), "ini")
        path.write_text(block.body.replace("/opt/qs/.venv/bin/queue-server.py", "/bin/true"))
    return unit


def test_the_drop_in(unit: Path) -> None:
    """systemd knows every line of it."""
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_rating(unit: Path) -> None:
    """The page says how systemd rates the unit."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze rates no unit from a file, so the rating was not compared")
    rated = re.search(r"exposure level for qs.service: (\d+\.\d) (\w+)", done.stdout)
    assert rated is not None, done.stdout + done.stderr
    assert f'rates the unit {rated[1]}, "{rated[2]}"' in " ".join(PAGE.read_text(encoding="utf-8").split())
