"""The page docs/testing.md: its tests pass, also in an environment that has nothing but the wheel, and fail for
careless workers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers.processes import PROJECT

PAGE = (PROJECT / "docs" / "testing.md").read_text()
FILES = dict(re.findall(r'```python title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL))
USUAL = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON", "QS_"))}
CARELESS = {
    "acknowledges_first": "test_a_job_that_fails_is_tried_again",
    "packs_twice": "test_a_message_that_comes_twice_is_packed_once",
    "dies_of_a_restart": "test_a_server_that_is_killed_is_survived",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    folder = tmp_path / "page"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def run(folder: Path, *words: str, python: str | Path = sys.executable) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, env=USUAL, capture_output=True, text=True, timeout=100, check=False)


def test_the_tests_of_the_page(folder: Path) -> None:
    """Each test of the page passes, and pytest prints what the page shows."""
    shown = run(folder, "test_first.py", "test_worker.py")
    assert re.fullmatch(r"\.{4} +\[100%\]\n4 passed in .*\n", shown.stdout), shown.stdout + shown.stderr
    assert "4 passed in …" in PAGE
    done = run(folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("worker", CARELESS)
def test_a_careless_worker_fails(folder: Path, worker: str) -> None:
    """Each careless worker fails the test that is about its fault."""
    tests = FILES["test_worker.py"].replace("from worker import", f"from {worker} import")
    (folder / "test_worker.py").write_text(tests)
    done = run(folder, "test_worker.py", "-k", CARELESS[worker], "-p", "no:threadexception")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout


@pytest.mark.slow  # some 30 s, with a registry nearby
def test_in_a_fresh_environment(folder: Path, tmp_path: Path) -> None:
    """The page's tests pass in a new environment with the wheel, its extra, and what the page names."""
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True, timeout=100)

    def pip(*words: object) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "pip", "-q", "--disable-pip-version-check", *map(str, words)]
        return subprocess.run(command, env=USUAL, capture_output=True, text=True, timeout=110, check=False)

    made = pip("--retries", "1", "--timeout", "20", "wheel", "--no-deps", "-w", tmp_path / "dist", PROJECT)
    if made.returncode != 0 and "connection" in made.stderr.lower():
        pytest.skip(f"NOT TESTED: pip has no network to build the wheel: {made.stderr[-300:]}")
    assert made.returncode == 0, made.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    done = pip("install", f"{wheel}[testing]", "pytest", "hypothesis")
    assert done.returncode == 0, done.stderr
    tested = run(folder, python=python)
    assert tested.returncode == 0, tested.stdout + tested.stderr
