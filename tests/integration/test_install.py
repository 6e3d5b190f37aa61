"""The wheel and the sdist: they build, and in a clean environment every command runs without the checkout."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.serving import PROJECT

from qs_web.command import INSTALL

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
COMMANDS = sorted(PYPROJECT["project"]["scripts"])
FILES = ("qs_schemas/qs.xsd", "qs_schemas/py.typed", "qs_client/py.typed", "qs_web/templates/base.html")


class Environment:
    """A new virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)

    def run(self, program: str, *words: object, **options: object) -> subprocess.CompletedProcess[str]:
        """Runs an installed program, as a user without a checkout does."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QS_"))}
        variables["PATH"] = f"{self.folder / 'bin'}:{variables['PATH']}"
        command = [str(self.folder / "bin" / program), *map(str, words)]
        defaults = {"capture_output": True, "text": True, "timeout": 300, "env": variables, "cwd": self.folder}
        return subprocess.run(command, check=False, **{**defaults, **options})  # type: ignore[call-overload,no-any-return]

    def pip(self, *words: object) -> None:
        """Runs pip, which has to succeed."""
        done = self.run("python", "-m", "pip", "-q", "--disable-pip-version-check", *words)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", name="fresh")
def _fresh(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with what qs needs, and what builds it; both from the registry."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    wanted = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["build-system"]["requires"]]
    done = environment.run("python", "-m", "pip", "-q", "--retries", "1", "--timeout", "20", "install", *wanted)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: pip cannot install {wanted}: is there no network? {done.stderr[-300:]}")
    return environment


@pytest.fixture(scope="module", name="built")
def _built(fresh: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, the sdist, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = fresh.run("python", "-m", "hatchling", "build", "-d", folder, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    again = folder / "again"
    fresh.pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", again, sdist)
    return {"wheel": wheel, "sdist": sdist, "from sdist": next(again.glob("*.whl"))}


@pytest.mark.long  # 2 min for both, with a network: wheel, sdist and two environments are made
def test_the_wheel_is_complete(built: dict[str, Path]) -> None:
    """The wheel has every module and data file of the packages and nothing else, built from the checkout or from the
    sdist. Takes about 40 s with what it needs, from a registry nearby."""
    names = {kind: sorted(zipfile.ZipFile(built[kind]).namelist()) for kind in ("wheel", "from sdist")}
    assert names["wheel"] == names["from sdist"]
    assert not set(FILES) - set(names["wheel"])
    packages = [Path(each) for each in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    modules = {
        str(path.relative_to(PROJECT / package.parent))
        for package in packages
        for path in (PROJECT / package).rglob("*.py")
    }
    assert {name for name in names["wheel"] if name.endswith(".py")} == modules


@pytest.mark.long  # 2 min for both, with a network: wheel, sdist and two environments are made
def test_the_commands_run(built: dict[str, Path], fresh: Environment) -> None:
    """In an environment with nothing but the wheel and what it needs, each command shows its help and its version, and
    a message goes through a server. Takes about 15 s."""
    fresh.pip("install", "--no-deps", "--no-index", built["from sdist"])
    fresh.pip("check")
    for command in COMMANDS:
        done = fresh.run(command, "--help")
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.startswith(f"usage: {command} ")
        assert fresh.run(command, "--version").stdout.endswith(f" {PYPROJECT['project']['version']}\n")
    done = fresh.run("queue-web.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f": {INSTALL}\n")
    assert shlex.split(INSTALL)[2:] == PYPROJECT["project"]["optional-dependencies"]["web"]
    script = (
        'queue-server.py --port 0 >listening & server=$!; trap "kill $server" EXIT\n'
        "until grep -q listening listening 2>/dev/null; do read -r -t 0.1 <> <(:) || true; kill -0 $server; done\n"
        'export QS_SERVER=$(sed "s/.* //" listening)\n'
        "qs new orders && qs push orders 'two apples' && qs receive orders --delete"
    )
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=100, cwd=fresh.folder,
        env={**os.environ, "PATH": f"{fresh.folder / 'bin'}:{os.environ['PATH']}"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d+\ntwo apples\n", done.stdout)
