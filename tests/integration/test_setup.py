"""`scripts/setup.sh`, which installs qs into `.venv`."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
PYTHON = """#!/bin/sh
# Makes an environment like `python -m venv`, whose last file is `activate`; runs everything else.
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"; printf '#!/bin/sh\\n' > "$3/bin/python"; chmod +x "$3/bin/python"; touch "$3/bin/activate"
else
    exec "{python}" "$@"
fi
"""


def test_a_set_up_that_was_cut_off(tmp_path: Path) -> None:
    """An environment without `activate`, as a Ctrl-C leaves it, is completed by the next set-up."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    half = tmp_path / ".venv" / "bin" / "python"
    half.parent.mkdir(parents=True)
    python = tmp_path / "python"
    for path, text in ((half, "#!/bin/sh\n"), (python, PYTHON.format(python=sys.executable))):
        path.write_text(text)
        path.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python)}
    subprocess.run(
        ["bash", "-c", '. scripts/setup.sh && setup ""'], cwd=tmp_path, env=environment, check=True, timeout=60
    )
    assert (half.parent / "activate").exists()
    assert (tmp_path / ".venv" / ".qs-setup").exists()


@pytest.mark.parametrize(("extra", "pinned"), [("web", "run"), ("dev", "dev")])
def test_nothing_without_a_hash(tmp_path: Path, extra: str, pinned: str) -> None:
    """Without uv, pip installs only what has a hash in requirements/, also to build a package, and qs itself without
    looking for anything."""
    done, asked = set_up(tmp_path, extra, fails_at="nothing")
    assert done.returncode == 0, done
    build, packages, own, _ = asked
    assert {"--require-hashes", "--only-binary", "requirements/build.txt"} <= {*build}
    assert {"--require-hashes", "--no-build-isolation", f"requirements/{pinned}.txt"} <= {*packages}
    assert {"--no-deps", "--no-build-isolation", "."} <= {*own}


@pytest.mark.parametrize(
    ("fails_at", "says"),
    [
        ("build.txt", "which package of requirements/run.txt or requirements/build.txt"),
        ("run.txt", "A wrong hash means"),
        ("--editable", "could not install qs itself"),
    ],
)
def test_a_set_up_that_fails(tmp_path: Path, fails_at: str, says: str) -> None:
    """A set-up that fails says what could not be installed, and is not taken for one that is done."""
    done, _ = set_up(tmp_path, "web", fails_at=fails_at)
    assert (done.returncode, says in done.stderr) == (1, True), done
    assert not (tmp_path / ".venv" / ".qs-setup").exists()


def test_bytecode(tmp_path: Path) -> None:
    """A set-up compiles qs, so that no start has to, also where Python may not write bytecode."""
    _, asked = set_up(tmp_path, "web", fails_at="nothing")
    packages = tomllib.loads((SCRIPTS.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
    assert asked[-1] == ["-m", "compileall", "-q", *packages]


def set_up(folder: Path, extra: str, *, fails_at: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Runs a set-up whose pip only notes its arguments, and fails at one. Returns what was said, and the arguments of
    each call of pip."""
    shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (python.parent / "activate").touch()
    python.write_text(f'#!/bin/sh\necho "$*" >>"{folder}/asked"\ncase "$*" in *{fails_at}*) exit 1 ;; esac\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f'. scripts/setup.sh && setup "{extra}"'],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done, [line.split() for line in (folder / "asked").read_text().splitlines()]
