"""A first try in a checkout: help without an installation, and one line from a Python that is too old."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.processes import PROJECT

SCRIPTS = PROJECT / "scripts"
LINE = r"qs needs Python 3\.11 or newer, and this is {}: set PYTHON to a newer one, .*"
COMMANDS = sorted(path.name for path in SCRIPTS.glob("queue-*.py"))


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """The scripts of a checkout in which nothing is installed."""
    target = tmp_path / "checkout"
    shutil.copytree(SCRIPTS, target / "scripts", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(PROJECT / name, target)
    return target


def ended(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    variables = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=variables)


def old_pythons() -> Iterator[str]:
    """Yields the interpreters older than 3.11 that this machine has: those of pyenv, and python3.10 and the like."""
    yield from map(str, sorted(Path("~/.pyenv/versions").expanduser().glob("*/bin/python")))
    for minor in range(6, 11):
        if found := shutil.which(f"python3.{minor}"):
            yield found


@pytest.mark.parametrize("name", ["entry.py", *COMMANDS])
def test_any_python_can_read_the_entries(name: str) -> None:
    """The files that find out about the version have no syntax that an old Python does not know."""
    tree = ast.parse((SCRIPTS / name).read_text(), feature_version=(3, 4))
    new = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Starred)  # what Python 2.7 does not read
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert not [node for node in ast.walk(tree) if isinstance(node, new)]
    assert not [each for function in functions for each in (function.returns, *function.args.kwonlyargs) if each]


def test_start_can_be_read_too() -> None:
    """`scripts/start.py` needs no more than Python 3.6 to say that it needs more."""
    ast.parse((SCRIPTS / "start.py").read_text(), feature_version=(3, 6))


def test_which_version_is_too_old() -> None:
    """The bound is that of pyproject.toml."""
    too_old = runpy.run_path(str(SCRIPTS / "entry.py"), run_name="entry")["too_old"]
    assert too_old(sys.version_info) is None
    assert too_old((3, 11, 0, "final", 0)) is None
    for version in ((2, 7, 18), (3, 10, 13)):
        assert re.fullmatch(LINE.format(".".join(map(str, version))), too_old((*version, "final", 0)))
    assert 'requires-python = ">=3.11"' in (PROJECT / "pyproject.toml").read_text()


def test_an_old_python_gets_one_line(checkout: Path) -> None:
    """Each script and scripts/run end with one line, with each old Python of this machine. Takes about 5 s."""
    tried = 0
    for python in old_pythons():
        version = ended(python, "-c", "import sys; sys.stdout.write('%d.%d.%d' % sys.version_info[:3])").stdout
        if not version or tuple(map(int, version.split("."))) >= (3, 11):
            continue
        tried += 1
        for name in COMMANDS:
            done = ended(python, "-B", checkout / "scripts" / name, "--help")
            assert re.fullmatch(f"{name}: {LINE.format(version)}\n", done.stderr), done.stderr
            assert (done.returncode, done.stdout) == (1, "")
        for words in ([], ["--help"]):
            done = ended(checkout / "scripts" / "run", *words, PYTHON=python)
            assert re.fullmatch(f"{LINE.format(version)}\n", done.stderr), done.stderr
            assert done.returncode == 1
    assert not (checkout / ".venv").exists()
    if not tried:
        pytest.skip("NOT TESTED: this machine has no Python older than 3.11")


def test_help_without_an_installation(checkout: Path) -> None:
    """`./scripts/run --help` answers at once and installs nothing; a missing Python is named."""
    for flag in ("--help", "-h"):
        done = ended(checkout / "scripts" / "run", "--port", "1", flag, PYTHON=sys.executable)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: run ")
    done = ended(checkout / "scripts" / "run", PYTHON="no-such-python")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "there is no no-such-python: install it" in done.stderr
    assert not (checkout / ".venv").exists()


def test_not_installed_yet(checkout: Path) -> None:
    """A script that finds no qs says how to get it. -S: without this environment's packages."""
    for name in COMMANDS:
        done = ended(sys.executable, "-S", "-B", checkout / "scripts" / name)
        assert (done.returncode, done.stderr) == (
            1,
            f"{name}: not installed yet: run ./scripts/run once, or pip install the project\n",
        )
